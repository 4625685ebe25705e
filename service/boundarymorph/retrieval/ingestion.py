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

from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.retrieval.live import LiveIndex
from boundarymorph.retrieval.store import fingerprint

MAX_LINE_BYTES = 4 * 2**20
MAX_ID_LENGTH = 512
MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """A document of an upload, from line (or array position) `line`, counted from 1; embedding: (d,) float32 unit."""

    line: int
    document: Document
    embedding: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line (or array position), counted from 1, that holds no usable document, and why."""

    line: int
    reason: str


@dataclass(slots=True)
class IngestReport:
    """What became of the documents of an upload, in the order in which they came.

    superseded: earlier documents of an id that came again in the same batch; truncated: how many were encoded without
    their end; problems: the first MAX_PROBLEMS of those that were skipped.
    """

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    superseded: int = 0
    skipped: int = 0
    truncated: int = 0
    problems: list[BadLine] = field(default_factory=list)

    def skip(self, bad: BadLine) -> None:
        self.skipped += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(bad)


async def parse_ndjson(
    chunks: AsyncIterable[bytes], dimension: int, *, max_line_bytes: int = MAX_LINE_BYTES
) -> AsyncIterator[Entry | BadLine]:
    """One JSON object a line, in UTF-8; holds no more than a chunk and a line in memory. Blank lines are ignored.

    Fields: id (string or integer), text, title, metadata (object), embedding (`dimension` numbers); others are ignored.
    """
    async for number, line in _lines(chunks, max_line_bytes):
        if len(line) > max_line_bytes:
            yield BadLine(number, f"longer than {max_line_bytes} bytes")
        elif line.strip():
            try:
                record = orjson.loads(line.removeprefix(BOM_UTF8) if number == 1 else line)
            except orjson.JSONDecodeError as error:
                yield BadLine(number, f"not JSON: {error}")
            else:
                yield parse_record(record, number, dimension)


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


def parse_record(record: object, line: int, dimension: int) -> Entry | BadLine:
    """One decoded JSON value as an entry, or what is wrong with it."""
    try:
        if not isinstance(record, dict):
            raise _RecordError("a document must be a JSON object")
        document = Document(_id(record), _text(record), _title(record), _metadata(record))
        return Entry(line, document, _embedding(record, dimension))
    except _RecordError as problem:
        return BadLine(line, str(problem))


async def ingest(
    index: LiveIndex,
    encoder: Encoder | None,
    entries: AsyncIterable[Entry | BadLine],
    *,
    batch_size: int = 32,
    strict: bool = False,
    on_progress: Callable[[IngestReport], None] | None = None,
) -> IngestReport:
    """Write the documents of an upload, batch by batch; of several with one id the last stays.

    Documents without an embedding are encoded, if `encoder` is the index's own, else skipped as bad lines. What is
    stored unchanged is neither encoded nor written. `on_progress` is called after each batch, which is then durable:
    an upload that failed halfway can simply be sent again.

    strict: check the whole upload, kept in a temporary file meanwhile, before anything is written, and raise
    InvalidInput on the first bad line instead of skipping it.
    """
    encodes = encoder is not None and encoder.name == index.info.encoder
    usable = entries if encodes else _with_embedding(entries, index)
    report = IngestReport()
    batch: list[Entry] = []

    async def write() -> None:
        await _write(index, encoder, batch, report)
        batch.clear()
        if on_progress is not None:
            on_progress(report)

    async for entry in _all_valid(usable) if strict else usable:
        if isinstance(entry, BadLine):
            report.skip(entry)
            continue
        batch.append(entry)
        if len(batch) >= batch_size:
            await write()
    if batch:
        await write()
    return report


async def _write(index: LiveIndex, encoder: Encoder | None, batch: Sequence[Entry], report: IngestReport) -> None:
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


async def _lines(chunks: AsyncIterable[bytes], limit: int) -> AsyncIterator[tuple[int, bytes]]:
    """Lines with their numbers; of one that is too long, no more than limit + 1 bytes."""
    number, line = 1, bytearray()
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            line += piece[: limit + 1 - len(line)]
            yield number, bytes(line)
            number += 1
            line.clear()
        line += rest[: limit + 1 - len(line)]
    yield number, bytes(line)


async def _with_embedding(entries: AsyncIterable[Entry | BadLine], index: LiveIndex) -> AsyncIterator[Entry | BadLine]:
    """The entries, those that lack an embedding as bad lines."""
    reason = (
        "no embedding, and the index holds its users' own vectors"
        if index.info.encoder is None
        else f"no embedding, and this service does not run the index's encoder {index.info.encoder!r}"
    )
    async for entry in entries:
        yield BadLine(entry.line, reason) if isinstance(entry, Entry) and entry.embedding is None else entry


async def _all_valid(entries: AsyncIterable[Entry | BadLine]) -> AsyncIterator[Entry]:
    """The same entries, the first of them only after all have been seen to be good."""
    with tempfile.TemporaryFile() as spool:
        async for entry in entries:
            if isinstance(entry, BadLine):
                raise InvalidInput(f"line {entry.line}: {entry.reason}; nothing was written")
            document = entry.document
            vector = None if entry.embedding is None else entry.embedding.tobytes().hex()
            fields = (entry.line, vector, document.id, document.text, document.title, document.metadata)
            spool.write(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
        spool.seek(0)
        for line in spool:
            number, vector, *parts = orjson.loads(line)
            embedding = None if vector is None else np.frombuffer(bytes.fromhex(vector), dtype=np.float32)
            yield Entry(number, Document(*parts), embedding)


class _RecordError(Exception):
    """What is wrong with a record."""


def _id(record: dict[str, Any]) -> str:
    value = record.get("id")
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
