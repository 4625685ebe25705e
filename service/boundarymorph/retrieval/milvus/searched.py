"""What all indexes over collections of Milvus have in common: how they are searched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EmptyIndex, InvalidInput
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.milvus.collection import SEARCH_LIMIT, Collection
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.retrieval.vectors import check_search, exact_scores
from boundarymorph.selection.pool import Pool


class SearchedCollection(ABC):
    """The searching half of an `Index`.

    Milvus only nominates: its candidates are ranked here by exact inner products of their unit vectors, equal ones by
    id. Raises RetrieverUnavailable and RetrieverFailed besides what an `Index` raises.
    """

    def __init__(self, name: str, info: IndexConfiguration, collection: Collection) -> None:
        self._name = name
        self._info = info
        self._collection = collection

    @property
    def name(self) -> str:
        return self._name

    @property
    def info(self) -> IndexConfiguration:
        return self._info

    def count(self) -> int:
        return self._collection.count()

    def retrieve(self, search: Search) -> Retrieved:
        """As `Index.retrieve`. Beyond SEARCH_LIMIT the pool ends there, with a warning if there would be more."""
        if search.hybrid:
            raise InvalidInput(f"the index {self._name!r} is in Milvus and keeps no words; leave hybrid out")
        unit, depth = search.unit, search.depth
        check_search(unit, depth, self._info.dimension)
        expression = "" if search.condition is None else self._expression(search.condition)
        ids, vectors = self._nearest(unit, min(depth, SEARCH_LIMIT), expression)
        if not ids and self.count() == 0:
            raise EmptyIndex(f"the index {self._name!r} holds no documents yet")
        warnings = []
        if depth > SEARCH_LIMIT == len(ids):
            warnings.append(f"Milvus finds no more than {SEARCH_LIMIT:,} documents at once, not {depth:,}")
        return Retrieved(_ranked(ids, vectors, unit), warnings)

    @abstractmethod
    def _expression(self, filter: Filter) -> str:
        """The filter as Milvus takes it."""

    @abstractmethod
    def _nearest(self, unit: NDArray[np.float32], depth: int, filter: str) -> tuple[list[str], NDArray[np.float32]]:
        """The ids of the nearest to a (d,) query, and their (n, d) unit rows."""


def _ranked(ids: Sequence[str], vectors: NDArray[np.float32], unit: NDArray[np.float32]) -> Pool:
    by_id = np.array(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
    scores = exact_scores(vectors, unit)
    order = by_id[np.argsort(-scores[by_id], kind="stable")]
    return Pool([ids[row] for row in order.tolist()], vectors[order], unit, scores[order])
