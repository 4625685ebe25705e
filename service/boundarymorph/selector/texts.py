"""Which candidates of a task have the same text, as far as that is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.document import Document
from boundarymorph.selection import Pool
from boundarymorph.selection.copies import alike


class Texts:
    """The texts of a pool's documents, in numbers, as they are read.

    numbers: (N,), equal for documents of the same text. found: documents whose text another one had before.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.numbers: NDArray[np.intp] = np.arange(len(pool))
        self.found = 0
        self._first: dict[str, int] = {}
        self._read = np.zeros(len(pool), dtype=np.bool_)

    def read(self, documents: Mapping[str, Document], positions: Iterable[int]) -> None:
        """Note the texts at these positions, as far as they are among the documents, which go by id."""
        for position in positions:
            document = documents.get(self._pool.ids[position])
            if document is None or self._read[position]:
                continue
            self._read[position] = True
            first = self._first.setdefault(document.content, position)
            self.numbers[position] = first
            self.found += first != position

    def suspects(self, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Positions whose text was not read and may be one of those at these positions, going by the vectors."""
        groups = self._alike
        return np.flatnonzero(np.isin(groups, groups[positions]) & self._several & ~self._read)

    @cached_property
    def _alike(self) -> NDArray[np.intp]:
        return alike(self._pool.embeddings)

    @cached_property
    def _several(self) -> NDArray[np.bool_]:
        """Mask of the documents beside whose vector there is another."""
        several: NDArray[np.bool_] = np.bincount(self._alike, minlength=len(self._pool))[self._alike] > 1
        return several
