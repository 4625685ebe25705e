"""A searchable index: the document store, and vectors that are kept up to date with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EmptyIndex, InvalidInput, StorageFull, StorageUnavailable
from boundarymorph.inference.concurrency import computing
from boundarymorph.retrieval.catalog import WORDS, StructureDescription
from boundarymorph.retrieval.document import Document, in_pieces
from boundarymorph.retrieval.fusion import fused
from boundarymorph.retrieval.local import backups
from boundarymorph.retrieval.local.backups import BackupInfo
from boundarymorph.retrieval.local.blocks import Trainer, TrainingPolicy
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import Block, Mirror, Neighbours, Rows, VectorIndex, VectorView
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.retrieval.storage import storage_errors
from boundarymorph.retrieval.vectors import exact_scores
from boundarymorph.retrieval.words.columns import RowWords
from boundarymorph.retrieval.words.lexical import PoolWords, beginnings
from boundarymorph.retrieval.words.vectors import lexical_vectors
from boundarymorph.selection.pool import Pool


class LocalIndex(DocumentStore):
    """A named index: a store that can be searched. It is authoritative; before every search, the vectors catch up with
    its changes.

    So a search sees every upsert and deletion acknowledged before it began, by any process. All of an answer, filter
    and words included, is based on one state of the store. The vectors are loaded when first needed: for a large index
    from the block made last, and what has changed since. All calls block,
    are thread-safe, and raise UnknownIndex once the index has been deleted.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        make_mirror: Callable[[int], Mirror] | None = None,
        *,
        warnings: Sequence[str] = (),
        policy: TrainingPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        """make_mirror: see `VectorIndex`; then all of an index is searched exactly, whatever its kind.

        warnings: added to every answer of `retrieve`. options: see `DocumentStore`.
        """
        super().__init__(path, **options)
        self.name = name
        self._make_mirror = make_mirror if self.info.dimension else None
        self._warnings = warnings
        self._catching_up = threading.Lock()
        self._sequence = 0
        self._vectors: VectorIndex | None = None
        self._trainer = Trainer(self, self._adopt, policy or TrainingPolicy(), clock)

    def structure(self) -> StructureDescription | None:
        """Return a description of the structure trained last, with its recall; None if there is none."""
        return self._trainer.files.description() if self.info.kind == "ivf" else None

    def retrieve(self, search: Search) -> Retrieved:
        """See `Index.retrieve`. Without vectors, BM25 over the whole index ranks the documents that have a word of the
        query; those found get lexical vectors (`words.vectors`) of their own texts, computed for each query."""
        if self.info.kind == WORDS:
            return self._by_words(search)
        with self._searched(search) as (view, living):
            found = view.search(search.unit, search.depth)
            with computing():
                features: dict[str, NDArray[np.float64]] = {}
                terms, directions, words = None, None, view.words
                if search.hybrid and words is None:
                    raise InvalidInput(
                        "this index has no lexical part; query it without hybrid retrieval, or index its words with "
                        "`boundarymorph index words NAME`"
                    )
                if search.hybrid and words is not None and found.ids:  # else no document matches the filter
                    found, features = _merged(found, view, words, search)
                if found.ids and words is not None:
                    features["bm25"] = words.scores(search.query, found.rows)
                    terms = words.terms(search.query, found.rows)
                    directions = self.directions() if search.directions else None
                if directions is None:
                    embeddings, query = found.vectors, search.unit
                else:
                    embeddings = directions.units_of(found.sequences, found.vectors_at, living)
                    query = directions.units(search.unit[None])[0]
        warnings = [*self._warnings, *found.warnings]
        return Retrieved(Pool(found.ids, embeddings, query, found.scores, features, terms), warnings)

    def upsert(
        self, documents: Sequence[Document], embeddings: NDArray[np.floating], digests: Sequence[bytes] | None = None
    ) -> None:
        """See `Index.upsert`."""
        super().upsert(documents, embeddings, digests)
        self._learn()

    def refresh(self) -> VectorIndex:
        """Catch up with the store and return the vectors."""
        with self._up_to_date():
            assert self._vectors is not None
            return self._vectors

    def settle(self) -> None:
        """Catch up with the store, and wait for training if it is due."""
        self.refresh()
        self._trainer.wait()

    def compact(self) -> bool:
        """Empty the store's log, and make the block again.

        Returns False if another process is making it. Raises StorageFull or StorageUnavailable.
        """
        self.empty_log()
        self.refresh()
        self._trainer.wait()
        if self.info.kind != "ivf" and self._vectors is not None and not self._vectors.sequence:
            return True
        with storage_errors(f"{self.name!r} could not be trained again, and stays as it was"):
            return self._trainer.train(after=self.last_sequence() - 1)

    def back_up(self, target: Path) -> BackupInfo:
        """Copy one state of the index into a new folder; see `backups.write`."""
        return backups.write(self.name, self, target)

    def index_words(self) -> bool:
        """Index the words of an index without them, from now on in every process. False if they are indexed."""
        made = super().index_words()
        self.settle()
        return made

    def release(self) -> None:
        """Close the file and forget the vectors; whoever still uses this object opens and loads them again."""
        self._trainer.close()
        super().release()
        if self._catching_up.acquire(blocking=False):  # else somebody is just loading them
            self._vectors = None
            self._catching_up.release()

    def close(self) -> None:
        """Close the file, and stop any training; later calls raise UnknownIndex."""
        self._trainer.close()
        super().close()

    def _by_words(self, search: Search) -> Retrieved:
        """Return what an index without vectors finds, with BM25 and the similarity of the vectors as features."""
        if search.embedding is not None or search.hybrid:
            raise InvalidInput(
                f"the index {self.name!r} has no vectors, only words; leave out the query_embedding and hybrid"
            )
        with self._searched(search) as (view, _):
            words = view.words
            assert words is not None
            with computing():
                rows, scores = words.best(search.query, search.depth, view.rows.alive)
            ids = [view.rows.ids[row] for row in rows.tolist()]
            pieces = in_pieces(self.documents, ids)
            texts = beginnings((document.content for piece in pieces for document in piece.values()), len(ids))
        if not ids:
            which = "document" if search.condition is None else "document that passes the filter"
            nothing = Pool([], np.empty((0, 1), np.float32), np.ones(1, np.float32), np.empty(0))
            return Retrieved(nothing, [f"no {which} has a word of the query"], "lexical")
        with computing():  # which also bounds the memory for words
            found = PoolWords.of(texts)
            del texts
            vectors, query = lexical_vectors(found, search.query)
            features = {"bm25": scores, "similarity": exact_scores(vectors, query)}
            terms = found.terms(search.query)
        return Retrieved(Pool(ids, vectors, query, scores, features, terms), vectors="lexical")

    @contextmanager
    def _searched(self, search: Search) -> Iterator[tuple[VectorView, int]]:
        """Yield the documents that pass the filter as `_up_to_date` does, and how many there are in all."""
        with self._up_to_date() as view:
            living = len(view)
            if not living:
                raise EmptyIndex(f"the index {self.name!r} holds no documents yet")
            if search.condition is not None:
                view = view.among(self.matching_sequences(search.condition))
            yield view, living

    @contextmanager
    def _up_to_date(self) -> Iterator[VectorView]:
        """Yield the vectors in the store's present state, in which this thread reads the store within the block."""
        with self._catching_up:
            self._loaded()
        with self.one_state():
            with self._catching_up:  # the first read fixes the state, which must not be older than that of the vectors
                vectors = self._loaded()
                # A failure halfway makes these changes be repeated, which is harmless, rather than lost.
                self._sequence = self._caught_up(vectors, self._sequence)
                view = vectors.view()
            self._trainer.consider(vectors)
            yield view

    def _loaded(self) -> VectorIndex:
        """Return the vectors, after loading them if need be. The lock must be held."""
        if self._vectors is None or self._vectors.lexical != self.has_words():
            self._vectors, self._sequence = self._begin()
        return self._vectors

    def _begin(self) -> tuple[VectorIndex, int]:
        """Load the vectors; return them with the sequence number of the store's last change in them.

        Each page of the store is read in its own transaction, so that a long load does not block emptying the log.
        """
        self._learn()
        if (newest := self._trainer.files.newest()) is not None:
            return self._over(*newest), newest[0].sequence
        vectors = VectorIndex(
            self.info.dimension,
            self.count() * 5 // 4,
            lexical=self.has_words(),
            make_mirror=self._make_mirror,
        )
        return vectors, self._caught_up(vectors, 0)

    def _over(self, block: Block, rows: Rows) -> VectorIndex:
        lexical = block.words is not None
        return VectorIndex(self.info.dimension, block=block, rows=rows, lexical=lexical, make_mirror=self._make_mirror)

    def _caught_up(self, vectors: VectorIndex, sequence: int) -> int:
        """Bring vectors from the state after change `sequence` to the present one; return the last change."""
        forgotten = complete = False
        while not complete:
            with self.one_state():
                forgotten |= sequence > 0 and self.forgets(sequence)
                changes = self.changes(sequence, texts=vectors.lexical)
            if changes.deleted:
                vectors.remove(changes.deleted)
            if changes.ids:
                vectors.upsert(changes.ids, changes.vectors, changes.sequences, changes.contents)
            sequence, complete = changes.sequence, changes.complete
        if forgotten:
            vectors.remove(vectors.view().rows.others(self.living()[0]))
        return sequence

    def _learn(self) -> None:
        """Learn the directions if that is due. A store that cannot be written keeps those it has."""
        with suppress(StorageFull, StorageUnavailable):
            self.learn_directions()

    def _adopt(self, block: Block, rows: Rows) -> None:
        """Switch to a newer block. It catches up mostly before the switch, while the old one serves searches."""
        vectors = self._over(block, rows)
        sequence = self._caught_up(vectors, block.sequence)
        with self._catching_up:
            if self._vectors is not None and self._vectors.sequence < block.sequence:
                self._sequence = self._caught_up(vectors, sequence)
                self._vectors = vectors


def _merged(
    found: Neighbours, view: VectorView, words: RowWords, search: Search
) -> tuple[Neighbours, dict[str, NDArray[np.float64]]]:
    """Fuse the nearest with the best by words. Returns them with their similarities as a feature."""
    near = Pool(found.ids, found.vectors, search.unit, found.scores)
    best, _ = words.best(search.query, search.depth, view.rows.alive)
    ids = [view.rows.ids[row] for row in best.tolist()]
    row_of = dict(zip([*found.ids, *ids], [*found.rows.tolist(), *best.tolist()], strict=True))

    def vectors(ids: list[str]) -> dict[str, NDArray[np.float32]]:
        ascending = sorted(ids, key=row_of.__getitem__)
        return dict(zip(ascending, view.vectors(np.array([row_of[id] for id in ascending], np.int64)), strict=True))

    pool = fused(near, ids, search.depth, vectors)
    rows = np.array([row_of[id] for id in pool.ids], np.int64)
    places, sequences = np.arange(len(pool)), view.rows.sequences[rows]
    merged = Neighbours(list(pool.ids), pool.embeddings, places, pool.scores, sequences, rows, found.warnings)
    return merged, dict(pool.features)
