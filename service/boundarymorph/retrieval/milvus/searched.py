"""Searching, which all indexes over collections of Milvus have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EmptyIndex, InvalidInput
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.fusion import fuse
from boundarymorph.retrieval.milvus.collection import Collection
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.retrieval.vectors import check_search, exact_scores
from boundarymorph.retrieval.words.lexical import PoolWords, words
from boundarymorph.selection.pool import Pool

WORDS_OF_THE_POOL = "this Milvus computes no BM25 (2.5 and later do); it is computed over the texts of the pool"
HYBRID_OF_THE_POOL = (
    "this Milvus has no full-text search (2.5 and later have): hybrid ranks the {} nearest documents by their words"
)


class Nominated(NamedTuple):
    """n candidates: ids and (n, d) unit rows, in any order; lengths: of their texts in characters, by id, as far as
    known; warnings about the search."""

    ids: Sequence[str]
    vectors: NDArray[np.float32]
    lengths: Mapping[str, int] = {}
    warnings: Sequence[str] = ()


class SearchedCollection(ABC):
    """The searching half of an `Index`.

    Milvus only nominates candidates: they are ranked here by exact inner products of their unit vectors, ties by id.
    Also raises RetrieverUnavailable and RetrieverFailed.
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

    @property
    def stale(self) -> bool:
        """Whether it should be opened again because a call failed."""
        return self._collection.stale

    def count(self) -> int:
        return self._collection.count()

    def retrieve(self, search: Search) -> Retrieved:
        """See `Index.retrieve`. BM25 is Milvus's if the server supports it, else computed over the pool's texts."""
        if search.hybrid and not self._info.lexical:
            raise InvalidInput(f"the index {self._name!r} keeps no words; leave hybrid out")
        unit, depth = search.unit, search.depth
        check_search(unit, depth, self._info.dimension)
        in_pool = self._info.lexical and self._words_field is None
        wanted = 2 * depth if search.hybrid and in_pool else depth
        found = self._nearest(unit, wanted, search.condition)
        near = _ranked(found, unit, wanted)
        if not found.ids and self.count() == 0:
            raise EmptyIndex(f"the index {self._name!r} holds no documents yet")
        if not found.ids or not self._info.lexical:
            return Retrieved(near, found.warnings)
        if in_pool:
            pool, said = self._with_words_here(near, search, self._contents(near.ids, found.lengths))
        else:
            pool, said = self._with_words_there(near, search)
        return Retrieved(pool, (*found.warnings, *said))

    def _with_words_here(self, near: Pool, search: Search, texts: Sequence[str]) -> tuple[Pool, list[str]]:
        """Return the pool of a search with BM25 and terms of the texts of the nearest, and warnings."""
        found = PoolWords.of(texts)
        bm25, terms = found.bm25(search.query), found.terms(search.query)
        if not search.hybrid:
            return replace(near, features={"bm25": bm25}, terms=terms), [WORDS_OF_THE_POOL]
        best = [near.ids[row] for row in np.argsort(-bm25, kind="stable").tolist() if bm25[row] > 0]
        pool = _fused(near, best, dict(zip(near.ids, near.embeddings, strict=True)), search.depth)
        scores = dict(zip(near.ids, bm25.tolist(), strict=True))
        rows = {id: row for row, id in enumerate(near.ids)}
        pool = replace(pool, terms=terms[:, [rows[id] for id in pool.ids]])
        return _with_bm25(pool, scores), [HYBRID_OF_THE_POOL.format(f"{len(near):,}")]

    def _with_words_there(self, near: Pool, search: Search) -> tuple[Pool, list[str]]:
        """Return the same with Milvus's BM25 over the whole collection."""
        field, query = self._words_field, search.query
        assert field is not None
        pool = near
        scores: dict[str, float] = {}
        if not words(query):
            return _with_bm25(pool, scores), []
        if search.hybrid:
            scores = self._collection.search_words(field, query, search.depth, self._expression(search.condition))
            rows = dict(zip(near.ids, near.embeddings, strict=True))
            rows |= self._unit_rows([id for id in scores if id not in rows])
            pool = _fused(near, [id for id in scores if id in rows], rows, search.depth)
        rest = [id for id in pool.ids if id not in scores]
        return _with_bm25(pool, {**scores, **self._collection.word_scores(field, query, rest)}), []

    @property
    @abstractmethod
    def _words_field(self) -> str | None:
        """The field for which Milvus computes BM25, if any."""

    @abstractmethod
    def _expression(self, filter: Filter | None) -> str:
        """Translate a filter to an expression of Milvus."""

    @abstractmethod
    def _nearest(self, unit: NDArray[np.float32], depth: int, filter: Filter | None) -> Nominated:
        """Return the nearest to a (d,) query, more than `depth` if that improves recall."""

    @abstractmethod
    def _contents(self, ids: Sequence[str], lengths: Mapping[str, int]) -> list[str]:
        """Return (n,) the texts of n documents as encoders read them; empty for deleted ones."""

    @abstractmethod
    def _unit_rows(self, ids: Sequence[str]) -> Mapping[str, NDArray[np.float32]]:
        """Return the (d,) unit vectors by id, without deleted ones."""


def _ranked(found: Nominated, unit: NDArray[np.float32], depth: int) -> Pool:
    by_id = np.array(sorted(range(len(found.ids)), key=found.ids.__getitem__), np.int64)
    scores = exact_scores(found.vectors, unit)
    order = by_id[np.argsort(-scores[by_id], kind="stable")][:depth]
    return Pool([found.ids[row] for row in order.tolist()], found.vectors[order], unit, scores[order])


def _fused(near: Pool, best: Sequence[str], rows: Mapping[str, NDArray[np.float32]], depth: int) -> Pool:
    """Fuse the nearest and the best by words by reciprocal rank."""
    ranked = fuse([near.ids[:depth], best[:depth]])
    ids, scores = ranked.ids[:depth], ranked.scores[:depth]
    vectors = np.array([rows[id] for id in ids], dtype=np.float32)
    return Pool(ids, vectors, near.query, scores, {"similarity": exact_scores(vectors, near.query)})


def _with_bm25(pool: Pool, scores: Mapping[str, float]) -> Pool:
    bm25 = np.array([max(0.0, scores.get(id, 0.0)) for id in pool.ids])
    return replace(pool, features={**pool.features, "bm25": bm25})
