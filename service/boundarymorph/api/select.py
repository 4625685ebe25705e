"""POST /select."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from boundarymorph.api import bodies, openapi, problems
from boundarymorph.api.schemas import SelectRequest, SelectResponse
from boundarymorph.api.state import CallerOf, SelectorOf, StateOf
from boundarymorph.api.translate import event_of, response_of, task_of
from boundarymorph.errors import BoundaryMorphError
from boundarymorph.selector import Progress, SelectionResult, SelectionTask, Selector, Stopwatch
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

router = APIRouter(tags=["selection"])
STATUS_HEADER = "X-BoundaryMORPH-Status"
EVENTS = "text/event-stream"


@router.post(
    "/select",
    summary="Select the k best documents with B cross-encoder calls",
    openapi_extra=openapi.body(SelectRequest),
    response_model=SelectResponse,
    responses={200: openapi.events(), **openapi.problems(401, 403, 404, 409, 413, 422, 429, 502, 503, 504)},
)
async def select(
    request: Request, response: Response, state: StateOf, caller: CallerOf, selector: SelectorOf
) -> SelectResponse | Response:
    """Candidates come from an index or with the request; back comes the set, most relevant first, each document with
    its score or with what was inferred from its scored neighbours. A caller that goes away ends the work. With
    `Accept: text/event-stream`, an event before each round, and the set as the last one."""
    watch, arrival = Stopwatch(), time.monotonic()
    with ExitStack() as inside:
        inside.enter_context(state.admission.enter())
        with watch.stage("receive"):
            body = await bodies.read(request, state.settings.limits.body_bytes)
        with watch.stage("parse"):
            wanted, task = await asyncio.to_thread(_parse, body, state.settings, arrival)
        turn = state.admission.turn(caller, priority=wanted.priority, deadline=task.deadline)
        if EVENTS in request.headers.get("accept", ""):
            events = _events(
                request, selector.steps(task, watch), turn, partial(response_of, task=task, explain=wanted.explain)
            )
            return _Held(events, inside.pop_all())

        result = await bodies.while_connected(request, _selected(selector, task, watch, turn))
    _measure(result)
    response.headers[STATUS_HEADER] = result.status.value
    return response_of(result, task, explain=wanted.explain)


async def _selected(
    selector: Selector, task: SelectionTask, watch: Stopwatch, turn: AbstractAsyncContextManager[None]
) -> SelectionResult:
    async with AsyncExitStack() as stack:
        with watch.stage("wait"):
            await stack.enter_async_context(turn)
        return await selector.select(task, watch)


class _Held(StreamingResponse):
    """Events, and what is held until they have been sent or nobody listens any more."""

    def __init__(self, events: AsyncIterator[bytes], held: ExitStack) -> None:
        super().__init__(events, media_type=EVENTS)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


async def _events(
    request: Request,
    steps: AsyncIterator[Progress | SelectionResult],
    turn: AbstractAsyncContextManager[None],
    answer: Callable[[SelectionResult], SelectResponse],
) -> AsyncIterator[bytes]:
    """The events `round`, and `selection` or `problem` as the last one."""
    try:
        async with turn:
            async for step in steps:
                match step:
                    case Progress():
                        yield _event("round", event_of(step))
                    case SelectionResult():
                        _measure(step)
                        yield _event("selection", answer(step))
    except BoundaryMorphError as error:
        yield _event("problem", problems.of(request, error))


def _event(name: str, content: BaseModel) -> bytes:
    return f"event: {name}\ndata: {content.model_dump_json(exclude_none=name == 'problem')}\n\n".encode()


def _parse(body: bytes, settings: Settings, arrival: float) -> tuple[SelectRequest, SelectionTask]:
    wanted = SelectRequest.model_validate_json(body)
    return wanted, task_of(wanted, settings, arrival)


def _measure(result: SelectionResult) -> None:
    for stage, seconds in result.seconds.items():
        metrics.select_stage_seconds.labels(stage).observe(seconds)
    metrics.selections.labels(result.status.value, result.stop_reason.value).inc()
    metrics.cross_encoder_calls.inc(len(result.history))
    metrics.select_calls.observe(len(result.history))
    metrics.select_rounds.observe(result.rounds)
    metrics.expected_loss.observe(result.expected_loss)
    metrics.truncated_pairs.inc(result.truncated)
