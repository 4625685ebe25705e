"""Test several queries with one budget: deleted documents, failures, deadlines, and costs."""

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import RetrieverUnavailable
from boundarymorph.retrieval.candidates import IndexSource, PoolSource
from boundarymorph.retrieval.document import Document, Search
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
    return changed(task(budget, k, rounds=5), **{"several": several, **more})


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
    wanted = joint(several=several, excluded=frozenset({"d1"}), return_documents=True)
    result = await selector_of(Away(), SeededScorer()).select(wanted)
    assert (result.status, result.calls) == ("retrieval_only", 0)
    assert [result.pool.ids[place] for place in result.selection.documents] == ["d0", "d2", "d3", "d4"]
    assert chosen(result) <= set(result.documents)
