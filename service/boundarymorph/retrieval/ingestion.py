"""Ingestion: from an upload to documents, and from documents into an index."""

from __future__ import annotations

import asyncio
import tempfile
from codecs import BOM_UTF8
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput, LimitExceeded
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.retrieval.indexes import Index
from boundarymorph.retrieval.storage import storage_errors
from boundarymorph.retrieval.store import fingerprint

MAX_LINE_BYTES = 4 * 2**20
MAX_ID_LENGTH = 512
MAX_PROBLEMS = 100
ENCODED_AT_A_TIME = 32
WRITTEN_AT_A_TIME = 256  # where nothing is to be encoded
BATCH_BYTES = 8 * 2**20  # of the upload, beyond which a batch takes no further line


@dataclass(frozen=True, slots=True)
class Entry:
    """A document of an upload, from line (or array position) `line`, counted from 1.

    embedding: (d,) float32 unit; end: bytes of the upload up to the end of its line, 0 where there are no lines.
    """

    line: int
    document: Document
    embedding: NDArray[np.float32] | None = None
    end: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line (or array position), counted from 1, that holds no usable document, and why."""

    line: int
    reason: str


@dataclass(slots=True)
class IngestReport:
    """What became of the documents of an upload, in the order in which they came.

    superseded: earlier documents of an id that came again in the same batch; truncated: how many were encoded without
    their end; problems: the first MAX_PROBLEMS of those that were skipped; position: bytes of the upload that are dealt
    with, where it has lines.
    """

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    superseded: int = 0
    skipped: int = 0
    truncated: int = 0
    problems: list[BadLine] = field(default_factory=list)
    position: int = field(default=0, compare=False)

    @property
    def documents(self) -> int:
        """How many have been dealt with, whatever became of them."""
        return self.added + self.updated + self.unchanged + self.superseded + self.skipped

    def skip(self, bad: BadLine) -> None:
        self.skipped += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(bad)


async def parse_ndjson(
    chunks: AsyncIterable[bytes], dimension: int, *, max_line_bytes: int = MAX_LINE_BYTES
) -> AsyncIterator[Entry | BadLine]:
    """One JSON object a line, in UTF-8; holds no more than a chunk and a line in memory. Blank lines are ignored.

    Fields: id (string or integer; or `_id`, as in BEIR), text, title, metadata (object), embedding (`dimension`
    numbers); others are ignored.
    """
    async for number, line, end in _lines(chunks, max_line_bytes):
        if len(line) > max_line_bytes:
            yield BadLine(number, f"longer than {max_line_bytes} bytes")
        elif line.strip():
            try:
                record = orjson.loads(line.removeprefix(BOM_UTF8) if number == 1 else line)
            except orjson.JSONDecodeError as error:
                yield BadLine(number, f"not JSON: {error}")
            else:
                yield parse_record(record, number, dimension, end)


async def parse_array(body: bytes, dimension: int) -> AsyncIterator[Entry | BadLine]:
    """A JSON array of objects with the fields that `parse_ndjson` takes. Raises InvalidInput when it is none."""
    try:
        records = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the documents are not JSON: {error}") from error
    if not isinstance(records, list):
        raise InvalidInput("the documents must be a JSON array of objects")
    for number, record in enumerate(records, start=1):
        yield parse_record(record, number, dimension)


def parse_record(record: object, line: int, dimension: int, end: int = 0) -> Entry | BadLine:
    """One decoded JSON value as an entry, or what is wrong with it."""
    try:
        if not isinstance(record, dict):
            raise _RecordError("a document must be a JSON object")
        document = Document(_id(record), _text(record), _title(record), _metadata(record))
        return Entry(line, document, _embedding(record, dimension), end)
    except _RecordError as problem:
        return BadLine(line, str(problem))


async def ingest(
    index: Index,
    encoder: Encoder | None,
    entries: AsyncIterable[Entry | BadLine],
    *,
    batch_size: int | None = None,
    strict: bool = False,
    on_progress: Callable[[IngestReport], None] | None = None,
) -> IngestReport:
    """What `ingesting` does, to its end. on_progress: called after each batch."""
    report = IngestReport()
    async for report in ingesting(index, encoder, entries, batch_size=batch_size, strict=strict):
        if on_progress is not None:
            on_progress(report)
    return report


async def ingesting(
    index: Index,
    encoder: Encoder | None,
    entries: AsyncIterable[Entry | BadLine],
    *,
    batch_size: int | None = None,
    strict: bool = False,
) -> AsyncIterator[IngestReport]:
    """Write the documents of an upload, batch by batch; of several with one id the last stays.

    Documents without an embedding are encoded, if `encoder` is the index's own, else skipped as bad lines, as are those
    that the index cannot hold. What is
    stored unchanged is neither encoded nor written. Yields one report, which goes on counting, after each batch, which
    is then durable, and at the end: an upload that failed halfway can simply be sent again.

    strict: check the whole upload, kept in a temporary file meanwhile, before anything is written, and raise
    InvalidInput on the first bad line instead of skipping it.
    """
    encodes = encoder is not None and encoder.name == index.info.encoder
    usable = _checked(entries, index, encodes=encodes)
    size = batch_size or (ENCODED_AT_A_TIME if encodes else WRITTEN_AT_A_TIME)
    report = IngestReport()
    batch: list[Entry] = []
    async for entry in _all_valid(usable) if strict else usable:
        if isinstance(entry, BadLine):
            report.skip(entry)
            continue
        batch.append(entry)
        if len(batch) >= size or entry.end - report.position >= BATCH_BYTES:
            await _write(index, encoder, batch, report)
            batch.clear()
            yield report
    if batch:
        await _write(index, encoder, batch, report)
    yield report


async def _write(index: Index, encoder: Encoder | None, batch: Sequence[Entry], report: IngestReport) -> None:
    report.position = batch[-1].end
    last = {entry.document.id: entry for entry in batch}
    known = await asyncio.to_thread(index.digests, list(last))
    digests = {id: fingerprint(entry.document, entry.embedding) for id, entry in last.items()}
    changed = {id: (entry, digests[id]) for id, entry in last.items() if known.get(id) != digests[id]}
    report.superseded += len(batch) - len(last)
    report.unchanged += len(last) - len(changed)
    if not changed:
        return
    documents = [entry.document for entry, _ in changed.values()]
    vectors, truncated = await _embed([entry for entry, _ in changed.values()], encoder, index.info.dimension)
    await asyncio.to_thread(index.upsert, documents, vectors, [digest for _, digest in changed.values()])
    updated = len(known.keys() & changed.keys())
    report.added += len(changed) - updated
    report.updated += updated
    report.truncated += truncated


async def _embed(entries: Sequence[Entry], encoder: Encoder | None, dimension: int) -> tuple[NDArray[np.float32], int]:
    """(n, d) vectors, given or encoded, and how many texts were cut."""
    vectors = np.empty((len(entries), dimension), dtype=np.float32)
    without = []
    for row, entry in enumerate(entries):
        if entry.embedding is None:
            without.append(row)
        else:
            vectors[row] = entry.embedding
    if encoder is None or not without:
        return vectors, 0
    encoded = await encoder.encode_documents([entries[row].document.content for row in without])
    vectors[without] = encoded.vectors
    return vectors, encoded.truncated


async def _lines(chunks: AsyncIterable[bytes], limit: int) -> AsyncIterator[tuple[int, bytes, int]]:
    """Lines with their numbers and the bytes up to their ends; of one that is too long, limit + 1 bytes."""
    number, line, end = 1, bytearray(), 0
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            line += piece[: limit + 1 - len(line)]
            end += len(piece) + 1
            yield number, bytes(line), end
            number += 1
            line.clear()
        line += rest[: limit + 1 - len(line)]
        end += len(rest)
    yield number, bytes(line), end


async def _checked(
    entries: AsyncIterable[Entry | BadLine], index: Index, *, encodes: bool
) -> AsyncIterator[Entry | BadLine]:
    """The entries; as bad lines those that the index cannot hold, or that lack an embedding where nobody encodes."""
    reason = (
        "no embedding, and the index holds its users' own vectors"
        if index.info.encoder is None
        else f"no embedding, and this service does not run the index's encoder {index.info.encoder!r}"
    )
    async for entry in entries:
        if isinstance(entry, BadLine):
            yield entry
        elif entry.embedding is None and not encodes:
            yield BadLine(entry.line, reason)
        else:
            try:
                index.check(entry.document)
            except (InvalidInput, LimitExceeded) as refusal:
                yield BadLine(entry.line, str(refusal))
            else:
                yield entry


async def _all_valid(entries: AsyncIterable[Entry | BadLine]) -> AsyncIterator[Entry]:
    """The same entries, the first of them only after all have been seen to be good."""
    with storage_errors("the upload cannot be kept aside to be checked"), tempfile.TemporaryFile() as spool:
        async for entry in entries:
            if isinstance(entry, BadLine):
                raise InvalidInput(f"line {entry.line}: {entry.reason}; nothing was written")
            document = entry.document
            vector = None if entry.embedding is None else entry.embedding.tobytes().hex()
            fields = (entry.line, vector, entry.end, document.id, document.text, document.title, document.metadata)
            spool.write(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
        spool.seek(0)
        for line in spool:
            number, vector, end, *parts = orjson.loads(line)
            embedding = None if vector is None else np.frombuffer(bytes.fromhex(vector), dtype=np.float32)
            yield Entry(number, Document(*parts), embedding, end)


class _RecordError(Exception):
    """What is wrong with a record."""


def _id(record: dict[str, Any]) -> str:
    value = record.get("id", record.get("_id"))
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _RecordError("id must be a string or an integer of at most 64 bits")
    id = str(value)
    if not 1 <= len(id) <= MAX_ID_LENGTH:
        raise _RecordError(f"id must have 1 to {MAX_ID_LENGTH} characters")
    return id


def _text(record: dict[str, Any]) -> str:
    value = record.get("text")
    if not isinstance(value, str):
        raise _RecordError("text must be a string")
    if not value and not record.get("title"):
        raise _RecordError("text is empty and there is no title")
    return value


def _title(record: dict[str, Any]) -> str | None:
    value = record.get("title")
    if value is not None and not isinstance(value, str):
        raise _RecordError("title must be a string")
    return value


def _metadata(record: dict[str, Any]) -> dict[str, Any]:
    value = record.get("metadata")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _RecordError("metadata must be an object")
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError as error:  # it reads deeper nesting than it writes
        raise _RecordError(f"metadata cannot be stored: {error}") from None
    return value


def _embedding(record: dict[str, Any], dimension: int) -> NDArray[np.float32] | None:
    value = record.get("embedding")
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(component) in (int, float) for component in value):
        raise _RecordError("embedding must be a list of numbers")
    if len(value) != dimension:
        raise _RecordError(f"embedding has {len(value)} dimensions and the index {dimension}")
    vector = np.array(value, dtype=np.float64)
    with np.errstate(over="ignore"):
        length = np.linalg.norm(vector)
    if not 0 < length < np.inf:
        raise _RecordError("embedding has no direction: its length is zero or not finite")
    return (vector / length).astype(np.float32)
