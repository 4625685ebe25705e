"""Define an index over a table, independent of the kind of store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import EmptyIndex, InvalidInput
from boundarymorph.notices import Notice
from boundarymorph.reading import has_content, quantity
from boundarymorph.retrieval.document import STOP, Document, Retrieval, Search, fingerprint, first_piece, in_pieces
from boundarymorph.retrieval.filters import Condition, Filter, bounds
from boundarymorph.retrieval.interfaces import IndexConfiguration
from boundarymorph.retrieval.ranking import check_search, exact_scores, fuse_pool, unit_embeddings, unit_from_halves
from boundarymorph.retrieval.stores.table import FoundRows, Table
from boundarymorph.retrieval.words import PoolWords, truncate_texts, words
from boundarymorph.selection.pool import Pool, row_lengths, unit_rows

HYBRID_OF_THE_POOL = "{} has no full-text search here: hybrid ranks the {:,} nearest documents by their words"
APPROXIMATE = "{} searched its index, which may miss some of the nearest"
MOST_SIFTED = 65_536  # documents whose metadata are read in one search
WRITTEN_AT_A_TIME, READ_AT_A_TIME = 1_000, 100  # documents
SAMPLE = 8  # documents to search for one with a text


class StoreIndex:
    """An `Index` over a table, whose candidates are ranked here exactly, ties by id."""

    def __init__(self, name: str, info: IndexConfiguration, table: Table, store: str) -> None:
        """Use a table of `store`, the name of the engine in messages."""
        self.name, self.info, self.table, self._store = name, info, table, store

    def count(self) -> int:
        return self.table.count()

    def retrieve(self, search: Search) -> Retrieval:
        """Search as `Index.retrieve` does. BM25 is computed over the texts of the pool."""
        if search.hybrid and not self.info.lexical:
            raise InvalidInput(f"the index {self.name!r} keeps no words; leave hybrid out")
        unit, depth = search.unit, search.depth
        check_search(unit, depth, self.info.dimension)
        wanted = depth if self.table.words or not search.hybrid else 2 * depth
        condition = None if search.condition is None else search.condition.condition
        found, near, said = self._distinct(unit, wanted, condition, documents=self.info.lexical)
        if len(found.ids) < wanted and (condition is None or not found.ids):
            said += self._missing(found, wanted, condition)
        if not len(near) or not self.info.lexical:
            return Retrieval(near, said)
        pool = self._by_words(near, search, condition) if self.table.words and search.hybrid else near
        read = dict(found.documents)
        pool, warnings = self._with_texts(pool, search, read)
        return Retrieval(pool, (*said, *warnings), documents=_settled(pool, read, _shared(found.ids)))

    def sample(self) -> tuple[Document, NDArray[np.float32]] | None:
        """Return a document with a text, and its (d,) unit vector.

        It is None if the first few documents have no text.
        """
        found = self.table.search(self._fixed_direction, SAMPLE, True, documents=True)
        near, _ = _ranked(found, np.ones(self.info.dimension, np.float32), SAMPLE)
        read = dict(found.documents) or self.documents(near.ids)
        for id, vector in zip(near.ids, near.embeddings, strict=True):
            if id in read and has_content(read[id].content):
                return read[id], vector.astype(np.float32)
        return None

    def outlines(self, most: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        """Return the characters and metadata of the documents nearest to one direction."""
        found = self.table.search(self._fixed_direction, most, True, vectors=False)
        read = self.documents([id for id in found.ids if id is not None])
        return [(len(each.text) + len(each.title or ""), each.metadata) for each in read.values()]

    def check(self, document: Document) -> None:
        self._writable().check(document)

    def upsert(
        self, documents: Sequence[Document], embeddings: NDArray[np.floating], digests: Sequence[bytes] | None = None
    ) -> None:
        """Write as `Index.upsert` does.

        If it fails halfway, some documents may have been written; repeat the call.
        """
        table = self._writable()
        if not documents:
            return
        for document in documents:
            table.check(document)
        vectors = unit_embeddings(documents, embeddings, self.info.dimension)
        if table.about:
            vectors = vectors.astype(np.float16)  # as in all indexes
        if digests is None:
            digests = [fingerprint(document, row) for document, row in zip(documents, embeddings, strict=True)]
        last = {document.id: row for row, document in enumerate(documents)}
        rows = list(last.values())
        for start in range(0, len(rows), WRITTEN_AT_A_TIME):
            part = rows[start : start + WRITTEN_AT_A_TIME]
            table.upsert([documents[row] for row in part], vectors[part], [digests[row] for row in part])

    def delete(self, ids: Sequence[str]) -> int:
        return sum(map(self._writable().delete, self._portions(ids)))

    def delete_matching(self, filter: Filter) -> int:
        """Remove as `Index.delete_matching` does.

        If it fails halfway, some documents may have been removed; repeat the call.
        """
        table, deleted = self._writable(), 0
        where = bounds(filter.condition, table).possible
        while where is not False:
            found = table.search(self._fixed_direction, max(1, table.count()), where, vectors=False)
            before = deleted
            for read in in_pieces(self.documents, [id for id in found.ids if id is not None]):
                deleted += self.delete([id for id, each in read.items() if filter.matches(each.metadata)])
            if deleted == before:  # an inexact search may have missed some
                break
        return deleted

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        if self._writable().attached.digest is None:
            pieces = in_pieces(self.documents, ids)
            return {id: fingerprint(document) for piece in pieces for id, document in piece.items()}
        return {id: digest for portion in self._portions(ids) for id, digest in self.table.digests(portion).items()}

    def documents(self, ids: Sequence[str], *, texts: bool = True) -> dict[str, Document]:
        return first_piece(
            lambda some: self.table.rows(some, documents=True).documents, ids, READ_AT_A_TIME, READ_AT_A_TIME
        )

    def page(self, after: str, most: int, size: int = STOP) -> Sequence[Document]:
        """Raise InvalidInput: a store returns no documents in an order."""
        raise InvalidInput(f"the documents of {self.name!r} can be listed only where they are kept, not here")

    def characters(self, ids: Sequence[str]) -> Mapping[str, int]:
        return {id: length for portion in self._portions(ids) for id, length in self.table.characters(portion).items()}

    @property
    def _fixed_direction(self) -> NDArray[np.float32]:
        return np.full(self.info.dimension, self.info.dimension**-0.5, np.float32)

    def _writable(self) -> Table:
        if not self.table.attached.writable:
            raise InvalidInput(
                f"the index {self.name!r} is a table of your own; change it in {self._store}, or set writable for it"
            )
        return self.table

    def _missing(self, found: FoundRows, wanted: int, condition: Condition | None) -> list[Notice]:
        """Return a warning if a search without a filter returned fewer documents than there are.

        Raises:
            EmptyIndex: If there are no documents.
        """
        there, returned = self.count(), len(found.ids)
        if not there:
            raise EmptyIndex(f"the index {self.name!r} holds no documents yet")
        if condition is not None or returned >= (most := min(wanted, there)):
            return []
        if found.exact:
            return [_without_direction(there - returned)]
        said = f"{self._store} returned {returned:,} of the {most:,} nearest; deepen the search of its index"
        return [Notice("search-incomplete", said)]

    def _distinct(
        self, unit: NDArray[np.float32], depth: int, condition: Condition | None, *, documents: bool
    ) -> tuple[FoundRows, Pool, list[Notice]]:
        """Return the rows of a search, the pool of the nearest, and warnings.

        The search is repeated at a greater depth if some rows cannot be used.
        """
        wanted = depth
        while True:
            found = self._nearest(unit, wanted, condition, documents=documents)
            near, said = _ranked(found, unit, depth)
            if found.exact is False:
                said.insert(0, Notice("approximate-search", APPROXIMATE.format(self._store)))
            if len(near) >= depth or len(found.ids) < wanted or wanted >= MOST_SIFTED:
                return found, near, said
            wanted = min(2 * wanted, MOST_SIFTED)

    def _nearest(
        self, unit: NDArray[np.float32], depth: int, condition: Condition | None, *, documents: bool
    ) -> FoundRows:
        if condition is None:
            return self.table.search(unit, depth, True, documents=documents)
        possible, certain = bounds(condition, self.table)
        if possible is False:
            return FoundRows([], None)
        if possible is certain or possible == certain:
            return self.table.search(unit, depth, possible, documents=documents)
        return self._sifted(unit, depth, possible, condition)

    def _sifted(self, unit: NDArray[np.float32], depth: int, where: object, condition: Condition) -> FoundRows:
        """Return the nearest documents that match a filter, among those that match a broader one."""
        wanted = depth
        while True:
            found = self.table.search(unit, wanted, where, vectors=False, documents=True)
            ids = [id for id in dict.fromkeys(found.ids) if id is not None]
            passing = [id for id in ids if condition.matches(found.documents[id].metadata)]
            if len(passing) >= depth or len(found.ids) < wanted or wanted >= MOST_SIFTED:
                break
            wanted = min(4 * wanted, max(wanted, MOST_SIFTED))
        said = f"{self._store} cannot express the filter; it was looked for among the {wanted:,} nearest documents"
        warnings = [Notice("filter-not-exhaustive", said)] if len(passing) < depth and len(found.ids) == wanted else []
        read = {id: found.documents[id] for id in passing}
        return self._vectors(passing)._replace(documents=read, warnings=warnings, exact=found.exact)

    def _portions(self, ids: Sequence[str]) -> Iterator[list[str]]:
        left = iter(dict.fromkeys(ids))
        while portion := list(islice(left, self.table.at_a_time)):
            yield portion

    def _vectors(self, ids: Sequence[str]) -> FoundRows:
        parts = [self.table.rows(portion, vectors=True) for portion in self._portions(ids)]
        matrices = [part.vectors for part in parts if part.vectors is not None]
        return FoundRows([id for part in parts for id in part.ids], np.concatenate(matrices) if matrices else None)

    def _by_words(self, near: Pool, search: Search, condition: Condition | None) -> Pool:
        where = True if condition is None else bounds(condition, self.table).certain
        if where is False or not words(search.query):
            return near
        found = list(self.table.best(search.query, search.depth, where))
        there = set(near.ids)
        others = self._vectors([id for id in found if id not in there])
        further, _ = _ranked(others, near.query, len(others.ids))
        rows: dict[str, NDArray[np.floating]] = dict(zip(further.ids, further.embeddings, strict=True))
        known = [id for id in found if id in there or id in rows]
        return fuse_pool(near, known, search.depth, lambda ids: {id: rows[id] for id in ids})

    def _with_texts(self, pool: Pool, search: Search, read: dict[str, Document]) -> tuple[Pool, list[Notice]]:
        """Return a pool with BM25 and terms of its texts, and warnings.

        Documents without content are added to `read`.
        """
        by_id = self._contents(pool.ids, read)
        texts = [by_id.get(id, "") for id in pool.ids]
        empty = sum(id in by_id and not has_content(text) for id, text in zip(pool.ids, texts, strict=True))
        without_text = quantity(empty, "candidate has no text", "candidates have no text")
        said = [Notice("documents-without-text", without_text)] if empty else []
        found = PoolWords.from_texts(texts)
        bm25, terms = found.bm25(search.query), found.terms(search.query)
        if not search.hybrid or self.table.words:
            pool = replace(pool, features={**pool.features, "bm25": bm25}, terms=terms)
            return pool, said
        best = [pool.ids[row] for row in np.argsort(-bm25, kind="stable").tolist() if bm25[row] > 0]
        merged = fuse_pool(pool, best, search.depth, lambda ids: {})
        rows = {id: row for row, id in enumerate(pool.ids)}
        chosen = [rows[id] for id in merged.ids]
        features = {**merged.features, "bm25": bm25[chosen]}
        return replace(merged, features=features, terms=terms[:, chosen]), [
            *said,
            Notice("hybrid-of-pool", HYBRID_OF_THE_POOL.format(self._store, len(pool))),
        ]

    def _contents(self, ids: Sequence[str], read: dict[str, Document]) -> dict[str, str]:
        """Return the beginnings of texts, from which words are taken, by id."""
        there: list[str] = []

        def contents() -> Iterator[str]:
            left = [id for id in ids if id not in read]
            for piece in chain([dict(read)], in_pieces(self.documents, left)):
                for id, document in piece.items():
                    there.append(id)
                    if not has_content(document.content):
                        read[id] = document
                    yield document.content

        return dict(zip(there, truncate_texts(contents(), len(ids)), strict=False))


def _units(found: FoundRows) -> NDArray[np.float32]:
    """Return (n, d) unit rows; NaN for vectors without a direction."""
    if found.vectors is None or not len(found.ids):
        return np.empty((0, 1), np.float32)
    if found.vectors.dtype == np.float16:
        unit = unit_from_halves(np.ascontiguousarray(found.vectors))
        unit[~np.isfinite(found.vectors).all(axis=1)] = np.nan
        return unit
    with np.errstate(over="ignore"):
        rows = np.array(found.vectors, np.float32)
    lengths = row_lengths(rows)
    lost = ~np.isfinite(lengths) | (lengths == 0)
    rows[lost] = 1.0
    unit = np.array(unit_rows(rows, list(map(str, found.ids))), np.float32)
    unit[lost] = np.nan
    return unit


def _ranked(found: FoundRows, unit: NDArray[np.float32], depth: int) -> tuple[Pool, list[Notice]]:
    """Return the pool of a search with its warnings.

    Of rows that share an id the nearest counts.
    """
    vectors, said = _units(found), list(found.warnings)
    scores = exact_scores(vectors, unit) if len(found.ids) else np.empty(0)
    ids = {row: id for row, id in enumerate(found.ids) if id is not None}
    if nameless := len(found.ids) - len(ids):
        without_id = quantity(nameless, "row has no id and was left out", "rows have no id and were left out")
        said.append(Notice("rows-without-id", without_id))
    by_id = np.array(sorted(ids, key=ids.__getitem__), np.int64)
    by_id = by_id[~np.isnan(scores[by_id])]
    if lost := len(ids) - len(by_id):
        said.append(_without_direction(lost))
    order = by_id[np.argsort(-scores[by_id], kind="stable")]
    if shared := _shared([ids[row] for row in order.tolist()]):
        id, rows = next(iter(shared.items()))
        several = (
            f"{sum(shared.values()):,} rows share {len(shared):,} ids, such as {id!r}; the nearest of each is used"
        )
        one = f"{rows:,} rows share the id {id!r}; the nearest is used"
        said.append(Notice("shared-ids", one if len(shared) == 1 else several))
        nearest = {ids[row]: row for row in reversed(order.tolist())}
        order = order[[nearest[ids[row]] == row for row in order.tolist()]]
    order = order[:depth]
    unit_vectors = vectors[order] if len(found.ids) else np.empty((0, unit.size), np.float32)
    return Pool([ids[row] for row in order.tolist()], unit_vectors, unit, scores[order]), said


def _shared(ids: Sequence[str | None]) -> dict[str, int]:
    return {id: count for id, count in Counter(ids).items() if count > 1 and id is not None}


def _without_direction(count: int) -> Notice:
    one = "document was left out, as its vector has no direction: it is zero, not finite, or huge"
    many = "documents were left out, as their vectors have no direction: they are zero, not finite, or huge"
    return Notice("vectors-without-direction", quantity(count, one, many))


def _settled(pool: Pool, read: Mapping[str, Document], shared: Collection[str]) -> dict[str, Document]:
    """Return the documents that need no second reading.

    They have no content, or their rows share an id.
    """
    return {id: read[id] for id in pool.ids if id in read and (id in shared or not has_content(read[id].content))}
