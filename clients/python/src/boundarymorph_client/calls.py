"""Define the calls of the service as values.

A call has the request, a function that reads the answer, and whether it may be repeated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from boundarymorph_client import bodies, errors
from boundarymorph_client.encoding import utf8
from boundarymorph_client.models import (
    DeleteReport,
    DocumentPage,
    IndexDescription,
    IndexList,
    IndexStatistics,
    PoolDocument,
    Query,
    Ready,
    Selection,
    SelectOptions,
    StoredDocument,
    UploadReport,
)

Result = TypeVar("Result")
Parsed = TypeVar("Parsed", bound=BaseModel)
EVENTS = "text/event-stream"
NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Result]):
    """One call.

    Attributes:
        seconds: Seconds for all of it, by default the client's timeout; for each wait only, if it is `unbounded`.
        timed: Whether `deadline_ms` of the body says how much of this is left.
        idempotent: Whether it may be sent again when it is not known whether it was received.
        accepted: Statuses of answers, besides success, that `read` accepts.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], Result]
    body: Mapping[str, Any] | None = None
    lines: bodies.Lines | bodies.AsyncLines | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    accept: str = "application/json"
    seconds: float | None = None
    unbounded: bool = False
    timed: bool = False
    idempotent: bool = True
    accepted: tuple[int, ...] = ()

    def answered_by(self, response: httpx.Response) -> bool:
        return response.is_success or response.status_code in self.accepted


def select(query: Query, options: SelectOptions, *, accept: str = "application/json") -> Call[Selection]:
    body = bodies.selection(query, options)
    milliseconds = body.pop("deadline_ms", None)
    return Call(
        method="POST",
        path="/select",
        read=_reading(Selection),
        body=body,
        accept=accept,
        seconds=None if milliseconds is None else milliseconds / 1e3,
        timed=True,
    )


def extend(
    query: str,
    documents: Sequence[str | PoolDocument | Mapping[str, object]],
    scores: Sequence[float] | Mapping[int, float],
    options: SelectOptions,
) -> Call[Selection]:
    if options.get("budget"):
        raise ValueError("extend makes no call: leave out the budget, or use select")
    return select(query, {**options, "pool": bodies.documents_with_scores(documents, scores), "budget": 0})


def list_indexes() -> Call[list[IndexDescription]]:
    return Call(method="GET", path="/indexes", read=_listed)


def _listed(response: httpx.Response) -> list[IndexDescription]:
    found = _reading(IndexList)(response)
    for index in found.unreadable:
        warnings.warn(f"the index {index.name!r} is not in the list: {index.detail}", stacklevel=2)
    return found.indexes


def create_index(
    name: str, *, dimension: int | None, encoder: str | None, kind: str | None, lexical: bool
) -> Call[IndexDescription]:
    given = {"dimension": dimension, "encoder": encoder, "kind": kind}
    body = {field: value for field, value in given.items() if value is not None} | {"lexical": lexical}
    return Call(method="PUT", path=_path(name), read=_reading(IndexDescription), body=body)


def describe_index(name: str) -> Call[IndexDescription]:
    return Call(method="GET", path=_path(name), read=_reading(IndexDescription))


def set_description(name: str, description: str) -> Call[None]:
    return Call(method="PUT", path=_path(name, "description"), read=lambda _: None, body={"description": description})


def delete_index(name: str) -> Call[None]:
    return Call(method="DELETE", path=_path(name), read=lambda _: None, idempotent=False)


def upload(
    name: str, lines: bodies.Lines | bodies.AsyncLines, *, strict: bool, stall_seconds: float
) -> Call[UploadReport]:
    return Call(
        method="POST",
        path=_path(name, "documents"),
        read=lambda response: _read_upload(response, lines),
        lines=lines,
        parameters={"strict": "true"} if strict else {},
        seconds=stall_seconds,
        unbounded=True,
    )


def _read_upload(response: httpx.Response, lines: bodies.Lines | bodies.AsyncLines) -> UploadReport:
    report = _reading(UploadReport)(response)
    if lines.fault is not None:
        became = ", ".join(f"{getattr(report, name)} {name}" for name in ("added", "updated", "unchanged", "skipped"))
        raise errors.InvalidArgument(f"{lines.fault}; of the {lines.good} before it: {became}", report=report)
    return report


def get_document(index: str, id: str) -> Call[StoredDocument]:
    return Call(method="GET", path=_path(index, "documents", id), read=_reading(StoredDocument))


def list_documents(index: str, after: str, limit: int) -> Call[DocumentPage]:
    parameters = {"limit": str(limit)} | ({"after": utf8(after).decode()} if after else {})
    return Call(method="GET", path=_path(index, "documents"), read=_reading(DocumentPage), parameters=parameters)


def index_statistics(name: str) -> Call[IndexStatistics]:
    return Call(method="GET", path=_path(name, "stats"), read=_reading(IndexStatistics))


def delete_document(index: str, id: str) -> Call[None]:
    return Call(method="DELETE", path=_path(index, "documents", id), read=lambda _: None, idempotent=False)


def delete_documents(
    index: str, ids: Sequence[str] | None = None, filter: Mapping[str, Any] | None = None
) -> Call[DeleteReport]:
    listed = ids if ids is None or isinstance(ids, str) else list(ids)  # the service refuses a str
    given = {"ids": listed, "filter": filter}
    return Call(
        method="DELETE",
        path=_path(index, "documents"),
        read=_reading(DeleteReport),
        body={name: value for name, value in given.items() if value is not None},
        idempotent=False,
    )


def ready() -> Call[Ready]:
    return Call(method="GET", path="/readyz", read=_read_ready, accepted=(503,))


def _read_ready(response: httpx.Response) -> Ready:
    if response.headers.get("content-type", "").startswith("application/json"):
        return _reading(Ready)(response)
    raise errors.error_from_response(response)


def _reading(model: type[Parsed]) -> Callable[[httpx.Response], Parsed]:
    def read(response: httpx.Response) -> Parsed:
        return parsed(model, response.content)

    return read


def parsed(model: type[Parsed], content: bytes) -> Parsed:
    """Return an answer as a model. Raises UnexpectedAnswer."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise errors.UnexpectedAnswer(f"the answer is no {model.__name__}: {error}") from error


def _path(index: str, *parts: str) -> str:
    """Return a path; dots are escaped, because `..` would lead to another route."""
    return "/".join(["/indexes", *(quote(utf8(part), safe="").replace(".", "%2E") for part in (index, *parts))])
