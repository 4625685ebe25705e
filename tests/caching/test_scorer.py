"""Test cached scores: they equal the scorer's, and each pair is scored once."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundarymorph.caching.scorer import TaskScores
from boundarymorph.caching.scores import CachedScore, MemoryScoreCache, digest
from boundarymorph.errors import DeadlineExceeded, ScorerUnavailable
from boundarymorph.retrieval.document import Document
from boundarymorph.scoring.scorer import Scores
from tests.caching.counted import CacheCounts
from tests.caching.fakes import GatedScorer, SlowScoreCache, StandaloneScorer, let_others_run, start_call
from tests.contract.scorer import QUERY, ScorerContract
from tests.fakes.scorer import SeededScorer, score_of


@pytest.fixture
def inner() -> GatedScorer:
    return GatedScorer()


@pytest.fixture
def cache() -> MemoryScoreCache:
    return MemoryScoreCache()


@pytest.fixture
async def scorer(inner: GatedScorer, cache: MemoryScoreCache) -> AsyncIterator[StandaloneScorer]:
    scorer = StandaloneScorer(inner, cache)
    yield scorer
    inner.gate.open()
    await scorer.close()


def expected(query: str, texts: Sequence[str]) -> list[float]:
    return [score_of(query, text) for text in texts]


class TestContract(ScorerContract):
    """The scorer contract holds when all earlier scores are cached."""


class TestReadingThrough:
    async def test_caching_scorer_requests_only_missing_texts_in_one_call(
        self, scorer: StandaloneScorer, inner: GatedScorer
    ) -> None:
        await scorer.score(QUERY, ["b", "d"])
        scores = await scorer.score(QUERY, ["a", "b", "c", "d"])
        assert inner.rounds == [["b", "d"], ["a", "c"]]
        assert scores.cached == 2
        assert scores.values.tolist() == expected(QUERY, ["a", "b", "c", "d"])
        assert (await scorer.score("other", ["a"])).values.tolist() == expected("other", ["a"])
        assert len(inner.rounds) == 3

    async def test_repeated_text_is_scored_once(self, scorer: StandaloneScorer, inner: GatedScorer) -> None:
        scores = await scorer.score(QUERY, ["a", "b", "a", "a"])
        assert inner.rounds == [["a", "b"]]
        assert scores.cached == 2
        assert scores.values.tolist() == expected(QUERY, ["a", "b", "a", "a"])

    async def test_cached_scores_count_as_truncated_like_computed_ones(self, scorer: StandaloneScorer) -> None:
        long = ["x" * 101, "y" * 300]
        assert (await scorer.score(QUERY, ["a", long[0], "b", long[1]])).truncated == 2
        assert (await scorer.score(QUERY, ["b", long[1]])).truncated == 1
        assert (await scorer.score(QUERY, ["a", "b"])).truncated == 0
        assert (await scorer.score(QUERY, [*long, "z" * 101, long[0]])).truncated == 4

    async def test_cached_scores_are_returned_after_the_deadline(self, scorer: StandaloneScorer) -> None:
        await scorer.score(QUERY, ["a"])
        scores = await scorer.score(QUERY, ["a"], deadline=time.monotonic() - 1)
        assert scores.values.tolist() == expected(QUERY, ["a"])

    async def test_scorer_failure_is_raised_and_not_cached(self, scorer: StandaloneScorer, inner: GatedScorer) -> None:
        await scorer.score(QUERY, ["a"])
        inner.failures = [ScorerUnavailable("gone")]
        with pytest.raises(ScorerUnavailable, match="gone"):
            await scorer.score(QUERY, ["a", "b"])
        assert (await scorer.score(QUERY, ["a", "b"])).values.tolist() == expected(QUERY, ["a", "b"])

    async def test_score_outside_0_and_1_is_not_cached(self, cache: MemoryScoreCache) -> None:
        class Odd(SeededScorer):
            async def score(self, query: str, texts: Sequence[str], **_: Any) -> Scores:
                return Scores(np.array([0.5, np.nan, 1.5]))

        scorer = StandaloneScorer(Odd(), cache)
        await scorer.score(QUERY, ["a", "b", "c"])
        await scorer.close()
        assert set(await cache.look_up("seeded", QUERY)) == {digest("a")}


class TestRecall:
    async def test_recall_returns_all_cached_scores_of_a_query(
        self, scorer: StandaloneScorer, cache: MemoryScoreCache
    ) -> None:
        await scorer.score(QUERY, ["a", "b"], documents=["id a", "id b"])
        await scorer.score(QUERY, ["b", "c"])
        await let_others_run()
        assert await cache.look_up("seeded", QUERY) == {
            digest("a"): CachedScore(score_of(QUERY, "a"), document="id a"),
            digest("b"): CachedScore(score_of(QUERY, "b"), document="id b"),
            digest("c"): CachedScore(score_of(QUERY, "c")),
        }
        task = TaskScores(scorer, QUERY)
        assert await task.look_up() == {"id a", "id b", None}
        documents = {5: Document("other", "a"), 7: Document("id b", "changed"), 9: Document("id c", "c")}
        assert task.reusable(documents) == {5: score_of(QUERY, "a"), 9: score_of(QUERY, "c")}
        assert await TaskScores(scorer, "other").look_up() == set()

    async def test_score_after_recall_reads_no_cache_again(self, scorer: StandaloneScorer, inner: GatedScorer) -> None:
        await scorer.score(QUERY, ["x" * 101])
        await let_others_run()
        task = TaskScores(scorer, QUERY)
        await task.look_up()
        task.reusable({0: Document("id", "x" * 101), 1: Document("other", "b")})
        assert task.truncated == 1
        await scorer.score(QUERY, ["b"])
        await let_others_run()
        with CacheCounts("scores") as counted:
            scores = await task.score(["x" * 101, "b"])
        assert scores.tolist() == expected(QUERY, ["x" * 101, "b"])
        assert (task.calls, task.cached, task.truncated) == (1, 1, 2)
        assert inner.rounds == [["x" * 101], ["b"], ["b"]]
        assert counted.lookups == {"hit": 1, "miss": 1}


class Renamed(GatedScorer):
    """A scorer whose servers report a model name that may change."""

    identity: str | None = None


class TestModelNames:
    async def test_scores_are_not_cached_until_the_model_is_known(self, cache: MemoryScoreCache) -> None:
        inner = Renamed()
        scorer = StandaloneScorer(inner, cache)
        for _ in range(2):
            assert (await scorer.score(QUERY, ["a"])).values.tolist() == expected(QUERY, ["a"])
        assert inner.rounds == [["a"], ["a"]]
        assert await TaskScores(scorer, QUERY).look_up() == set()
        inner.identity = "model@1"
        await scorer.score(QUERY, ["a"])
        await scorer.score(QUERY, ["a"])
        assert len(inner.rounds) == 3
        assert len(await cache.look_up("model@1", QUERY)) == 1
        await scorer.close()

    async def test_scores_are_not_cached_if_the_model_changed_meanwhile(self, cache: MemoryScoreCache) -> None:
        inner = Renamed()
        inner.identity = "model@1"
        scorer = StandaloneScorer(inner, cache)
        inner.gate.shut()
        scoring = await start_call(scorer.score(QUERY, ["a"]))
        inner.identity = "model@2"
        inner.gate.open()
        await scoring
        await scorer.close()
        assert await cache.look_up("model@1", QUERY) == {}
        assert await cache.look_up("model@2", QUERY) == {}

    async def test_model_change_after_recall_makes_the_scorer_unavailable(
        self, inner: GatedScorer, cache: MemoryScoreCache
    ) -> None:
        inner.name = "one"
        scorer = StandaloneScorer(inner, cache)
        await scorer.score(QUERY, ["a"])
        await let_others_run()
        task = TaskScores(scorer, QUERY)
        await task.look_up()
        assert task.reusable({0: Document("id", "a")}) == {0: score_of(QUERY, "a")}
        inner.name = "two"
        with pytest.raises(ScorerUnavailable):
            await task.score(["b"])

    async def test_scores_are_cached_under_the_model_that_the_answer_names(self) -> None:
        class Remote(SeededScorer):
            models: ClassVar = ["one", None, "one", "two"]

            async def score(
                self,
                query: str,
                texts: Sequence[str],
                *,
                deadline: float | None = None,
                instruction: str | None = None,
                caller: str = "",
            ) -> Scores:
                scores = await super().score(query, texts, deadline=deadline)
                return replace(scores, model=self.models[len(self.rounds) - 1])

        for cache in (None, MemoryScoreCache()):
            task = TaskScores(StandaloneScorer(Remote(), cache), QUERY)
            for number in range(3):
                await task.score([f"{number} {text}" for text in "abc"])
            assert (task.calls, task.cached) == (9, 0)
        task = TaskScores(StandaloneScorer(Remote()), QUERY)
        for text in "abc":
            await task.score([text])
        with pytest.raises(ScorerUnavailable):
            await task.score(["d"])


class TestSingleFlight:
    async def test_concurrent_requests_share_the_scoring_of_a_text(
        self, scorer: StandaloneScorer, inner: GatedScorer
    ) -> None:
        inner.gate.shut()
        with CacheCounts("scores") as counted:
            calls = [await start_call(scorer.score(QUERY, texts)) for texts in (["a", "b"], ["b", "c"], ["c", "a"])]
            assert inner.rounds == [["a", "b"], ["c"]]
            inner.gate.open()
            for call, texts, cached in zip(calls, (["a", "b"], ["b", "c"], ["c", "a"]), (0, 1, 2), strict=True):
                scores = await call
                assert (scores.values.tolist(), scores.cached) == (expected(QUERY, texts), cached)
        assert counted.lookups == {"miss": 3}

    async def test_follower_scores_itself_when_the_first_request_fails(
        self, scorer: StandaloneScorer, inner: GatedScorer
    ) -> None:
        inner.gate.shut()
        inner.failures = [ScorerUnavailable("gone")]
        first = await start_call(scorer.score(QUERY, ["a", "b"]))
        second = await start_call(scorer.score(QUERY, ["b", "c"]))
        inner.gate.open()
        with pytest.raises(ScorerUnavailable):
            await first
        assert (await second).values.tolist() == expected(QUERY, ["b", "c"])
        await let_others_run()
        await scorer.score(QUERY, ["b", "c"])
        assert inner.rounds == [["a", "b"], ["c"], ["b"]]

    async def test_follower_scores_texts_that_the_first_request_got_no_score_for(self, cache: MemoryScoreCache) -> None:
        class Partial(GatedScorer):
            async def score(self, query: str, texts: Sequence[str], **options: Any) -> Scores:
                values = (await super().score(query, texts, **options)).values
                return Scores(np.where([text == "b" and len(texts) > 1 for text in texts], np.nan, values))

        inner = Partial()
        scorer = StandaloneScorer(inner, cache)
        inner.gate.shut()
        first = await start_call(scorer.score(QUERY, ["a", "b"]))
        second = await start_call(scorer.score(QUERY, ["b", "c"]))
        inner.gate.open()
        np.testing.assert_array_equal((await first).values, [score_of(QUERY, "a"), np.nan])
        assert (await second).values.tolist() == expected(QUERY, ["b", "c"])
        assert inner.rounds == [["a", "b"], ["c"], ["b"]]
        await scorer.close()

    async def test_one_follower_scores_when_the_first_request_is_cancelled(
        self, scorer: StandaloneScorer, inner: GatedScorer
    ) -> None:
        inner.gate.shut()
        calls = [await start_call(scorer.score(QUERY, ["a", "b"])) for _ in range(5)]
        calls[0].cancel()
        await let_others_run()
        assert inner.rounds == [["a", "b"], ["a", "b"]]
        calls[1].cancel()
        await let_others_run()
        inner.gate.open()
        for call in calls[2:]:
            assert (await call).values.tolist() == expected(QUERY, ["a", "b"])
        assert len(inner.rounds) == 3

    async def test_request_with_an_earlier_deadline_scores_itself(
        self, scorer: StandaloneScorer, inner: GatedScorer
    ) -> None:
        inner.gate.shut()
        now = time.monotonic()
        deadlines = [None, now + 200, now + 300, now + 100, now + 150]
        calls = [await start_call(scorer.score(QUERY, ["a"], deadline=deadline)) for deadline in deadlines]
        assert inner.deadlines == [None, now + 200, now + 100]
        inner.gate.open()
        for call in calls:
            assert (await call).values.tolist() == expected(QUERY, ["a"])

    async def test_one_follower_scores_for_all_after_the_first_times_out(
        self, scorer: StandaloneScorer, inner: GatedScorer
    ) -> None:
        inner.gate.shut()
        first = await start_call(scorer.score(QUERY, ["a"], deadline=time.monotonic() + 0.05))
        others = [asyncio.ensure_future(scorer.score(QUERY, ["a"], deadline=time.monotonic() + 100)) for _ in range(3)]
        with pytest.raises(DeadlineExceeded):
            await first
        await let_others_run()
        assert len(inner.rounds) == 2
        inner.gate.open()
        await asyncio.gather(*others)

    async def test_followers_score_themselves_when_the_scorer_times_out(
        self, scorer: StandaloneScorer, inner: GatedScorer
    ) -> None:
        inner.gate.shut()
        inner.failures = [DeadlineExceeded("of its own")]
        calls = [await start_call(scorer.score(QUERY, ["a"])) for _ in range(3)]
        inner.gate.open()
        with pytest.raises(DeadlineExceeded, match="of its own"):
            await calls[0]
        await asyncio.gather(*calls[1:])
        assert len(inner.rounds) == 3

    async def test_follower_keeps_its_own_deadline(self, scorer: StandaloneScorer, inner: GatedScorer) -> None:
        inner.gate.shut()
        inner.punctual = False
        deadline = time.monotonic() + 0.05
        first = await start_call(scorer.score(QUERY, ["a"], deadline=deadline))
        with pytest.raises(DeadlineExceeded):
            await scorer.score(QUERY, ["a"], deadline=deadline)
        assert not first.done()
        inner.gate.open()
        await first

    async def test_pending_cache_write_serves_reads_and_is_awaited_on_close(self, inner: GatedScorer) -> None:
        cache = SlowScoreCache()
        cache.gate.shut()
        scorer = StandaloneScorer(inner, cache)
        for _ in range(3):
            assert (await scorer.score(QUERY, ["a"])).values.tolist() == expected(QUERY, ["a"])
            await let_others_run()
        await scorer.score(QUERY, ["a"], deadline=time.monotonic() + 100)
        assert inner.rounds == [["a"]]
        assert await cache.look_up("seeded", QUERY) == {}
        closing = await start_call(scorer.close())
        assert not closing.done()
        cache.gate.open()
        await closing
        assert len(await cache.look_up("seeded", QUERY)) == 1

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    async def test_caching_scorer_survives_any_interleaving(self, data: st.DataObject) -> None:
        inner, cache = GatedScorer(), SlowScoreCache()
        scorer = StandaloneScorer(inner, cache, writes=data.draw(st.integers(1, 3)))
        texts = st.lists(st.sampled_from("abcdef"), max_size=6)
        calls: list[tuple[asyncio.Future[Scores], list[str]]] = []
        failing = cancelled = 0
        for _ in range(data.draw(st.integers(1, 12))):
            step = data.draw(st.sampled_from(["score", "score", "score", "cancel", "fail", "inner", "cache", "wait"]))
            if step == "score":
                asked = data.draw(texts)
                deadline = data.draw(st.sampled_from([None, time.monotonic() + 1_000, time.monotonic() + 2_000]))
                calls.append((asyncio.ensure_future(scorer.score(QUERY, asked, deadline=deadline)), asked))
            elif step == "cancel" and calls:
                call, _ = calls.pop(data.draw(st.integers(0, len(calls) - 1)))
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                cancelled += 1
            elif step == "fail":
                inner.failures.append(ScorerUnavailable("gone"))
                failing += 1
            elif step in ("inner", "cache"):
                gate = inner.gate if step == "inner" else cache.gate
                data.draw(st.sampled_from([gate.shut, gate.open]))()
            await let_others_run(data.draw(st.integers(0, 8)))
        inner.gate.open()
        cache.gate.open()
        failed = 0
        for call, asked in calls:
            try:
                assert (await call).values.tolist() == expected(QUERY, asked)
            except ScorerUnavailable:
                failed += 1
        assert failed <= failing
        await scorer.close()
        found = await cache.look_up("seeded", QUERY)
        assert found == {digest(text): CachedScore(score_of(QUERY, text)) for text in "abcdef" if digest(text) in found}
        again = StandaloneScorer(inner, cache)
        inner.failures.clear()
        assert (await again.score(QUERY, list("abcdef"))).values.tolist() == expected(QUERY, list("abcdef"))
        await again.close()


class TestWriting:
    async def test_cache_writes_over_the_bound_are_dropped_and_scored_again(self, inner: GatedScorer) -> None:
        cache = SlowScoreCache()
        cache.gate.shut()
        scorer = StandaloneScorer(inner, cache, writes=2)
        with CacheCounts("scores") as counted:
            for text in "abcdabcd":
                await scorer.score(QUERY, [text])
            cache.gate.open()
            await scorer.close()
        assert inner.rounds == [[text] for text in "abcdcd"]
        assert counted.writes == {"ok": 2, "dropped": 4}
        assert set(await cache.look_up("seeded", QUERY)) == {digest("a"), digest("b")}
