"""Test several queries with one budget: deleted documents, failures, deadlines, and costs."""

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import RetrieverUnavailable
from boundarymorph.retrieval.candidates import IndexSource, PoolSource
from boundarymorph.retrieval.document import Document, Retrieval, Search
from boundarymorph.selection import Pool
from boundarymorph.selector.result import SelectionResult
from boundarymorph.selector.task import SelectionTask, WeightedSource
from tests.fakes.scorer import SeededScorer
from tests.retrieval.fakes import vector_of
from tests.selector.fakes import IDS, FakeRetriever, MakeSelector, changed, task

QUERIES = ("one", "two", "three")


def joint(budget: int = 20, k: int = 4, **more: object) -> SelectionTask:
    """Return a task of three queries, of which the third finds only half of the documents."""
    several = [
        WeightedSource(IndexSource("index", Search(query, depth)), 1.0)
        for query, depth in zip(QUERIES, (30, 30, 15), strict=True)
    ]
    return changed(task(budget, k, rounds=5), **{"queries": several, **more})


def chosen(result: SelectionResult) -> set[str]:
    return {result.pool.ids[position] for position in result.selection.documents}


async def test_query_has_relevance_only_for_its_candidates(selector_of: MakeSelector) -> None:
    result = await selector_of(FakeRetriever(), SeededScorer()).select(joint(0, 30))
    assert result.answered is not None
    unknown = np.isnan(result.answered.relevance)
    assert not unknown[:2].any()
    missing = [result.pool.ids[place] for place in result.selection.documents[unknown[2]]]
    assert sorted(missing) == sorted(IDS[15:])
    assert not (result.answered.leading[unknown[2]] == 2).any()


async def test_ranked_pools_of_several_queries_fall_back_to_their_orders(selector_of: MakeSelector) -> None:
    class Away(FakeRetriever):
        async def embed_query(self, query: str, *, caller: str = "") -> NDArray[np.float32]:
            raise RetrieverUnavailable("away")

    documents = [Document(id, id) for id in IDS]
    vectors = np.array([vector_of(id) for id in IDS])
    pools = [PoolSource(query, documents, vectors, ranked=True) for query in QUERIES]
    several = [WeightedSource(pool, 1.0) for pool in pools]
    wanted = joint(queries=several, excluded_ids=frozenset({"d1"}), return_documents=True)
    result = await selector_of(Away(), SeededScorer()).select(wanted)
    assert (result.status, result.calls) == ("retrieval_only", 0)
    assert [result.pool.ids[place] for place in result.selection.documents] == ["d0", "d2", "d3", "d4"]
    assert chosen(result) <= set(result.documents)


class PartlyEmptyRetriever(FakeRetriever):
    """A retriever that finds nothing for a search of depth 0."""

    async def retrieve(self, index: str, search: Search, *, caller: str = "") -> Retrieval:
        nothing = Pool([], np.empty((0, 1), np.float32), np.ones(1, np.float32), np.empty(0))
        return Retrieval(nothing) if search.depth == 0 else await super().retrieve(index, search)


def searches(*depths: int) -> list[WeightedSource]:
    """Return a query for each depth, whose weights are 1, 1/2, and 1/3."""
    return [
        WeightedSource(IndexSource("index", Search(query, depth)), 1 / number)
        for number, (query, depth) in enumerate(zip(QUERIES, depths, strict=True), 1)
    ]


async def test_expected_loss_is_the_weighted_mean_over_queries_with_candidates(selector_of: MakeSelector) -> None:
    selector, several = selector_of(PartlyEmptyRetriever(), SeededScorer()), searches(30, 0, 20)
    alone = [await selector.select(changed(task(0, 2), source=several[number].source)) for number in (0, 2)]
    result = await selector.select(joint(0, 6, queries=several))
    losses = [part.outlook.loss for part in alone]
    assert losses[0] != losses[1]
    assert result.outlook.loss == pytest.approx(np.average(losses, weights=[1, 1 / 3]))
    nothing = await selector.select(joint(0, 6, queries=searches(0, 0, 0)))
    assert (nothing.outlook.loss, len(nothing.selection.documents)) == (0.0, 0)


async def test_stop_reason_of_several_queries_is_the_budget_if_any_query_spends_it(selector_of: MakeSelector) -> None:
    selector = selector_of(FakeRetriever(), SeededScorer())
    spent = await selector.select(joint(12, 6, queries=searches(1, 30, 2)))
    assert (spent.stop_reason, spent.calls) == ("budget", 7)
    covered = await selector.select(joint(12, 6, queries=searches(1, 2, 3)))
    assert covered.stop_reason == "pool_exhausted"
