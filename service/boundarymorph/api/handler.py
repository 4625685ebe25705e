"""Answer requests for selections in any wire format: read, admit, select, and write."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from boundarymorph.access.limits import Access
from boundarymorph.api import bodies, problems
from boundarymorph.api.dependencies import JSON, prefers_media_type
from boundarymorph.api.visit import visit_of
from boundarymorph.errors import BoundaryMorphError
from boundarymorph.selector.result import Progress, SelectionResult
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import SelectionTask
from boundarymorph.telemetry.tracing import Stopwatch

EVENTS = "text/event-stream"
STATUS_HEADER = "X-BoundaryMORPH-Status"


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that was read.

    Attributes:
        task: What it asks for.
        answer: Returns the body of the answer with a result, as JSON, and headers.
        is_large: Returns whether making the answer to a small body would keep others waiting.
        event: Returns the event to send before a round, if the answer may be a stream of events.
    """

    task: SelectionTask
    answer: Callable[[SelectionResult], tuple[bytes, dict[str, str]]]
    is_large: Callable[[SelectionResult], bool] = lambda result: False
    event: Callable[[Progress], BaseModel] | None = None


async def answer_request(
    request: Request, access: Access, selector: Selector, prepare: Callable[[Any, float], PreparedRequest]
) -> Response:
    """Return the answer to a request. If the caller disconnects, the work ends.

    Args:
        request: The request.
        access: The limits of the process.
        selector: The selector of the process.
        prepare: Reads the value of the body, given the time of the request's arrival.

    Raises:
        BoundaryMorphError: As `bodies.read`, `bodies.decode`, `prepare` and the selector do.
    """
    watch, arrival = Stopwatch(), time.monotonic()
    with watch.stage("receive"):
        body = await bodies.read(request, access)
    with watch.stage("parse"):
        prepared = await bodies.off_loop(
            request, access, body, lambda: prepare(bodies.decode(body, access.settings.limits), arrival)
        )
    if len(body) >= bodies.LARGE:
        prepared = replace(prepared, is_large=lambda result: True)
    task, streams = prepared.task, prepared.event is not None and prefers_media_type(request, EVENTS)
    turn = access.admission.turn(task.context.caller, deadline=task.context.deadline.moment)
    async with AsyncExitStack() as held:
        steps = await held.enter_async_context(aclosing(selector.steps(task, watch, progress=streams)))
        step = await bodies.while_connected(request, _first_step(steps, watch, turn, held))
        if streams:
            kept = held.pop_all()
            visit_of(request).compressible = task.report.explain_pool
            return _Events(_events(request, access, prepared, step, steps, kept), kept)
    assert isinstance(step, SelectionResult)
    content, headers = await make_answer(access, prepared, step)
    return Response(content, media_type=JSON, headers={STATUS_HEADER: step.status.value} | headers)


async def _first_step(
    steps: AsyncIterator[Progress | SelectionResult],
    watch: Stopwatch,
    turn: AbstractAsyncContextManager[None],
    held: AsyncExitStack,
) -> Progress | SelectionResult:
    """Wait for a turn, and return the first step, whose errors can still set the status.

    `held` keeps the turn.
    """
    with watch.stage("wait"):
        await held.enter_async_context(turn)
    return await anext(steps)


async def make_answer(
    access: Access, prepared: PreparedRequest, result: SelectionResult
) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of the answer, made in a thread if it is large.

    Raises:
        LimitExceeded: If the answer has too many bytes.
        Overloaded: If the threads have too much work.
    """
    make, context = partial(prepared.answer, result), prepared.task.context
    content, headers = (
        await access.work.parsing.run(make, caller=context.caller) if prepared.is_large(result) else make()
    )
    context.memory.check_answer(len(content))
    return content, headers


class _Events(bodies.StreamedResponse):
    """A response that sends events, and releases resources when it ends for any reason."""

    def __init__(self, events: AsyncIterator[bytes], held: AsyncExitStack) -> None:
        super().__init__(events, media_type=EVENTS)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


async def _events(
    request: Request,
    access: Access,
    prepared: PreparedRequest,
    step: Progress | SelectionResult,
    steps: AsyncIterator[Progress | SelectionResult],
    held: AsyncExitStack,
) -> AsyncIterator[bytes]:
    """Yield `round` events, and finally `selection` or `problem`, after releasing all resources."""
    assert prepared.event is not None
    try:
        while isinstance(step, Progress):
            yield _event("round", prepared.event(step).model_dump_json(exclude_defaults=True).encode())
            step = await anext(steps)
        content, _ = await make_answer(access, prepared, step)
        last = _event("selection", content)
        visit_of(request).reserve_bytes(access)(len(last))
    except BoundaryMorphError as error:
        last = _event("problem", problems.problem_of(request, error).model_dump_json(exclude_none=True).encode())
    await held.aclose()
    yield last


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
