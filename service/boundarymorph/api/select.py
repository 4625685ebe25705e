"""Define the route POST /select."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from boundarymorph.access.limits import Access
from boundarymorph.api import handler, openapi
from boundarymorph.api.dependencies import AccessOf, KeyOf, PartsOf, ServiceOf, permitted_caller
from boundarymorph.api.handler import PreparedRequest
from boundarymorph.api.lifecycle import Lifecycle, Parts
from boundarymorph.api.select_answers import SelectResponse
from boundarymorph.api.select_response import event_of, response_of
from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.api.select_task import task_of
from boundarymorph.api.visit import visit_of
from boundarymorph.selector.result import SelectionResult
from boundarymorph.selector.task import Context, SelectionTask

router = APIRouter(tags=["selection"])
STREAMED = "events `round` (RoundEvent), and finally `selection` (SelectResponse) or `problem` (Problem)"
FEW = 100  # documents or calls of an answer that is short enough for the event loop


@router.post("/p/{policy}/select", response_model=SelectResponse, include_in_schema=False)
@router.post(
    "/select",
    summary="Select the k best documents with B cross-encoder calls",
    openapi_extra=openapi.body(SelectRequest, examples=openapi.SELECT),
    response_model=SelectResponse,
    responses={
        200: openapi.streamed(STREAMED, handler.EVENTS),
        **openapi.problems(401, 403, 404, 409, 413, 422, 429, 502, 503, 504),
    },
)
async def select(request: Request, access: AccessOf, key: KeyOf, service: ServiceOf, parts: PartsOf) -> Response:
    """Return the set for candidates of an index or of the request, most relevant first.

    Each document has its score, or the score that is expected from its scored neighbours. If the caller disconnects,
    the work ends. With `Accept: text/event-stream`, the answer has an event before each round, and finally the set.
    """
    return await handler.answer_request(
        request, access, parts.selector, partial(_prepared, request, access, service, parts)
    )


def _prepared(
    request: Request, access: Access, service: Lifecycle, parts: Parts, data: Any, arrival: float
) -> PreparedRequest:
    """Read a request, whose body is `data`, and check that its caller may make it.

    Raises:
        ValidationError: If the body does not fit the model.
        BoundaryMorphError: As `task_of` does.
        UnknownPolicy: If the policy in the path is unknown.
        UnknownIndex: If the caller may not use the index.
        NotReady: If the request needs a model, and the process is not ready.
    """
    key, visit = permitted_caller(request), visit_of(request)
    policy = access.policies.resolve(key.name, request.path_params.get("policy"))
    pool = data.get("pool") if isinstance(data, dict) else None
    documents = pool.get("documents") if isinstance(pool, dict) else pool
    wanted = SelectRequest.model_validate(policy.applied(data, SelectRequest, documents))
    task = task_of(
        wanted,
        access.settings,
        arrival,
        access.calibration,
        window=parts.scorer.max_length,
        context=Context(visit.caller, key.tenant, memory=visit.memory_limits(access)),
    )
    if task.spending.budget or wanted.index is not None or (wanted.vectors or access.settings.vectors) == "encoder":
        service.require()  # other requests need no model
    if wanted.index is not None:
        key.require(wanted.index)
    explain = bool(wanted.explain)

    def answer(result: SelectionResult) -> tuple[bytes, dict[str, str]]:
        content = response_of(result, explain=explain, policy=policy.name).model_dump_json().encode()
        if len(content) > task.context.memory.answer and task.report.optional_texts and result.has_texts:
            return answer(result.without_texts())
        return content, {}

    return PreparedRequest(task, answer, partial(_is_large, task), partial(event_of, explain=explain))


def _is_large(task: SelectionTask, result: SelectionResult) -> bool:
    """Return whether making the answer would keep other requests waiting."""
    return (
        task.report.return_documents
        or task.report.explain_pool
        or task.aim.distinct is not None  # a group is a value of the metadata, of any size
        or max(len(result.selection.documents), result.calls) > FEW
    )
