"""Represent the documents of a pool as a graph; both kinds of graph are cached.

They are the exact nearest neighbours, and a DiskANN-style pruned graph.
"""

from __future__ import annotations

from functools import cached_property
from time import process_time

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.pool import Pool

CANDIDATES = 100  # L of the paper's DiskANN graph: number of nearest documents from which the pruning chooses
ALPHA = 1.2
BLOCK = 512

Positions = NDArray[np.intp]


class Neighbourhood:
    """The nearest neighbours in a pool of N documents, by cosine."""

    def __init__(self, pool: Pool) -> None:
        self._embeddings = np.asarray(pool.embeddings, dtype=np.float32)
        self._graphs: dict[int, Positions] = {}
        self.seconds = 0.0  # CPU time spent on graphs so far; a service would have them ready

    def nearest(self, count: int) -> tuple[Positions, NDArray[np.float32]]:
        """Return each document's m nearest others, nearest first.

        m is `min(count, CANDIDATES, N - 1)`.

        Returns:
            (N, m) positions and (N, m) cosines.
        """
        positions, cosines = self._nearest
        return positions[:, :count], cosines[:, :count]

    def graph(self, degree: int) -> Positions:
        """Return (N, degree) out-neighbours, nearest first, padded with -1.

        They come from robust pruning (Vamana, alpha = 1.2) of each document's 100 nearest, then of these and the
        reverse edges together. DiskANN finds the 100 candidates by a greedy search of a graph under construction. On
        pools of this size the exact ones are cheaper, and that search approximates them.
        """
        if degree not in self._graphs:
            candidates, cosines = self.nearest(CANDIDATES)
            begin = process_time()
            forward = self._prune(candidates, cosines, degree)
            self._graphs[degree] = self._prune(*self._with_reverse(forward), degree)
            self.seconds += process_time() - begin
        return self._graphs[degree]

    @cached_property
    def _cosines(self) -> NDArray[np.float32]:
        """Return (N, N) cosines, which only the pruning needs."""
        return self._embeddings @ self._embeddings.T

    @cached_property
    def _nearest(self) -> tuple[Positions, NDArray[np.float32]]:
        begin, n = process_time(), len(self._embeddings)
        count = min(CANDIDATES, n - 1)
        positions, cosines = np.empty((n, count), dtype=np.intp), np.empty((n, count), dtype=np.float32)
        for start in range(0, n, BLOCK):
            rows = slice(start, min(start + BLOCK, n))
            products = self._embeddings[rows] @ self._embeddings.T
            products[np.arange(len(products)), np.arange(rows.start, rows.stop)] = -np.inf
            top = np.argpartition(-products, count, axis=1)[:, :count]
            top = np.sort(top, axis=1)  # equal cosines go by retrieval rank
            values = np.take_along_axis(products, top, axis=1)
            order = np.argsort(-values, axis=1, kind="stable")
            positions[rows] = np.take_along_axis(top, order, axis=1)
            cosines[rows] = np.take_along_axis(values, order, axis=1)
        self.seconds += process_time() - begin
        return positions, cosines

    def _prune(self, candidates: Positions, cosines: NDArray[np.float32], degree: int) -> Positions:
        """Return each document's out-neighbours, chosen by RobustPrune of Vamana (DiskANN).

        Keep the nearest candidate, drop the candidates that are nearer to it than to the document by a factor of ALPHA,
        and repeat.
        """
        every = np.arange(len(candidates))
        graph = np.full((len(every), degree), -1, dtype=np.intp)
        alive = candidates >= 0
        for step in range(degree):
            first = alive.argmax(axis=1)
            kept = candidates[every, first]
            graph[:, step] = np.where(alive.any(axis=1), kept, -1)
            alive &= ALPHA * (1.0 - self._cosines[kept[:, None], candidates]) > 1.0 - cosines
            alive[every, first] = False
        return graph

    def _with_reverse(self, graph: Positions) -> tuple[Positions, NDArray[np.float32]]:
        """Return each document's out- and in-neighbours together, nearest first, padded with -1.

        There are at most 2 x 100 of them.
        """
        source, column = np.nonzero(graph >= 0)
        target = graph[source, column]
        n = len(graph)
        edges = np.unique(np.concatenate([source * n + target, target * n + source]))
        source, target = np.divmod(edges, n)
        cosine = self._cosines[source, target]
        order = np.lexsort((target, -cosine, source))
        source, target, cosine = source[order], target[order], cosine[order]
        begins = np.searchsorted(source, np.arange(n))
        rank = np.arange(len(source)) - begins[source]
        near = rank < 2 * CANDIDATES
        width = int(rank[near].max(initial=0)) + 1
        candidates = np.full((n, width), -1, dtype=np.intp)
        cosines = np.zeros((n, width), dtype=np.float32)
        candidates[source[near], rank[near]] = target[near]
        cosines[source[near], rank[near]] = cosine[near]
        return candidates, cosines
