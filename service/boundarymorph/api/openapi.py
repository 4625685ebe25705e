"""Make the OpenAPI document, with the bodies that routes parse themselves."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from boundarymorph.api.problems import MEDIA_TYPE
from boundarymorph.api.schemas import Problem, UploadProgress
from boundarymorph.api.select_answers import RoundEvent
from boundarymorph.retrieval.interfaces import NAME

INDEX, NDJSON = "papers", "application/x-ndjson"
SELECT: dict[str, Any] = {
    "pool": {
        "summary": "A pool of your own, with the scores of its retriever",
        "value": {
            "query": "effects of exercise on sleep",
            "pool": [
                {"id": "a", "text": "Aerobic exercise improves the quality of sleep in older adults.", "score": 14.2},
                {"id": "b", "text": "Evening training and the onset of sleep in athletes.", "score": 13.9},
                {"id": "c", "text": "A survey of sleeping bags for alpine use.", "score": 11.3},
            ],
            "budget": 2,
            "k": 2,
        },
    },
    "index": {
        "summary": "The best 20 documents of an index",
        "value": {"query": "effects of exercise on sleep", "index": INDEX, "budget": 25, "k": 20},
    },
    "queries": {
        "summary": "Several queries, one budget and one set",
        "value": {
            "queries": ["effects of exercise on sleep", {"query": "naps of athletes", "weight": 0.5}],
            "index": INDEX,
            "budget": 25,
            "k": 20,
        },
    },
    "vectors": {
        "summary": "Embeddings as one block of float16, two vectors of dimension 4",
        "value": {
            "query": "effects of exercise on sleep",
            "query_embedding": [1, 0, 0, 0],
            "pool": {
                "documents": [{"text": "Exercise and sleep quality."}, {"text": "Sleeping bags for alpine use."}],
                "embeddings": {"data": "ADwAAAAAAAAAAAA8AAAAAA==", "shape": [2, 4], "dtype": "float16"},
            },
            "budget": 1,
            "k": 1,
        },
    },
    "filter": {
        "summary": "Hybrid candidates that match a filter, until little is left to gain, for 4,000 tokens of context",
        "value": {
            "query": "effects of exercise on sleep",
            "index": INDEX,
            "filter": {"and": [{"year": {"gte": 2015}}, {"kind": {"in": ["trial", "review"]}}]},
            "hybrid": True,
            "budget": "auto",
            "max_tokens": 4000,
            "return_documents": True,
        },
    },
    "deadline": {
        "summary": "The best set after two seconds, or an error if the scorer fails",
        "value": {
            "query": "effects of exercise on sleep",
            "index": INDEX,
            "k": 10,
            "deadline_ms": 2000,
            "on_failure": "error",
            "explain": True,
        },
    },
}


class CachedBytes:
    """Bytes that a thread makes once for all waiting callers, and keeps for some seconds."""

    def __init__(self, make: Callable[[], bytes], seconds: float = math.inf) -> None:
        self._make, self._seconds = make, seconds
        self._made, self._until = b"", -math.inf
        self._making = asyncio.Lock()

    async def get(self) -> bytes:
        """Return the bytes. Errors of the function that makes them pass through."""
        if time.monotonic() < self._until:
            return self._made
        async with self._making:
            begun = time.monotonic()
            if begun >= self._until:  # else another caller has made them meanwhile
                self._made = await asyncio.to_thread(self._make)
                self._until = begun + self._seconds
            return self._made


_SECONDS = {"Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}}
BUSY = (429, 503)
OF_KEYS = (401, 403)
OF_BODIES = (408, 415)
REFUSAL_HEADERS = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    429: _SECONDS,
    503: _SECONDS,
}
REFERENCE = "#/components/schemas/{model}"
BODIES: list[type[BaseModel]] = []  # models of the bodies that routes parse themselves
STREAMED = (RoundEvent, UploadProgress)


def body(*models: type[BaseModel], required: bool = True, examples: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads a JSON body of one of these models."""
    BODIES.extend(models)
    references = [_reference(model) for model in models]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    content = {"schema": schema} | ({"examples": examples} if examples else {})
    return {"requestBody": {"required": required, "content": {"application/json": content}}}


def upload(model: type[BaseModel]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that takes documents as NDJSON or as a JSON array."""
    BODIES.append(model)
    array = {"type": "array", "items": _reference(model)}
    content = {NDJSON: {"schema": {"type": "string"}}, "application/json": {"schema": array}}
    return {"requestBody": {"required": True, "content": content}}


def streamed(described: str, kind: str = NDJSON) -> dict[str, Any]:
    """Return the description of a body or response that is a stream of lines or events."""
    return {"content": {kind: {"schema": {"type": "string", "description": described}}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that may answer with problem details."""
    return {
        status: {"description": "Problem details", "content": {MEDIA_TYPE: {"schema": _reference(Problem)}}}
        for status in statuses
    }


class DescribedApp(FastAPI):
    """An application whose OpenAPI document includes bodies that routes parse themselves.

    Attributes:
        public_url: The URL of the service. If it is None, paths are relative to the document, behind any prefix.
    """

    public_url: str | None = None

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            schema = get_openapi(
                title=self.title,
                version=self.version,
                description=self.description,
                routes=self.routes,
                servers=[{"url": (self.public_url or ".").rstrip("/")}],
            )
            if self.openapi_external_docs is not None:  # FastAPI refuses URLs that are relative
                schema["externalDocs"] = self.openapi_external_docs
            described = orjson.dumps(schema).decode()
            bodies: list[type[BaseModel]] = [*BODIES, Problem]
            read = dict.fromkeys(model for model in bodies if f'"{_path(model)}"' in described)
            _, definitions = models_json_schema(
                [
                    *((model, "validation") for model in read),
                    *((model, "serialization") for model in STREAMED),
                ],
                ref_template=REFERENCE,
            )
            components = schema.setdefault("components", {})
            components.setdefault("schemas", {}).update(definitions["$defs"])
            with_keys = bool(self.state.access.keys)
            for path in schema["paths"].values():
                for operation in path.values():
                    _complete(operation, with_keys)
                answers = path.get("put", {}).get("responses", {})
                if "200" in answers:  # PUT creates an index that does not exist
                    answers.setdefault("201", answers["200"] | {"description": "Created"})
            if not with_keys:
                components.pop("securitySchemes", None)
            self.openapi_schema = schema
        return self.openapi_schema


def install(app: FastAPI) -> None:
    """Add the route /openapi.json."""
    made = CachedBytes(lambda: orjson.dumps(app.openapi()))

    async def openapi() -> Response:
        return Response(await made.get(), media_type="application/json")

    app.add_api_route("/openapi.json", openapi, include_in_schema=False)


def _complete(operation: dict[str, Any], with_keys: bool) -> None:
    """Add what operations share: names of indexes, and errors for keys and bodies."""
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            described = "name of the index" if parameter["name"] == "name" else "id of the document"
            parameter.setdefault("description", described)
        if (parameter["in"], parameter["name"]) == ("path", "name"):
            parameter["schema"]["pattern"] = f"^{NAME.pattern}$"
    if "security" not in operation:
        return
    responses = operation["responses"]
    common = (*BUSY, *(OF_KEYS if with_keys else ()), *(OF_BODIES if "requestBody" in operation else ()))
    for status, response in problems(*common).items():
        responses.setdefault(str(status), response)
    if not with_keys:
        del operation["security"]
        for status in OF_KEYS:
            responses.pop(str(status), None)
    for status, headers in REFUSAL_HEADERS.items():
        if str(status) in responses:
            responses[str(status)]["headers"] = headers


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _path(model)}


def _path(model: type[BaseModel]) -> str:
    return REFERENCE.format(model=model.__name__)
