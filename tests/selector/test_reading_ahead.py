"""Test documents that are read before the session asks for them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from boundarymorph.retrieval.document import Document, Retrieval, Search
from boundarymorph.selector import run
from tests.fakes.scorer import SeededScorer
from tests.selector.fakes import FakeRetriever, MakeSelector, task


class Counting(FakeRetriever):
    """A retriever that counts fetches.

    Attributes:
        with_pool: The number of documents that come with a pool.
        came_with_pool: These documents.
        fetches: The fetches of other documents.
    """

    def __init__(self, with_pool: int = 0) -> None:
        super().__init__()
        self.with_pool = with_pool
        self.came_with_pool: set[str] = set()
        self.fetches = 0

    async def retrieve(self, index: str, search: Search, *, caller: str = "") -> Retrieval:
        retrieved = await super().retrieve(index, search)
        self.came_with_pool = set(retrieved.pool.ids[: self.with_pool])
        return replace(retrieved, documents={id: Document(id, id) for id in self.came_with_pool})

    async def documents(
        self, index: str, ids: Sequence[str], *, texts: bool = True, caller: str = ""
    ) -> Mapping[str, Document]:
        self.fetches += 1
        return await super().documents(index, ids)


async def test_documents_that_came_with_the_pool_are_not_read_again(selector_of: MakeSelector) -> None:
    retriever, plain = Counting(with_pool=30), SeededScorer()
    result = await selector_of(retriever, plain).select(task(budget=8, rounds=4, return_documents=True))
    assert retriever.fetches == 0
    few, scorer = Counting(with_pool=10), SeededScorer()
    same = await selector_of(few, scorer).select(task(budget=8, rounds=4, return_documents=True))
    assert len(few.came_with_pool) == 10 and not set(few.fetched) & few.came_with_pool
    assert scorer.rounds == plain.rounds
    assert list(same.selection.documents) == list(result.selection.documents)


async def test_reading_documents_fetches_likely_next_ones_too(
    selector_of: MakeSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, alone = Counting(), SeededScorer()
    await selector_of(plain, alone).select(task(budget=12, rounds=6))
    monkeypatch.setattr(run, "AHEAD", 10)
    retriever, scorer = Counting(), SeededScorer()
    await selector_of(retriever, scorer).select(task(budget=12, rounds=6))
    assert scorer.rounds == alone.rounds
    assert retriever.fetches < plain.fetches == 6
    assert len(retriever.fetched) == len(set(retriever.fetched)) > len(plain.fetched)
