"""An index over a table of a store: what is the same whatever the store is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import cast

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EmptyIndex, InvalidInput, RetrieverFailed
from boundarymorph.retrieval.catalog import IndexConfiguration
from boundarymorph.retrieval.document import Document, fingerprint
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.fusion import fused
from boundarymorph.retrieval.halves import unit_from_halves
from boundarymorph.retrieval.pieces import first_piece, in_pieces
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.retrieval.stores.table import Found, Table, Writable
from boundarymorph.retrieval.vectors import check_search, exact_scores, unit_embeddings
from boundarymorph.retrieval.words.beginnings import beginnings
from boundarymorph.retrieval.words.lexical import PoolWords, words
from boundarymorph.selection.pool import Pool, row_lengths, unit_rows

HYBRID_OF_THE_POOL = "{} has no full-text search here: hybrid ranks the {:,} nearest documents by their words"
MOST_SIFTED = 65_536  # documents whose metadata are read in one search
IDS_AT_A_TIME = 1_000  # that a store is asked for
DOCUMENTS_AT_A_TIME = 100  # with their texts
SAMPLE = 8  # documents looked at for one with a text


class StoreIndex:
    """An `Index` over a table. The store only nominates candidates: they are ranked here by exact inner products of
    their unit vectors, ties by id.

    Also raises RetrieverUnavailable and RetrieverFailed.
    """

    def __init__(self, name: str, info: IndexConfiguration, table: Table, store: str) -> None:
        """store: the name of the engine, for messages."""
        self.name, self.info, self.table, self._store = name, info, table, store

    def count(self) -> int:
        return self.table.count()

    def retrieve(self, search: Search) -> Retrieved:
        """See `Index.retrieve`. BM25 is the store's if it computes it, else it is computed over the pool's texts."""
        if search.hybrid and not self.info.lexical:
            raise InvalidInput(f"the index {self.name!r} keeps no words; leave hybrid out")
        unit, depth = search.unit, search.depth
        check_search(unit, depth, self.info.dimension)
        reads = self.info.lexical and self.table.words != "bm25"
        wanted = 2 * depth if search.hybrid and self.table.words == "none" else depth
        found = self._nearest(unit, wanted, search.condition, documents=reads)
        near, said = _ranked(found, unit, wanted)
        if len(found.ids) < wanted and (search.condition is None or not found.ids):
            said += self._missing(len(found.ids), depth, search.condition)
        if not len(near) or not self.info.lexical:
            return Retrieved(near, said)
        pool, scores = near, None
        if self.table.words != "none":
            pool, scores = self._by_words(near, search)
        if self.table.words == "bm25":
            return Retrieved(_with_bm25(pool, scores or {}), said)
        pool, warning = self._with_texts(pool, search, dict(found.documents))
        return Retrieved(pool, (*said, *warning))

    def sample(self) -> tuple[Document, NDArray[np.float32]] | None:
        """Return a document with a text, and its (d,) unit vector; None if there is none among some documents."""
        found = self.table.search(
            unit_rows(np.ones((1, self.info.dimension), np.float32), ["x"])[0].astype(np.float32),
            SAMPLE,
            True,
            documents=True,
        )
        near, _ = _ranked(found, np.ones(self.info.dimension, np.float32), SAMPLE)
        read = dict(found.documents) or self.documents(near.ids)
        for id, vector in zip(near.ids, near.embeddings, strict=True):
            if id in read and read[id].content:
                return read[id], vector.astype(np.float32)
        return None

    def check(self, document: Document) -> None:
        self._writable().check(document)

    def upsert(
        self, documents: Sequence[Document], embeddings: NDArray[np.floating], digests: Sequence[bytes] | None = None
    ) -> None:
        """See `Index.upsert`. If it fails halfway, some documents may have been written; repeat the call."""
        table = self._writable()
        if not documents:
            return
        vectors = unit_embeddings(documents, embeddings, self.info.dimension)
        if digests is None:
            digests = [fingerprint(document, row) for document, row in zip(documents, embeddings, strict=True)]
        last = {document.id: row for row, document in enumerate(documents)}
        rows = list(last.values())
        table.upsert([documents[row] for row in rows], vectors[rows], [digests[row] for row in rows])

    def delete(self, ids: Sequence[str]) -> int:
        return self._writable().delete(list(dict.fromkeys(ids)))

    def delete_matching(self, filter: Filter) -> int:
        return self._writable().delete_matching(filter.condition)

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        return self._writable().digests(ids)

    def documents(self, ids: Sequence[str], *, texts: bool = True) -> dict[str, Document]:
        return first_piece(self.table.documents, ids, DOCUMENTS_AT_A_TIME, DOCUMENTS_AT_A_TIME)

    def characters(self, ids: Sequence[str]) -> Mapping[str, int]:
        return self.table.characters(ids)

    def _writable(self) -> Writable:
        if not hasattr(self.table, "upsert"):
            raise InvalidInput(f"the index {self.name!r} is a table of your own; change it in {self._store}")
        return cast(Writable, self.table)

    def _missing(self, found: int, depth: int, filter: Filter | None) -> list[str]:
        """Return a warning if a search without a filter returned fewer than there are. Raises EmptyIndex."""
        there = self.count()
        if not there:
            raise EmptyIndex(f"the index {self.name!r} holds no documents yet")
        if filter is None and found < (wanted := min(depth, there)):
            return [f"{self._store} returned {found:,} of the {wanted:,} nearest; deepen the search of its index"]
        return []

    def _nearest(self, unit: NDArray[np.float32], depth: int, filter: Filter | None, *, documents: bool) -> Found:
        if filter is None:
            return self.table.search(unit, depth, True, documents=documents)
        possible, certain = self.table.bounds(filter.condition)
        if possible is False:
            return Found([], None)
        if possible is certain or possible == certain:
            return self.table.search(unit, depth, possible, documents=documents)
        return self._sifted(unit, depth, possible, filter)

    def _sifted(self, unit: NDArray[np.float32], depth: int, where: object, filter: Filter) -> Found:
        """Return the nearest that match a filter, from those that match a broader expression."""
        wanted = depth
        while True:
            found = self.table.search(unit, wanted, where, vectors=False, documents=True)
            passing = [id for id in found.ids if filter.matches(found.documents[id].metadata)]
            if len(passing) >= depth or len(found.ids) < wanted or wanted >= MOST_SIFTED:
                break
            wanted = min(4 * wanted, max(wanted, MOST_SIFTED))
        said = list(found.warnings)
        if len(passing) < depth and len(found.ids) == wanted:
            said.append(
                f"{self._store} cannot express the filter; it was looked for among the {wanted:,} nearest documents"
            )
        fetched = self.table.vectors(passing)
        return fetched._replace(documents={id: found.documents[id] for id in fetched.ids}, warnings=said)

    def _by_words(self, near: Pool, search: Search) -> tuple[Pool, dict[str, float]]:
        """Return the pool of a search with what the store finds by words, and the store's scores."""
        table, query, pool = self.table, search.query, near
        if not words(query):
            return pool, {}
        scores: dict[str, float] = {}
        if search.hybrid:
            where = True if search.condition is None else table.bounds(search.condition.condition).certain
            scores = {} if where is False else dict(table.best(query, search.depth, where))
            there = set(near.ids)
            others = table.vectors([id for id in scores if id not in there])
            rows: dict[str, NDArray[np.floating]] = dict(zip(others.ids, _units(others), strict=True))
            known = [id for id in scores if id in there or id in rows]
            pool = fused(near, known, search.depth, lambda ids: {id: rows[id] for id in ids})
        if table.words == "bm25":
            rest = [id for id in pool.ids if id not in scores]
            scores |= table.best(query, len(rest), True, rest)
        return pool, scores

    def _with_texts(self, pool: Pool, search: Search, read: dict[str, Document]) -> tuple[Pool, list[str]]:
        """Return the pool of a search with BM25 and terms of its texts, and warnings."""
        by_id = self._contents(pool.ids, read)
        texts = [by_id.get(id, "") for id in pool.ids]
        said = [f"{count:,} candidates have no text"] if (count := texts.count("")) else []
        found = PoolWords.of(texts)
        bm25, terms = found.bm25(search.query), found.terms(search.query)
        if not search.hybrid or self.table.words == "order":
            pool = replace(pool, features={**pool.features, "bm25": bm25}, terms=terms)
            return pool, said
        best = [pool.ids[row] for row in np.argsort(-bm25, kind="stable").tolist() if bm25[row] > 0]
        merged = fused(pool, best, search.depth, lambda ids: {})
        rows = {id: row for row, id in enumerate(pool.ids)}
        chosen = [rows[id] for id in merged.ids]
        features = {**merged.features, "bm25": bm25[chosen]}
        return replace(merged, features=features, terms=terms[:, chosen]), [
            *said,
            HYBRID_OF_THE_POOL.format(self._store, len(pool)),
        ]

    def _contents(self, ids: Sequence[str], read: Mapping[str, Document]) -> dict[str, str]:
        """Return what words are taken from, by id. read: documents that need not be read."""
        left = in_pieces(self.documents, [id for id in ids if id not in read])
        there: list[str] = []

        def contents() -> Iterator[str]:
            for piece in chain([read], left):
                for id, document in piece.items():
                    there.append(id)
                    yield document.content

        return dict(zip(there, beginnings(contents(), len(ids)), strict=False))


def portions(ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield distinct ids, at most IDS_AT_A_TIME at a time."""
    left = iter(dict.fromkeys(ids))
    while portion := list(islice(left, IDS_AT_A_TIME)):
        yield portion


def _units(found: Found) -> NDArray[np.float32]:
    """Return (n, d) unit rows; NaN for vectors without a direction."""
    if found.vectors is None or not len(found.ids):
        return np.empty((0, 1), np.float32)
    if found.vectors.dtype == np.float16:
        return unit_from_halves(np.ascontiguousarray(found.vectors))
    rows = np.array(found.vectors, np.float32)
    rows[~np.isfinite(rows).all(axis=1) | (row_lengths(rows) == 0)] = np.nan
    lost = np.isnan(rows[:, 0])
    rows[lost] = 1.0
    unit = np.array(unit_rows(rows, found.ids), np.float32)
    unit[lost] = np.nan
    return unit


def _ranked(found: Found, unit: NDArray[np.float32], depth: int) -> tuple[Pool, list[str]]:
    """Return the pool of a search, and its warnings."""
    if len(set(found.ids)) < len(found.ids):
        id = next(id for id, count in Counter(found.ids).items() if count > 1)
        raise RetrieverFailed(f"the store has two documents with the id {id!r}; name a column whose values are unique")
    vectors, said = _units(found), list(found.warnings)
    scores = exact_scores(vectors, unit) if len(found.ids) else np.empty(0)
    by_id = np.array(sorted(range(len(found.ids)), key=found.ids.__getitem__), np.int64)
    by_id = by_id[~np.isnan(scores[by_id])]
    if lost := len(found.ids) - len(by_id):
        said.append(f"{lost:,} candidates were left out, as their vectors have no direction")
    order = by_id[np.argsort(-scores[by_id], kind="stable")][:depth]
    rows = vectors[order] if len(found.ids) else np.empty((0, unit.size), np.float32)
    return Pool([found.ids[row] for row in order.tolist()], rows, unit, scores[order]), said


def _with_bm25(pool: Pool, scores: Mapping[str, float]) -> Pool:
    bm25 = np.array([max(0.0, scores.get(id, 0.0)) for id in pool.ids])
    return replace(pool, features={**pool.features, "bm25": bm25})
