"""Dify's external knowledge API: an index is a knowledge base, and a retrieval is a selection from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from boundarymorph.access.callers import NO_KEY, Forbidden, Unauthenticated
from boundarymorph.api import bodies, openapi
from boundarymorph.api.dependencies import STATUS_HEADER, selected
from boundarymorph.api.rerank.routes import BY_POLICY, REFUSED, WARNINGS_HEADER
from boundarymorph.api.schemas import Array, Problem, QueryText
from boundarymorph.api.select import CallOf
from boundarymorph.api.select_answers import SelectResponse
from boundarymorph.api.translate import response_of
from boundarymorph.errors import PROBLEM_TYPE, InvalidInput, UnknownIndex
from boundarymorph.inference.concurrency import CALLER
from boundarymorph.telemetry.tracing import Stopwatch

CODES = {Unauthenticated.slug: 1002, Forbidden.slug: 1002, UnknownIndex.slug: 2001}
NO_BEARER = 1001
COMPARISONS = {"is": "eq", "=": "eq", ">": "gt", "after": "gt", "<": "lt", "before": "lt", "≥": "gte", "≤": "lte"}
COMPARISONS |= {">=": "gte", "<=": "lte"}  # as Dify reads them, too
NEGATIONS = {"is not": "is", "≠": "=", "not in": "in", "not empty": "empty", "not null": "null"}
ABSENT = ("empty", "null")
STARTS = "start with"
OPERATORS = (*COMPARISONS, "in", STARTS, *ABSENT, *NEGATIONS)
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")  # which a float represents


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class RetrievalSetting(_Lenient):
    """How much to return."""

    top_k: int | None = Field(None, ge=1, description="records to return; null: the setting `k`")
    score_threshold: float | None = Field(
        None, ge=0, le=1, description="the `min_relevance` of POST /select; 0 and null: none, or that of the policy"
    )


class MetadataComparison(_Lenient):
    """A comparison of a field of the metadata."""

    name: str | Annotated[Array[str], Field(min_length=1)] = Field(
        description="of the field; of several, one that compares so is enough"
    )
    comparison_operator: str = Field(description=f"one of {', '.join(OPERATORS)}")
    value: str | int | float | Array[str | int | float] | None = Field(
        None,
        description="to compare with; a text of digits is a number, except for is, is not, in and not in. Texts with "
        "commas between them are a list for in and not in; start with compares a text, not a list of them",
    )


class MetadataCondition(_Lenient):
    """Which documents there are to choose from."""

    logical_operator: Literal["and", "or"] | None = Field("and", description="whether all conditions hold, or any")
    conditions: Array[MetadataComparison] | None = Field(None, description="null and none: all documents")


class RetrievalRequest(_Lenient):
    """A request of Dify. Unknown fields are ignored."""

    knowledge_id: str = Field(description="the name of an index")
    query: QueryText = Field(description="the information need, in plain words")
    retrieval_setting: RetrievalSetting = Field(default_factory=RetrievalSetting, description="how much to return")
    metadata_condition: MetadataCondition | None = Field(None, description="null: all documents")


class RetrievedRecord(BaseModel):
    """A document of the set."""

    content: str = Field(description="its text")
    score: float = Field(description="its relevance in [0, 1], as in POST /select")
    title: str = Field(description="its title; its id if it has none")
    metadata: dict[str, Any] = Field(description="its metadata")


class RetrievalAnswer(BaseModel):
    """The chosen set."""

    records: list[RetrievedRecord] = Field(description="most relevant first")


class RetrievalError(BaseModel):
    """An error in Dify's format."""

    error_code: int = Field(
        description="1001: no bearer key; 1002: a key that is unknown or may not do this; 2001: no such index; of "
        "others the status"
    )
    error_msg: str = Field(description="what is wrong and what to do about it")


def refusal(problem: Problem) -> tuple[int, Mapping[str, Any]]:
    """Return status and body. Dify tells a key that is refused by the status 403."""
    code = CODES.get(problem.type.removeprefix(PROBLEM_TYPE), problem.status)
    if problem.detail == NO_KEY:
        code = NO_BEARER
    status = HTTPStatus.FORBIDDEN if problem.status == HTTPStatus.UNAUTHORIZED else problem.status
    return status, RetrievalError(error_code=code, error_msg=problem.detail).model_dump()


class DifyRoute(APIRoute):
    """A route that refuses requests in Dify's words."""

    refusal = staticmethod(refusal)


router = APIRouter(tags=["selection"], route_class=DifyRoute)


@router.post(f"{BY_POLICY}/retrieval", response_model=RetrievalAnswer, include_in_schema=False)
@router.post(
    "/retrieval",
    summary="Retrieve for Dify, as an external knowledge base",
    openapi_extra=openapi.body(RetrievalRequest),
    response_model=RetrievalAnswer,
    responses={status: {"model": RetrievalError} for status in (*REFUSED, HTTPStatus.CONFLICT.value)},
)
async def retrieval(call: CallOf) -> Response:
    """Selects the best documents of an index, with the budget of the policy. Its status and warnings are in headers."""
    watch = Stopwatch()
    with call.access.admission.enter(CALLER.get()):
        asked = await call.asked(watch, _as_selection)
        made = selected(call.parts.selector, asked.task, watch, asked.turn)
        result = await bodies.while_connected(call.request, made)
    response = response_of(result, policy=asked.policy)
    content = await bodies.made(call.access, lambda: _answer(response).model_dump_json().encode(), large=True)
    headers = {STATUS_HEADER: response.status}
    if response.warnings:
        headers[WARNINGS_HEADER] = json.dumps(response.warnings)
    return Response(content, media_type="application/json", headers=headers)


def _as_selection(data: object) -> dict[str, Any]:
    """Return the body of the same request to `POST /select`. Raises pydantic's ValidationError, and InvalidInput for a
    comparison that filters do not have."""
    wanted = RetrievalRequest.model_validate(data)
    setting, condition = wanted.retrieval_setting, wanted.metadata_condition or MetadataCondition()
    compared = [
        _compared(comparison, f"metadata_condition.conditions.{number}")
        for number, comparison in enumerate(condition.conditions or ())
    ]
    return {
        "query": wanted.query,
        "index": wanted.knowledge_id,
        "k": setting.top_k,
        "min_relevance": setting.score_threshold or None,
        "filter": {condition.logical_operator or "and": compared} if compared else None,
        "return_documents": True,
    }


def _answer(response: SelectResponse) -> RetrievalAnswer:
    return RetrievalAnswer(
        records=[
            RetrievedRecord(
                content=document.text or "",
                score=document.relevance,
                title=document.title or document.id,
                metadata=document.metadata or {},
            )
            for document in response.documents
        ]
    )


def _compared(comparison: MetadataComparison, place: str) -> dict[str, Any]:
    """Return the filter of one comparison. place: of it in the request. Raises InvalidInput."""
    given, value = comparison.comparison_operator, comparison.value
    if given not in OPERATORS:
        raise InvalidInput(
            f"{place}: metadata cannot be compared by {given[:40]!r} here; use one of {', '.join(OPERATORS)}"
        )
    operator = NEGATIONS.get(given, given)
    if operator == STARTS and not isinstance(value, str):
        raise InvalidInput(f"{place}: {given!r} needs a text as its value")
    if operator not in ABSENT and value is None:
        raise InvalidInput(f"{place}: {given!r} needs a value")
    fields = [comparison.name] if isinstance(comparison.name, str) else comparison.name
    found: list[dict[str, Any]] = []
    for field in fields:
        if operator in ABSENT:
            found += [{field: {"exists": False}}, {field: None}]
        elif operator == STARTS:
            found.append({field: {"gte": value, "lt": f"{value}\U0010ffff"}})  # by code points
        elif operator == "in":
            found.append({field: {"in": _listed(value)}})
        else:
            found.append({field: {COMPARISONS[operator]: value if operator == "is" else _number(value)}})
    either = {"or": found}
    return {"not": either} if given in NEGATIONS else either


def _listed(value: object) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value if isinstance(value, list) else [value]


def _number(value: object) -> object:
    """Return the number that a text is, else the value, such as a date."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
