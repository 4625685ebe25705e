"""Uploads: cutting them into lines as they arrive, parsing these into documents, reporting what is wrong with malformed
ones, and writing the documents into an index in batches."""

from __future__ import annotations

import re
import tempfile
import time
from codecs import BOM_UTF8
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph import reading
from boundarymorph.database import storage_errors
from boundarymorph.errors import BoundaryMorphError, IndexConflict, InvalidInput, LimitExceeded, StorageFull
from boundarymorph.inference.concurrency import Run, in_default_thread
from boundarymorph.reading import has_content
from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.retrieval.interfaces import Index

MAX_LINE_BYTES = 4 * 2**20
MAX_ID_LENGTH = 512
ARRAY_BYTES = 64 * 2**20  # of a JSON array, which is parsed whole
AT_A_TIME = 256  # elements
FIELDS = frozenset({"id", "_id", "text", "title", "metadata", "embedding"})
MAX_FIELD_NAME = 100  # characters kept of an unknown field's name
MAX_FIELDS_NAMED = 5  # in the message about a missing one
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # or the beginning of an unterminated one
_NOT_A_NUMBER = re.compile(rb"\b(NaN|Infinity)\b")
BLANK = b" \t\r\n"  # of JSON
HEAD_BYTES = 2**12  # within which an array must show itself
_ARRAY = re.compile(rb"\[[ \t\r\n]*[{\]]")
MAX_PROBLEMS = 100
MAX_FIELD_NAMES = 100  # unknown fields counted by name
ENCODED_AT_A_TIME = 32
WRITTEN_AT_A_TIME = 256  # if nothing has to be encoded
BATCH_BYTES = 8 * 2**20  # of the upload, after which a batch is complete
WINDOW_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """A document of an upload, from line (or array position) `line`, counted from 1.

    embedding: (d,) float32 unit; end: offset in bytes of the end of its line or element; unknown: names of its
    unknown fields.
    """

    line: int
    document: Document
    embedding: NDArray[np.float32] | None = None
    end: int = field(default=0, compare=False)
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line (or array position), counted from 1, without a usable document, and the reason."""

    line: int
    reason: str


async def parse_ndjson(
    chunks: AsyncIterable[bytes],
    dimension: int,
    *,
    max_line_bytes: int = MAX_LINE_BYTES,
    array_bytes: int = ARRAY_BYTES,
    run: Run = in_default_thread,
) -> AsyncIterator[ParsedDocument | BadLine]:
    """Parse one JSON object per line, in UTF-8, keeping no more than a chunk and a document in memory, or the elements
    of a JSON array. Ignores blank lines. Raises InvalidInput and LimitExceeded as `pieces` does.

    Fields: id (string or integer; or `_id`, as in BEIR), text, title, metadata (object), embedding (`dimension`
    numbers); the names of others are reported. The lines of each chunk are parsed by `run`.
    """
    async for found in pieces(chunks, max_line_bytes, array_bytes, run):
        for entry in await run(_parse_pieces, found, dimension, max_line_bytes):
            yield entry


async def parse_array(
    body: bytes, dimension: int, *, max_line_bytes: int = MAX_LINE_BYTES, run: Run = in_default_thread
) -> AsyncIterator[ParsedDocument | BadLine]:
    """Parse a JSON array of objects with the fields of `parse_ndjson`, by `run`.

    Raises InvalidInput if it is not a JSON array, before the first entry.
    """
    for found in await run(_elements, body):
        for entry in await run(_parse_pieces, found, dimension, max_line_bytes):
            yield entry


def parse_record(record: object, line: int, dimension: int, end: int = 0) -> ParsedDocument | BadLine:
    """Convert a decoded JSON value to a document, or say what is wrong with it."""
    try:
        if not isinstance(record, dict):
            raise InvalidInput("a document must be a JSON object")
        document, embedding = _document(record), _embedding(record.get("embedding"), dimension)
        unknown = tuple(name[:MAX_FIELD_NAME] for name in record if name not in FIELDS)
        return ParsedDocument(line, document, embedding, end, unknown)
    except InvalidInput as problem:
        return BadLine(line, str(problem))


def _parse_pieces(found: Sequence[Piece], dimension: int, limit: int) -> list[ParsedDocument | BadLine]:
    return [_parse(text, number, dimension, limit, end) for number, text, end in found]


def _parse(line: bytes, number: int, dimension: int, limit: int, end: int = 0) -> ParsedDocument | BadLine:
    if len(line) > limit:
        return BadLine(number, f"longer than {limit} bytes")
    try:
        return parse_record(_loaded(line), number, dimension, end)
    except orjson.JSONDecodeError as error:
        if _NOT_A_NUMBER.search(_STRINGS.sub(b"", line)):
            return BadLine(
                number, "not JSON: NaN and Infinity are no numbers of JSON; write null, or leave the field out"
            )
        return BadLine(number, reading.complaint(line) or f"not JSON: {error}")
    except InvalidInput as error:
        return BadLine(number, str(error))


def _loaded(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        repaired = reading.with_whole_characters(line)
        if repaired == line:
            raise
        return orjson.loads(repaired)


def _elements(body: bytes) -> list[list[Piece]]:
    """Return the elements of a JSON array, AT_A_TIME together. Raises InvalidInput for anything else."""
    body = reading.without_mark(body, "the array")
    reading.check_memory(body)
    try:
        values = reading.parse(body) if body.count(b",") > reading.MOST_VALUES else _loaded(body)
        if not isinstance(values, list):
            raise InvalidInput("the documents must be a JSON array of objects")
        texts = [orjson.dumps(value) for value in values]
    except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
        raise InvalidInput(f"the array is not JSON: {reading.complaint(body) or error}") from error
    found = [Piece(*each) for each in zip(count(1), texts, accumulate(map(len, texts)), strict=False)]
    return [found[start : start + AT_A_TIME] for start in range(0, len(found), AT_A_TIME)]


def _document(record: dict[str, Any]) -> Document:
    """Return what a JSON object has besides an embedding. Raises InvalidInput."""
    id, text, title = record.get("id", record.get("_id")), record.get("text"), record.get("title")
    metadata = {} if record.get("metadata") is None else record["metadata"]
    for needed, names in (("id", {"id", "_id"}), ("text", {"text"})):
        if not names & record.keys():
            there = ", ".join(name[:MAX_FIELD_NAME] for name in list(record)[:MAX_FIELDS_NAMED]) or "nothing"
            raise InvalidInput(f"{needed} is missing: a document has id and text; this one has {there}")
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise InvalidInput("id must be a string or an integer of at most 64 bits")
    if not 1 <= len(str(id)) <= MAX_ID_LENGTH:
        raise InvalidInput(f"id must have 1 to {MAX_ID_LENGTH} characters")
    if not isinstance(text, str):
        raise InvalidInput("text must be a string")
    if not has_content(text) and not has_content(str(title or "")):
        raise InvalidInput("text has nothing to read and there is no title")
    if title is not None and not isinstance(title, str):
        raise InvalidInput("title must be a string")
    if not isinstance(metadata, dict):
        raise InvalidInput("metadata must be an object")
    try:
        orjson.dumps(metadata)
    except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
        raise InvalidInput(f"metadata cannot be stored: {error}") from None
    return Document(str(id), text, title, metadata)


def _embedding(value: object, dimension: int) -> NDArray[np.float32] | None:
    if value is None:
        return None
    if not dimension:
        raise InvalidInput("it has an embedding, but the index has no vectors; leave it out")
    if not isinstance(value, list) or not all(type(component) in (int, float) for component in value):
        raise InvalidInput("embedding must be a list of numbers")
    if len(value) != dimension:
        raise InvalidInput(f"embedding has {len(value)} dimensions and the index {dimension}")
    vector = np.array(value, dtype=np.float64)
    with np.errstate(over="ignore"):
        length = np.linalg.norm(vector)
    if not 0 < length < np.inf:
        raise InvalidInput("embedding has no direction: its length is zero or not finite")
    return (vector / length).astype(np.float32)


class Piece(NamedTuple):
    """A line or an element. number: from 1; text: of a line that is too long, only limit + 1 bytes; end: the offset in
    bytes of its end, of an element without white space."""

    number: int
    text: bytes
    end: int


async def pieces(
    chunks: AsyncIterable[bytes], limit: int, array_bytes: int = ARRAY_BYTES, run: Run = in_default_thread
) -> AsyncIterator[list[Piece]]:
    """Yield the lines that end in each chunk, without blank ones, keeping no more than a chunk and one of them in
    memory; or the elements if the upload is a JSON array, which `run` parses whole.

    Raises InvalidInput for another encoding than UTF-8, for CSV, and for a malformed array, before the first; and
    LimitExceeded for an array of more than `array_bytes`.
    """
    arriving = aiter(chunks)
    head = b""
    async for chunk in arriving:
        head += chunk
        if len(head) >= HEAD_BYTES or _tells(head):
            break
    if _is_array(head[:HEAD_BYTES]):
        body = bytearray(head)
        async for chunk in arriving:
            body += chunk
            if len(body) > array_bytes:
                raise LimitExceeded(
                    f"a JSON array may have {array_bytes:,} bytes here; for more send NDJSON, one object a line"
                )
        for found in await run(_elements, bytes(body)):
            yield found
        return
    lines = _Lines(limit)
    if found := lines.feed(head):
        yield found
    async for chunk in arriving:
        if found := lines.feed(chunk):
            yield found
    if found := lines.finish():
        yield found


def _tells(head: bytes) -> bool:
    """Whether the head has its first line and, if that begins an array, also what comes first in it."""
    text = head.removeprefix(BOM_UTF8).lstrip(BLANK)
    return b"\n" in text and (not text.startswith(b"[") or bool(text[1:].strip(BLANK)))


def _is_array(head: bytes) -> bool:
    """Whether an upload is an array. Raises InvalidInput if it begins like CSV or in another encoding than UTF-8."""
    text = reading.without_mark(head, "the upload").lstrip(BLANK)
    first = text.splitlines()[0] if text else b""
    if reading.complaint(first) is None and reading.is_table(first.decode()):
        raise InvalidInput(reading.AS_LINES)
    return _ARRAY.match(text) is not None


class _Lines:
    """Cuts at line feeds, carriage returns, or both."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._number, self._line, self._end, self._held = 1, bytearray(), 0, b""

    def feed(self, chunk: bytes) -> list[Piece]:
        """Return the lines that end in the chunk, without blank ones."""
        chunk = self._held + chunk
        self._held = chunk[-1:] if chunk.endswith(b"\r") else b""  # the first half of a line's end, or all of it
        found = []
        for part in chunk[: len(chunk) - len(self._held)].splitlines(keepends=True):
            text = part.rstrip(b"\r\n")
            self._line += text[: self._limit + 1 - len(self._line)]
            self._end += len(part)
            if len(text) < len(part):
                found += self._ended()
        return found

    def finish(self) -> list[Piece]:
        """Return the last line, unless it is blank."""
        self._end += len(self._held)
        return self._ended()

    def _ended(self) -> list[Piece]:
        text = bytes(self._line).removeprefix(BOM_UTF8)  # also between files that were joined
        piece = Piece(self._number, text, self._end)
        self._number += 1
        self._line.clear()
        return [piece] if len(text) > self._limit or text.strip() else []


@dataclass(slots=True)
class IngestReport:
    """The outcome of the documents of an upload so far.

    superseded: documents replaced by a later one with the same id in the same batch; truncated: documents truncated to
    be encoded; problems: the first MAX_PROBLEMS skipped documents; unknown_fields: number of documents with each
    unknown field; position: bytes of an NDJSON upload processed.
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
        """Number of documents processed, whatever their outcome."""
        return self.added + self.updated + self.unchanged + self.superseded + self.skipped

    def skip(self, bad: BadLine) -> None:
        self.skipped += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(bad)

    def count_unknown(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.unknown_fields or len(self.unknown_fields) < MAX_FIELD_NAMES:
                self.unknown_fields[name] = self.unknown_fields.get(name, 0) + 1


async def ingest(
    index: Index,
    encoder: Encoder | None,
    entries: AsyncIterable[ParsedDocument | BadLine],
    *,
    on_progress: Callable[[IngestReport], None] = lambda report: None,
    **options: Any,
) -> IngestReport:
    """Run `ingesting` to its end and return the report. on_progress: called after each batch."""
    report = IngestReport()
    async for report in ingesting(index, encoder, entries, **options):
        on_progress(report)
    return report


async def ingesting(
    index: Index,
    encoder: Encoder | None,
    entries: AsyncIterable[ParsedDocument | BadLine],
    *,
    batch_size: int | None = None,
    strict: bool = False,
    spooled: Callable[[int], None] = lambda size: None,
    run: Run = in_default_thread,
) -> AsyncIterator[IngestReport]:
    """Write the documents of an upload in batches; of several with the same id the last one is kept.

    A document without an embedding is encoded if `encoder` is the index's own; otherwise, if the index has vectors, it
    is skipped as a bad line, as is one that the index cannot store. Unchanged documents are neither encoded nor
    written. Yields the same report, updated, after each batch has become durable, and at the end: an upload that failed
    halfway can simply be repeated.

    strict: check the whole upload, kept in a temporary file, before anything is written, and raise InvalidInput for the
    first bad line instead of skipping it, or for the first unknown field. spooled: called with the size of each
    document, before it is written there; what it raises ends the upload. run: runs calls of the index in threads.
    """
    if encoder is not None and encoder.name != index.info.encoder:
        encoder = None
    usable = _checked(entries, index, encodes=encoder is not None)
    size = batch_size or (WRITTEN_AT_A_TIME if encoder is None else ENCODED_AT_A_TIME)
    report = IngestReport()
    batch: list[ParsedDocument] = []
    try:
        async for entry in _all_valid(usable, spooled) if strict else usable:
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
    except BoundaryMorphError as error:
        if written := report.added + report.updated:
            error.add(f"{written:,} documents of this upload were written before, and stay")
        elif isinstance(error, StorageFull):
            error.add("nothing of this upload was written")
        raise
    yield report


async def _write(
    index: Index, encoder: Encoder | None, batch: Sequence[ParsedDocument], report: IngestReport, run: Run
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
    vectors, truncated = await _embed([entry for entry, _ in changed.values()], encoder, index)
    await run(index.upsert, documents, vectors, [digest for _, digest in changed.values()])
    updated = len(known.keys() & changed.keys())
    report.added += len(changed) - updated
    report.updated += updated
    report.truncated += truncated


async def _embed(
    entries: Sequence[ParsedDocument], encoder: Encoder | None, index: Index
) -> tuple[NDArray[np.float32], int]:
    """Return (n, d) vectors, given or encoded, and how many texts were truncated."""
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
    if encoder.name != index.info.encoder:  # its servers have changed their model in the meantime
        raise IndexConflict(
            f"the encoder is {encoder.name!r} now, and the index {index.name!r} was built with {index.info.encoder!r}"
        )
    vectors[without] = encoded.vectors
    return vectors, encoded.truncated


async def _checked(
    entries: AsyncIterable[ParsedDocument | BadLine], index: Index, *, encodes: bool
) -> AsyncIterator[ParsedDocument | BadLine]:
    """Yield the entries; those that the index cannot store, or that lack a required embedding, as bad lines."""
    reason = (
        "no embedding, and the index holds its users' own vectors"
        if index.info.encoder is None
        else f"no embedding, and this service does not run the index's encoder {index.info.encoder!r}"
    )
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
    """Yield the same entries, but only after all have been checked."""
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


class UploadSpeed:
    """The recent speed: unchanged documents are processed many times faster than those to be embedded."""

    def __init__(self, total: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        """total: bytes of the upload, None if unknown."""
        self._total = total
        self._clock = clock
        self._seen = deque([(clock(), 0, 0)])

    def observe(self, documents: int, position: int) -> None:
        """Record how many documents, and bytes of the upload, have been processed."""
        now = self._clock()
        self._seen.append((now, documents, position))
        while self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def documents_per_second(self) -> float:
        """Speed over the last WINDOW_SECONDS; 0 before anything was measured."""
        (start, before, _), (end, after, _) = self._seen[0], self._seen[-1]
        return (after - before) / (end - start) if end > start else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds at the recent speed; None if unknown."""
        (start, _, before), (end, _, after) = self._seen[0], self._seen[-1]
        if self._total is None or after <= before:
            return None
        return max(0, self._total - after) * (end - start) / (after - before)
