"""The rerank routes of other services, whose clients only need another URL."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from boundarymorph.access import answers, bodies
from boundarymorph.access.access import Access
from boundarymorph.api import openapi, problems
from boundarymorph.api.dependencies import AccessOf, BuiltOf, CallerOf, SelectingOf, permitted
from boundarymorph.api.rerank import documents, mixedbread, nim, tei
from boundarymorph.api.rerank.common import ModelCard, Models, RerankFormat, RerankRequest, Wanted, unknown_fields
from boundarymorph.api.rerank.core import ranking_of, task_of
from boundarymorph.api.select import STATUS_HEADER, selected
from boundarymorph.errors import InvalidInput
from boundarymorph.inference.shares import CALLER
from boundarymorph.retrieval.learned import CalibrationSource
from boundarymorph.selector.task import SelectionTask
from boundarymorph.telemetry import metrics
from boundarymorph.telemetry.timing import Stopwatch

ROUTES: Mapping[str, tuple[RerankFormat, ...]] = {
    "/v1/rerank": (documents.COHERE_V1,),
    "/v2/rerank": (documents.COHERE_V2,),
    "/rerank": (documents.COHERE_V1, tei.TEI),
    "/infinity/rerank": (documents.INFINITY,),
    "/voyage/v1/rerank": (documents.VOYAGE,),
    "/v1/ranking": (nim.NIM,),
    "/reranking": (documents.COHERE_V1, nim.NIM, mixedbread.MIXEDBREAD),
    "/v1/reranking": (documents.COHERE_V1, nim.NIM, mixedbread.MIXEDBREAD),
}
WARNINGS_HEADER = "X-BoundaryMORPH-Warnings"
BY_POLICY = "/p/{policy}"
ALIASES = {"/reranking"}  # of documented routes
REFUSED = (400, 401, 403, 404, 408, 413, 415, 422, 424, 429, 500, 502, 503, 504)
router = APIRouter(tags=["reranking"])


def speaking(*dialects: RerankFormat) -> Callable[[Request], Awaitable[None]]:
    """Return the dependency of a route that answers problems in the first dialect, until the body shows another."""

    async def speak(request: Request) -> None:
        setattr(request.state, problems.REFUSAL, dialects[0].refusal)

    return speak


def refusal_at(path: str | None) -> problems.Refusal | None:
    """Return how the route at a path refuses requests, None if it is no rerank route."""
    return ROUTES[path][0].refusal if path is not None and path in ROUTES else None


async def rerank(request: Request, access: AccessOf, caller: CallerOf, parts: SelectingOf) -> Response:
    """Returns all documents, best first, each with a score in [0, 1]: the cross-encoder's, or the expected one if the
    budget is smaller than the list. If the caller disconnects, the work ends."""
    watch, arrival = Stopwatch(), time.monotonic()
    path: str = request.scope["route"].path.removeprefix(BY_POLICY)
    with access.admission.enter(CALLER.get()):
        with watch.stage("receive"):
            body = await bodies.read(request, access)
        with watch.stage("parse"):
            instructed = parts.scorer.takes_instruction
            wanted, task, asked, policy = await _read(
                request, access, body, ROUTES[path], caller, arrival, instructed, parts.retriever
            )
            task = replace(task, tenant=permitted(request).tenant, room=access.room(request.state.until_end))
        turn = access.admission.turn(CALLER.get(), deadline=task.deadline.moment)
        result = await bodies.while_connected(request, selected(parts.selector, task, watch, turn))
    ranking = await bodies.off_loop(
        access, body, lambda: ranking_of(result, wanted, task, asked, parts.scorer.name, policy)
    )
    count = int(result.selection.scored.sum())
    metrics.rerank_documents.labels(path, "scored").inc(count)
    metrics.rerank_documents.labels(path, "inferred").inc(len(wanted.texts) - count)
    headers = {STATUS_HEADER: result.status.value}
    if isinstance(asked, tei.TeiRequest) and ranking.diagnostics.warnings:  # whose answer has no place for them
        headers[WARNINGS_HEADER] = json.dumps(ranking.diagnostics.warnings)
    content = await answers.made(
        access,
        lambda: asked.answer(ranking).model_dump_json(exclude_none=True).encode(),
        large=len(body) >= bodies.LARGE,
    )
    return Response(content, media_type="application/json", headers=headers)


@router.get(f"{BY_POLICY}/info", include_in_schema=False)
@router.get(
    "/info",
    summary="Describe the model for clients of text-embeddings-inference",
    dependencies=[Depends(speaking(tei.TEI))],
    responses={status: {"model": tei.TeiError} for status in (401, 403, 429, 503)},
)
async def info(access: AccessOf, caller: CallerOf, parts: BuiltOf) -> tei.TeiInfo:
    """Return the cross-encoder and the limits of one request."""
    settings, scorer = access.settings, parts.scorer
    model = getattr(scorer, "model", None)  # only scorers in this process have one
    known = getattr(scorer if model is None else model, "max_length", None)
    longest = settings.max_length if known is None else known
    return tei.TeiInfo(
        model_id=scorer.name,
        model_type=tei.RERANKER,
        max_concurrent_requests=settings.sessions + settings.limits.waiting,
        max_input_length=longest,
        max_batch_tokens=longest if model is None else max(longest, model.batch_tokens),
        max_client_batch_size=settings.limits.pool,
    )


@router.get(f"{BY_POLICY}/v1/models", include_in_schema=False)
@router.get("/models", include_in_schema=False)
@router.get(
    "/v1/models",
    summary="List what `model` may name",
    dependencies=[Depends(speaking(documents.COHERE_V1))],
    responses={status: {"model": documents.RerankError} for status in (401, 403, 429, 503)},
)
async def models(access: AccessOf, caller: CallerOf, parts: BuiltOf) -> Models:
    """Return the cross-encoder, which answers whatever `model` is, and the policies."""
    names = [parts.scorer.name, *access.policies.names]
    return Models(data=[ModelCard(id=name) for name in names])


async def _read(
    request: Request,
    access: Access,
    body: bytes,
    dialects: tuple[RerankFormat, ...],
    caller: str,
    arrival: float,
    instructed: bool,
    source: CalibrationSource,
) -> tuple[Wanted, SelectionTask, RerankRequest, str]:
    """Read a request in any of the dialects. instructed: whether the scorer takes an instruction; source: of
    calibrations. Returns the name of the policy last.

    Raises InvalidInput and pydantic's ValidationError.
    """

    def load() -> tuple[RerankFormat, Any]:
        data = bodies.decoded(body, access.settings.limits)
        return _dialect(data, dialects), data

    def read() -> tuple[RerankRequest, str]:
        policy = access.policies.of(caller, request.path_params.get("policy"), data.get("model"))
        applied = policy.applied(data, dialect.request, data.get(dialect.documents))
        return dialect.request.model_validate(applied), policy.name

    def understand() -> tuple[Wanted, SelectionTask]:
        wanted = asked.wanted()
        if asked.most_passages != 1:
            if asked.distinct is not None:
                raise InvalidInput("'distinct' and 'group_by' take texts as they are: leave out 'max_chunks_per_doc'")
            wanted = wanted.cut_up(access.settings.passage_characters, asked.most_passages)
        ignored = [*wanted.ignored, *unknown_fields(data, dialect.request)]
        if asked.instruction and not instructed:
            ignored.append("instruction had no effect, as the scorer takes none; put it into the query")
        wanted = replace(wanted, ignored=ignored)
        task = task_of(asked, wanted, access.settings, arrival, calibration, field=dialect.documents)
        instruction = asked.instruction if instructed else None
        return wanted, replace(task, caller=caller, instruction=instruction or None)

    dialect, data = await bodies.off_loop(access, body, load)
    setattr(request.state, problems.REFUSAL, dialect.refusal)
    asked, policy = await bodies.off_loop(access, body, read)
    calibration = await access.calibrations.of(asked.calibration, permitted(request), source)
    wanted, task = await bodies.off_loop(access, body, understand)
    return wanted, task, asked, policy


def _dialect(data: object, dialects: tuple[RerankFormat, ...]) -> RerankFormat:
    """Return the dialect whose field for documents is present. Raises InvalidInput, which names the path of another."""
    if not isinstance(data, dict):
        raise InvalidInput("the body is not a JSON object")
    for dialect in dialects:
        if data.get(dialect.documents) is not None:
            return dialect
    missing = f"there is no {' or '.join(repr(dialect.documents) for dialect in dialects)}"
    for path, others in ROUTES.items():
        for other in others:
            if data.get(other.documents) is not None:
                raise InvalidInput(f"{missing}; a list of {other.documents!r} goes to {path}")
    return dialects[0]  # its model reports what is missing


def _responses(dialects: Sequence[RerankFormat]) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route in the format of each of its dialects."""
    answers = {200: reduce(or_, (dialect.answer for dialect in dialects))}
    errors = dict.fromkeys(REFUSED, reduce(or_, (dialect.error for dialect in dialects)))
    return {status: {"model": model} for status, model in (answers | errors).items()}


for _prefix in ("", BY_POLICY):
    for _path, _dialects in ROUTES.items():
        router.add_api_route(
            f"{_prefix}{_path}",
            rerank,
            methods=["POST"],
            summary=f"Rerank: {', '.join(dict.fromkeys(dialect.documents for dialect in _dialects))}",
            dependencies=[Depends(speaking(*_dialects))],
            openapi_extra=openapi.body(*(dialect.request for dialect in _dialects)),
            responses=_responses(_dialects),
            include_in_schema=not _prefix and _path not in ALIASES,
        )
