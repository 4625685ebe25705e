"""The metadata and the words of an index against a dictionary: with blocks, purged, opened by several processes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.local import metadata as module
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import TrainingPolicy
from boundarymorph.retrieval.words import PoolWords
from tests.retrieval.bm25 import literal_bm25
from tests.retrieval.fakes import Words
from tests.retrieval.test_store import matching
from tests.stateful.profile import draws

IDS = [f"d{number}" for number in range(12)]
POLICIES = [TrainingPolicy(least=4, pause=0), TrainingPolicy(least=10**9)]
TERMS = ["tram", "trams", "violin", "bread", "breadth", "the"]

texts = st.lists(st.sampled_from(TERMS), max_size=6).map(" ".join)
values = st.sampled_from([0, 1, 1.0, True, None, "a", "b", ["a", 1], {"c": "a"}, [0, 1, 2, 3, 4, 5, "a"]])
metadata = st.dictionaries(st.sampled_from(["x", "y"]), values, max_size=2)
documents = st.dictionaries(st.sampled_from(IDS), st.tuples(texts, metadata), min_size=1, max_size=6)
leaves = st.one_of(
    st.fixed_dictionaries({"x": st.sampled_from([0, 1, True, None, "a", "b"])}),
    st.fixed_dictionaries({"y": st.sampled_from([0, 1, "a"]), "x": st.sampled_from([0, 1, "a"])}),
    st.fixed_dictionaries({"x.c": st.sampled_from(["a", "b"])}),
    st.fixed_dictionaries(
        {"y": st.fixed_dictionaries({"in": st.lists(st.sampled_from([0, 2, "a", True]), max_size=3)})}
    ),
    st.fixed_dictionaries({"y": st.sampled_from([{"gte": 1}, {"ne": 1}, {"exists": True}])}),
)
filters = st.one_of(
    leaves,
    st.fixed_dictionaries({"or": st.lists(leaves, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"and": st.lists(leaves, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"not": leaves}),
)


class DerivedIndexes(RuleBasedStateMachine):
    """Two processes have one index open, which has forgotten all but two deletions; the first makes blocks.

    The model: `held`, text and metadata by id, in the order of writing, and whether the words are indexed.
    """

    stores: list[DocumentStore]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.held: dict[str, tuple[str, dict[str, Any]]] = {}
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(module, "_FIRST_LIMIT", 2)
        self.patches.setattr(module, "FEW", 5)

    @initialize(words=st.booleans())
    def make(self, words: bool) -> None:
        DocumentStore.create(self.folder / "s", encoder=None, dimension=2, lexical=words).close()
        self.words = words
        self.stores, self.readers = [], []
        for which in range(2):
            self.stores.append(DocumentStore(self.folder / "s", tombstones_kept=2, filter_bytes=4_000))
            self.readers.append(Words(self.stores[which], POLICIES[which]))

    @rule(which=st.integers(0, 1), batch=documents)
    def upsert(self, which: int, batch: dict[str, tuple[str, dict[str, Any]]]) -> None:
        rows = [Document(id, text, metadata=values) for id, (text, values) in batch.items()]
        self.stores[which].upsert(rows, np.tile(np.eye(1, 2), (len(rows), 1)), [b""] * len(rows))
        self.held = {id: each for id, each in self.held.items() if id not in batch} | batch

    @rule(which=st.integers(0, 1), ids=st.sets(st.sampled_from(IDS), max_size=5))
    def delete(self, which: int, ids: set[str]) -> None:
        assert self.stores[which].delete(sorted(ids)) == len(ids & set(self.held))
        self.held = {id: each for id, each in self.held.items() if id not in ids}

    @rule(which=st.integers(0, 1), asked=st.lists(filters, min_size=1, max_size=3))
    def ask(self, which: int, asked: list[dict[str, Any]]) -> None:
        for filter in map(Filter, asked):
            expected = [id for id, (_, values) in self.held.items() if filter.matches(values)]
            assert matching(self.stores[which], filter) == expected

    @rule(which=st.integers(0, 1), query=texts, filter=st.none() | filters)
    def look_for_words(self, which: int, query: str, filter: dict[str, Any] | None) -> None:
        reader = self.readers[which]
        if not self.words:
            assert reader.index.refresh().view().words is None
            return
        texts = [text for text, _ in self.held.values()]
        expected = literal_bm25(query, texts)
        np.testing.assert_allclose(reader.bm25(query, list(self.held)), expected, rtol=1e-9)
        np.testing.assert_array_equal(reader.terms(query, list(self.held)), PoolWords.of(texts).terms(query))
        wanted = None if filter is None else Filter(filter)
        found = reader.best(query, 20, wanted)
        met = [
            (id, score)
            for (id, (_, values)), score in zip(self.held.items(), expected, strict=True)
            if score > 0 and (wanted is None or wanted.matches(values))
        ]
        assert sorted(found.ids) == sorted(id for id, _ in met)
        np.testing.assert_allclose(found.scores, sorted((score for _, score in met), reverse=True), rtol=1e-9)

    @precondition(lambda self: not self.words)
    @rule(which=st.integers(0, 1))
    def index_words(self, which: int) -> None:
        assert self.readers[which].index.index_words()
        self.words = True

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.readers[which].index.close()
        self.stores[which] = DocumentStore(self.folder / "s", tombstones_kept=2, filter_bytes=4_000)
        self.readers[which] = Words(self.stores[which], POLICIES[which])

    @rule()
    def settle(self) -> None:
        self.readers[0].index.settle()

    @invariant()
    def what_was_made_can_be_used(self) -> None:
        assert not any(reader.index._trainer.files._refused for reader in getattr(self, "readers", []))

    @invariant()
    def values_are_those_of_what_is_held(self) -> None:
        """Nothing is left of what is gone."""
        if hasattr(self, "stores"):
            with self.stores[0].transaction() as connection:
                (stale,) = connection.execute(
                    "SELECT count(*) FROM field_values WHERE sequence NOT IN "
                    "(SELECT sequence FROM documents WHERE embedding IS NOT NULL)"
                ).fetchone()
            assert stale == 0

    def teardown(self) -> None:
        self.patches.undo()
        for reader in getattr(self, "readers", ()):
            reader.index.close()
        shutil.rmtree(self.folder)


TestDerivedIndexes = DerivedIndexes.TestCase
TestDerivedIndexes.settings = draws(15, 25)
