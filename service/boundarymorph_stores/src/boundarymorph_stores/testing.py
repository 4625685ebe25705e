"""Test an index over a table of a store against the local index over the same documents.

A test class inherits and provides `index`, which holds DOCUMENTS with their VECTORS, and `halves`, whether the vectors
there are float16. The same class over a local index tests the tests.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from boundarymorph.errors import InvalidEmbeddings, InvalidInput
from boundarymorph.retrieval.boosts import Boosts, Decay, FieldValueFactor, Rule
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.interfaces import Index
from boundarymorph.retrieval.local.catalog import LocalIndex
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.retrieval.words import PoolWords
from tests.contract.vector_index import unit

COUNT, DIMENSION = 120, 8
ODD = ["plain", "q\"uo'te", "back\\slash", "ünïcode 漢字 🙂", "%{x} [1] or true", "a b", "-3"]
SUBJECTS = ["violin", "tram", "bread", "harbour", "glacier"]


def metadata_of(n: int) -> dict[str, Any]:
    row: dict[str, Any] = {"year": 1990 + n % 20, "subject": SUBJECTS[n % 5], "rated": n % 3 == 0, "price": n / 8}
    if n % 4 == 0:
        row |= {"tags": ["even", f"t{n % 6}"], "author": {"name": f"A{n % 7}", "born": 1900 + n % 50}}
    if n % 10 == 0:
        row |= {"note": None, "year": str(row["year"])}
    if n % 6 in (1, 3):
        row["loc.page"] = n
    if n % 6 in (2, 3):
        row["loc"] = {"page": n if n % 6 == 2 else -1}
    return row


DOCUMENTS = [
    Document(
        ODD[n] if n < len(ODD) else f"d{n}",
        f"Of the {SUBJECTS[n % 5]} there are {n} tales." if n != 50 else "the one glockenspiel",
        title="night" if n % 7 == 6 else None,
        metadata=metadata_of(n),
    )
    for n in range(COUNT)
]
# The same with one type for each field, as stores with typed columns keep it.
TYPED = [
    replace(each, metadata={k: int(v) if k == "year" else v for k, v in each.metadata.items() if v is not None})
    for each in DOCUMENTS
]
BY_ID = {document.id: document for document in DOCUMENTS}
VECTORS = unit(COUNT, DIMENSION, seed=3).astype(np.float16).astype(np.float32)
QUERIES = unit(4, DIMENSION, seed=4)

FILTERS: list[dict[str, Any]] = [
    {},
    {"year": 1995},
    {"year": "1990"},
    {"year": {"gte": 1995, "lt": 2000}},
    {"year": {"gt": 2000.5}},
    {"year": {"gte": "1990"}},
    {"price": {"lte": 3.5}},
    {"price": 2},
    {"subject": "tram"},
    {"subject": {"in": ["violin", "tram", 7]}},
    {"subject": {"nin": ["violin", "tram"]}},
    {"subject": {"gt": "bread", "lte": "harbour"}},
    {"subject": {"in": []}},
    {"rated": True},
    {"rated": {"ne": True}},
    {"rated": 1},
    {"tags": "even"},
    {"tags": {"in": ["t4", "t0"]}},
    {"not": {"tags": "even"}},
    {"tags": {"exists": True}},
    {"tags": {"gt": "s"}},
    {"note": None},
    {"note": {"exists": True}},
    {"note": {"exists": False}, "rated": False},
    {"author.name": "A3"},
    {"author.born": {"lt": 1920}},
    {"author": {"exists": True}},
    {"author": "A3"},
    {"nobody": 1},
    {"nobody": {"ne": 1}},
    {"or": [{"subject": "tram"}, {"year": {"lt": 1993}}]},
    {"and": [{"rated": False}, {"not": {"or": [{"tags": "even"}, {"year": 1997}]}}]},
    {"subject": "'; DROP TABLE documents; --"},
    {"it's %s {odd}": 1},
    {"loc.page": {"in": [1, 2, 3, -1]}},
    {"loc.page": {"ne": 7}},
    {"loc.page": {"gte": 50}},
    {"not": {"loc.page": {"lt": 50}}},
    {"loc.page": {"exists": True}},
    {"loc.page": {"exists": False}, "year": {"gte": 2000}},
]


def local_index(folder: Path, documents: list[Document] = DOCUMENTS) -> LocalIndex:
    folder.mkdir(parents=True, exist_ok=True)
    DocumentStore.create(folder / "index", encoder=None, dimension=DIMENSION).close()
    index = LocalIndex("local", folder / "index")
    index.upsert(documents, VECTORS[: len(documents)])
    return index


class StoreContract:
    """The tests of an index that holds `documents`."""

    halves: bool = False
    documents: ClassVar[list[Document]] = DOCUMENTS

    @pytest.fixture(scope="class")
    @classmethod
    def local(cls, tmp_path_factory: pytest.TempPathFactory) -> LocalIndex:
        return local_index(tmp_path_factory.mktemp("local"))

    def test_index_answers_like_the_local_index(self, index: Index, local: LocalIndex) -> None:
        assert index.count() == COUNT
        for query in QUERIES:
            for depth in (1, 10, COUNT, 10_000):
                found, expected = (each.retrieve(Search("tales", depth, query)).pool for each in (index, local))
                assert list(found.ids) == list(expected.ids)
                compare = np.testing.assert_array_equal if self.halves else close
                compare(found.embeddings, expected.embeddings)
                compare(found.scores, expected.scores)

    def test_index_filters_match_like_python_filters(self, index: Index) -> None:
        for number, filter in enumerate(FILTERS):
            expected = {each.id for each in self.documents if Filter(filter).matches(each.metadata)}
            for depth in (3, COUNT)[number % 10 > 0 :]:  # a request takes long in the fakes of some servers
                pool = index.retrieve(Search("", depth, QUERIES[0], filter=filter)).pool
                assert len(pool) == min(depth, len(expected)), filter
                assert expected.issuperset(pool.ids), filter

    def test_index_returns_documents_unchanged(self, index: Index) -> None:
        ids = [*ODD[::-1], "unknown", "d90", "no'body"]
        found = index.documents(ids)
        assert list(found) == [id for id in ids if id in BY_ID]
        assert all(each == found[each.id] for each in self.documents if each.id in found)
        assert index.documents([]) == {}
        many = [document.id for document in DOCUMENTS]
        assert list(index.documents(many)) == many
        lengths = index.characters([*many, "unknown"])
        assert lengths == {id: len(each.text) + len(each.title or "") for id, each in BY_ID.items()}

    def test_outlines_have_lengths_and_metadata(self, index: Index) -> None:
        outlines = index.outlines(1_000)
        lengths = [len(each.text) + len(each.title or "") for each in self.documents]
        assert sorted(characters for characters, _ in outlines) == sorted(lengths)
        assert all(any(name in metadata for _, metadata in outlines) for name in ("year", "subject"))
        assert len(index.outlines(3)) == 3

    def test_boosts_read_the_metadata_of_the_index(self, index: Index) -> None:
        recent = Decay("gauss", ("year",), False, 2009, 5)
        rules = [Rule(function=recent), Rule(3.0, filter=Filter({"subject": "tram"}))]
        rules.append(Rule(function=FieldValueFactor(("price",), modifier="ln1p", missing=1)))
        boosts, ids = Boosts(rules), [each.id for each in self.documents]
        expected = boosts.factors(ids, {each.id: each for each in self.documents})
        assert len(np.unique(expected)) > 50
        close(boosts.factors(ids, index.documents(ids, texts=False)), expected)

    def test_pool_of_the_index_has_bm25_and_terms(self, index: Index) -> None:
        pool = index.retrieve(Search("tales of the night tram", 40, QUERIES[1])).pool
        bm25 = pool.features["bm25"]
        words = PoolWords.from_texts([BY_ID[id].content for id in pool.ids])
        assert pool.terms is not None
        having = {id for id in pool.ids if "tram" in BY_ID[id].text or BY_ID[id].title}
        others = [bm25[row] for row, id in enumerate(pool.ids) if id not in having]
        assert min(bm25[row] for row, id in enumerate(pool.ids) if id in having) > max(others)
        assert pool.terms.shape == words.terms("tales of the night tram").shape

    def test_hybrid_search_fuses_words_and_vectors(self, index: Index) -> None:
        row = next(n for n, each in enumerate(DOCUMENTS) if "glockenspiel" in each.text)
        found = index.retrieve(Search("glockenspiel", COUNT // 2, VECTORS[row], hybrid=True))
        assert found.pool.ids[0] == DOCUMENTS[row].id
        assert len(found.pool) == COUNT // 2
        assert {"similarity", "bm25"} <= set(found.pool.features)
        chosen = index.retrieve(Search("tram", 10, QUERIES[0], filter={"subject": "bread"}, hybrid=True)).pool
        assert {BY_ID[id].metadata["subject"] for id in chosen.ids} == {"bread"}

    def test_index_refuses_an_impossible_search(self, index: Index) -> None:
        with pytest.raises(InvalidEmbeddings, match="8 dimensions"):
            index.retrieve(Search("", 5, np.ones(9)))
        with pytest.raises(InvalidInput, match="depth"):
            index.retrieve(Search("", 0, np.ones(8)))


# Rows of a table whose ids repeat, and which lack an id, a text or a direction.
FLAWED: list[tuple[str | None, str | None, list[float]]] = [
    ("far", "tram", [0.0, 1.0]),
    ("twice", "the farther tram", [0.5, 0.5]),
    ("null", None, [1.0, 0.05]),
    ("zero", "tram", [0.0, 0.0]),
    ("twice", "the nearer tram", [1.0, 0.1]),
    (None, "tram", [1.0, 0.01]),
    ("blank", " \n\u200b", [1.0, 0.2]),
    ("near", "tram", [1.0, 0.0]),
]


class Flaws:
    """The tests of `flawed`, an index with FLAWED without the documents that the store refuses."""

    refused: ClassVar[set[str]] = set()

    @pytest.mark.strangers
    def test_flawed_rows_are_warned_of_and_the_others_found(self, flawed: StoreIndex) -> None:
        found = flawed.retrieve(Search("tram", 9, [1.0, 0.0]))
        assert list(found.pool.ids) == ["near", "null", "twice", "blank", "far"]
        said = {
            "nameless": "1 row has no id and was left out",
            "zero": "1 document was left out, as its vector has no direction: it is zero, not finite, or huge",
            "twice": "2 rows share the id 'twice'; the nearest is used",
            "text": "2 candidates have no text",
        }
        messages = [warning.message for warning in found.warnings]
        assert sorted(messages) == sorted(text for flaw, text in said.items() if flaw not in self.refused)
        settled = {"null", "blank"} | ({"twice"} - self.refused)
        assert {id for id, document in found.documents.items() if "far" not in document.text} == settled
        assert set(flawed.documents(["twice", "far", "near", "null"])) == {"twice", "far", "near", "null"}

    @pytest.mark.strangers
    def test_unusable_rows_make_room_for_others(self, flawed: StoreIndex) -> None:
        assert list(flawed.retrieve(Search("", 4, [1.0, 0.0])).pool.ids) == ["near", "null", "twice", "blank"]
        chosen = {"not": {"nobody": 1}}
        assert list(flawed.retrieve(Search("", 5, [1.0, 0.0], filter=chosen)).pool.ids)[-1] == "far"


class ReadOnly:
    """The tests of existing tables."""

    def test_read_only_index_refuses_changes(self, index: Index) -> None:
        for change in (
            lambda: index.upsert(DOCUMENTS[:1], VECTORS[:1]),
            lambda: index.delete(["plain"]),
            lambda: index.delete_matching(Filter({})),
            lambda: index.check(DOCUMENTS[0]),
        ):
            with pytest.raises(InvalidInput, match="table of your own"):
                change()
        assert index.count() == COUNT


def close(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-3)
