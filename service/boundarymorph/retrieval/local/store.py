"""The document store: one SQLite file an index, durable and shared between processes."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import (
    CorruptIndex,
    InvalidInput,
    StorageFull,
    StorageUnavailable,
    UnknownIndex,
)
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.document import Document, canonical
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.fusion import Ranked
from boundarymorph.retrieval.halves import TOLERANCE, unit_rows_of
from boundarymorph.retrieval.local import metadata_index
from boundarymorph.retrieval.local.lookup import LIVING, ids_of, last_sequence, purged, select
from boundarymorph.retrieval.local.lookup import SCHEMA as LOOKUP_SCHEMA
from boundarymorph.retrieval.local.matching import REMEMBERED_BYTES, MatchingReader
from boundarymorph.retrieval.storage import exists
from boundarymorph.retrieval.vectors import unit_embeddings
from boundarymorph.retrieval.words.lexical import WORDS_VERSION
from boundarymorph.retrieval.words.lexical_index import SCHEMA as LEXICAL_SCHEMA
from boundarymorph.retrieval.words.lexical_index import LexicalReader, append, bury, compact

SCHEMA_VERSION = 3
LOG_BYTES = 4 * 2**20
_READABLE = (1, 2, SCHEMA_VERSION)
_LOG_PATIENCE = 2.0  # seconds that a write waits for reads to leave the log
_PATIENCE = 30.0  # and for another writer
_APPLICATION = 0x424D4F52
_BATCH = 1_000  # documents that a transaction of a long piece of work indexes, while other writers wait
_IDLE_CONNECTIONS = 16  # kept open for the next calls
_CACHE_KIB = 2_000  # of pages, each connection
_EVERY_SEQUENCE = 2**63 - 1
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_TROUBLE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")
_log = logging.getLogger(__name__)

# A row without an embedding is a tombstone. The embedding stands before the text so that catching up does not read it.
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value);
CREATE TABLE documents (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    digest BLOB,
    embedding BLOB,
    title TEXT,
    text TEXT,
    metadata BLOB
);
CREATE INDEX tombstones ON documents (sequence) WHERE embedding IS NULL;
"""


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


class DocumentStore:
    """Documents with their embeddings in one SQLite file in WAL mode.

    Each call that writes is one transaction, on disk when the call returns. Every written document and every deletion
    takes a new sequence number, so any reader in any process keeps up by asking for the `changes` after the last number
    it saw. Embeddings are stored as float16 and brought back to unit length when they are read.

    Safe to share between threads; readers never wait for writers. Every call raises UnknownIndex once the file is gone
    and CorruptIndex when it cannot be read, StorageUnavailable when the disk or a lock is in the way, StorageFull when
    there is no room to write.
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

        tombstones_kept: deletions that readers can still be told of one by one; page: how many `changes` tells at a
        time; log_bytes: size of SQLite's write-ahead log from which on a write empties it; remembered_bytes: for the
        documents that match the filters asked for last. Raises UnknownIndex, CorruptIndex, StorageFull or
        StorageUnavailable.
        """
        self.path = path
        self._tombstones_kept = tombstones_kept
        self._page = page
        self._log_bytes = log_bytes
        self._log_due = log_bytes
        self._writing = threading.Lock()
        self._held = threading.local()
        self._idle: deque[sqlite3.Connection] = deque()
        self._closed = False
        self._words = LexicalReader()
        self._matched = MatchingReader(most_bytes=remembered_bytes)
        self._migrate()
        with self._transaction() as connection:
            self.info = self._read_info(connection)

    @classmethod
    def create(
        cls, path: Path, *, encoder: str | None, dimension: int, kind: str = "flat", lexical: bool = True
    ) -> DocumentStore:
        """Make the file, which must not exist yet, and open it. Raises InvalidInput for an impossible dimension.

        lexical: keep an inverted index of the words, for `bm25` and `best_by_words`.
        """
        if dimension < 1:
            raise InvalidInput(f"an index needs a dimension of at least 1, not {dimension}")
        meta = {
            "encoder": encoder,
            "dimension": dimension,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "purged": 0,
            "kind": kind,
            "words": WORDS_VERSION if lexical else None,
        }
        path.touch(exist_ok=False)  # what keeps it from being made is told by the system better than by SQLite
        with _in_our_words(path), closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(_SCHEMA + LOOKUP_SCHEMA + LEXICAL_SCHEMA + metadata_index.SCHEMA)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            connection.execute(f"PRAGMA application_id={_APPLICATION}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
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
        with self._write() as connection:
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
            self._bury_words(connection, replaced)
            if self._has_words(connection):
                append(connection, written, [documents[number].content for number in kept])
            compact(connection)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents; how many of the ids were there."""
        with self._write() as connection:
            rows = select(connection, "id, sequence", ids)
            present = [id for id, _ in rows]
            before = last_sequence(connection)
            metadata_index.remove(connection, [sequence for _, sequence in rows])
            self._bury_words(connection, [sequence for _, sequence in rows])
            compact(connection)
            connection.executemany("INSERT OR REPLACE INTO documents (id) VALUES (?)", ((id,) for id in present))
            (tombstones,) = connection.execute("SELECT count(*) FROM documents WHERE embedding IS NULL").fetchone()
            if tombstones - len(present) > self._tombstones_kept:
                connection.execute("DELETE FROM documents WHERE embedding IS NULL AND sequence <= ?", (before,))
                connection.execute("UPDATE meta SET value = ? WHERE key = 'purged'", (before,))
        return len(present)

    def documents(self, ids: Sequence[str]) -> dict[str, Document]:
        """The documents of these ids, by id and in their order; unknown ones are left out."""
        with self._transaction() as connection:
            rows = select(connection, "id, text, title, metadata", ids)
        found = {id: Document(id, text, title, orjson.loads(metadata)) for id, text, title, metadata in rows}
        return {id: found[id] for id in ids if id in found}

    def characters(self, ids: Sequence[str]) -> dict[str, int]:
        """How long title and text of these documents are together, by id; unknown ones are left out."""
        with self._transaction() as connection:
            return dict(select(connection, "id, length(text) + coalesce(length(title), 0)", ids))

    def digests(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The fingerprints of these documents, by id; unknown ones are left out."""
        with self._transaction() as connection:
            return dict(select(connection, "id, digest", ids))

    def count(self) -> int:
        """Documents in the store."""
        with self._transaction() as connection:
            (rows,) = connection.execute("SELECT count(*) FROM documents").fetchone()
            (tombstones,) = connection.execute("SELECT count(*) FROM documents WHERE embedding IS NULL").fetchone()
        return int(rows) - int(tombstones)

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """Let this thread read the store in one state within the block: the one that its first read finds.

        SQLite cannot empty its log of what was written since, so a block should last no longer than a search.
        """
        with self._transaction() as connection:
            before, self._held.connection = self._reading(), connection
            try:
                yield
            finally:
                self._held.connection = before

    def changes(self, after: int) -> Changes:
        """Writes and deletions that followed sequence number `after`, a page of them; 0 stands for the beginning.

        Deletions are recorded for a time only; see `forgets`.
        """
        with self._transaction() as connection:
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
        """Whether `changes` no longer tells of every deletion after this number; then `living` tells what is left."""
        with self._transaction() as connection:
            return after < purged(connection)

    def living(self) -> NDArray[np.int64]:
        """Ascending sequence numbers of all documents."""
        with self._transaction() as connection:
            rows = connection.execute(
                f"SELECT sequence FROM documents INDEXED BY filtered WHERE {LIVING} ORDER BY sequence"  # noqa: S608
            )
            return np.fromiter((sequence for (sequence,) in rows), dtype=np.int64)

    def last_sequence(self) -> int:
        """The number of the latest write or deletion; 0 for none."""
        with self._transaction() as connection:
            return last_sequence(connection)

    def embeddings(self, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """The (d,) unit vectors of these documents, by id and in their order; unknown ones are left out."""
        with self._transaction() as connection:
            rows = dict(select(connection, "id, embedding", ids))
        present = [id for id in dict.fromkeys(ids) if id in rows]
        return dict(zip(present, self._vectors([rows[id] for id in present]), strict=True))

    def bm25(self, query: str, ids: Sequence[str]) -> NDArray[np.float64]:
        """(n,) BM25 of n documents for a query, with the statistics of the whole store; 0 for unknown ids.

        Raises InvalidInput when the store has no index of its words.
        """
        with self._transaction() as connection:
            self._require_words(connection)
            # Without a look at the rows: those of tombstones are of no living document either.
            sequences = dict(select(connection, "id, sequence", ids, where="TRUE"))
            return self._words.scores(connection, query, np.array([sequences.get(id, 0) for id in ids], dtype=np.int64))

    def bm25_of_sequences(self, query: str, sequences: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) the same for documents known by the sequence number that `changes` gave, which saves looking them up.

        0 for a document that was replaced or deleted since. Raises InvalidInput without an index of the words.
        """
        with self._transaction() as connection:
            self._require_words(connection)
            return self._words.scores(connection, query, sequences)

    def best_by_words(self, query: str, depth: int, filter: Filter | None = None) -> Ranked:
        """Up to `depth` documents with the highest BM25, of those that have a word of the query and meet the filter.

        The statistics are those of the whole store. Equal scores go by the order of writing. Raises InvalidInput when
        the store has no index of its words.
        """
        if depth < 1:
            raise InvalidInput(f"the depth must be at least 1, not {depth}")
        with self._transaction() as connection:
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
        with self._transaction() as connection:
            return self._matched.sequences(connection, filter)

    def back_up(self, target: Path) -> int:
        """Copy the store, as it is at one moment, into a new file; how many documents that is. Writers go on meanwhile.

        Raises CorruptIndex when the store is damaged.
        """
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            with self._transaction() as connection, _in_our_words(target):
                connection.backup(copy)
            (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise CorruptIndex(f"{self.path} is damaged: {verdict}; restore it or build the index anew")
            (count,) = copy.execute("SELECT count(*) FROM documents WHERE embedding IS NOT NULL").fetchone()
        return int(count)

    def has_words(self) -> bool:
        """Whether there is an index of the words now; another process may have made it since this store was opened."""
        with self._transaction() as connection:
            return self._has_words(connection)

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

    def close(self) -> None:
        """Close the connections; those in use close when their call is done. Later calls raise UnknownIndex."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _vectors(self, embeddings: Sequence[bytes]) -> NDArray[np.float32]:
        if any(len(embedding) != 2 * self.info.dimension for embedding in embeddings):
            raise CorruptIndex(f"{self.path} holds embeddings that are not of its {self.info.dimension} dimensions")
        stored = np.frombuffer(b"".join(embeddings), dtype="<f2").reshape(-1, self.info.dimension)
        vectors, lengths = unit_rows_of(stored)
        if not (np.abs(lengths - 1) <= TOLERANCE).all():
            raise CorruptIndex(f"{self.path} holds an embedding that is not of unit length")
        return vectors

    def _has_words(self, connection: sqlite3.Connection) -> bool:
        row = connection.execute("SELECT value FROM meta WHERE key = 'words'").fetchone()
        version = row[0] if row else None
        if version not in (None, WORDS_VERSION):
            raise CorruptIndex(
                f"the words of {self.path} were indexed by version {version} of their rules and this program has "
                f"version {WORDS_VERSION}; build the index anew"
            )
        return version is not None

    def _words_until(self, connection: sqlite3.Connection) -> int:
        """The sequence number up to which the words of the documents are indexed."""
        if self._has_words(connection):
            return _EVERY_SEQUENCE
        row = connection.execute("SELECT value FROM meta WHERE key = 'words_until'").fetchone()
        return int(row[0]) if row else 0

    def _bury_words(self, connection: sqlite3.Connection, sequences: Sequence[int]) -> None:
        """Note for the index of the words, complete or not, that documents are replaced or deleted."""
        until = self._words_until(connection)
        bury(connection, [sequence for sequence in sequences if sequence <= until])

    def _index_more_words(self) -> int | None:
        """One batch; how many documents are indexed then, None when the words were complete before it.

        Until the last batch has read all that was written meanwhile, writers only bury what it has indexed.
        """
        with self._write() as connection:
            until = self._words_until(connection)
            if until == _EVERY_SEQUENCE:
                return None
            rows = connection.execute(
                f"SELECT sequence, id, title, text FROM documents WHERE {LIVING} AND sequence > ? "  # noqa: S608
                "ORDER BY sequence LIMIT ?",
                (until, _BATCH),
            ).fetchall()
            contents = [Document(id, text, title).content for _, id, title, text in rows]
            append(connection, [sequence for sequence, *_ in rows], contents)
            compact(connection)
            if len(rows) < _BATCH:
                connection.execute("INSERT OR REPLACE INTO meta VALUES ('words', ?)", (WORDS_VERSION,))
                connection.execute("DELETE FROM meta WHERE key = 'words_until'")
            else:
                connection.execute("INSERT OR REPLACE INTO meta VALUES ('words_until', ?)", (rows[-1][0],))
            (done,) = connection.execute("SELECT coalesce(sum(documents - dead), 0) FROM segments").fetchone()
        return int(done)

    def _require_words(self, connection: sqlite3.Connection) -> None:
        if not self._has_words(connection):
            raise InvalidInput(
                "this index has no lexical part; ask without BM25 and hybrid retrieval, or make it with "
                "`boundarymorph index words NAME`"
            )

    def _migrate(self) -> None:
        """From schema version 1: tables for words, without the words. From version 2: an index of the metadata."""
        with self._transaction() as connection:
            version = self._read_version(connection)
        if version < SCHEMA_VERSION:
            _log.info("%s is of schema version %d and becomes one of version %d", self.path, version, SCHEMA_VERSION)
        if version == 1:
            with self._transaction("IMMEDIATE") as connection:
                if self._read_version(connection) == 1:
                    _execute(connection, LOOKUP_SCHEMA + LEXICAL_SCHEMA)
                    connection.execute("INSERT INTO meta VALUES ('words', NULL)")
                    connection.execute("PRAGMA user_version=2")
        while version < SCHEMA_VERSION:
            version = self._index_more_metadata()

    def _index_more_metadata(self) -> int:
        """One batch of what a store of schema version 2 lacks; its version after that."""
        with self._write() as connection:
            if self._read_version(connection) == SCHEMA_VERSION:
                return SCHEMA_VERSION
            row = connection.execute("SELECT value FROM meta WHERE key = 'metadata_until'").fetchone()
            if row is None:
                _execute(connection, metadata_index.SCHEMA)
            rows = connection.execute(
                f"SELECT sequence, metadata FROM documents INDEXED BY filtered WHERE {LIVING} AND sequence > ? "  # noqa: S608
                "ORDER BY sequence LIMIT ?",
                (row[0] if row else 0, _BATCH),
            ).fetchall()
            metadata_index.add(connection, rows)
            if len(rows) == _BATCH:
                connection.execute("INSERT OR REPLACE INTO meta VALUES ('metadata_until', ?)", (rows[-1][0],))
                return 2
            connection.execute("DELETE FROM meta WHERE key = 'metadata_until'")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        return SCHEMA_VERSION

    def _read_version(self, connection: sqlite3.Connection) -> int:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION:
            raise CorruptIndex(f"{self.path} is not an index of BoundaryMORPH")
        if version not in _READABLE:
            raise CorruptIndex(f"{self.path} has schema version {version}; this program reads version {SCHEMA_VERSION}")
        return int(version)

    def _read_info(self, connection: sqlite3.Connection) -> IndexConfiguration:
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        return IndexConfiguration(
            meta["encoder"], meta["dimension"], meta["created"], meta.get("kind", "flat"), self._has_words(connection)
        )

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that writes, and then the log emptied if it has grown too long."""
        with self._writing:
            with self._transaction("IMMEDIATE") as connection:
                yield connection
            self._bound_log()

    def _bound_log(self) -> None:
        """Empty the write-ahead log once it is too long, which waits for the reads that are under way.

        SQLite starts its log anew only when nobody reads it. While reads overlap there is no such moment, unless a
        checkpoint makes it: the reads that come meanwhile go to the database itself. Where a read outlasts the
        patience, as that of a backup does, the log may grow by as much again before the next attempt.
        """
        size = _size(Path(f"{self.path}-wal"))
        if size < self._log_due:
            return
        emptied = False
        with suppress(sqlite3.Error), closing(self._connect(_LOG_PATIENCE)) as connection:
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            emptied = not busy
        self._log_due = self._log_bytes if emptied else size + self._log_bytes

    def _reading(self) -> sqlite3.Connection | None:
        """The connection of the state that this thread reads; None outside of `one_state`."""
        connection: sqlite3.Connection | None = getattr(self._held, "connection", None)
        return connection

    @contextmanager
    def _transaction(self, kind: str = "DEFERRED") -> Iterator[sqlite3.Connection]:
        """A connection of our own for one transaction, and what SQLite says of a damaged file in our words."""
        # Another process may have deleted the index; through open connections its content would still be there.
        if self._closed or not exists(self.path):
            raise UnknownIndex(f"the index in {self.path} no longer exists")
        if kind == "DEFERRED" and (held := self._reading()) is not None:
            yield held
            return
        with _in_our_words(self.path):
            connection = self._connection()
            try:
                connection.execute(f"BEGIN {kind}")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            if len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(connection)
            else:
                connection.close()
            if self._closed:
                self.close()

    def _connection(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect(_PATIENCE)

    def _connect(self, patience: float) -> sqlite3.Connection:
        """A new connection that waits this many seconds for the locks of others."""
        location = f"{self.path.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(
            location, uri=True, timeout=patience, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        return connection


def _size(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """Every statement of a script, within the caller's transaction, which `executescript` would end."""
    for statement in filter(str.strip, script.split(";")):
        connection.execute(statement)


@contextmanager
def _in_our_words(path: Path) -> Iterator[None]:
    """What SQLite says of the file, the disk and other processes as errors of ours; programming errors pass."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if not path.exists():
            raise UnknownIndex(f"the index in {path} no longer exists") from error
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(_DAMAGE) or "no such table" in str(error):
            raise CorruptIndex(f"{path} is damaged: {error}; restore it or build the index anew") from error
        if name.startswith("SQLITE_FULL"):
            raise StorageFull(f"{path}: {error}; nothing of this was written, make room and try again") from error
        if name.startswith(_TROUBLE):
            raise StorageUnavailable(f"{path}: {error}") from error
        raise
