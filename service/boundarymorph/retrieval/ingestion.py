"""Ingestion: writing the documents of an upload into an index, and how fast that goes."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError, IndexConflict, InvalidInput, LimitExceeded, StorageFull
from boundarymorph.inference.concurrency import Run, in_default_thread
from boundarymorph.retrieval.catalog import Index
from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.encoders import Encoder
from boundarymorph.retrieval.storage import storage_errors
from boundarymorph.retrieval.uploads import BadLine, ParsedDocument

MAX_PROBLEMS = 100
MAX_FIELD_NAMES = 100  # unknown fields counted by name
ENCODED_AT_A_TIME = 32
WRITTEN_AT_A_TIME = 256  # if nothing has to be encoded
BATCH_BYTES = 8 * 2**20  # of the upload, after which a batch is complete
WINDOW_SECONDS = 30.0


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
    batch_size: int | None = None,
    strict: bool = False,
    on_progress: Callable[[IngestReport], None] | None = None,
    run: Run = in_default_thread,
) -> IngestReport:
    """Run `ingesting` to its end and return the report. on_progress: called after each batch."""
    report = IngestReport()
    async for report in ingesting(index, encoder, entries, batch_size=batch_size, strict=strict, run=run):
        if on_progress is not None:
            on_progress(report)
    return report


async def ingesting(
    index: Index,
    encoder: Encoder | None,
    entries: AsyncIterable[ParsedDocument | BadLine],
    *,
    batch_size: int | None = None,
    strict: bool = False,
    run: Run = in_default_thread,
) -> AsyncIterator[IngestReport]:
    """Write the documents of an upload in batches; of several with the same id the last one is kept.

    A document without an embedding is encoded if `encoder` is the index's own; otherwise, if the index has vectors, it
    is skipped as a bad line, as is one that the index cannot store. Unchanged documents are neither encoded nor
    written. Yields the same report, updated, after each batch has become durable, and at the end: an upload that failed
    halfway can simply be repeated.

    strict: check the whole upload, kept in a temporary file, before anything is written, and raise InvalidInput for the
    first bad line instead of skipping it, or for the first unknown field. run: runs calls of the index in threads.
    """
    if encoder is not None and encoder.name != index.info.encoder:
        encoder = None
    usable = _checked(entries, index, encodes=encoder is not None)
    size = batch_size or (WRITTEN_AT_A_TIME if encoder is None else ENCODED_AT_A_TIME)
    report = IngestReport()
    batch: list[ParsedDocument] = []
    try:
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


def _digests(index: Index, entries: Mapping[str, ParsedDocument]) -> tuple[Mapping[str, bytes], dict[str, bytes]]:
    """Return fingerprints by id, of what is stored and of the new entries."""
    new = {id: fingerprint(entry.document, entry.embedding) for id, entry in entries.items()}
    return index.digests(list(entries)), new


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


async def _all_valid(entries: AsyncIterable[ParsedDocument | BadLine]) -> AsyncIterator[ParsedDocument]:
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
            spool.write(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
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
