"""Define the routes of indexes and their documents."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette import types
from starlette.convertors import PathConvertor, StringConvertor, register_url_convertor
from starlette.requests import ClientDisconnect

from boundarymorph.access.callers import NDJSON, Scope, UnsupportedMediaType
from boundarymorph.access.limits import Access
from boundarymorph.api import bodies, openapi, problems, schemas
from boundarymorph.api.dependencies import AccessOf, CallerName, PartsOf, allowed, permitted_caller, prefers_media_type
from boundarymorph.api.middleware import ENCODED_SLASH
from boundarymorph.api.problems import UnknownDocument
from boundarymorph.api.schemas import (
    NO_ENCODER,
    CreateIndex,
    DeleteDocuments,
    DeleteReport,
    Describe,
    DocumentPage,
    FieldStatistics,
    IndexArtifacts,
    IndexList,
    IndexStatistics,
    StoredDocument,
    UploadProgress,
    UploadReport,
)
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import PROBLEM_TYPE, BoundaryMorphError, InvalidInput, LimitExceeded
from boundarymorph.inference.concurrency import Run
from boundarymorph.retrieval.document import STOP, size_of_all
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.interfaces import WORDS, Catalog, IndexDescription, UnreadableIndex
from boundarymorph.retrieval.uploads import (
    BATCH_BYTES,
    BadLine,
    IngestReport,
    ParsedDocument,
    UploadedDocument,
    ingest_batches,
    parse_array,
    parse_ndjson,
)
from boundarymorph.telemetry import metrics


class _IndexName(StringConvertor):
    """The name of an index as one segment of a path; the slash in STORE/TABLE is encoded."""

    def convert(self, value: str) -> str:
        return value.replace(ENCODED_SLASH, "/")


class _AnyText(PathConvertor):
    """The rest of a path with its line ends, at which Starlette's `path` stops."""

    regex = "(?s:.*)"


register_url_convertor("text", _AnyText())
register_url_convertor("index", _IndexName())


router = APIRouter(prefix="/indexes", tags=["indexes"])
READ, WRITE, ADMIN = ([Depends(allowed(scope))] for scope in (Scope.SELECT, Scope.WRITE, Scope.ADMIN))
MOST_LISTED = 1_000  # most documents in a page
SAMPLE, FIELDS, EXAMPLES = 1_000, 64, 5  # documents, their fields, and values of each, in the statistics of an index
EXAMPLE_BYTES = 200  # most bytes of a value that is shown
PROGRESS_SECONDS, PROGRESS_SHARE = 1.0, 0.01
REPORTED = "lines `progress` (UploadProgress), and finally `report` (UploadReport) or `problem` (Problem)"


@router.get("", dependencies=READ, summary="List the indexes", responses=openapi.problems(503))
async def list_indexes(request: Request, access: AccessOf, caller: CallerName, indexes: PartsOf) -> IndexList:
    """List the indexes that the key may use, and the indexes that cannot be read."""
    sees = permitted_caller(request).sees
    listed = await access.work.read.run(indexes.catalog.list, sees, caller=caller)
    found = [index for index in listed if sees(index.name)]  # the key may not name a store that does not answer
    return IndexList(
        indexes=[index for index in found if isinstance(index, IndexDescription)],
        unreadable=[
            schemas.UnreadableIndex(name=index.name, type=PROBLEM_TYPE + index.error.slug, detail=index.error.public)
            for index in found
            if isinstance(index, UnreadableIndex)
        ],
    )


@router.put(
    "/{name:index}",
    dependencies=WRITE,
    summary="Create an index",
    openapi_extra=openapi.body(CreateIndex, required=False),
    responses={201: {"model": IndexDescription}, **openapi.problems(404, 409, 413, 422, 503, 507)},
)
async def create_index(
    name: str, request: Request, response: Response, access: AccessOf, caller: CallerName, indexes: PartsOf
) -> IndexDescription:
    """Create the index, or confirm that it exists with this configuration.

    The status is 201 if the index is new, 200 if it exists, and 409 if it exists with another configuration.
    """
    wanted = await bodies.read_model(request, access, CreateIndex, default=b"{}")
    if wanted.dimension is not None and wanted.dimension > access.settings.limits.dimension:
        raise LimitExceeded(f"dimension: this service takes up to {access.settings.limits.dimension:,}")
    encoder, dimension, kind = None, wanted.dimension or 0, wanted.kind
    if wanted.encoder == NO_ENCODER:
        kind = WORDS
    elif wanted.dimension is None:
        encoder, dimension = indexes.encoder.name, indexes.encoder.dimension
        if wanted.encoder not in (None, encoder):
            raise InvalidInput(f"this service runs the encoder {encoder!r}, not {wanted.encoder!r}; or say 'none'")
    ensure = partial(
        indexes.catalog.ensure, name, encoder=encoder, dimension=dimension, kind=kind, lexical=wanted.lexical
    )
    response.status_code = 201 if await access.work.write.run(ensure, caller=caller) else 200
    return await access.work.write.run(indexes.catalog.describe, name, caller=caller)


@router.get("/{name:index}", dependencies=READ, summary="Describe an index", responses=openapi.problems(404, 422, 503))
async def describe_index(name: str, access: AccessOf, caller: CallerName, indexes: PartsOf) -> IndexDescription:
    """Return the index's number of documents, dimension, encoder, and more."""
    return await access.work.read.run(indexes.catalog.describe, name, caller=caller)


@router.put(
    "/{name:index}/description",
    dependencies=WRITE,
    status_code=204,
    summary="Say what an index holds",
    openapi_extra=openapi.body(Describe),
    responses=openapi.problems(404, 413, 422, 503, 507),
)
async def describe_documents(
    name: str, request: Request, access: AccessOf, caller: CallerName, indexes: PartsOf
) -> None:
    """Store a description of the documents, for people and language models that choose an index."""
    given = await bodies.read_model(request, access, Describe)
    description = given.description.strip() or None
    await access.work.write.run(lambda: indexes.catalog.artifacts(name).change(description=description), caller=caller)


@router.get(
    "/{name:index}/artifacts",
    dependencies=READ,
    summary="Read the artifacts of an index",
    responses=openapi.problems(404, 422, 503),
)
async def read_artifacts(name: str, access: AccessOf, caller: CallerName, indexes: PartsOf) -> IndexArtifacts:
    """Return the description, the default `distinct` and the calibration of the index."""
    found = await access.work.read.run(lambda: indexes.catalog.artifacts(name).read(), caller=caller)
    return IndexArtifacts.model_validate(asdict(found))


@router.patch(
    "/{name:index}/artifacts",
    dependencies=WRITE,
    status_code=204,
    summary="Change the artifacts of an index",
    openapi_extra=openapi.body(IndexArtifacts),
    responses=openapi.problems(404, 413, 422, 503, 507),
)
async def change_artifacts(name: str, request: Request, access: AccessOf, caller: CallerName, indexes: PartsOf) -> None:
    """Replace the artifacts that the body names; null removes one."""
    given = await bodies.read_model(request, access, IndexArtifacts)
    changes = given.model_dump(exclude_unset=True)
    if given.calibration is not None:
        changes["calibration"] = Calibration.from_json(given.calibration)
    await access.work.write.run(lambda: indexes.catalog.artifacts(name).change(**changes), caller=caller)


@router.delete(
    "/{name:index}",
    dependencies=ADMIN,
    status_code=204,
    summary="Delete an index",
    responses=openapi.problems(404, 422, 503),
)
async def delete_index(name: str, access: AccessOf, caller: CallerName, indexes: PartsOf) -> None:
    """Remove the index with its documents, description, and calibration."""
    await access.work.write.run(indexes.catalog.delete, name, caller=caller)


@router.post(
    "/{name:index}/documents",
    dependencies=WRITE,
    summary="Add or replace documents",
    openapi_extra=openapi.upload(UploadedDocument),
    response_model=UploadReport,
    responses={200: openapi.streamed(REPORTED), **openapi.problems(404, 413, 415, 422, 503, 507)},
)
async def upsert_documents(
    name: str,
    request: Request,
    access: AccessOf,
    caller: CallerName,
    indexes: PartsOf,
    strict: Annotated[bool, Query(description="Whether to write nothing if any document is invalid.")] = False,
) -> UploadReport | Response:
    """Add the documents of a streamed NDJSON body of any length, or of a JSON array.

    A document has `id`, `text` and optionally `title`, `metadata` and `embedding`. It replaces a document with the same
    id; an unchanged document costs nothing. Invalid lines are skipped and listed. With `Accept: application/x-ndjson`,
    the answer has lines with the progress, and finally the report.
    """
    run = access.work.write.bind(caller)
    index = await run(indexes.catalog.get, name, caller)
    entries = await _entries(request, index.info.dimension, access, run)
    spooled = bodies.spooling(request, access)
    reports = _count_written(
        ingest_batches(index, indexes.encoder, entries, strict=strict, spooled=spooled, run=run, caller=caller)
    )
    report = await anext(reports)
    if prefers_media_type(request, NDJSON[0]):
        return _UploadResponse(_lines(request, report, reports), media_type=NDJSON[0])
    async for latest in reports:
        report = latest
    return _final_report(report)


@router.delete(
    "/{name:index}/documents",
    dependencies=WRITE,
    summary="Delete documents",
    openapi_extra=openapi.body(DeleteDocuments),
    responses=openapi.problems(404, 413, 422, 503),
)
async def delete_documents(
    name: str, request: Request, access: AccessOf, caller: CallerName, indexes: PartsOf
) -> DeleteReport:
    """Delete documents, which searches that begin after the answer do not find."""
    wanted = await bodies.read_model(request, access, DeleteDocuments)
    filter = None if wanted.filter is None else Filter(wanted.filter)
    if filter is not None:
        filter.refuse_everything()

    def delete() -> int:
        index = indexes.catalog.get(name, caller)
        return index.delete(wanted.ids or ()) if filter is None else index.delete_matching(filter)

    return DeleteReport(deleted=await bodies.while_connected(request, access.work.write.run(delete, caller=caller)))


@router.get(
    "/{name:index}/documents",
    dependencies=READ,
    summary="List documents",
    response_model=DocumentPage,
    responses=openapi.problems(404, 422, 503),
)
async def list_documents(
    name: str,
    access: AccessOf,
    caller: CallerName,
    indexes: PartsOf,
    after: Annotated[str, Query(description="The id after which the page begins.")] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED, description="The most documents of the page.")] = 100,
) -> Response:
    """Return a page of documents in the order of their ids.

    A page of large documents has fewer than `limit`. Others may write between two pages.
    """
    most = min(access.settings.limits.body_bytes, STOP)
    page = await access.work.read.run(_page, indexes.catalog, name, caller, after, limit, most, caller=caller)
    return Response(page, media_type="application/json")


@router.get(
    "/{name:index}/stats",
    dependencies=READ,
    summary="Describe an index and a sample of it",
    responses=openapi.problems(404, 422, 503),
)
async def statistics(name: str, access: AccessOf, caller: CallerName, indexes: PartsOf) -> IndexStatistics:
    """Return the description of the index, and lengths and metadata of sampled documents.

    The sample of an index with large documents is smaller.
    """
    return await access.work.read.run(_statistics, indexes.catalog, name, caller, caller=caller)


@router.get(
    "/{name:index}/documents/{id:text}",
    dependencies=READ,
    summary="Read a document",
    response_model=StoredDocument,
    responses=openapi.problems(404, 422, 503),
)
async def read_document(name: str, id: str, access: AccessOf, caller: CallerName, indexes: PartsOf) -> Response:
    """Return the document's text, title, and metadata."""
    found = await access.work.read.run(_document, indexes.catalog, name, caller, id, caller=caller)
    return Response(found, media_type="application/json")


@router.delete(
    "/{name:index}/documents/{id:text}",
    dependencies=WRITE,
    summary="Delete a document",
    responses=openapi.problems(404, 422, 503),
)
async def delete_document(name: str, id: str, access: AccessOf, caller: CallerName, indexes: PartsOf) -> DeleteReport:
    """Delete the document, or answer with 404 if it does not exist.

    For ids such as `..`, which clients resolve as paths, delete by a list of ids.
    """
    if not await access.work.write.run(lambda: indexes.catalog.get(name, caller).delete([id]), caller=caller):
        raise UnknownDocument(f"the index {name!r} holds no document {id!r}")
    return DeleteReport(deleted=1)


def _document(catalog: Catalog, name: str, caller: str, id: str) -> bytes:
    found = catalog.get(name, caller).documents([id])
    if id not in found:
        raise UnknownDocument(f"the index {name!r} holds no document {id!r}")
    return StoredDocument.model_validate(found[id], from_attributes=True).model_dump_json().encode()


def _page(catalog: Catalog, name: str, caller: str, after: str, limit: int, size: int) -> bytes:
    found = catalog.get(name, caller).page(after, limit + 1, size)
    documents = [StoredDocument.model_validate(each, from_attributes=True) for each in found[:limit]]
    more = len(found) > limit or size_of_all(found) >= size
    page = DocumentPage(documents=documents, next=documents[-1].id if more else None)
    return page.model_dump_json().encode()


def _statistics(catalog: Catalog, name: str, caller: str) -> IndexStatistics:
    index = catalog.get(name, caller)
    sample = index.outlines(SAMPLE)
    values: dict[str, list[Any]] = {}
    for _, metadata in sample:
        for field, value in metadata.items():
            values.setdefault(field, []).append(value)
    most = sorted(values, key=lambda field: (-len(values[field]), field))[:FIELDS]
    lengths = [characters for characters, _ in sample]
    return IndexStatistics(
        **catalog.describe(name).model_dump(),
        sampled=len(sample),
        characters_mean=sum(lengths) / max(1, len(lengths)),
        characters_most=max(lengths, default=0),
        fields={field: _field(values[field]) for field in most},
    )


def _field(values: Sequence[Any]) -> FieldStatistics:
    different = {orjson.dumps(value, option=orjson.OPT_SORT_KEYS): value for value in values}
    short = [value for written, value in different.items() if len(written) <= EXAMPLE_BYTES]
    return FieldStatistics(documents=len(values), values=len(different), examples=short[:EXAMPLES])


class _UploadResponse(StreamingResponse):
    """A response that sends lines while the route still reads the body."""

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        await self.stream_response(send)


async def _count_written(reports: AsyncIterator[IngestReport]) -> AsyncGenerator[IngestReport, None]:
    """Pass reports on, and count the written documents, even if the rest of the upload fails."""
    report = IngestReport()
    try:
        async for report in reports:
            yield report
    finally:
        for outcome in ("added", "updated", "unchanged", "skipped"):
            metrics.ingested.labels(outcome).inc(getattr(report, outcome))


async def _lines(
    request: Request, report: IngestReport, reports: AsyncGenerator[IngestReport, None]
) -> AsyncIterator[bytes]:
    """Yield lines `progress`, and finally `report` or `problem`.

    Progress comes once a second, and less often in a long upload, as some clients read only after sending.
    """
    begun = reported = time.monotonic()
    try:
        async with aclosing(reports):
            async for report in reports:
                now = time.monotonic()
                if now - reported >= max(PROGRESS_SECONDS, PROGRESS_SHARE * (now - begun)):
                    reported = now
                    yield _line("progress", UploadProgress.model_validate(report, from_attributes=True))
        yield _line("report", _final_report(report))
    except ClientDisconnect:
        return
    except BoundaryMorphError as error:
        yield _line("problem", problems.problem_of(request, error))


def _line(name: str, content: BaseModel) -> bytes:
    return f'{{"{name}":{content.model_dump_json(exclude_none=name == "problem")}}}\n'.encode()


def _final_report(report: IngestReport) -> UploadReport:
    if report.skipped and not (report.added or report.updated or report.unchanged):
        first = report.problems[0]
        raise InvalidInput(f"no document was usable; line {first.line}: {first.reason}")
    return UploadReport.model_validate(report, from_attributes=True)


async def _entries(
    request: Request, dimension: int, access: Access, run: Run
) -> AsyncIterator[ParsedDocument | BadLine]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    longest = access.settings.limits.line_bytes
    if media_type in NDJSON:
        chunks = bodies.streamed(request, access, longest + BATCH_BYTES)
        return parse_ndjson(chunks, dimension, max_line_bytes=longest, run=run)
    if media_type == "application/json":
        return parse_array(await bodies.read(request, access), dimension, max_line_bytes=longest, run=run)
    raise UnsupportedMediaType("send documents as application/x-ndjson, one per line, or as an application/json array")
