"""A searchable index: the document store, and vectors that are kept up to date with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EmptyIndex, StorageFull, StorageUnavailable
from boundarymorph.inference.executors import computing
from boundarymorph.retrieval.catalog import IndexConfiguration, StructureDescription
from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.fusion import fused
from boundarymorph.retrieval.local import backups
from boundarymorph.retrieval.local.backups import BackupInfo
from boundarymorph.retrieval.local.flat import FlatIndex
from boundarymorph.retrieval.local.ivf import IvfIndex
from boundarymorph.retrieval.local.ivf_structure import IvfFormat, described, trained_index
from boundarymorph.retrieval.local.mapped import FlatFormat
from boundarymorph.retrieval.local.rows import Neighbours
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.structures import StructureFiles
from boundarymorph.retrieval.local.training import Trainer, TrainingPolicy
from boundarymorph.retrieval.local.vector_index import VectorIndex, VectorView
from boundarymorph.retrieval.pieces import STOP
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.retrieval.storage import storage_errors
from boundarymorph.selection.pool import Pool

WORDS_WITHOUT_STEMS = (
    "the words of this index are those of an earlier release; for better selections, index them again with "
    "`boundarymorph index words {name}`"
)


class LocalIndex:
    """A named index. Its store is authoritative; before every search, the vectors catch up with its changes.

    So a search sees every upsert and deletion acknowledged before it began, by any process. All of an answer, filter
    and words included, is based on one state of the store. The vectors are loaded when first needed: for a large index
    of kind ivf from the structure trained last; until there is one, they are searched exhaustively. All calls block,
    are thread-safe, and raise UnknownIndex once the index has been deleted.
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
        """make_vectors: makes the vector index whatever the kind, for instance on an accelerator.

        warnings: added to every answer of `retrieve`.
        """
        self.name = name
        self._store = store
        self._make_vectors = make_vectors
        self._warnings = warnings
        self._catching_up = threading.Lock()
        self._sequence = 0
        self._vectors: VectorIndex | None = None
        self._trainer = self._trained_by(policy or TrainingPolicy(), clock)

    @property
    def path(self) -> Path:
        return self._store.path

    @property
    def info(self) -> IndexConfiguration:
        return self._store.info

    def structure(self) -> StructureDescription | None:
        """Return a description of the structure trained last, with its recall; None if there is none."""
        manifest = self._trainer.files.manifest() if self.info.kind == "ivf" else None
        return None if manifest is None else described(manifest)

    def check_file(self) -> None:
        """Raise an error if the index cannot be read from its disk."""
        self._store.check()

    def count(self) -> int:
        """Number of documents in the index."""
        return self._store.count()

    def retrieve(self, search: Search) -> Retrieved:
        """See `Index.retrieve`."""
        with self._one_state() as vectors:
            within = None if search.condition is None else self._store.matching_sequences(search.condition)
            unit = search.unit
            if len(vectors) == 0:
                raise EmptyIndex(f"the index {self.name!r} holds no documents yet")
            found = vectors.search(unit, search.depth, within=within)
            with computing():
                warnings = [*self._warnings, *found.warnings]
                features: dict[str, NDArray[np.float64]] = {}
                terms, directions = None, None
                if search.hybrid and found.ids:  # else no document matches the filter
                    found, features = self._merged(found, search)
                if found.ids and self._store.has_words():
                    features["bm25"] = self._store.bm25(search.query, found.sequences)
                    terms = self._store.terms(search.query, found.sequences)
                    if terms is None:
                        warnings.append(WORDS_WITHOUT_STEMS.format(name=self.name))
                    elif search.directions:
                        directions = self._store.directions()
                if directions is None:
                    embeddings, query = found.vectors, unit
                else:
                    embeddings = directions.units_of(found.sequences, found.vectors_at, len(vectors))
                    query = directions.units(unit[None])[0]
        return Retrieved(Pool(found.ids, embeddings, query, found.scores, features, terms), warnings)

    def _merged(self, found: Neighbours, search: Search) -> tuple[Neighbours, dict[str, NDArray[np.float64]]]:
        """Fuse the nearest with the best by words. Returns them with their similarities as a feature."""
        near = Pool(found.ids, found.vectors, search.unit, found.scores)
        best = self._store.best_by_words(search.query, search.depth, search.condition)
        pool = fused(near, best.ids, search.depth, self._store.embeddings)
        places, sequences = np.arange(len(pool)), self._store.sequences(pool.ids)
        return Neighbours(list(pool.ids), pool.embeddings, places, pool.scores, sequences), dict(pool.features)

    def check(self, document: Document) -> None:
        """Accept any document; see `Index.check`."""

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: NDArray[np.floating],
        digests: Sequence[bytes] | None = None,
    ) -> None:
        """See `Index.upsert`."""
        if digests is None:
            digests = [fingerprint(document, row) for document, row in zip(documents, embeddings, strict=True)]
        self._store.upsert(documents, embeddings, digests)
        self._learn()

    def delete(self, ids: Sequence[str]) -> int:
        """See `Index.delete`."""
        return self._store.delete(ids)

    def delete_matching(self, filter: Filter) -> int:
        """See `Index.delete_matching`."""
        return self._store.delete_matching(filter)

    def documents(self, ids: Sequence[str], *, texts: bool = True) -> dict[str, Document]:
        """See `Index.documents`."""
        return self._store.documents(ids, texts=texts)

    def page(self, after: str, most: int, size: int = STOP) -> list[Document]:
        """See `Paged.page`."""
        return self._store.page(after, most, size)

    def outlines(self, most: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        """See `Paged.outlines`."""
        return self._store.outlines(most)

    def characters(self, ids: Sequence[str]) -> dict[str, int]:
        """See `Index.characters`."""
        return self._store.characters(ids)

    def digests(self, ids: Sequence[str]) -> dict[str, bytes]:
        """See `Index.digests`."""
        return self._store.digests(ids)

    def refresh(self) -> VectorIndex:
        """Catch up with the store and return the vectors."""
        with self._one_state():
            assert self._vectors is not None
            return self._vectors

    def settle(self) -> None:
        """Catch up with the store, and wait for training if it is due."""
        self.refresh()
        self._trainer.wait()

    def compact(self) -> bool:
        """Remove deleted documents from the words, empty the store's log, and make the structure of the vectors again.

        Returns False if another process is training it. Raises StorageFull or StorageUnavailable.
        """
        self._store.compact()
        self.refresh()
        self._trainer.wait()
        if self._make_vectors is not None or (self.info.kind == "flat" and not self._structured_at):
            return True
        with storage_errors(f"{self.name!r} could not be trained again, and stays as it was"):
            return self._trainer.train(after=self._store.last_sequence() - 1)

    def back_up(self, target: Path) -> BackupInfo:
        """Copy one state of the index into a new folder; see `backups.write`."""
        return backups.write(self.name, self._store, target)

    def index_words(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> bool:
        """Index the words of an index without them, or with those of an earlier version; see
        `DocumentStore.index_words`. False if they are indexed.

        on_progress: called with the number of indexed documents and the total.
        """
        return self._store.index_words(on_progress)

    def release(self) -> None:
        """Close the file and forget the vectors; whoever still uses this object opens and loads them again."""
        self._trainer.close()
        self._store.release()
        if self._catching_up.acquire(blocking=False):  # else somebody is just loading them
            self._vectors = None
            self._catching_up.release()

    def close(self) -> None:
        """Close the file, and stop any training; later calls raise UnknownIndex."""
        self._trainer.close()
        self._store.close()

    @contextmanager
    def _one_state(self) -> Iterator[VectorView]:
        """Yield the vectors in the store's present state, in which this thread reads the store within the block."""
        with self._catching_up:
            self._loaded()
        with self._store.one_state():
            with self._catching_up:  # the first read fixes the state, which must not be older than that of the vectors
                vectors = self._loaded()
                # A failure halfway makes these changes be repeated, which is harmless, rather than lost.
                self._sequence = self._caught_up(vectors, self._sequence)
                view = vectors.view()
            if self._make_vectors is None and isinstance(vectors, IvfIndex | FlatIndex):
                self._trainer.consider(vectors)
            yield view

    def _loaded(self) -> VectorIndex:
        """Return the vectors, after loading them if need be. The lock must be held."""
        if self._vectors is None:
            self._vectors, self._sequence = self._begin()
        return self._vectors

    def _trained_by(self, policy: TrainingPolicy, clock: Callable[[], float]) -> Trainer[Any]:
        """Return what makes the structure of this kind of index."""
        store = self._store
        if self.info.kind == "ivf":
            make = partial(trained_index, store, self._fill)
            return Trainer(store, StructureFiles(store, IvfFormat()), make, self._adopt, policy, clock)
        mapped = StructureFiles(store, FlatFormat(self.info.dimension))
        return Trainer(store, mapped, self._as_now, self._adopt, policy, clock)

    def _begin(self) -> tuple[VectorIndex, int]:
        """Load the vectors; return them with the sequence number of the store's last change in them.

        Each page of the store is read in its own transaction, so that a long load does not block emptying the log.
        """
        self._learn()
        if self._make_vectors is None and (structure := self._trainer.files.newest()) is not None:
            return structure, structure.sequence
        if self._make_vectors is not None:
            vectors = self._make_vectors(self.info.dimension)
        else:
            vectors = FlatIndex(self.info.dimension, capacity=self._store.count() * 5 // 4)
        return vectors, self._caught_up(vectors, 0)

    def _caught_up(self, vectors: VectorIndex, sequence: int) -> int:
        """Bring vectors from the state after change `sequence` to the present one; return the last change."""
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
            vectors.remove(vectors.view().rows.others(self._store.living()[0]))
        return sequence

    def _learn(self) -> None:
        """Learn the directions if that is due. A store that cannot be written keeps those it has."""
        with suppress(StorageFull, StorageUnavailable):
            self._store.learn_directions()

    def _fill(self, index: IvfIndex) -> None:
        index.sequence = self._caught_up(index, 0)

    @property
    def _structured_at(self) -> int:
        """The store's last change in the structure that the vectors have in files; 0 if they have none."""
        return self._vectors.sequence if isinstance(self._vectors, IvfIndex | FlatIndex) else 0

    def _as_now(self, checkpoint: Callable[[], None]) -> FlatIndex | None:
        """Return the present vectors of an index that is searched exhaustively; None if there are none."""
        with self._catching_up:
            vectors = self._loaded()
            self._sequence = self._caught_up(vectors, self._sequence)
            return vectors.as_of(self._sequence) if isinstance(vectors, FlatIndex) and len(vectors) else None

    def _adopt(self, index: IvfIndex | FlatIndex) -> None:
        """Switch to another structure. It catches up mostly before the switch, while the old one serves searches."""
        sequence = self._caught_up(index, index.sequence)
        with self._catching_up:
            if self._vectors is not None and self._structured_at < index.sequence:
                self._sequence = self._caught_up(index, sequence)
                self._vectors = index
