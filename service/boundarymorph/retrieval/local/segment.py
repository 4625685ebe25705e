"""A segment: many documents that never change, most of them in mapped files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.halves import unit_from_halves
from boundarymorph.retrieval.local.identifiers import Identifiers
from boundarymorph.retrieval.local.products import SharedProducts
from boundarymorph.retrieval.local.structures import FaissStructure, blocks
from boundarymorph.retrieval.local.vectors import nominated, rounding_error, scan

_BLOCK = 16_384


class HalfVectors:
    """Unit rows kept as float16, and returned as float32 to the bit as they were given.

    halves: (n, d) float16, brought to unit length when read, as the document store does it. exceptions: (m,) rows,
    ascending, that would not come back the same so (none, where vectors come from a store of a hundred dimensions);
    exact: (m, d) float32 of those.
    """

    def __init__(self, halves: NDArray[np.float16], exceptions: NDArray[np.int64], exact: NDArray[np.float32]) -> None:
        self.halves, self.exceptions, self.exact = halves, exceptions, exact

    def __len__(self) -> int:
        return len(self.halves)

    def __getitem__(self, rows: NDArray[np.int64] | slice, /) -> NDArray[np.float32]:
        vectors = unit_from_halves(self.halves[rows])
        if len(self.exceptions):
            wanted = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
            place = np.minimum(np.searchsorted(self.exceptions, wanted), len(self.exceptions) - 1)
            hit = self.exceptions[place] == wanted
            vectors[hit] = self.exact[place[hit]]
        return vectors


class Block(NamedTuple):
    """Some documents in order of insertion: n ids, (n, d) float32 unit rows, and (n,) sequence numbers, 0 for none."""

    ids: list[str]
    vectors: NDArray[np.float32]
    sequences: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What a snapshot tells of itself, to be shown.

    sequence: of the store's last change that is in it; parameters: of the structure; recall: by depth, the share of the
    nearest documents that the structure found for a sample of its own vectors, empty where it is exact.
    """

    name: str
    kind: str
    count: int
    dimension: int
    sequence: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    recall: Mapping[int, float] = field(default_factory=dict)


class Segment:
    """n documents in order of insertion, that never change. Its searches only nominate rows.

    Without a structure, the vectors are held in float32 as well and all of them are read.
    """

    def __init__(
        self,
        info: SnapshotInfo,
        ids: Identifiers,
        sequences: NDArray[np.int64],
        vectors: HalfVectors,
        structure: FaissStructure | None = None,
    ) -> None:
        self.info = info
        self.ids = ids
        self.sequences = sequences
        self._vectors = vectors
        self._structure = structure
        self._matrix = _in_memory(vectors, info.dimension) if structure is None else structure.matrix
        self._products: SharedProducts | None = None
        # Of a matrix that FAISS maps, NumPy would make an aligned copy for each product of several queries.
        if self._matrix is not None and self._matrix.flags.aligned:
            self._products = SharedProducts(self._matrix, lanes=os.cpu_count() or 1)

    @classmethod
    def empty(cls, dimension: int) -> Segment:
        """A segment of no documents, which every index begins with."""
        nothing = HalfVectors(
            np.empty((0, dimension), np.float16), np.empty(0, np.int64), np.empty((0, dimension), "f4")
        )
        return cls(SnapshotInfo("", "flat", 0, dimension, 0), Identifiers.of(()), np.empty(0, np.int64), nothing)

    def __len__(self) -> int:
        return len(self._vectors)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Rows of those of these documents that are here."""
        return self.ids.rows(ids) if len(self) else np.empty(0, np.int64)

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, d) unit rows."""
        return self._vectors[rows] if self._matrix is None else self._matrix[rows]

    def nominate(
        self, query: NDArray[np.float32], depth: int, alive: NDArray[np.bool_], living: int, *, exactly: bool
    ) -> NDArray[np.int64]:
        """Rows, ascending and alive, at least min(depth, living) of them, among which the nearest are or likely are.

        query: (d,); alive: (n,), of which `living` are True; exactly: they are there for certain.
        """
        if depth >= living:
            return np.flatnonzero(alive)
        if self._structure is not None and not exactly:
            rows = self._structure.nominate(query, depth, alive, living)
            if rows is not None:
                return rows
        if self._matrix is not None:
            return scan(self._matrix, alive, living, query, depth, self._products)
        rows = np.flatnonzero(alive)
        scores = np.concatenate([self._vectors[rows[block]] @ query for block in blocks(len(rows), _BLOCK)])
        return rows[nominated(scores, depth, rounding_error(query.size))]


def _in_memory(vectors: HalfVectors, dimension: int) -> NDArray[np.float32]:
    matrix = np.empty((len(vectors), dimension), np.float32)
    for block in blocks(len(vectors), _BLOCK):
        matrix[block] = vectors[block]
    return matrix
