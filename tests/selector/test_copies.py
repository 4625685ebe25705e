"""Test that documents with one text cost one call and share its score."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.errors import EncoderUnavailable
from boundarymorph.retrieval.candidates import PoolSource
from boundarymorph.retrieval.document import Document, Retrieval, Search
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.selection import Pool
from boundarymorph.selector.documents import Grouping
from boundarymorph.selector.result import SelectionResult
from boundarymorph.selector.selector import Selector
from tests.fakes.scorer import SeededScorer, score_of
from tests.retrieval.fakes import vector_of
from tests.selector.fakes import IDS, QUERY, FakeRetriever, MakeSelector, changed, own_pool, task


class Copying(FakeRetriever):
    """A retriever of 30 documents with these texts.

    The vectors of `strange` documents do not fit their texts.
    """

    def __init__(self, texts: Sequence[str], strange: bool = False) -> None:
        super().__init__()
        self.texts = dict(zip(IDS, texts, strict=True))
        self.strange = strange

    async def retrieve(self, index: str, search: Search, *, caller: str = "") -> Retrieval:
        vectors = [vector_of(id if self.strange else self.texts[id]) for id in IDS]
        return Retrieval(Pool.from_embeddings(IDS, np.array(vectors), vector_of(search.query)))

    async def documents(
        self, index: str, ids: Sequence[str], *, texts: bool = True, caller: str = ""
    ) -> Mapping[str, Document]:
        self.fetched += ids
        return {id: Document(id, self.texts[id]) for id in ids if id not in self.gone}


def scored(result: SelectionResult) -> dict[str, float]:
    """Return the scored documents of the set."""
    found = result.selection
    rows = zip(found.documents.tolist(), found.relevance.tolist(), found.scored.tolist(), strict=True)
    return {result.pool.ids[position]: relevance for position, relevance, by_model in rows if by_model}


TWENTY = ["the same"] * 20 + [f"text {number}" for number in range(10)]


@pytest.mark.parametrize("cache", [None, MemoryScoreCache])
@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("where", ["index", "request", "everything"])
async def test_twenty_copies_of_a_text_cost_one_call(
    selector_of: MakeSelector, where: str, reuse: bool, cache: Callable[[], MemoryScoreCache] | None
) -> None:
    scorer = SeededScorer()
    selector = selector_of(Copying(TWENTY), scorer, cache and cache())
    wanted = changed(task(budget=12, k=21, rounds=3), reuse=reuse)
    if where in ("request", "everything"):
        documents = [Document(id, text) for id, text in zip(IDS, TWENTY, strict=True)]
        wanted = changed(wanted, source=own_pool(documents), goal="scores" if where == "everything" else "set")
    for again in (False, True):
        result = await selector.select(wanted)
        paid = [text for texts in scorer.rounds for text in texts]
        assert max(Counter(paid).values()) == (1 if cache or not again else 2)
        assert sorted(set(paid)) == sorted(set(TWENTY)), "the budget is enough for all eleven texts"
        of_request = (result.calls, result.cached, result.reused)
        if not (again and cache):
            assert of_request == (11, 0, 0)
        else:
            assert of_request == ((0, 0, 11) if reuse else (0, 11, 0))
        assert len(result.history) + result.reused == 11
        texts = dict(zip(IDS, TWENTY, strict=True))
        assert scored(result) == {id: score_of(QUERY, texts[id]) for id in scored(result)}
        assert len(scored(result)) == (30 if where == "everything" else 21)
        assert result.stop_reason == "pool_exhausted" and result.status == "complete"


async def test_given_score_of_a_document_applies_to_its_copies(selector_of: MakeSelector) -> None:
    documents = [Document(id, text) for id, text in zip(IDS, TWENTY, strict=True)]
    scorer = SeededScorer()
    wanted = changed(task(budget=30, k=25), source=own_pool(documents), known={IDS[7]: 0.99})
    result = await selector_of(Copying(TWENTY), scorer).select(wanted)
    assert result.calls == 10 and "the same" not in {text for texts in scorer.rounds for text in texts}
    assert list(scored(result).values()).count(0.99) == 20


class UnavailableRetriever(FakeRetriever):
    """A retriever whose encoder is unavailable."""

    async def embed_documents(self, texts: Sequence[str], *, caller: str = "") -> Embeddings:
        raise EncoderUnavailable("it is down")


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        (Grouping(("page",), 1), [0, 10, 20]),
        (Grouping(("page",), 2), [0, 1, 10, 11]),
        (Grouping(("page",), 2, counts_groups=True), [0, 1, 10, 11, 20, 21]),
        (Grouping(), [0, 2, 4, 6]),
    ],
)
async def test_distinct_applies_to_the_retrieval_order_without_vectors(
    selector_of: MakeSelector, grouping: Grouping, expected: list[int]
) -> None:
    documents = [Document(id, f"text {n // 2}", metadata={"page": n // 10}) for n, id in enumerate(IDS)]
    source = PoolSource(QUERY, documents, vectors="encoder", ranked=True)
    wanted = changed(task(k=4), source=source, distinct=grouping)
    result = await selector_of(UnavailableRetriever(), SeededScorer()).select(wanted)
    assert result.status == "retrieval_only" and result.selection.documents.tolist() == expected


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    numbers=st.lists(st.integers(0, 12), min_size=30, max_size=30),
    gone=st.sets(st.sampled_from(IDS), max_size=8),
    budget=st.integers(0, 30),
    options=st.fixed_dictionaries(
        {
            "k": st.integers(1, 30),
            "rounds": st.integers(1, 8) | st.just("auto"),
            "reuse": st.booleans(),
            "return_documents": st.booleans(),
            "goal": st.sampled_from(["set", "order"]),
            "method": st.sampled_from(["trend", "boundarymorph"]),
        }
    ),
    strange=st.booleans(),
    cached=st.booleans(),
)
async def test_selection_scores_no_text_twice(
    numbers: list[int], gone: set[str], budget: int, options: dict[str, Any], strange: bool, cached: bool
) -> None:
    scorer, retriever = SeededScorer(), Copying([f"text {number}" for number in numbers], strange)
    selector = Selector(retriever, scorer, MemoryScoreCache() if cached else None)
    try:
        for _ in range(2):
            scorer.rounds.clear()
            retriever.gone = gone
            result = await selector.select(changed(task(budget), **options))
            paid = [text for texts in scorer.rounds for text in texts]
            assert len(paid) == len(set(paid)) == result.calls
            assert len(result.history) == result.calls + result.cached
            assert len(result.history) + result.reused <= max(budget, result.reused)
            known = {retriever.texts[result.pool.ids[seen.document]] for seen in result.history}
            assert len(known) == len(result.history)
            for id, relevance in scored(result).items():
                assert relevance == score_of(QUERY, retriever.texts[id])
            assert not (options["return_documents"] and gone & {result.pool.ids[p] for p in result.selection.documents})
            if not strange:
                of_set = {result.pool.ids[position] for position in result.selection.documents.tolist()}
                assert {id for id in of_set if retriever.texts[id] in known} <= scored(result).keys()
    finally:
        await selector.close()
