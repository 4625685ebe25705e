"""The document store: one SQLite file an index, durable and shared between processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex, InvalidInput
from boundarymorph.retrieval.catalog import WORDS
from boundarymorph.retrieval.document import Document, canonical
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.fusion import Ranked
from boundarymorph.retrieval.halves import TOLERANCE, unit_rows_of
from boundarymorph.retrieval.local import metadata_index, schema
from boundarymorph.retrieval.local.lookup import LIVING, embeddings_of, ids_of, last_sequence, purged, select
from boundarymorph.retrieval.local.matching import REMEMBERED_BYTES, MatchingReader
from boundarymorph.retrieval.local.sqlite_file import LOG_BYTES, SqliteFile, storage_trouble
from boundarymorph.retrieval.local.words import bury_words, has_words, index_more_words
from boundarymorph.retrieval.vectors import unit_embeddings
from boundarymorph.retrieval.words.lexical_index import LexicalReader, append, merge_segments


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened after a sequence number.

    ids, vectors: documents written, in order of writing, with (n, d) float32 unit rows. sequences: (n,) int64, the
    number of each of these writes. deleted: ids that are gone. sequence: where the next look starts. complete: whether
    there was no more to tell at the time.
    """

    ids: list[str]
    vectors: NDArray[np.float32]
    deleted: list[str]
    sequence: int
    complete: bool
    sequences: NDArray[np.int64]


class DocumentStore(SqliteFile):
    """Documents with their embeddings in one SQLite file.

    Each call that writes is one transaction, on disk when the call returns. Every written document and every deletion
    takes a new sequence number, so any reader in any process keeps up by asking for the `changes` after the last number
    it saw. Embeddings are stored as float16 and brought back to unit length when they are read.

    Raises what a `SqliteFile` does.
    """

    def __init__(
        self,
        path: Path,
        *,
        tombstones_kept: int = 10_000,
        page: int = 10_000,
        log_bytes: int = LOG_BYTES,
        remembered_bytes: int = REMEMBERED_BYTES,
    ) -> None:
        """Open an existing store, and bring one of an older version up to date first, a batch of documents at a time.

        tombstones_kept: deletions that `changes` still lists one by one; page: how many `changes` returns at a
        time; log_bytes: size of SQLite's write-ahead log from which on a write empties it; remembered_bytes: for the
        documents that match the filters asked for last. Raises UnknownIndex, CorruptIndex, StorageFull or
        StorageUnavailable.
        """
        super().__init__(path, log_bytes=log_bytes)
        self._tombstones_kept = tombstones_kept
        self._page = page
        self._words = LexicalReader()
        self._matched = MatchingReader(most_bytes=remembered_bytes)
        schema.migrate(self)
        with self.transaction() as connection:
            self.info = schema.configuration(connection, has_words(connection))

    @classmethod
    def create(
        cls, path: Path, *, encoder: str | None, dimension: int, kind: str = "flat", lexical: bool = True
    ) -> DocumentStore:
        """Make the file, which must not exist yet, and open it. Raises InvalidInput for an impossible dimension.

        lexical: keep an inverted index of the words, for `bm25` and `best_by_words`.
        """
        if dimension < 1 and kind != WORDS:
            raise InvalidInput(f"an index needs a dimension of at least 1, not {dimension}")
        if kind == WORDS and (dimension or not lexical):
            raise InvalidInput("an index without vectors needs its words, and has no dimension")
        schema.create(path, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)
        return cls(path)

    def upsert(self, documents: Sequence[Document], embeddings: NDArray[np.floating], digests: Sequence[bytes]) -> None:
        """Write n documents with their (n, d) embeddings, replacing those of the same id; a later one of an id wins.

        digests: n fingerprints, for `digests` to answer later. Raises InvalidEmbeddings or InvalidInput.
        """
        vectors = unit_embeddings(documents, embeddings, self.info.dimension)
        rows = [
            (
                document.id,
                digest,
                vector.tobytes(),
                document.title,
                document.text,
                canonical(document, dict(document.metadata)),
            )
            for document, vector, digest in zip(documents, vectors.astype("<f2"), digests, strict=True)
        ]
        with self.write() as connection:
            replaced = [row[0] for row in select(connection, "sequence", [row[0] for row in rows])]
            metadata_index.remove(connection, replaced)
            before = last_sequence(connection)
            connection.executemany(
                "INSERT OR REPLACE INTO documents (id, digest, embedding, title, text, metadata) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )
            kept = sorted({document.id: number for number, document in enumerate(documents)}.values())
            written = [before + 1 + number for number in kept]
            metadata_index.add(connection, zip(written, (rows[number][-1] for number in kept), strict=True))
            bury_words(connection, replaced)
            if has_words(connection):
                append(connection, written, [documents[number].content for number in kept])
            merge_segments(connection)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents; how many of the ids were there."""
        with self.write() as connection:
            return self._bury(connection, select(connection, "id, sequence", ids))

    def delete_matching(self, filter: Filter) -> int:
        """Remove the documents whose metadata meet a filter; how many there were."""
        with self.write() as connection:
            matching = orjson.dumps(self._matched.sequences(connection, filter).tolist()).decode()
            rows = connection.execute(
                f"SELECT id, sequence FROM documents WHERE {LIVING} "  # noqa: S608
                "AND sequence IN (SELECT value FROM json_each(?))",
                (matching,),
            ).fetchall()
            return self._bury(connection, rows)

    def documents(self, ids: Sequence[str]) -> dict[str, Document]:
        """The documents of these ids, by id and in their order; unknown ones are left out."""
        with self.transaction() as connection:
            rows = select(connection, "id, text, title, metadata", ids)
        found = {id: Document(id, text, title, orjson.loads(metadata)) for id, text, title, metadata in rows}
        return {id: found[id] for id in ids if id in found}

    def characters(self, ids: Sequence[str]) -> dict[str, int]:
        """How long title and text of these documents are together, by id; unknown ones are left out."""
        with self.transaction() as connection:
            return dict(select(connection, "id, length(text) + coalesce(length(title), 0)", ids))

    def digests(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The fingerprints of these documents, by id; unknown ones are left out."""
        with self.transaction() as connection:
            return dict(select(connection, "id, digest", ids))

    def count(self) -> int:
        """Documents in the store."""
        with self.transaction() as connection:
            (rows,) = connection.execute("SELECT count(*) FROM documents").fetchone()
            (tombstones,) = connection.execute("SELECT count(*) FROM documents WHERE embedding IS NULL").fetchone()
        return int(rows) - int(tombstones)

    def changes(self, after: int) -> Changes:
        """Writes and deletions that followed sequence number `after`, a page of them; 0 stands for the beginning.

        Deletions are recorded for a time only; see `forgets`.
        """
        with self.transaction() as connection:
            rows = connection.execute(
                "SELECT sequence, id, embedding FROM documents WHERE sequence > ? ORDER BY sequence LIMIT ?",
                (after, self._page),
            ).fetchall()
            complete = len(rows) < self._page
            sequence = last_sequence(connection) if complete else rows[-1][0]
        written = [row for row in rows if row[2] is not None]
        return Changes(
            ids=[id for _, id, _ in written],
            vectors=self._vectors([embedding for *_, embedding in written]),
            deleted=[id for _, id, embedding in rows if embedding is None],
            sequence=sequence,
            complete=complete,
            sequences=np.array([sequence for sequence, *_ in written], dtype=np.int64),
        )

    def forgets(self, after: int) -> bool:
        """Whether `changes` no longer lists every deletion after this number; then `living` says what is left."""
        with self.transaction() as connection:
            return after < purged(connection)

    def living(self) -> tuple[NDArray[np.int64], list[str]]:
        """Ascending sequence numbers and ids of all documents."""
        with self.transaction() as connection:
            rows = connection.execute(
                f"SELECT sequence, id FROM documents INDEXED BY filtered WHERE {LIVING} ORDER BY sequence"  # noqa: S608
            ).fetchall()
        return np.array([sequence for sequence, _ in rows], dtype=np.int64), [id for _, id in rows]

    def sample(self, count: int, seed: int) -> NDArray[np.float32]:
        """(n, d) unit vectors of up to so many documents, chosen at random."""
        with self.transaction() as connection:
            sequences, _ = self.living()
            chosen = np.random.default_rng(seed).permutation(sequences)[:count]
            return self._vectors(embeddings_of(connection, chosen.tolist()))

    def last_sequence(self) -> int:
        """The number of the latest write or deletion; 0 for none."""
        with self.transaction() as connection:
            return last_sequence(connection)

    def embeddings(self, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """The (d,) unit vectors of these documents, by id and in their order; unknown ones are left out."""
        with self.transaction() as connection:
            rows = dict(select(connection, "id, embedding", ids))
        present = [id for id in dict.fromkeys(ids) if id in rows]
        return dict(zip(present, self._vectors([rows[id] for id in present]), strict=True))

    def bm25(self, query: str, ids: Sequence[str]) -> NDArray[np.float64]:
        """(n,) BM25 of n documents for a query, with the statistics of the whole store; 0 for unknown ids.

        Raises InvalidInput when the store has no index of its words.
        """
        with self.transaction() as connection:
            self._require_words(connection)
            # Without a look at the rows: those of tombstones are of no living document either.
            sequences = dict(select(connection, "id, sequence", ids, where="TRUE"))
            return self._words.scores(connection, query, np.array([sequences.get(id, 0) for id in ids], dtype=np.int64))

    def bm25_of_sequences(self, query: str, sequences: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) the same for documents known by the sequence number that `changes` gave, which saves looking them up.

        0 for a document that was replaced or deleted since. Raises InvalidInput without an index of the words.
        """
        with self.transaction() as connection:
            self._require_words(connection)
            return self._words.scores(connection, query, sequences)

    def best_by_words(self, query: str, depth: int, filter: Filter | None = None) -> Ranked:
        """Up to `depth` documents with the highest BM25, of those that have a word of the query and meet the filter.

        The statistics are those of the whole store. Equal scores go by the order of writing. Raises InvalidInput when
        the store has no index of its words.
        """
        if depth < 1:
            raise InvalidInput(f"the depth must be at least 1, not {depth}")
        with self.transaction() as connection:
            self._require_words(connection)
            among = None if filter is None else self._matched.sequences(connection, filter)
            sequences, scores = self._words.best(connection, query, depth, among)
            ids = ids_of(connection, sequences.tolist())
        return Ranked([ids[sequence] for sequence in sequences.tolist()], scores)

    def matching_sequences(self, filter: Filter) -> NDArray[np.int64]:
        """Ascending sequence numbers, as `changes` gives them, of all documents whose metadata meet a filter.

        Numbers of documents that are replaced or deleted may be among them, for those who know which ones live; that
        saves looking up the ids. What equality and membership narrow down is looked up in the metadata index; ranges,
        `not` and `exists` alone read all metadata, or what was written since the filter was last asked for.
        """
        with self.transaction() as connection:
            return self._matched.sequences(connection, filter)

    def _bury(self, connection: sqlite3.Connection, rows: Sequence[tuple[str, int]]) -> int:
        """Remove documents by id and sequence number; how many these are."""
        present = [id for id, _ in rows]
        before = last_sequence(connection)
        metadata_index.remove(connection, [sequence for _, sequence in rows])
        bury_words(connection, [sequence for _, sequence in rows])
        merge_segments(connection)
        connection.executemany("INSERT OR REPLACE INTO documents (id) VALUES (?)", ((id,) for id in present))
        (tombstones,) = connection.execute("SELECT count(*) FROM documents WHERE embedding IS NULL").fetchone()
        if tombstones - len(present) > self._tombstones_kept:
            connection.execute("DELETE FROM documents WHERE embedding IS NULL AND sequence <= ?", (before,))
            connection.execute("UPDATE meta SET value = ? WHERE key = 'purged'", (before,))
        return len(present)

    def back_up(self, target: Path) -> int:
        """Copy the store, as it is at one moment, into a new file; how many documents that is. Writers go on meanwhile.

        Raises CorruptIndex when the store is damaged.
        """
        with closing(sqlite3.connect(target, isolation_level=None)) as copy, storage_trouble(target):
            with self.transaction() as connection:
                connection.backup(copy)
            (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise CorruptIndex(f"{self.path} is damaged: {verdict}; restore it or build the index anew")
            (count,) = copy.execute("SELECT count(*) FROM documents WHERE embedding IS NOT NULL").fetchone()
        return int(count)

    def has_words(self) -> bool:
        """Whether there is an index of the words now; another process may have made it since this store was opened."""
        with self.transaction() as connection:
            return has_words(connection)

    def compact(self) -> None:
        """Rewrite the words without those of replaced and deleted documents, and empty SQLite's log."""
        with self.write() as connection:
            merge_segments(connection, dead_share=0)
        self.empty_log()

    def index_words(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> bool:
        """Give the store an index of its words, a batch of documents a transaction. False where it has one.

        Others read and write meanwhile, and may do the same work. It is used, by every process that has the store open,
        once it is complete. Work that was cut off goes on where it was at the next call. on_progress: called with the
        documents that are done and those that there are.
        """
        made, total = False, self.count()
        while (done := self._index_more_words()) is not None:
            made = True
            on_progress(done, max(done, total))
        return made

    def _vectors(self, embeddings: Sequence[bytes]) -> NDArray[np.float32]:
        if any(len(embedding) != 2 * self.info.dimension for embedding in embeddings):
            raise CorruptIndex(f"{self.path} holds embeddings that are not of its {self.info.dimension} dimensions")
        stored = np.frombuffer(b"".join(embeddings), dtype="<f2").reshape(-1, self.info.dimension)
        vectors, lengths = unit_rows_of(stored)
        if not (np.abs(lengths - 1) <= TOLERANCE).all():
            raise CorruptIndex(f"{self.path} holds an embedding that is not of unit length")
        return vectors

    def _index_more_words(self) -> int | None:
        with self.write() as connection:
            return index_more_words(connection)

    def _require_words(self, connection: sqlite3.Connection) -> None:
        if not has_words(connection):
            raise InvalidInput(
                "this index has no lexical part; ask without BM25 and hybrid retrieval, or make it with "
                "`boundarymorph index words NAME`"
            )
