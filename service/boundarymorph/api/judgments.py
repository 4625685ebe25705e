"""The routes of judgements, where the indexes are: what people say of answers, to calibrate with."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from boundarymorph.access.callers import Scope
from boundarymorph.access.limits import Access
from boundarymorph.api import bodies, openapi
from boundarymorph.api.dependencies import AccessOf, BuiltOf, allowed, permitted
from boundarymorph.api.problems import UnknownDocument
from boundarymorph.api.schemas import Deleted, Judgments, Kept, KeptNow
from boundarymorph.calibration.belongings import Event
from boundarymorph.inference.concurrency import CALLER
from boundarymorph.reading import bound
from boundarymorph.retrieval.interfaces import Catalog
from boundarymorph.telemetry import metrics

router = APIRouter(prefix="/judgments", tags=["judgements"])
JUDGE, ADMIN = ([Depends(allowed(scope))] for scope in (Scope.JUDGE, Scope.ADMIN))
Place = Annotated[str, Query(description="name of the index")]
LEAST = 1e-6  # how close to 0 or 1 a relevance is taken at its word
MOST_NAMED = 20  # unknown documents in a message


@router.post(
    "",
    dependencies=JUDGE,
    summary="Say how relevant documents were",
    openapi_extra=openapi.body(Judgments),
    responses=openapi.problems(404, 413, 422, 503, 507),
)
async def add(request: Request, access: AccessOf, indexes: BuiltOf) -> KeptNow:
    """Keeps grades, by which `boundarymorph calibrate INDEX --update` learns. The index must exist.
    Judgements of documents that it does not have are left out, and their ids are in the answer."""
    given = await received(request, access)
    most, caller = access.settings.calibration.judgments, CALLER.get()
    return await access.work.write.run(_add, indexes.catalog, given, caller, most)


@router.get(
    "", dependencies=JUDGE, summary="Count the judgements of an index", responses=openapi.problems(404, 422, 503)
)
async def count(request: Request, access: AccessOf, indexes: BuiltOf, index: Place) -> Kept:
    """Return how many there are."""
    permitted(request).require(index)
    kept = await access.work.read.run(lambda: indexes.catalog.belongings(index).judgments.count())
    return Kept(kept=kept)


@router.delete("", dependencies=ADMIN, summary="Delete judgements", responses=openapi.problems(404, 422, 503, 507))
async def delete(
    request: Request,
    access: AccessOf,
    indexes: BuiltOf,
    index: Place,
    query: Annotated[str | None, Query(description="only those of this query")] = None,
) -> Deleted:
    """Delete the judgements of an index, or of one query."""
    permitted(request).require(index)
    deleted = await access.work.write.run(lambda: indexes.catalog.belongings(index).judgments.delete(query))
    return Deleted(deleted=deleted)


async def received(request: Request, access: Access) -> Judgments:
    """Return the judgements in a body. Raises UnknownIndex for an index that the caller does not see, LimitExceeded."""
    given = await bodies.parsed(request, access, Judgments)
    permitted(request).require(given.index)
    limits = access.settings.limits
    bound("query", len(given.query), limits.query_characters, "characters")
    bound("judgments", len(given.judgments), limits.judgments, "judgements")
    return given


def _add(catalog: Catalog, given: Judgments, caller: str, most: int) -> KeptNow:
    ids = list(dict.fromkeys(one.document for one in given.judgments))
    there = catalog.get(given.index).characters(ids)
    unknown = [id for id in ids if id not in there]
    if len(unknown) == len(ids):
        more = " and others" if len(ids) > MOST_NAMED else ""
        named = ", ".join(map(repr, ids[:MOST_NAMED])) + more
        raise UnknownDocument(f"the index {given.index!r} holds no document {named}; nothing was kept")
    judged = [one for one in given.judgments if one.document in there]
    events = [Event(given.query, one.document, one.grade) for one in judged]
    held = catalog.belongings(given.index)
    kept = held.judgments.add(events, caller, time.time(), most)
    metrics.judgments.inc(len(events))
    if given.calibration is None:
        _observe("no", [(one.grade, one.relevance) for one in judged])
    elif given.calibration in held.names():  # that of another index says nothing of this one
        _observe("yes", [(one.grade, one.relevance) for one in judged])
    return KeptNow(added=len(events), kept=kept, unknown=unknown)


def _observe(calibrated: str, told: Sequence[tuple[float, float | None]]) -> None:
    """Record how well relevance predicted grades. told: grade and relevance of each."""
    for grade, relevance in told:
        if relevance is not None:
            said = min(max(relevance, LEAST), 1.0 - LEAST)
            metrics.judgment_log_loss.labels(calibrated).observe(-math.log(said if grade > 0 else 1.0 - said))
