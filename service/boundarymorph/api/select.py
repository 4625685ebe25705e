"""The route POST /select."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from boundarymorph.access.limits import Access
from boundarymorph.api import bodies, openapi, problems
from boundarymorph.api.dependencies import (
    STATUS_HEADER,
    AccessOf,
    BuiltOf,
    CallerOf,
    ServiceOf,
    permitted,
    prefers,
    selected,
)
from boundarymorph.api.lifecycle import Lifecycle, Parts
from boundarymorph.api.select_answers import SelectResponse
from boundarymorph.api.select_response import event_of, response_of
from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.api.select_task import task_of
from boundarymorph.api.visit import visit_of
from boundarymorph.errors import BoundaryMorphError
from boundarymorph.selector.result import Progress, SelectionResult
from boundarymorph.selector.task import SelectionTask
from boundarymorph.telemetry.tracing import Stopwatch

Step = TypeVar("Step", Progress, SelectionResult)
router = APIRouter(tags=["selection"])
EVENTS = "text/event-stream"
STREAMED = "events `round` (RoundEvent), and finally `selection` (SelectResponse) or `problem` (Problem)"
FEW = 100  # documents or calls in an answer that is made at once


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose caller may make it. policy: the name of the one in force; turn: to wait for before the work."""

    policy: str
    wanted: SelectRequest
    task: SelectionTask
    turn: AbstractAsyncContextManager[None]

    def answer(self, result: SelectionResult) -> SelectResponse:
        """Return the answer with this result."""
        return response_of(result, explain=bool(self.wanted.explain), policy=self.policy)


async def _asked(request: Request, access: Access, service: Lifecycle, parts: Parts, watch: Stopwatch) -> Asked:
    """Read a request and check that its caller may make it.

    Raises as `bodies.read`, `bodies.decoded` and `task_of` do, and pydantic's ValidationError,
    UnknownPolicy, UnknownIndex and NotReady.
    """
    arrival, key, visit = time.monotonic(), permitted(request), visit_of(request)
    with watch.stage("receive"):
        body = await bodies.read(request, access)

    def parsed() -> tuple[SelectRequest, SelectionTask]:
        data = bodies.decoded(body, access.settings.limits)
        pool = data.get("pool") if isinstance(data, dict) else None
        documents = pool.get("documents") if isinstance(pool, dict) else pool
        wanted = SelectRequest.model_validate(policy.applied(data, SelectRequest, documents))
        caller, room = visit.caller, visit.room(access)
        return wanted, task_of(
            wanted, access.settings, arrival, access.calibration, caller=caller, tenant=key.tenant, room=room
        )

    with watch.stage("parse"):
        policy = access.policies.of(key.name, request.path_params.get("policy"))
        wanted, task = await access.work.parsing.run(parsed, caller=visit.caller)
    if task.spending.budget or wanted.index is not None or (wanted.vectors or access.settings.vectors) == "encoder":
        service.require()  # else it needs no model
    if wanted.index is not None:
        key.require(wanted.index)
    turn = access.admission.turn(visit.caller, deadline=task.context.deadline.moment)
    return Asked(policy.name, wanted, task, turn)


@router.post("/p/{policy}/select", response_model=SelectResponse, include_in_schema=False)
@router.post(
    "/select",
    summary="Select the k best documents with B cross-encoder calls",
    openapi_extra=openapi.body(SelectRequest, examples=openapi.SELECT),
    response_model=SelectResponse,
    responses={
        200: openapi.streamed(STREAMED, EVENTS),
        **openapi.problems(401, 403, 404, 409, 413, 422, 429, 502, 503, 504),
    },
)
async def select(request: Request, access: AccessOf, caller: CallerOf, service: ServiceOf, parts: BuiltOf) -> Response:
    """Takes candidates from an index or from the request. Returns the set, most relevant first, each document with its
    score or with the one expected from its scored neighbours. If the caller disconnects, the work ends. With
    `Accept: text/event-stream`, sends an event before each round, and finally the set."""
    watch = Stopwatch()
    async with AsyncExitStack() as held:
        asked = await _asked(request, access, service, parts, watch)
        task, turn, selector = asked.task, asked.turn, parts.selector
        if prefers(request, EVENTS):
            steps = await held.enter_async_context(aclosing(selector.steps(task, watch)))
            first = await bodies.while_connected(request, _begun(steps, watch, turn, held))
            kept = held.pop_all()
            visit_of(request).compressible = task.report.explain_pool
            return _Events(_events(request, access, asked, first, steps, kept), kept)

        result = await bodies.while_connected(request, selected(selector, task, watch, turn))
    caller = task.context.caller
    content = await bodies.made(
        access, lambda: asked.answer(result).model_dump_json().encode(), large=_large(task, result), caller=caller
    )
    return Response(content, media_type="application/json", headers={STATUS_HEADER: result.status.value})


async def _begun(
    steps: AsyncIterator[Progress | SelectionResult],
    watch: Stopwatch,
    turn: AbstractAsyncContextManager[None],
    held: AsyncExitStack,
) -> Progress | SelectionResult:
    """Return the first step, whose errors can still set the status of the response. Keeps the turn."""
    with watch.stage("wait"):
        await held.enter_async_context(turn)
    return await anext(steps)


class _Events(bodies.Streamed):
    """Sends events, and releases resources at the latest when all have been sent or the client has disconnected."""

    def __init__(self, events: AsyncIterator[bytes], held: AsyncExitStack) -> None:
        super().__init__(events, media_type=EVENTS)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


async def _events(
    request: Request,
    access: Access,
    asked: Asked,
    step: Progress | SelectionResult,
    steps: AsyncIterator[Progress | SelectionResult],
    held: AsyncExitStack,
) -> AsyncIterator[bytes]:
    """Yield the events `round` and finally, after releasing all resources, `selection` or `problem`."""
    task, event = asked.task, partial(event_of, explain=bool(asked.wanted.explain))
    try:
        while isinstance(step, Progress):
            yield _made("round", event, step)
            step = await anext(steps)
        last = await bodies.made(
            access,
            partial(_made, "selection", asked.answer, step),
            large=_large(task, step),
            caller=task.context.caller,
        )
        visit_of(request).charging(access)(len(last))
    except BoundaryMorphError as error:
        last = _event("problem", problems.of(request, error))
    await held.aclose()
    yield last


def _large(task: SelectionTask, result: SelectionResult) -> bool:
    """Whether making the answer would keep others waiting."""
    return (
        task.report.return_documents
        or task.report.explain_pool
        or max(len(result.selection.documents), result.calls) > FEW
    )


def _made(name: str, convert: Callable[[Step], BaseModel], step: Step) -> bytes:
    return _event(name, convert(step))


def _event(name: str, content: BaseModel) -> bytes:
    data = content.model_dump_json(exclude_none=name == "problem", exclude_defaults=name == "round")
    return f"event: {name}\ndata: {data}\n\n".encode()
