"""The routes of a retriever for gateways and commands: what is learned of its indexes, and from what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from boundarymorph.access.callers import Caller, Scope, seen_by
from boundarymorph.api import bodies, openapi
from boundarymorph.api.dependencies import AccessOf, BuiltOf, allowed, permitted
from boundarymorph.api.schemas import Message
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import InvalidInput
from boundarymorph.memory.memory import MOST_AT_ONCE, Audited, observations_of_json
from boundarymorph.retrieval.index_retriever import Learned
from boundarymorph.retrieval.interfaces import MemoryKey

JSON = "application/json"
PAGE = 1_000  # judgements
Route = TypeVar("Route", bound=Callable[..., Any])
router = APIRouter(tags=["retrieval"])


class Named(Message):
    """A calibration of pools."""

    name: str


class Made(Message):
    """A calibration to keep."""

    calibration: dict[str, Any]


class After(Message):
    """A page of judgements."""

    index: str
    after: int = Field(0, ge=0, description="number of the judgement after which the page begins")


def _post(path: str, summary: str, model: type[Message], scope: Scope, *statuses: int) -> Callable[[Route], Route]:
    """Return the decorator of a route with this request model for keys of this scope, and these additional errors."""
    content = {JSON: {"schema": model.model_json_schema()}}
    return router.post(
        path,
        summary=summary,
        dependencies=[Depends(allowed(scope))],
        openapi_extra={"requestBody": {"required": True, "content": content}},
        responses=openapi.problems(404, 413, 422, 503, *statuses),
    )


@_post("/calibrations", "Find a calibration", Named, Scope.SELECT)
async def find(request: Request, access: AccessOf, indexes: BuiltOf) -> Response:
    """Return those of this name, and if there are none, all names with their indexes."""
    wanted = await bodies.parsed(request, access, Named)
    found = await access.work.read.run(Learned(indexes.catalog, access.settings).find, wanted.name)
    return Response(orjson.dumps(seen_by(permitted(request), found).to_json()), media_type=JSON)


@_post("/calibrations/keep", "Keep a calibration", Made, Scope.WRITE, 507)
async def keep(request: Request, access: AccessOf, indexes: BuiltOf) -> Response:
    """Keep it with its index, or for pools, in place of an earlier one of its name."""
    given = await bodies.parsed(request, access, Made)
    made = Calibration.of_json(given.calibration)
    if made.index is not None:
        permitted(request).require(made.index)
    await access.work.write.run(Learned(indexes.catalog, access.settings).keep, made)
    return Response(b"{}", media_type=JSON)


class Asked(Message):
    """Which memory: of an index, or of pools by a name."""

    index: str | None = None
    name: str = Field("", max_length=64)
    scorer: str = Field(max_length=1_000)
    vectors: str = Field(max_length=1_000)
    tenant: str = Field("", max_length=1_000)

    def key(self, caller: Caller) -> MemoryKey:
        """Raises UnknownIndex for one that the caller does not see."""
        if self.index is not None:
            caller.require(self.index)
        return MemoryKey(self.index, self.name, self.scorer, self.vectors, self.tenant)


class Observed(Asked):
    """What requests told a memory."""

    observations: list[list[Any]] = Field(max_length=MOST_AT_ONCE)


@_post("/memories/recall", "Recall what selections have learned", Asked, Scope.SELECT)
async def recall(request: Request, access: AccessOf, indexes: BuiltOf) -> Response:
    """Return the prior in force, and from how many requests it was learned."""
    key = (await bodies.parsed(request, access, Asked)).key(permitted(request))
    found = await access.work.read.run(Learned(indexes.catalog, access.settings).recall, key)
    return Response(orjson.dumps(found.to_json()), media_type=JSON)


@_post("/memories/record", "Learn from selections", Observed, Scope.WRITE, 507)
async def record(request: Request, access: AccessOf, indexes: BuiltOf) -> Response:
    """Add to a memory what requests told: sums over the scored documents of each."""
    given = await bodies.parsed(request, access, Observed)
    key = given.key(permitted(request))
    try:
        observations = observations_of_json(given.observations)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"observations: {error}") from error
    learned = Learned(indexes.catalog, access.settings)
    await access.work.write.run(learned.record, key, observations)
    return Response(b"{}", media_type=JSON)


class AuditOf(Asked):
    """An audit of a request."""

    audited: list[Any]


@_post("/memories/audits", "Learn from an audit", AuditOf, Scope.WRITE, 507)
async def record_audit(request: Request, access: AccessOf, indexes: BuiltOf) -> Response:
    """Add to a memory the losses of a request that was scored further."""
    given = await bodies.parsed(request, access, AuditOf)
    key = given.key(permitted(request))
    try:
        found = Audited.of_json(given.audited)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"audited: {error}") from error
    await access.work.write.run(Learned(indexes.catalog, access.settings).record_audit, key, found)
    return Response(b"{}", media_type=JSON)


@_post("/judgments/events", "Read the judgements of an index", After, Scope.SELECT)
async def events(request: Request, access: AccessOf, indexes: BuiltOf) -> Response:
    """Return a page of them, oldest first: number, query, document and grade."""
    wanted = await bodies.parsed(request, access, After)
    permitted(request).require(wanted.index)

    def page() -> bytes:
        found = indexes.catalog.belongings(wanted.index).judgments.page(wanted.after, PAGE)
        rows = [(number, one.query, one.document, one.grade) for number, one in found]
        return orjson.dumps({"events": rows})

    return Response(await access.work.read.run(page), media_type=JSON)
