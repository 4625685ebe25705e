"""One index, searchable: the document store, and the vectors that keep step with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import EmptyIndex
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.fusion import fuse
from boundarymorph.retrieval.local import backups
from boundarymorph.retrieval.local.backups import BackupInfo
from boundarymorph.retrieval.local.compaction import CompactionPolicy, Compactor
from boundarymorph.retrieval.local.segment import Segment, SnapshotInfo
from boundarymorph.retrieval.local.segmented import SegmentedIndex, SegmentedView
from boundarymorph.retrieval.local.snapshots import Snapshots
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import Neighbours, VectorIndex, VectorView
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.retrieval.storage import storage_errors
from boundarymorph.retrieval.vectors import exact_scores
from boundarymorph.selection.pool import Pool, unit_rows


class LocalIndex:
    """A named index. Its store is the truth; before every search its vectors catch up with what was written there.

    So a search sees every upsert and deletion that was acknowledged before it began, whichever process made it. All of
    an answer, what the filter and the words say included, is of one state of the store. A large index begins with the
    newest snapshot instead of the whole store, and writes new ones in the background. All calls block, may come from
    any thread, and raise UnknownIndex once the index has been deleted.
    """

    def __init__(
        self,
        name: str,
        store: DocumentStore,
        make_vectors: Callable[[int], VectorIndex] | None = None,
        *,
        warnings: Sequence[str] = (),
        policy: CompactionPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """make_vectors: what is searched in place of a `SegmentedIndex`; it reads snapshots, but makes none.

        warnings: what `retrieve` tells everyone.
        """
        self.name = name
        self._store = store
        self._make_vectors = make_vectors
        self._warnings = warnings
        self._catching_up = threading.Lock()
        self._sequence = 0
        self._vectors: VectorIndex | None = None
        self._snapshots = Snapshots(store.path)
        self._compactor = Compactor(self._snapshots, store, self._adopt, policy or CompactionPolicy(), clock)

    @property
    def path(self) -> Path:
        return self._store.path

    @property
    def info(self) -> IndexConfiguration:
        return self._store.info

    def snapshot(self) -> SnapshotInfo | None:
        """The newest snapshot on disk, with the recall of its structure; None when there is none."""
        return self._snapshots.latest()

    def count(self) -> int:
        """Documents in the index."""
        return self._store.count()

    def search(self, query: ArrayLike, depth: int) -> Pool:
        """The `depth` documents nearest to a (d,) query, or all when there are fewer.

        Raises EmptyIndex, and InvalidEmbeddings for a query of another dimension or without a direction.
        """
        return self.search_with_sequences(query, depth)[0]

    def search_with_sequences(
        self, query: ArrayLike, depth: int, *, within: NDArray[np.int64] | None = None
    ) -> tuple[Pool, NDArray[np.int64]]:
        """The same pool with the (n,) sequence numbers of its documents, by which the store finds them faster.

        within: ascending sequence numbers; only these documents, found exactly whatever the kind of index. The pool is
        empty when none of them is there.
        """
        with self._one_state() as vectors:
            pool, found = self._search(vectors, query, depth, within)
        return pool, found.sequences

    def retrieve(self, search: Search) -> Retrieved:
        """As `Index.retrieve`."""
        with self._one_state() as vectors:
            within = None if search.condition is None else self.matching(search.condition)
            pool, found = self._search(vectors, search.unit, search.depth, within)
            if len(pool) == 0:  # nothing passes the filter
                return Retrieved(pool, (*self._warnings, *found.warnings))
            if search.hybrid:
                pool = self.fused(search.query, pool, search.depth, search.condition)
                pool = replace(pool, features={**pool.features, "bm25": self.bm25_of(search.query, pool.ids)})
            elif self._store.has_words():
                pool = replace(pool, features={"bm25": self.bm25(search.query, found.sequences)})
        return Retrieved(pool, (*self._warnings, *found.warnings))

    def check(self, document: Document) -> None:
        """As `Index.check`: any will do."""

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: NDArray[np.floating],
        digests: Sequence[bytes] | None = None,
    ) -> None:
        """As `Index.upsert`."""
        if digests is None:
            digests = [fingerprint(document, row) for document, row in zip(documents, embeddings, strict=True)]
        self._store.upsert(documents, embeddings, digests)

    def delete(self, ids: Sequence[str]) -> int:
        """As `Index.delete`."""
        return self._store.delete(ids)

    def documents(self, ids: Sequence[str]) -> dict[str, Document]:
        """As `Index.documents`."""
        return self._store.documents(ids)

    def characters(self, ids: Sequence[str]) -> dict[str, int]:
        """As `Index.characters`."""
        return self._store.characters(ids)

    def matching(self, filter: Filter) -> NDArray[np.int64]:
        """Ascending sequence numbers of the documents whose metadata pass the filter."""
        return self._store.matching_sequences(filter)

    def bm25(self, query: str, sequences: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) BM25 over the whole index of documents by their sequence numbers. Raises InvalidInput without words."""
        return self._store.bm25_of_sequences(query, sequences)

    def bm25_of(self, query: str, ids: Sequence[str]) -> NDArray[np.float64]:
        """As `bm25`, by ids; 0 for unknown ones."""
        return self._store.bm25(query, ids)

    def fused(self, query: str, near: Pool, depth: int, filter: Filter | None) -> Pool:
        """The pool of those nearest and the best by words, as they are ranked together by reciprocal rank, with their
        similarity as a feature.

        Raises InvalidInput without words.
        """
        by_words = self._store.best_by_words(query, depth, filter)
        ranked = fuse([near.ids, by_words.ids])
        ids, scores = ranked.ids[:depth], ranked.scores[:depth]
        rows: dict[str, NDArray[np.floating]] = dict(zip(near.ids, near.embeddings, strict=True))
        rows |= self._store.embeddings([id for id in ids if id not in rows])
        vectors = np.array([rows[id] for id in ids], dtype=np.float32)
        return Pool(ids, vectors, near.query, scores, {"similarity": exact_scores(vectors, near.query)})

    def digests(self, ids: Sequence[str]) -> dict[str, bytes]:
        """As `Index.digests`."""
        return self._store.digests(ids)

    def refresh(self) -> VectorIndex:
        """Catch up with the store; the vectors as they are then. The first call reads the snapshot or the store."""
        with self._one_state():
            assert self._vectors is not None
            return self._vectors

    def settle(self) -> None:
        """Catch up with the store, and see the snapshot through that is due then, if one is."""
        self.refresh()
        self._compactor.wait()

    def compact(self) -> bool:
        """Have a snapshot of all that is there now, however little has changed; False when another process writes one.

        Raises StorageFull or StorageUnavailable. An index with vectors of another make has nothing to compact.
        """
        self.refresh()
        self._compactor.wait()
        with self._catching_up:
            if not isinstance(self._vectors, SegmentedIndex):
                return False
            view, sequence = self._vectors.view(), self._sequence
        if view.base.info.sequence == sequence:
            return True
        with storage_errors(f"no snapshot of {self.name!r} could be written, and it serves on without"):
            return self._compactor.compact(view, sequence)

    def back_up(self, target: Path) -> BackupInfo:
        """Copy the index, as it is at one moment, into a new folder; see `backups.write`."""
        return backups.write(self.name, self._store, self._snapshots, target)

    def index_words(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> bool:
        """Index the words of an index that was made without; False where they are. See `DocumentStore.index_words`.

        on_progress: called with the documents that are done and those that there are.
        """
        return self._store.index_words(on_progress)

    def close(self) -> None:
        """Release the file, and end a compaction that is under way; later calls raise UnknownIndex."""
        self._compactor.close()
        self._store.close()

    @contextmanager
    def _one_state(self) -> Iterator[VectorView]:
        """The vectors as the store has them now; within the block this thread reads the store in that same state."""
        with self._catching_up:
            if self._vectors is None:
                self._vectors, self._sequence = self._begin()
        with self._store.one_state():
            with self._catching_up:  # the state begins with the first read, so it is none that the vectors have passed
                # A failure halfway repeats these changes, which is harmless, rather than losing some.
                sequence = self._sequence = self._caught_up(self._vectors, self._sequence)
                view = self._vectors.view()
            if isinstance(view, SegmentedView):
                self._compactor.consider(view, sequence)
            yield view

    def _search(
        self, vectors: VectorView, query: ArrayLike, depth: int, within: NDArray[np.int64] | None
    ) -> tuple[Pool, Neighbours]:
        """The nearest as a pool, and as the vectors told of them."""
        unit = unit_rows(np.reshape(query, (1, -1)), ["the query"])[0].astype(np.float32)
        if len(vectors) == 0:
            raise EmptyIndex(f"the index {self.name!r} holds no documents yet")
        found = vectors.search(unit, depth, within=within)
        return Pool(found.ids, found.vectors, unit, found.scores), found

    def _begin(self) -> tuple[VectorIndex, int]:
        """What the newest snapshot holds, and the sequence number of the store's last change that is in it."""
        dimension = self.info.dimension
        while (segment := self._snapshots.newest()) is not None and segment.info.sequence > self._store.last_sequence():
            self._snapshots.refuse(segment.info.name, "it is ahead of its store, which may be an older copy")
        index = SegmentedIndex(dimension, segment)
        sequence = segment.info.sequence if segment is not None else 0
        if self._make_vectors is None:
            return index, sequence
        vectors = self._make_vectors(dimension)
        for ids, rows, sequences in index.view().blocks():
            vectors.upsert(ids, rows, sequences)
        return vectors, sequence

    def _caught_up(self, vectors: VectorIndex, sequence: int) -> int:
        """Bring vectors that are as the store was after its change `sequence` to its present state; the last change."""
        with self._store.one_state():
            forgotten = sequence > 0 and self._store.forgets(sequence)
            complete = False
            while not complete:
                changes = self._store.changes(sequence)
                if changes.deleted:
                    vectors.remove(changes.deleted)
                if changes.ids:
                    vectors.upsert(changes.ids, changes.vectors, changes.sequences)
                sequence, complete = changes.sequence, changes.complete
            if forgotten:
                vectors.remove(vectors.view().strays(self._store.living()))
        return sequence

    def _adopt(self, segment: Segment) -> None:
        """Search a newer segment from now on. Most of the catching up is done while searches go on with the old one."""
        vectors = SegmentedIndex(self.info.dimension, segment)
        sequence = self._caught_up(vectors, segment.info.sequence)
        with self._catching_up:
            now = self._vectors
            if isinstance(now, SegmentedIndex) and now.view().base.info.sequence < segment.info.sequence:
                self._sequence = self._caught_up(vectors, sequence)
                self._vectors = vectors
