"""POST /select."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from boundarymorph.api import bodies, openapi
from boundarymorph.api.schemas import SelectRequest, SelectResponse
from boundarymorph.api.state import RoomsOf, StateOf
from boundarymorph.api.translate import response_of, task_of
from boundarymorph.selector import SelectionResult, SelectionTask, Stopwatch
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

router = APIRouter(tags=["selection"])


@router.post(
    "/select",
    summary="Select the k best documents with B cross-encoder calls",
    openapi_extra=openapi.body(SelectRequest),
    responses=openapi.problems(404, 409, 413, 422, 429, 502, 503, 504),
)
async def select(request: Request, state: StateOf, rooms: RoomsOf) -> SelectResponse:
    """Candidates come from an index or with the request; back comes the set, most relevant first, each document with
    its score or with what was inferred from its scored neighbours. A caller that goes away ends the work."""
    watch = Stopwatch()
    with watch.stage("receive"):
        body = await bodies.read(request, state.settings.limits.body_bytes)
    with watch.stage("parse"):
        wanted, task = await asyncio.to_thread(_parse, body, state.settings)
    result = await bodies.while_connected(request, rooms.selector.select(task, watch))
    _measure(result)
    return response_of(result, task, explain=wanted.explain)


def _parse(body: bytes, settings: Settings) -> tuple[SelectRequest, SelectionTask]:
    wanted = SelectRequest.model_validate_json(body)
    return wanted, task_of(wanted, settings)


def _measure(result: SelectionResult) -> None:
    for stage, seconds in result.seconds.items():
        metrics.select_stage_seconds.labels(stage).observe(seconds)
    metrics.selections.labels(result.stop_reason.value).inc()
    metrics.cross_encoder_calls.inc(len(result.history))
    metrics.select_calls.observe(len(result.history))
    metrics.select_rounds.observe(result.rounds)
    metrics.truncated_pairs.inc(result.truncated)
