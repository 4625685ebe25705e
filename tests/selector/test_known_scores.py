"""Test scores that cost no call, and their effect on the paper's method."""

from collections.abc import Sequence
from unittest.mock import Mock

import numpy as np
import pytest

from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.retrieval.candidates import IndexSource
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.selector.result import Progress, SelectionResult
from boundarymorph.selector.task import SelectionTask
from tests.fakes.scorer import SeededScorer, score_of
from tests.selector.fakes import IDS, QUERY, FakeRetriever, MakeSelector, changed, own_pool, task


class TestKnownScores:
    async def test_calls_count_only_scores_that_were_computed(self, selector_of: MakeSelector) -> None:
        scorer = SeededScorer()
        selector = selector_of(FakeRetriever(), scorer, MemoryScoreCache())
        wanted = changed(task(budget=6, rounds=2), reuse=False)

        def computed() -> int:
            return sum(map(len, scorer.rounds))

        first = await selector.select(wanted)
        assert (first.calls, first.cached, computed()) == (6, 0, 6)
        *rounds, again = [step async for step in selector.steps(wanted)]
        assert isinstance(again, SelectionResult)
        assert (again.calls, again.cached, again.reused, computed()) == (0, 6, 0, 6)
        assert list(again.history) == list(first.history)
        assert [(step.calls, step.cached) for step in rounds if isinstance(step, Progress)] == [(0, 0), (0, 3)]

    async def test_cached_scores_of_request_pools_are_matched_by_text(self, selector_of: MakeSelector) -> None:
        """The ids of such a pool have no meaning beyond the request."""
        scorer = SeededScorer()
        selector = selector_of(FakeRetriever(), scorer, MemoryScoreCache())

        def pool(documents: Sequence[Document]) -> SelectionTask:
            return changed(task(budget=5), source=own_pool(documents))

        first = await selector.select(pool([Document(str(n), id) for n, id in enumerate(IDS)]))
        scored = {observation.document for observation in first.history}
        renamed = await selector.select(pool([Document(f"other-{n}", id) for n, id in enumerate(IDS)]))
        assert (renamed.calls, renamed.cached, renamed.reused) == (0, 0, 5)
        assert renamed.warnings == first.warnings, "known scores are counted; they are no reason to warn"
        assert set(np.flatnonzero([n in scored for n in renamed.selection.documents])) == set(
            np.flatnonzero(renamed.selection.scored)
        )
        swapped = await selector.select(pool([Document(str(n), IDS[(n + 15) % 30]) for n in range(30)]))
        assert swapped.reused == 5
        for observation in swapped.history:
            assert observation.score == score_of(QUERY, IDS[(observation.document + 15) % 30])
        other = await selector.select(pool([Document(str(n), f"{id}!") for n, id in enumerate(IDS)]))
        assert (other.calls, other.reused) == (5, 0)

    async def test_cache_omits_the_ids_of_request_pools(self, selector_of: MakeSelector) -> None:
        cache = MemoryScoreCache()
        selector = selector_of(FakeRetriever(), SeededScorer(), cache)
        given = own_pool([Document(id, id) for id in IDS])
        await selector.select(changed(task(budget=4), source=given))
        assert {entry.document for entry in (await cache.look_up("seeded", QUERY)).values()} == {None}
        await selector.select(changed(task(budget=4), source=IndexSource("index", Search("by index", 30))))
        assert len({entry.document for entry in (await cache.look_up("seeded", "by index")).values()} - {None}) == 4

    @pytest.mark.parametrize(("reuse", "looks"), [(True, (1, 0)), (False, (0, 3))])
    async def test_cache_is_read_once_per_selection(
        self, reuse: bool, looks: tuple[int, int], selector_of: MakeSelector
    ) -> None:
        """Otherwise, each round would wait for a cache that hangs."""
        cache, scorer = Mock(wraps=MemoryScoreCache()), SeededScorer()
        selector = selector_of(FakeRetriever(), scorer, cache)
        result = await selector.select(changed(task(budget=6, rounds=3), reuse=reuse))
        assert (len(scorer.rounds), len(result.history)) == (3, 6)
        assert (cache.look_up.call_count, cache.read.call_count) == looks
