"""Store the documents of an index in one SQLite file, shared between processes.

This also learns and stores the main directions of their vectors.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex, InvalidInput
from boundarymorph.retrieval import ranking
from boundarymorph.retrieval.document import STOP, Document, canonical, fingerprint, first_piece, size_of
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.interfaces import WORDS
from boundarymorph.retrieval.local import metadata
from boundarymorph.retrieval.local.metadata import MatchingReader
from boundarymorph.retrieval.local.sqlite_file import (
    COVERED,
    LIVING,
    SqliteFile,
    configuration,
    create_file,
    fact,
    last_sequence,
    select,
    storage_trouble,
)
from boundarymorph.retrieval.local.vectors import with_capacity

COUNT = 64  # main directions
SAMPLE = 4_096  # documents from which they are learned
FEWEST = 1_000  # writes before the directions are first learned; the next time is after twice as many
LEARNED_AT = "directions_at"  # the key of the last write before the directions were learned
SPAN, ROOM = 64, 2**16  # sequence numbers per document in use, and in any index, up to which documents stay cached
_BLOCK = 1024  # documents projected at a time
_SPARE, _ITERATIONS = 16, 4  # spare directions and iterations of the randomized decomposition
_CHARACTERS = "characters(text) + characters(coalesce(title, ''))"
_PAGE_CHARACTERS = 2**22  # characters of texts after which a page ends; their words take some eight times as many bytes


class Directions:
    """The main directions of the vectors of one index: (d, m) orthonormal columns. Thread-safe.

    Found documents are cached projected, in 2m bytes each and 4 bytes for each sequence number.
    """

    def __init__(self, basis: NDArray[np.float32]) -> None:
        self.basis = basis
        self._precise = basis.astype(np.float64)
        self._keeping = threading.Lock()
        self._places = np.empty(0, np.int32)  # positions of documents in the cache, by sequence number; -1 for none
        self._kept = np.empty((0, basis.shape[1]), np.float16)
        self._count = 0

    @classmethod
    def learn(cls, vectors: NDArray[np.float32], seed: int = 0) -> Directions:
        """Learn at most COUNT directions from (n, d) unit rows.

        They are the first right singular vectors, by subspace iteration from random directions (Halko, Martinsson and
        Tropp 2011, algorithm 4.4).
        """
        rng = np.random.default_rng(seed)
        span = rng.standard_normal((vectors.shape[1], min(COUNT + _SPARE, *vectors.shape)), np.float32)
        for _ in range(_ITERATIONS):
            span = np.linalg.qr(vectors.T @ (vectors @ span))[0]
        inner = np.linalg.svd(vectors @ span, full_matrices=False)[2]
        return cls(np.ascontiguousarray(span @ inner[:COUNT].T))

    @classmethod
    def read(cls, connection: sqlite3.Connection, dimension: int) -> Directions:
        return cls(np.frombuffer(fact(connection, "directions"), "<f4").reshape(dimension, -1))

    def write(self, connection: sqlite3.Connection) -> None:
        rows = {"directions": self.basis.astype("<f4").tobytes(), LEARNED_AT: last_sequence(connection)}
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows.items())

    def units(self, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Project (n, d) rows, and return (n, m) unit rows.

        Each is the same wherever it is among the n.
        """
        return ranking.unit_from_halves(self._halves(vectors))

    def halves_of(
        self, sequences: NDArray[np.int64], vectors: Callable[[NDArray[np.intp]], NDArray[np.floating]], living: int
    ) -> NDArray[np.float16]:
        """Return (n, m) rows of n documents, as of `units`.

        Args:
            sequences: (n,) their sequence numbers.
            vectors: Returns (k, d) rows at positions.
            living: Number of documents in the index.
        """
        last = int(sequences.max(initial=0))
        if last > SPAN * living + ROOM:
            return self._halves(vectors(np.arange(len(sequences))))
        with self._keeping:
            if last >= len(self._places):
                larger = np.full(max(last + 1, 2 * len(self._places)), -1, np.int32)
                larger[: len(self._places)] = self._places
                self._places = larger
            missing = np.flatnonzero(self._places[sequences] < 0)
            if self._count + len(missing) > 2 * living + ROOM:  # many cached documents are deleted
                self._places.fill(-1)
                self._count, missing = 0, np.arange(len(sequences))
            self._kept = with_capacity(self._kept, self._count, len(missing))
            for start in range(0, len(missing), _BLOCK):
                some = missing[start : start + _BLOCK]
                end = self._count + len(some)
                self._kept[self._count : end] = self._halves(vectors(some))
                self._places[sequences[some]] = np.arange(self._count, end)
                self._count = end
            return np.asarray(self._kept[self._places[sequences]])

    def _halves(self, vectors: NDArray[np.floating]) -> NDArray[np.float16]:
        """Project rows to unit length in float16; one without any of the directions gets the last.

        The sums are in float64, because the rounding of float32 depends on the machine and on other rows, and shows in
        float16.
        """
        parts, lengths = ranking.to_unit_length((vectors.astype(np.float64) @ self._precise).astype(np.float32))
        parts[~(lengths > np.finfo(np.float16).tiny)] = np.eye(self.basis.shape[1], dtype=np.float32)[-1]
        return ranking.halves_from_floats(parts)


def directions_due(connection: sqlite3.Connection) -> bool:
    at = fact(connection, LEARNED_AT)
    return last_sequence(connection) >= (FEWEST if at is None else 2 * at)


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes after a sequence number.

    Attributes:
        ids: The n documents written.
        vectors: (n, d) float32 unit rows.
        deleted: The ids of deleted documents.
        sequence: The number from which the next call continues.
        complete: Whether there were no further changes.
        sequences: (n,) of the documents written.
        contents: Their texts, if requested.
    """

    ids: list[str]
    vectors: NDArray[np.float32]
    deleted: list[str]
    sequence: int
    complete: bool
    sequences: NDArray[np.int64]
    contents: list[str]


class DocumentStore(SqliteFile):
    """Documents with their embeddings in one SQLite file.

    Raises the errors of `SqliteFile`. Each writing call is one transaction. Every write and deletion of a document
    takes a new sequence number, so readers in any process keep up by `changes`. Embeddings are stored as float16 and
    normalized when they are read.
    """

    tombstones_kept = 10_000  # deletions that `changes` still lists
    page_rows = 10_000  # changes at a time
    filter_bytes = 64 * 2**20  # bytes for the matches of recent filters

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._matched = MatchingReader(self.filter_bytes)
        self._directions: tuple[int, Directions] | None = None
        with self.transaction() as connection:
            self.info = configuration(path, connection)

    @staticmethod
    def create(
        path: Path, *, encoder: str | None, dimension: int, kind: str = "flat", lexical: bool = True
    ) -> DocumentStore:
        """Create the file, which must not exist, and open it.

        Raises OSError, and InvalidInput for a dimension.
        """
        if dimension < 1 and kind != WORDS:
            raise InvalidInput(f"an index needs a dimension of at least 1, not {dimension}")
        if kind == WORDS and (dimension or not lexical):
            raise InvalidInput("an index without vectors needs its words, and has no dimension")
        create_file(path, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)
        return DocumentStore(path)

    def check(self, document: Document) -> None:
        """Accept any document."""

    def upsert(
        self, documents: Sequence[Document], embeddings: NDArray[np.floating], digests: Sequence[bytes] | None = None
    ) -> None:
        vectors = ranking.unit_embeddings(documents, embeddings, self.info.dimension)
        if digests is None:
            digests = [fingerprint(document, row) for document, row in zip(documents, embeddings, strict=True)]
        rows = [
            (it.id, digest, vector.tobytes(), it.title, it.text, canonical(it, dict(it.metadata)))
            for it, vector, digest in zip(documents, vectors.astype("<f2"), digests, strict=True)
        ]
        with self.write() as connection:
            replaced = [row[0] for row in select(connection, "sequence", [row[0] for row in rows])]
            metadata.remove(connection, replaced)
            before = last_sequence(connection)
            connection.executemany(
                "INSERT OR REPLACE INTO documents (id, digest, embedding, title, text, metadata) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )
            kept = sorted({document.id: number for number, document in enumerate(documents)}.values())
            written = [before + 1 + number for number in kept]
            metadata.add(connection, zip(written, (rows[number][-1] for number in kept), strict=True))

    def delete(self, ids: Sequence[str]) -> int:
        with self.write() as connection:
            return self._bury(connection, select(connection, "id, sequence", ids))

    def delete_matching(self, filter: Filter) -> int:
        with self.write() as connection:
            matching = orjson.dumps(self._matched.sequences(connection, filter).tolist()).decode()
            rows = connection.execute(
                f"SELECT id, sequence FROM documents WHERE {LIVING} "  # noqa: S608
                "AND sequence IN (SELECT value FROM json_each(?))",
                (matching,),
            ).fetchall()
            return self._bury(connection, rows)

    def documents(self, ids: Sequence[str], *, texts: bool = True) -> dict[str, Document]:
        columns = "id, text, title, metadata" if texts else "id, '', NULL, metadata"
        with self.transaction() as connection:
            return first_piece(lambda few: {row[0]: _document(row) for row in select(connection, columns, few)}, ids)

    def page(self, after: str, most: int, size: int = STOP) -> list[Document]:
        found: list[Document] = []
        with self.transaction() as connection:
            for row in connection.execute(
                f"SELECT id, text, title, metadata FROM documents WHERE {LIVING} AND id > ? ORDER BY id LIMIT ?",  # noqa: S608
                (after, most),
            ):
                found.append(_document(row))
                size -= size_of(found[-1])
                if size <= 0:
                    break
        return found

    def outlines(self, most: int) -> list[tuple[int, Mapping[str, Any]]]:
        found: list[tuple[int, Mapping[str, Any]]] = []
        read = 0
        with self.transaction() as connection:
            for characters, metadata in connection.execute(
                f"SELECT {_CHARACTERS}, metadata FROM documents WHERE {LIVING} ORDER BY id LIMIT ?",  # noqa: S608
                (most,),
            ):
                found.append((characters, orjson.loads(metadata)))
                read += characters + len(metadata)
                if read >= STOP:
                    break
        return found

    def characters(self, ids: Sequence[str]) -> dict[str, int]:
        with self.transaction() as connection:
            return dict(select(connection, f"id, {_CHARACTERS}", ids))

    def digests(self, ids: Sequence[str]) -> dict[str, bytes]:
        with self.transaction() as connection:
            return dict(select(connection, "id, digest", ids))

    def count(self) -> int:
        with self.transaction() as connection:
            (rows,) = connection.execute("SELECT count(*) FROM documents").fetchone()
            (tombstones,) = connection.execute("SELECT count(*) FROM documents WHERE embedding IS NULL").fetchone()
        return int(rows) - int(tombstones)

    def changes(self, after: int, *, texts: bool = False) -> Changes:
        """Return a page of the writes and deletions after a sequence number.

        Older deletions are forgotten.
        """
        with self.transaction() as connection:
            rows, complete = self._read_page(connection, "sequence > ?", (after,), texts=texts)
            sequence = last_sequence(connection) if complete else rows[-1][0]
        written = [row for row in rows if row[2] is not None]
        return Changes(
            ids=[row[1] for row in written],
            vectors=self._units([row[2] for row in written]),
            deleted=[row[1] for row in rows if row[2] is None],
            sequence=sequence,
            complete=complete,
            sequences=np.array([row[0] for row in written], dtype=np.int64),
            contents=_contents(written) if texts else [],
        )

    def pages(self, until: int, *, texts: bool) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float16], list[str]]]:
        """Yield the numbers, stored vectors and texts of documents up to a number, in order."""
        after, complete, chosen = 0, False, f"{LIVING} AND sequence > ? AND sequence <= ?"
        while not complete:
            with self.transaction() as connection:
                rows, complete = self._read_page(connection, chosen, (after, until), texts=texts)
            if rows:
                after = rows[-1][0]
                numbers = np.array([row[0] for row in rows], np.int64)
                yield numbers, self._halves([row[2] for row in rows]), _contents(rows) if texts else []

    def forgets(self, after: int) -> bool:
        """Return whether `changes` no longer lists every deletion after this number.

        If so, use `living_documents`.
        """
        with self.transaction() as connection:
            return after < int(fact(connection, "purged"))

    def living_documents(self) -> tuple[NDArray[np.int64], list[str]]:
        """Return ascending sequence numbers and ids of all documents."""
        with self.transaction() as connection:
            rows = connection.execute(
                f"SELECT sequence, id FROM {COVERED} WHERE {LIVING} ORDER BY sequence"  # noqa: S608
            ).fetchall()
        return np.array([sequence for sequence, _ in rows], dtype=np.int64), [id for _, id in rows]

    def sample(self, count: int, seed: int) -> NDArray[np.float32]:
        """Return (n, d) unit vectors of up to `count` documents, chosen at random."""
        with self.transaction() as connection:
            sequences, _ = self.living_documents()
            chosen = np.random.default_rng(seed).permutation(sequences)[:count]
            rows = select(connection, "embedding", chosen.tolist(), by="sequence")
            return self._units([embedding for (embedding,) in rows])

    def directions(self) -> Directions | None:
        with self.transaction() as connection:
            at, known = fact(connection, LEARNED_AT), self._directions
            if at is None:
                return None
            if known is None or known[0] != at:
                known = self._directions = at, Directions.read(connection, self.info.dimension)
        return known[1]

    def learn_directions(self) -> None:
        if self.info.dimension < 2 * COUNT:
            return
        with self.transaction() as connection:
            if not directions_due(connection):
                return
        sample = self.sample(SAMPLE, seed=0)
        if len(sample) >= FEWEST // 2:
            learned = Directions.learn(sample)
            with self.write() as connection:
                if directions_due(connection):  # no other process was faster
                    learned.write(connection)

    def last_sequence(self) -> int:
        """Return the number of the latest write or deletion; 0 for none."""
        with self.transaction() as connection:
            return last_sequence(connection)

    def matching_sequences(self, filter: Filter) -> NDArray[np.int64]:
        """Return ascending sequence numbers of all documents that match a filter.

        They may include some deleted documents.
        """
        with self.transaction() as connection:
            return self._matched.sequences(connection, filter)

    def _bury(self, connection: sqlite3.Connection, rows: Sequence[tuple[str, int]]) -> int:
        present = [id for id, _ in rows]
        before = last_sequence(connection)
        metadata.remove(connection, [sequence for _, sequence in rows])
        connection.executemany("INSERT OR REPLACE INTO documents (id) VALUES (?)", ((id,) for id in present))
        (tombstones,) = connection.execute("SELECT count(*) FROM documents WHERE embedding IS NULL").fetchone()
        if tombstones - len(present) > self.tombstones_kept:
            connection.execute("DELETE FROM documents WHERE embedding IS NULL AND sequence <= ?", (before,))
            connection.execute("UPDATE meta SET value = ? WHERE key = 'purged'", (before,))
        return len(present)

    def copy_to(self, target: Path) -> int:
        """Copy one state of the store into a new file, and return the number of documents.

        Raises CorruptIndex.
        """
        with closing(sqlite3.connect(target, isolation_level=None)) as copy, storage_trouble(target):
            with self.transaction() as connection:
                connection.backup(copy)
            (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise CorruptIndex(f"{self.path} is damaged: {verdict}; restore or rebuild the index")
            (count,) = copy.execute("SELECT count(*) FROM documents WHERE embedding IS NOT NULL").fetchone()
        return int(count)

    def has_words(self) -> bool:
        with self.transaction() as connection:
            return bool(fact(connection, "words"))

    def index_words(self) -> bool:
        """Let every process index the words from now on. Returns False if they already do."""
        with self.write() as connection:
            return connection.execute("UPDATE meta SET value = 1 WHERE key = 'words' AND value IS NULL").rowcount > 0

    def _read_page(
        self, connection: sqlite3.Connection, chosen: str, values: Sequence[int], *, texts: bool
    ) -> tuple[list[Any], bool]:
        columns, rows, size = "title, text" if texts else "NULL, NULL", [], 0
        query = f"SELECT sequence, id, embedding, {columns} FROM documents WHERE {chosen} ORDER BY sequence LIMIT ?"  # noqa: S608
        for row in connection.execute(query, (*values, self.page_rows)):
            rows.append(row)
            size += len(row[4] or "")
            if size >= _PAGE_CHARACTERS:
                return rows, False
        return rows, len(rows) < self.page_rows

    def _halves(self, embeddings: Sequence[bytes]) -> NDArray[np.float16]:
        if any(len(embedding) != 2 * self.info.dimension for embedding in embeddings):
            raise CorruptIndex(
                f"{self.path} is damaged: an embedding lacks its {self.info.dimension} dimensions; "
                "restore or rebuild the index"
            )
        return np.frombuffer(b"".join(embeddings), dtype="<f2").reshape(len(embeddings), self.info.dimension)

    def _units(self, embeddings: Sequence[bytes]) -> NDArray[np.float32]:
        vectors, lengths = ranking.unit_rows_of(self._halves(embeddings))
        if self.info.dimension and not ranking.is_unit(lengths):
            raise CorruptIndex(f"{self.path} is damaged: an embedding has no unit length; restore or rebuild the index")
        return vectors


def _contents(rows: Sequence[Any]) -> list[str]:
    return [Document(id, text, title).content for _, id, _, title, text in rows]


def _document(row: tuple[str, str, str | None, bytes]) -> Document:
    id, text, title, metadata = row
    return Document(id, text, title, orjson.loads(metadata))
