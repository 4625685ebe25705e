"""Faster approximate search of many vectors: FAISS's inverted file with half precision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex
from boundarymorph.inference.executors import check_awaited
from boundarymorph.retrieval.halves import to_unit_length
from boundarymorph.retrieval.local.flat import rounding_error
from boundarymorph.retrieval.local.rows import Neighbours, RowBook, Rows
from boundarymorph.retrieval.local.vector_index import check_vectors
from boundarymorph.retrieval.vectors import check_search

DEPTHS = (10, 30, 100, 300, 1_000, 3_000, 10_000)  # at which recall is measured
TARGET = 0.99  # mean recall to reach, over a sample of queries
_MARGIN = 64  # nominated beyond the depth, since half precision may reorder the last ones
_faiss: Any = faiss  # has few type hints


@dataclass(frozen=True, slots=True)
class Effort:
    """How many clusters to probe, by depth.

    depths, ascending, with the probes and the recall measured at each; recall is 1 if all clusters are probed.
    """

    depths: tuple[int, ...]
    probes: tuple[int, ...]
    recalls: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises CorruptIndex for invalid numbers."""
        ascending = all(first < second for first, second in zip(self.depths, self.depths[1:], strict=False))
        lengths = {len(self.depths), len(self.probes), len(self.recalls)}
        if not self.depths or len(lengths) > 1 or not ascending or min(self.probes) < 1:
            raise CorruptIndex("the depths, probes and recalls of the ivf structure do not fit together")

    def at(self, depth: int) -> int:
        """Return the probes for any depth: interpolated between depths, linearly in logarithms; beyond, in proportion.

        Nothing was measured beyond the last depth, so recall there depends on how well the proportion holds.
        """
        if depth >= self.depths[-1]:
            return -(-self.probes[-1] * depth // self.depths[-1])
        logarithm = np.interp(np.log(depth), np.log(self.depths), np.log(self.probes))
        return int(np.ceil(np.exp(logarithm) - 1e-9))


class InvertedFile:
    """The vectors of rows in FAISS's IndexIVFScalarQuantizer. Searches run concurrently, additions exclusively.

    exact: by row, the (d,) vectors that float16 would not restore bit for bit (none in a hundred dimensions); loss:
    largest distance by which float16 moved a vector. Without an effort, all clusters are probed.
    """

    def __init__(
        self,
        index: Any,
        effort: Effort | None = None,
        exact: dict[int, NDArray[np.float32]] | None = None,
        loss: float = 0.0,
    ) -> None:
        self.index = index
        self.effort = effort
        self.exact = exact or {}
        self.loss = loss
        self._searches = 0
        self._adding = False
        self._changed = threading.Condition()

    @property
    def clusters(self) -> int:
        return int(self.index.nlist)

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Append (n, d) unit rows."""
        first = int(self.index.ntotal)
        halves = vectors.astype(np.float16).astype(np.float32)
        with np.errstate(invalid="ignore"):
            self.loss = max(self.loss, float(np.linalg.norm(vectors - halves, axis=1).max(initial=0.0)))
        differ = (to_unit_length(halves.copy()).vectors != vectors).any(axis=1)
        with self._changed:
            self._adding = True  # prevents new searches
            self._changed.wait_for(lambda: self._searches == 0)
            try:
                self.exact |= {first + int(place): vectors[place] for place in np.flatnonzero(differ)}
                self.index.add(halves)
            finally:
                self._adding = False
                self._changed.notify_all()

    def nearest(
        self, rows: Rows, query: NDArray[np.float32], depth: int, *, exactly: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return at least min(depth, living) living rows, ascending, that probably include the nearest, and vectors.

        exactly: whether to include the nearest with certainty.
        """
        wanted = min(depth, rows.living)
        probes = self.clusters
        if wanted and not exactly and self.effort is not None:
            nominal = -(-wanted * int(self.index.ntotal) // rows.living)  # dead rows use up part of the clusters
            probes = min(self.effort.at(nominal), self.clusters)
        error = self.loss + rounding_error(query.size)
        reach = wanted + wanted // 64 + _MARGIN
        with self._searching():
            selected = None
            if rows.living < self.index.ntotal:
                selected = _faiss.IDSelectorBitmap(np.packbits(rows.alive, bitorder="little"))
            while wanted:
                check_awaited()
                reach = min(reach, rows.living)
                parameters = _faiss.SearchParametersIVF(sel=selected, nprobe=probes)
                (scores,), (found,) = self.index.search(query[None], reach, params=parameters)
                count = int((found >= 0).sum())
                if probes < self.clusters:
                    if count >= wanted:
                        break
                    probes = min(2 * probes, self.clusters)
                elif reach == rows.living or scores[-1] < scores[wanted - 1] - 2 * error:
                    break
                else:
                    reach *= 2
            if not wanted:
                return np.empty(0, np.int64), np.empty((0, query.size), np.float32)
            chosen = np.sort(found[:count])
            units = to_unit_length(self.index.reconstruct_batch(chosen)).vectors
        if self.exact:
            for place, row in enumerate(chosen.tolist()):
                if row in self.exact:
                    units[place] = self.exact[row]
        return chosen, units

    def measure(self, queries: NDArray[np.float32], checkpoint: Callable[[], None] = lambda: None) -> None:
        """Find the fewest probes, among those tried, that reach the TARGET recall for these (n, d) queries.

        checkpoint is called between searches; an exception from it aborts the work.
        """
        count = int(self.index.ntotal)
        depths = [depth for depth in DEPTHS if depth < count] or [1]
        exact = self._scores(queries, depths[-1], self.clusters, checkpoint)
        error, probes = rounding_error(queries.shape[1]), 1
        tried: list[int] = []
        recalls: list[float] = []
        for depth in depths:
            recall = 0.0
            while probes < self.clusters:
                near = self._scores(queries, depth, probes, checkpoint) >= exact[:, [depth - 1]] - 2 * error
                recall = float(near.mean())
                if recall >= TARGET:
                    break
                probes = max(probes + 1, probes * 5 // 4)
            probes = min(probes, self.clusters)
            tried.append(probes)
            recalls.append(recall if probes < self.clusters else 1.0)
        self.effort = Effort(tuple(depths), tuple(tried), tuple(recalls))

    def _scores(
        self, queries: NDArray[np.float32], depth: int, probes: int, checkpoint: Callable[[], None]
    ) -> NDArray[np.float32]:
        """Return (n, depth) scores that FAISS finds, descending, padded with the smallest float32."""
        parameters, found = _faiss.SearchParametersIVF(nprobe=probes), []
        for query in queries:
            checkpoint()
            found.append(self.index.search(query[None], depth, params=parameters)[0])
        return np.concatenate(found)

    @contextmanager
    def _searching(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._adding)
            self._searches += 1
        try:
            yield
        finally:
            with self._changed:
                self._searches -= 1
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class IvfView:
    """The rows of the file that one search of an `IvfIndex` sees."""

    rows: Rows
    file: InvertedFile

    def __len__(self) -> int:
        return len(self.rows)

    def search(self, query: NDArray[np.float32], depth: int, *, within: NDArray[np.int64] | None = None) -> Neighbours:
        """See `VectorView.search`. Some of the nearest may be missed, unless `within` is given."""
        check_search(query, depth, int(self.file.index.d))
        rows = self.rows if within is None else self.rows.among(within)
        found, vectors = self.file.nearest(rows, query, depth, exactly=within is not None)
        return rows.ranked(query, depth, found, vectors, np.arange(len(found)))


class IvfIndex:
    """A `VectorIndex` that searches only some clusters of the vectors. Takes 2d + 16 bytes per document.

    Results are ranked by exact inner products, and never contain duplicates, outdated versions or removed documents;
    only some of the nearest may be missing. Removed rows are skipped until the index is trained again.
    """

    def __init__(self, file: InvertedFile, sequence: int = 0, book: RowBook | None = None) -> None:
        """sequence: the store's last change when it was trained; book: the rows in the file."""
        self.file = file
        self.sequence = sequence
        self.changed = 0
        """Documents written or removed since the training, which its clusters and its recall do not reflect."""
        self._book = book or RowBook()
        self._writing = threading.Lock()

    def __len__(self) -> int:
        return len(self._book.now)

    def upsert(
        self, ids: Sequence[str], vectors: NDArray[np.float32], sequences: NDArray[np.int64] | None = None
    ) -> None:
        check_vectors(ids, vectors, int(self.file.index.d))
        with self._writing:
            self.file.add(vectors)
            self._book.add(ids, sequences)
            self.changed += len(ids)

    def remove(self, ids: Sequence[str]) -> None:
        with self._writing:
            self._book.drop(ids)
            self.changed += len(ids)

    def saved(self) -> NDArray[np.int64]:
        """See `Structure.saved`."""
        return self._book.now.sequences[: self._book.now.count]

    def view(self) -> IvfView:
        """The current state of the index."""
        return IvfView(self._book.now, self.file)
