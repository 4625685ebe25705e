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
from boundarymorph.retrieval.catalog import IndexConfiguration, StructureInfo
from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.fusion import fuse
from boundarymorph.retrieval.local import backups
from boundarymorph.retrieval.local.backups import BackupInfo
from boundarymorph.retrieval.local.flat import FlatIndex
from boundarymorph.retrieval.local.ivf import IvfIndex
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.training import Trainer, TrainingPolicy, trained_until
from boundarymorph.retrieval.local.vector_index import Neighbours, VectorIndex, VectorView
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.retrieval.storage import storage_errors
from boundarymorph.retrieval.vectors import exact_scores
from boundarymorph.selection.pool import Pool, unit_rows


class LocalIndex:
    """A named index. Its store is the truth; before every search its vectors catch up with what was written there.

    So a search sees every upsert and deletion that was acknowledged before it began, whichever process made it. All of
    an answer, what the filter and the words say included, is of one state of the store. The vectors are read when they
    are first needed; those of a large index of kind ivf from the structure that was trained last, and until there is
    one they are searched exhaustively. All calls block, may come from any thread, and raise UnknownIndex once the index
    has been deleted.
    """

    def __init__(
        self,
        name: str,
        store: DocumentStore,
        make_vectors: Callable[[int], VectorIndex] | None = None,
        *,
        warnings: Sequence[str] = (),
        policy: TrainingPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """make_vectors: what is searched whatever the kind, such as an index on an accelerator.

        warnings: what every answer of `retrieve` carries.
        """
        self.name = name
        self._store = store
        self._make_vectors = make_vectors
        self._warnings = warnings
        self._catching_up = threading.Lock()
        self._sequence = 0
        self._vectors: VectorIndex | None = None
        self._trainer = Trainer(store, self._fill, self._adopt, policy or TrainingPolicy(), clock)

    @property
    def path(self) -> Path:
        return self._store.path

    @property
    def info(self) -> IndexConfiguration:
        return self._store.info

    def structure(self) -> StructureInfo | None:
        """What was trained last, with its recall; None when nothing was."""
        return self._trainer.files.info()

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

    def delete_matching(self, filter: Filter) -> int:
        """As `Index.delete_matching`."""
        return self._store.delete_matching(filter)

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
        """Catch up with the store; the vectors as they are then."""
        with self._one_state():
            assert self._vectors is not None
            return self._vectors

    def settle(self) -> None:
        """Catch up with the store, and wait for the training that is due then, if it is."""
        self.refresh()
        self._trainer.wait()

    def compact(self) -> bool:
        """Rewrite the words without what is gone, empty the store's log, and where the kind is ivf train it anew; False
        when another process is training it. Raises StorageFull or StorageUnavailable."""
        self._store.compact()
        self.refresh()
        self._trainer.wait()
        if not self._trains or not self._store.count():
            return True
        with storage_errors(f"{self.name!r} could not be trained anew, and it serves on as it was"):
            return self._trainer.train(after=self._store.last_sequence() - 1)

    def back_up(self, target: Path) -> BackupInfo:
        """Copy the index, as it is at one moment, into a new folder; see `backups.write`."""
        return backups.write(self.name, self._store, target)

    def index_words(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> bool:
        """Index the words of an index that was made without; False where they are. See `DocumentStore.index_words`.

        on_progress: called with the documents that are done and those that there are.
        """
        return self._store.index_words(on_progress)

    def close(self) -> None:
        """Release the file, and end a training that is under way; later calls raise UnknownIndex."""
        self._trainer.close()
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
                self._sequence = self._caught_up(self._vectors, self._sequence)
                view = self._vectors.view()
            if self._trains:
                self._trainer.consider(self._vectors)
            yield view

    def _search(
        self, vectors: VectorView, query: ArrayLike, depth: int, within: NDArray[np.int64] | None
    ) -> tuple[Pool, Neighbours]:
        """The nearest as a pool, and the vectors as found."""
        unit = unit_rows(np.reshape(query, (1, -1)), ["the query"])[0].astype(np.float32)
        if len(vectors) == 0:
            raise EmptyIndex(f"the index {self.name!r} holds no documents yet")
        found = vectors.search(unit, depth, within=within)
        return Pool(found.ids, found.vectors, unit, found.scores), found

    @property
    def _trains(self) -> bool:
        return self.info.kind == "ivf" and self._make_vectors is None

    def _begin(self) -> tuple[VectorIndex, int]:
        """What is searched from now on, and the store's last change that is in it.

        A page of the store is read in a transaction of its own, so that a long reading does not keep its log.
        """
        if self._trains and (trained := self._trainer.files.newest()) is not None:
            return trained, trained.sequence
        if self._make_vectors is not None:
            vectors = self._make_vectors(self.info.dimension)
        else:
            vectors = FlatIndex(self.info.dimension, capacity=self._store.count() * 5 // 4)
        return vectors, self._caught_up(vectors, 0)

    def _caught_up(self, vectors: VectorIndex, sequence: int) -> int:
        """Bring vectors that are as the store was after its change `sequence` to its present state; the last change."""
        forgotten = complete = False
        while not complete:
            with self._store.one_state():
                forgotten |= sequence > 0 and self._store.forgets(sequence)
                changes = self._store.changes(sequence)
            if changes.deleted:
                vectors.remove(changes.deleted)
            if changes.ids:
                vectors.upsert(changes.ids, changes.vectors, changes.sequences)
            sequence, complete = changes.sequence, changes.complete
        if forgotten:
            vectors.remove(vectors.view().others(self._store.living()[0]))
        return sequence

    def _fill(self, index: IvfIndex) -> None:
        index.sequence = self._caught_up(index, 0)

    def _adopt(self, index: IvfIndex) -> None:
        """Search another structure from now on. Most of the catching up is done while searches use the one before."""
        sequence = self._caught_up(index, index.sequence)
        with self._catching_up:
            if self._vectors is not None and trained_until(self._vectors) < index.sequence:
                self._sequence = self._caught_up(index, sequence)
                self._vectors = index
