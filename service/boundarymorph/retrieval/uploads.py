"""Parse the documents of uploads as they arrive, and write them into an index in batches."""

from __future__ import annotations

import asyncio
import tempfile
from codecs import BOM_UTF8
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from boundarymorph import reading
from boundarymorph.database import storage_errors
from boundarymorph.errors import BoundaryMorphError, IndexConflict, InvalidInput, LimitExceeded, StorageFull
from boundarymorph.inference.concurrency import Run, run_in_default_thread
from boundarymorph.reading import has_content
from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.retrieval.interfaces import Index

MAX_LINE_BYTES = 4 * 2**20
AT_A_TIME = 256  # elements of an array, or lines, to parse at a time; the event loop runs in between
FIELDS = frozenset({"id", "_id", "text", "title", "metadata", "embedding"})
MAX_FIELD_NAME = 100  # characters kept of an unknown field's name
MAX_FIELDS_NAMED = 5  # fields to name in the message about a missing one
MAX_HEADER = 1_000  # bytes of a line that may name the columns of a table
MAX_PROBLEMS = 100
MAX_FIELD_NAMES = 100  # unknown fields counted by name
ENCODED_AT_A_TIME = 32
WRITTEN_AT_A_TIME = 256  # documents per batch if none has to be encoded
BATCH_BYTES = 8 * 2**20  # bytes of the upload after which a batch is complete


class UploadedDocument(BaseModel):
    """A document of an upload.

    Other fields are counted in the report, and refused by a strict upload.
    """

    model_config = ConfigDict(strict=True)

    id: reading.Id = Field(validation_alias=AliasChoices("id", "_id"), description="unique in the index")
    text: str = Field(description="what the models read, after the title")
    title: str | None = Field(None, description="read by the models before the text")
    metadata: dict[str, Any] | None = Field(None, description="used by filters")
    embedding: Annotated[list[float], Field(fail_fast=True)] | None = Field(
        None, description="encoded by the service if absent"
    )


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """A document of an upload.

    Attributes:
        line: The number of its line, from 1.
        document: The document.
        embedding: (d,) float32 unit vector, if given.
        end: The byte at which it ends.
        unknown: Its unknown fields.
    """

    line: int
    document: Document
    embedding: NDArray[np.float32] | None = None
    end: int = field(default=0, compare=False)
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line, or position in an array, from 1, without a usable document."""

    line: int
    reason: str


class Line(NamedTuple):
    """A line that is not blank.

    Attributes:
        number: The number from 1.
        text: At most limit + 1 bytes.
        end: The byte at which it ends.
    """

    number: int
    text: bytes
    end: int


async def parse_ndjson(
    chunks: AsyncIterable[bytes],
    dimension: int,
    *,
    max_line_bytes: int = MAX_LINE_BYTES,
    run: Run = run_in_default_thread,
) -> AsyncIterator[ParsedDocument | BadLine]:
    """Parse an `UploadedDocument` per line, and hold only a chunk and a document in memory.

    `run` runs the parser in a thread.
    """

    def parsed(found: Sequence[Line]) -> list[ParsedDocument | BadLine]:
        return [_parsed(line, dimension, max_line_bytes) for line in found]

    async for found in lines(chunks, max_line_bytes):
        for entry in await run(parsed, found):
            yield entry


async def parse_array(
    body: bytes, dimension: int, *, max_line_bytes: int = MAX_LINE_BYTES, run: Run = run_in_default_thread
) -> AsyncIterator[ParsedDocument | BadLine]:
    """Parse a JSON array of `UploadedDocument`s, in a thread by `run`.

    Raises InvalidInput, and as `reading.parse` does.
    """
    end = 0

    def parsed(start: int) -> list[ParsedDocument | BadLine]:
        nonlocal end
        entries: list[ParsedDocument | BadLine] = []
        for number, record in enumerate(records[start : start + AT_A_TIME], start=start + 1):
            try:
                size = len(orjson.dumps(record))
            except orjson.JSONEncodeError as error:
                entries.append(BadLine(number, f"cannot be stored: {error}"))
                continue
            end += size
            if size > max_line_bytes:
                entries.append(_too_long(number, max_line_bytes))
            else:
                entries.append(parse_record(record, number, dimension, end))
        return entries

    records = await run(reading.parse, body)
    if not isinstance(records, list):
        raise InvalidInput("the documents must be a JSON array of objects")
    for start in range(0, len(records), AT_A_TIME):
        for entry in await run(parsed, start):
            yield entry


async def lines(chunks: AsyncIterable[bytes], limit: int) -> AsyncIterator[list[Line]]:
    """Yield the lines that end in each chunk, without blank ones, of AT_A_TIME lines at a time."""
    number, end, kept = 1, 0, bytearray()

    def ended() -> list[Line]:
        text = bytes(kept).removeprefix(BOM_UTF8)  # also between files that were joined
        return [Line(number, text, end)] if text.strip() else []

    async for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for start in range(0, len(whole), AT_A_TIME):
            found = []
            for part in whole[start : start + AT_A_TIME]:
                kept += part[: limit + 1 - len(kept)]
                end += len(part) + 1
                found += ended()
                number += 1
                kept.clear()
            await asyncio.sleep(0)
            if found:
                yield found
        kept += rest[: limit + 1 - len(kept)]
        end += len(rest)
    if last := ended():
        yield last


def parse_record(record: Any, line: int, dimension: int, end: int = 0) -> ParsedDocument | BadLine:
    try:
        given = UploadedDocument.model_validate(record)
        if not has_content(given.text) and not has_content(given.title or ""):
            raise InvalidInput("text: has nothing to read, and there is no title")
        orjson.dumps({"documents": [{"metadata": given.metadata}]})  # as deep as in a response with documents
        embedding = None if given.embedding is None else _embedding(given.embedding, dimension)
    except ValidationError as error:
        return BadLine(line, _mistake(error, record))
    except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
        return BadLine(line, f"metadata: cannot be stored: {error}")
    except InvalidInput as problem:
        return BadLine(line, str(problem))
    unknown = tuple(name[:MAX_FIELD_NAME] for name in record if name not in FIELDS)
    return ParsedDocument(
        line, Document(given.id, given.text, given.title, given.metadata or {}), embedding, end, unknown
    )


def _parsed(line: Line, dimension: int, limit: int) -> ParsedDocument | BadLine:
    number, text, end = line
    if len(text) > limit:
        return _too_long(number, limit)
    try:
        return parse_record(_loaded(text), number, dimension, end)
    except orjson.JSONDecodeError as error:
        hint = "JSON has no NaN or Infinity" if b"NaN" in text or b"Infinity" in text else reading.ONE_A_LINE
        if reading.is_table(text[:MAX_HEADER].decode(errors="replace")):
            hint = reading.AS_LINES
        return BadLine(number, reading.complaint(text) or f"not JSON: {error}; {hint}")


def _loaded(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        repaired = reading.with_whole_characters(line)
        if repaired == line:
            raise
        return orjson.loads(repaired)


def _too_long(line: int, limit: int) -> BadLine:
    return BadLine(line, f"longer than {limit} bytes")


def _mistake(error: ValidationError, record: Any) -> str:
    mistake = error.errors(include_url=False)[0]
    where = ".".join(map(str, mistake["loc"]))
    if not where:
        return "a document must be a JSON object; send an array of them as application/json"
    if mistake["type"] == "missing":
        there = ", ".join(name[:MAX_FIELD_NAME] for name in islice(record, MAX_FIELDS_NAMED)) or "nothing"
        return f"{where} is missing: a document has id and text; this one has {there}"
    return f"{where}: {reading.mistake_message(mistake, error.title)}"


def _embedding(value: Sequence[float], dimension: int) -> NDArray[np.float32]:
    if not dimension:
        raise InvalidInput("embedding: the index has no vectors; leave it out")
    if len(value) != dimension:
        raise InvalidInput(f"embedding: it has {len(value)} dimensions and the index {dimension}")
    vector = np.array(value, dtype=np.float64)
    with np.errstate(over="ignore"):
        length = np.linalg.norm(vector)
    if not 0 < length < np.inf:
        raise InvalidInput("embedding: it has no direction, as its length is zero or not finite")
    return (vector / length).astype(np.float32)


@dataclass(slots=True)
class IngestReport:
    """The outcome of an upload so far.

    Attributes:
        superseded: Documents replaced by one with the same id in the same batch.
        truncated: Texts that were truncated to be encoded.
        problems: The first MAX_PROBLEMS skipped lines.
        unknown_fields: The number of documents with each unknown field.
        position: Bytes read.
    """

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    superseded: int = 0
    skipped: int = 0
    truncated: int = 0
    problems: list[BadLine] = field(default_factory=list)
    unknown_fields: dict[str, int] = field(default_factory=dict)
    position: int = field(default=0, compare=False)

    @property
    def stored(self) -> int:
        return self.added + self.updated + self.unchanged

    @property
    def documents(self) -> int:
        return self.stored + self.superseded + self.skipped

    def skip(self, bad: BadLine) -> None:
        self.skipped += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(bad)


async def ingest_batches(
    index: Index,
    encoder: Encoder | None,
    entries: AsyncIterable[ParsedDocument | BadLine],
    *,
    batch_size: int | None = None,
    strict: bool = False,
    spooled: Callable[[int], None] = lambda size: None,
    run: Run = run_in_default_thread,
    caller: str = "",
    report: IngestReport | None = None,
) -> AsyncIterator[IngestReport]:
    """Write the documents of an upload in batches, and yield the report after each batch.

    Of several documents with the same id the last one counts. A document without an embedding is encoded if `encoder`
    is the index's own; otherwise, if the index has vectors, it is a bad line, as is one that the index cannot store.
    Unchanged documents are neither encoded nor written. The report is the same object each time; it comes after each
    batch has become durable, and at the end.

    Args:
        index: The index.
        encoder: The encoder of the process, if any.
        entries: The parsed lines.
        batch_size: Documents per batch.
        strict: Whether to check the whole upload, in a temporary file, before anything is written.
        spooled: Called with the size of each document before it is written to that file; may raise.
        run: Runs slow functions in threads.
        caller: The caller that documents are encoded for.
        report: The report to fill.

    Raises:
        InvalidInput: For a bad line or an unknown field of a strict upload.
    """
    if encoder is not None and encoder.name != index.info.encoder:
        encoder = None
    usable = _checked(entries, index, encodes=encoder is not None)
    size = batch_size or (WRITTEN_AT_A_TIME if encoder is None else ENCODED_AT_A_TIME)
    report = report or IngestReport()
    batch: list[ParsedDocument] = []
    try:
        async for entry in _all_valid(usable, spooled) if strict else usable:
            if isinstance(entry, BadLine):
                report.skip(entry)
                continue
            for name in entry.unknown:
                if name in report.unknown_fields or len(report.unknown_fields) < MAX_FIELD_NAMES:
                    report.unknown_fields[name] = report.unknown_fields.get(name, 0) + 1
            batch.append(entry)
            if len(batch) >= size or entry.end - report.position >= BATCH_BYTES:
                await _write(index, encoder, batch, report, run, caller)
                batch.clear()
                yield report
        if batch:
            await _write(index, encoder, batch, report, run, caller)
    except BoundaryMorphError as error:
        if written := report.added + report.updated:
            error.add(f"{written:,} documents of this upload were written before, and stay")
        elif isinstance(error, StorageFull):
            error.add("nothing of this upload was written")
        raise
    yield report


async def _write(
    index: Index, encoder: Encoder | None, batch: Sequence[ParsedDocument], report: IngestReport, run: Run, caller: str
) -> None:
    report.position = batch[-1].end
    last = {entry.document.id: entry for entry in batch}
    digests = await run(lambda: {id: fingerprint(entry.document, entry.embedding) for id, entry in last.items()})
    known = await run(index.digests, list(last))
    changed = {id: (entry, digests[id]) for id, entry in last.items() if known.get(id) != digests[id]}
    report.superseded += len(batch) - len(last)
    report.unchanged += len(last) - len(changed)
    if not changed:
        return
    documents = [entry.document for entry, _ in changed.values()]
    vectors, truncated = await _embed([entry for entry, _ in changed.values()], encoder, index, caller)
    updated = len(known.keys() & changed.keys())

    def write() -> None:
        index.upsert(documents, vectors, [digest for _, digest in changed.values()])
        report.added += len(changed) - updated  # in this thread, as the caller may have been cancelled
        report.updated += updated
        report.truncated += truncated

    await run(write)


async def _embed(
    entries: Sequence[ParsedDocument], encoder: Encoder | None, index: Index, caller: str
) -> tuple[NDArray[np.float32], int]:
    vectors = np.empty((len(entries), index.info.dimension), dtype=np.float32)
    for row, entry in enumerate(entries):
        if entry.embedding is not None:
            vectors[row] = entry.embedding
    without = [row for row, entry in enumerate(entries) if entry.embedding is None]
    if encoder is None or not without:
        return vectors, 0
    encoded = await encoder.encode_documents([entries[row].document.content for row in without], caller)
    if encoder.name != index.info.encoder:  # its servers have changed their model in the meantime
        raise IndexConflict(
            f"the encoder is {encoder.name!r} now, and the index {index.name!r} was built with {index.info.encoder!r}"
        )
    vectors[without] = encoded.vectors
    return vectors, encoded.truncated


async def _checked(
    entries: AsyncIterable[ParsedDocument | BadLine], index: Index, *, encodes: bool
) -> AsyncIterator[ParsedDocument | BadLine]:
    """Yield the entries, with bad lines for documents that the index cannot store.

    A document that lacks a required embedding cannot be stored.
    """
    reason = "no embedding, and the index holds its users' own vectors"
    if index.info.encoder is not None:
        reason = f"no embedding, and this service does not run the index's encoder {index.info.encoder!r}"
    async for entry in entries:
        if isinstance(entry, BadLine):
            yield entry
        elif entry.embedding is None and not encodes and index.info.dimension:
            yield BadLine(entry.line, reason)
        else:
            try:
                index.check(entry.document)
            except (InvalidInput, LimitExceeded) as refusal:
                yield BadLine(entry.line, str(refusal))
            else:
                yield entry


async def _all_valid(
    entries: AsyncIterable[ParsedDocument | BadLine], spooled: Callable[[int], None]
) -> AsyncIterator[ParsedDocument]:
    """Yield the entries, but only after all have been checked."""
    with storage_errors("the upload cannot be stored to be checked"), tempfile.TemporaryFile() as spool:
        async for entry in entries:
            if isinstance(entry, BadLine):
                raise InvalidInput(f"line {entry.line}: {entry.reason}; nothing was written")
            if entry.unknown:
                raise InvalidInput(f"line {entry.line}: unknown field {entry.unknown[0]!r}; nothing was written")
            document = entry.document
            vector = None if entry.embedding is None else entry.embedding.tobytes().hex()
            fields = (entry.line, vector, entry.end, document.id, document.text, document.title, document.metadata)
            checked = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
            spooled(len(checked))
            spool.write(checked)
        spool.seek(0)
        for line in spool:
            number, vector, end, *parts = orjson.loads(line)
            embedding = None if vector is None else np.frombuffer(bytes.fromhex(vector), dtype=np.float32)
            yield ParsedDocument(number, Document(*parts), embedding, end)
