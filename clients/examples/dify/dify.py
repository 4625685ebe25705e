"""Serve Dify's external knowledge API in front of BoundaryMORPH.

A knowledge base is an index, and a retrieval is a selection from it. README.md beside this says how to run it.

uvicorn --app-dir clients/examples/dify dify:app --port 8090
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import httpx
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from boundarymorph_client import AsyncClient, BoundaryMorphError, Forbidden, ProblemError, Unauthenticated, UnknownIndex

COMPARISONS = {
    "is": "eq",
    "=": "eq",
    ">": "gt",
    "after": "gt",
    "<": "lt",
    "before": "lt",
    "≥": "gte",
    ">=": "gte",
    "≤": "lte",
    "<=": "lte",
}
NEGATIONS = {"is not": "is", "≠": "=", "not in": "in", "not empty": "empty", "not null": "null"}
OPERATORS = (*COMPARISONS, "in", "start with", "empty", "null", *NEGATIONS)
NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")  # a number that a float represents
NO_KEY, WRONG_KEY, NO_KNOWLEDGE = 1001, 1002, 2001  # Dify's codes; other errors have the HTTP status as their code


class Comparison(BaseModel):
    """A condition on a field of the metadata; of several fields, one that meets it is enough."""

    name: str | Annotated[list[str], Field(min_length=1)]
    comparison_operator: str
    value: str | int | float | list[str | int | float] | None = None


class Condition(BaseModel):
    """Which documents may be chosen."""

    logical_operator: Literal["and", "or"] | None = "and"
    conditions: list[Comparison] | None = None


class Setting(BaseModel):
    """How many documents are returned, and the least relevance of each."""

    top_k: int | None = Field(None, ge=1)
    score_threshold: float | None = Field(None, ge=0, le=1)


class Retrieval(BaseModel):
    """A request of Dify. Its other fields are ignored."""

    knowledge_id: str
    query: str
    retrieval_setting: Setting = Setting()
    metadata_condition: Condition | None = None


class Refused(Exception):
    """A request that is refused, with Dify's code for the reason."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with httpx.AsyncClient() as app.state.http:  # all keys share these connections
        yield


app = FastAPI(title="Dify's external knowledge from BoundaryMORPH", lifespan=lifespan)


@app.post("/retrieval")
async def retrieval(request: Request, wanted: Retrieval) -> dict[str, Any]:
    """Select the best documents of the index `knowledge_id`.

    The bearer key must be one of BoundaryMORPH's.
    """
    setting = wanted.retrieval_setting
    options: dict[str, Any] = {
        "index": wanted.knowledge_id,
        "k": setting.top_k,
        "min_relevance": setting.score_threshold or None,
        "filter": filter_of(wanted.metadata_condition),
        "return_documents": True,
    }
    given = {name: value for name, value in options.items() if value is not None}
    found = await client_of(request).select(wanted.query, **given)
    return {
        "records": [
            {
                "content": document.text or "",
                "score": document.relevance,
                "title": document.title or document.id,
                "metadata": document.metadata or {},
            }
            for document in found.documents
        ]
    }


def client_of(request: Request) -> AsyncClient:
    """Return the client for the key of a request. The service's URL is BOUNDARYMORPH_URL."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not key:
        raise Refused(403, NO_KEY, "send a key of BoundaryMORPH as `Authorization: Bearer KEY`")
    return AsyncClient(api_key=key, http=request.app.state.http)


def filter_of(condition: Condition | None) -> dict[str, Any] | None:
    """Return the filter of a request to BoundaryMORPH, or None for all documents."""
    if condition is None or not condition.conditions:
        return None
    return {condition.logical_operator or "and": [compared(one) for one in condition.conditions]}


def compared(comparison: Comparison) -> dict[str, Any]:
    """Return the filter of one comparison.

    Raises Refused for a comparison that BoundaryMORPH does not have.
    """
    given, value = comparison.comparison_operator, comparison.value
    if given not in OPERATORS:
        raise Refused(422, 422, f"metadata cannot be compared by {given[:40]!r}; use one of {', '.join(OPERATORS)}")
    operator = NEGATIONS.get(given, given)
    if operator not in ("empty", "null") and value is None:
        raise Refused(422, 422, f"{given!r} needs a value")
    if operator == "start with" and not isinstance(value, str):
        raise Refused(422, 422, f"{given!r} needs a text as its value")
    fields = [comparison.name] if isinstance(comparison.name, str) else comparison.name
    either = {"or": [test for field in fields for test in tests_of(field, operator, value)]}
    return {"not": either} if given in NEGATIONS else either


def tests_of(field: str, operator: str, value: Any) -> list[dict[str, Any]]:
    """Return filters of a field, of which a document must pass at least one."""
    match operator:
        case "empty" | "null":
            return [{field: {"exists": False}}, {field: None}]
        case "start with":
            return [{field: {"gte": value, "lt": f"{value}\U0010ffff"}}]
        case "in":
            values = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
            stripped = [each.strip() if isinstance(each, str) else each for each in values]
            return [{field: {"in": [each for each in stripped if each != ""]}}]
        case "is":
            return [{field: {"eq": value}}]
        case _:  # a text of digits is a number, and any other text is compared as it is, such as a date
            is_number = isinstance(value, str) and NUMBER.fullmatch(value)
            return [{field: {COMPARISONS[operator]: float(value) if is_number else value}}]


def refusal(status: int, code: int, message: str) -> JSONResponse:
    """Return an error in Dify's format."""
    return JSONResponse({"error_code": code, "error_msg": message}, status)


@app.exception_handler(Refused)
async def refused(request: Request, error: Refused) -> JSONResponse:
    return refusal(error.status, error.code, str(error))


@app.exception_handler(RequestValidationError)
async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    return refusal(422, 422, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}")


@app.exception_handler(BoundaryMorphError)
async def failed(request: Request, error: BoundaryMorphError) -> JSONResponse:
    """Answer what BoundaryMORPH refused. Dify recognises a refused key by the status 403."""
    if not isinstance(error, ProblemError):
        return refusal(502, 502, str(error))
    if isinstance(error, Unauthenticated | Forbidden):
        return refusal(403, WRONG_KEY, error.detail)
    return refusal(error.status, NO_KNOWLEDGE if isinstance(error, UnknownIndex) else error.status, error.detail)
