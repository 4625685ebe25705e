"""Ingestion: from an upload to documents, and from documents into an index."""

from __future__ import annotations

import re
import tempfile
from codecs import BOM_UTF8
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import IndexConflict, InvalidInput, LimitExceeded
from boundarymorph.inference.executors import Run, in_default_thread
from boundarymorph.retrieval.catalog import Index
from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.retrieval.storage import storage_errors

MAX_LINE_BYTES = 4 * 2**20
MAX_ID_LENGTH = 512
MAX_PROBLEMS = 100
ENCODED_AT_A_TIME = 32
WRITTEN_AT_A_TIME = 256  # where nothing is to be encoded
BATCH_BYTES = 8 * 2**20  # of the upload, beyond which a batch takes no further line
PIECE_BYTES, PIECE_ELEMENTS = 2**18, 256  # of an array, parsed in one go
FIELDS = frozenset({"id", "_id", "text", "title", "metadata", "embedding"})
MAX_FIELD_NAMES, MAX_FIELD_NAME = 100, 100  # of unknown fields, how many are told, and characters of each
BLANK = b" \t\r\n"  # of JSON
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'  # or what is left of one that does not end
_BETWEEN_ELEMENTS = re.compile(_STRING + rb"|[\[\]{},]", re.DOTALL)
_IN_ELEMENT = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """A document of an upload, from line (or array position) `line`, counted from 1.

    embedding: (d,) float32 unit; end: bytes of the upload up to the end of its line, 0 where there are no lines;
    unknown: names of fields that it had besides.
    """

    line: int
    document: Document
    embedding: NDArray[np.float32] | None = None
    end: int = field(default=0, compare=False)
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line (or array position), counted from 1, that holds no usable document, and why."""

    line: int
    reason: str


@dataclass(slots=True)
class IngestReport:
    """What became of the documents of an upload, in the order in which they came.

    superseded: earlier documents of an id that came again in the same batch; truncated: how many were encoded without
    their end; problems: the first MAX_PROBLEMS of those that were skipped; unknown_fields: how many documents had a
    field that means nothing here, by its name; position: bytes of the upload that are dealt with, where it has lines.
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
    def documents(self) -> int:
        """How many have been dealt with, whatever became of them."""
        return self.added + self.updated + self.unchanged + self.superseded + self.skipped

    def skip(self, bad: BadLine) -> None:
        self.skipped += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(bad)

    def count_unknown(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.unknown_fields or len(self.unknown_fields) < MAX_FIELD_NAMES:
                self.unknown_fields[name] = self.unknown_fields.get(name, 0) + 1


async def parse_ndjson(
    chunks: AsyncIterable[bytes],
    dimension: int,
    *,
    max_line_bytes: int = MAX_LINE_BYTES,
    run: Run = in_default_thread,
) -> AsyncIterator[Entry | BadLine]:
    """One JSON object a line, in UTF-8; holds no more than a chunk and a line in memory. Blank lines are ignored.

    Fields: id (string or integer; or `_id`, as in BEIR), text, title, metadata (object), embedding (`dimension`
    numbers); of others an entry has the names. The lines of each chunk are parsed by `run`.
    """
    async for lines in _lines(chunks, max_line_bytes):
        for entry in await run(_parse_lines, lines, dimension, max_line_bytes):
            yield entry


async def parse_array(
    body: bytes, dimension: int, *, max_line_bytes: int = MAX_LINE_BYTES, run: Run = in_default_thread
) -> AsyncIterator[Entry | BadLine]:
    """A JSON array of objects with the fields that `parse_ndjson` takes, parsed some elements at a time by `run`.

    Raises InvalidInput when it is none, before the first entry.
    """
    elements = _elements(body)
    while await run(_check_some, elements, max_line_bytes):
        pass
    elements, count = _elements(body), 0
    while entries := await run(_parse_some, elements, count, dimension, max_line_bytes):
        count += len(entries)
        for entry in entries:
            yield entry


def parse_record(record: object, line: int, dimension: int, end: int = 0) -> Entry | BadLine:
    """One decoded JSON value as an entry, or what is wrong with it."""
    try:
        if not isinstance(record, dict):
            raise _RecordError("a document must be a JSON object")
        document = Document(_id(record), _text(record), _title(record), _metadata(record))
        unknown = tuple(name[:MAX_FIELD_NAME] for name in record if name not in FIELDS)
        return Entry(line, document, _embedding(record, dimension), end, unknown)
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
    run: Run = in_default_thread,
) -> IngestReport:
    """What `ingesting` does, to its end. on_progress: called after each batch."""
    report = IngestReport()
    async for report in ingesting(index, encoder, entries, batch_size=batch_size, strict=strict, run=run):
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
    run: Run = in_default_thread,
) -> AsyncIterator[IngestReport]:
    """Write the documents of an upload, batch by batch; of several with one id the last stays.

    Documents without an embedding are encoded, if `encoder` is the index's own, else skipped as bad lines, as are those
    that the index cannot hold. What is
    stored unchanged is neither encoded nor written. Yields one report, which goes on counting, after each batch, which
    is then durable, and at the end: an upload that failed halfway can simply be sent again.

    strict: check the whole upload, kept in a temporary file meanwhile, before anything is written, and raise
    InvalidInput on the first bad line instead of skipping it, or on the first unknown field. run: in which threads the
    index is read and written.
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
        report.count_unknown(entry.unknown)
        batch.append(entry)
        if len(batch) >= size or entry.end - report.position >= BATCH_BYTES:
            await _write(index, encoder, batch, report, run)
            batch.clear()
            yield report
    if batch:
        await _write(index, encoder, batch, report, run)
    yield report


async def _write(index: Index, encoder: Encoder | None, batch: Sequence[Entry], report: IngestReport, run: Run) -> None:
    report.position = batch[-1].end
    last = {entry.document.id: entry for entry in batch}
    known, digests = await run(_digests, index, last)
    changed = {id: (entry, digests[id]) for id, entry in last.items() if known.get(id) != digests[id]}
    report.superseded += len(batch) - len(last)
    report.unchanged += len(last) - len(changed)
    if not changed:
        return
    documents = [entry.document for entry, _ in changed.values()]
    vectors, truncated = await _embed([entry for entry, _ in changed.values()], encoder, index)
    await run(index.upsert, documents, vectors, [digest for _, digest in changed.values()])
    updated = len(known.keys() & changed.keys())
    report.added += len(changed) - updated
    report.updated += updated
    report.truncated += truncated


def _digests(index: Index, entries: Mapping[str, Entry]) -> tuple[Mapping[str, bytes], dict[str, bytes]]:
    """Fingerprints by id: of what is stored, and of what has come."""
    new = {id: fingerprint(entry.document, entry.embedding) for id, entry in entries.items()}
    return index.digests(list(entries)), new


async def _embed(entries: Sequence[Entry], encoder: Encoder | None, index: Index) -> tuple[NDArray[np.float32], int]:
    """(n, d) vectors, given or encoded, and how many texts were cut."""
    vectors = np.empty((len(entries), index.info.dimension), dtype=np.float32)
    without = []
    for row, entry in enumerate(entries):
        if entry.embedding is None:
            without.append(row)
        else:
            vectors[row] = entry.embedding
    if encoder is None or not without:
        return vectors, 0
    encoded = await encoder.encode_documents([entries[row].document.content for row in without])
    if encoder.name != index.info.encoder:  # its servers have changed their model meanwhile
        raise IndexConflict(
            f"the encoder is {encoder.name!r} now, and the index {index.name!r} was built with {index.info.encoder!r}"
        )
    vectors[without] = encoded.vectors
    return vectors, encoded.truncated


async def _lines(chunks: AsyncIterable[bytes], limit: int) -> AsyncIterator[list[tuple[int, bytes, int]]]:
    """The lines that end in each chunk, with their numbers and the bytes up to their ends; of one that is too long,
    limit + 1 bytes."""
    number, line, end = 1, bytearray(), 0
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        lines = []
        for piece in ended:
            line += piece[: limit + 1 - len(line)]
            end += len(piece) + 1
            lines.append((number, bytes(line), end))
            number += 1
            line.clear()
        if lines:
            yield lines
        line += rest[: limit + 1 - len(line)]
        end += len(rest)
    yield [(number, bytes(line), end)]


def _parse_lines(lines: Sequence[tuple[int, bytes, int]], dimension: int, limit: int) -> list[Entry | BadLine]:
    return [
        _parse(line.removeprefix(BOM_UTF8) if number == 1 else line, number, dimension, limit, end)
        for number, line, end in lines
        if len(line) > limit or line.strip()
    ]


def _parse(line: bytes, number: int, dimension: int, limit: int, end: int = 0) -> Entry | BadLine:
    if len(line) > limit:
        return BadLine(number, f"longer than {limit} bytes")
    try:
        return parse_record(orjson.loads(line), number, dimension, end)
    except orjson.JSONDecodeError as error:
        return BadLine(number, f"not JSON: {error}")


def _elements(body: bytes) -> Iterator[bytes]:
    """The elements of a JSON array one by one, found by its brackets, commas and strings alone, and not yet checked."""
    if not body.lstrip(BLANK).startswith(b"["):
        raise InvalidInput("the documents must be a JSON array of objects")
    depth, position, start, empty = 0, 0, 0, True
    while token := (_BETWEEN_ELEMENTS if depth == 1 else _IN_ELEMENT).search(body, position):
        mark, position = body[token.start()], token.end()
        if mark in b"[{":
            depth += 1
            start = position if depth == 1 else start
        elif mark in b"]}":
            depth -= 1
        if (mark == ord(",") and depth == 1) or depth == 0:
            element = body[start : token.start()].strip(BLANK)
            if element or not (empty and depth == 0):
                yield element
            start, empty = position, False
        if depth == 0:
            break
    if depth or mark != ord("]") or body[position:].strip(BLANK):
        raise InvalidInput("the documents are not JSON: the array does not end where the body does")


def _some(elements: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for element in islice(elements, PIECE_ELEMENTS):
        yield element
        size += len(element)
        if size >= PIECE_BYTES:
            return


def _check_some(elements: Iterator[bytes], limit: int) -> bool:
    """Whether there were more elements. Raises InvalidInput for what is not JSON."""
    more = False
    for element in _some(elements):
        more = True
        try:
            if len(element) <= limit:
                orjson.loads(element)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"the documents are not JSON: {error}") from error
    return more


def _parse_some(elements: Iterator[bytes], count: int, dimension: int, limit: int) -> list[Entry | BadLine]:
    return [_parse(element, number, dimension, limit) for number, element in enumerate(_some(elements), count + 1)]


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
            if entry.unknown:
                raise InvalidInput(f"line {entry.line}: unknown field {entry.unknown[0]!r}; nothing was written")
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
