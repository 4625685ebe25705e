"""The hall, with fakes in all rooms: its order, its clock, cancellation, and what is deleted on the way."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.caching.memory import MemoryScoreCache
from boundarymorph.caching.scorer import CachingScorer
from boundarymorph.caching.scores import Remembered
from boundarymorph.errors import (
    BoundaryMorphError,
    DeadlineExceeded,
    Overloaded,
    RetrieverFailed,
    RetrieverUnavailable,
    ScorerFailed,
    ScorerUnavailable,
    StorageFull,
    UnknownIndex,
)
from boundarymorph.retrieval.candidates import GivenCandidates, IndexedCandidates
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.retriever import Retrieved, Search
from boundarymorph.scoring.scorer import Scores
from boundarymorph.selection import Pool
from boundarymorph.selection.methods import METHODS
from boundarymorph.selector.selector import RESERVE, Progress, SelectionResult, SelectionTask, Selector
from tests.retrieval.fakes import vector_of
from tests.scoring.fakes import SeededScorer, score_of

QUERY = "query"
IDS = [f"d{number}" for number in range(30)]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeRetriever:
    """One index of 30 documents. Retrieval takes 3 seconds of the clock and a fetch 0.5; `gone` were deleted since."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.gone: set[str] = set()
        self.fetched: list[str] = []

    async def retrieve(self, index: str, search: Search) -> Retrieved:
        self.clock.now += 3
        ids = IDS[: search.depth]
        return Retrieved(Pool.of(ids, np.array([vector_of(id) for id in ids]), vector_of(search.query)))

    async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
        self.clock.now += 0.5
        self.fetched += ids
        return {id: Document(id, id) for id in ids if id not in self.gone}

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        return {id: len(id) for id in ids if id not in self.gone}

    async def embed_query(self, query: str) -> NDArray[np.float32]:
        return vector_of(query)

    async def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class SlowScorer(SeededScorer):
    """Each round takes 2 seconds of the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
        self.clock.now += 2
        return await super().score(query, texts)


def task(budget: int = 6, k: int = 4, batch_size: int = 1, return_documents: bool = False) -> SelectionTask:
    return SelectionTask(
        QUERY,
        IndexedCandidates("index", 30),
        budget,
        k,
        batch_size=batch_size,
        return_documents=return_documents,
    )


async def test_the_way_of_a_request() -> None:
    retriever, scorer = FakeRetriever(), SeededScorer()
    selector = Selector(retriever, scorer)
    result = await selector.select(task(batch_size=4))
    assert [len(texts) for texts in scorer.rounds] == [4, 2]
    assert result.rounds == 2
    asked = [text for texts in scorer.rounds for text in texts]
    assert [result.pool.ids[observation.document] for observation in result.history] == asked == retriever.fetched
    assert [observation.score for observation in result.history] == [score_of(QUERY, text) for text in asked]
    assert set(result.documents) == set(asked)
    assert len(result.selection.documents) == 4
    assert list(result.warnings) == []
    await selector.close()


async def test_texts_are_fetched_once_and_only_when_needed() -> None:
    retriever = FakeRetriever()
    selector = Selector(retriever, SeededScorer())
    result = await selector.select(task(return_documents=True))
    assert len(retriever.fetched) == len(set(retriever.fetched))
    selected = {result.pool.ids[position] for position in result.selection.documents}
    assert selected <= set(result.documents) == set(retriever.fetched)
    assert len(retriever.fetched) < 30
    await selector.close()


async def test_stages_by_the_clock() -> None:
    clock = Clock()
    selector = Selector(FakeRetriever(clock), SlowScorer(clock), clock=clock)
    result = await selector.select(task(budget=6, batch_size=2))
    assert result.seconds == {"retrieve": 3, "select": 0, "fetch": 1.5, "score": 6, "total": 10.5}
    result = await selector.select(task(budget=0, return_documents=True))
    assert result.seconds == {"retrieve": 3, "select": 0, "fetch": 0.5, "total": 3.5}
    await selector.close()


class TestDeletedMeanwhile:
    async def test_some(self) -> None:
        retriever, scorer = FakeRetriever(), SeededScorer()
        selector = Selector(retriever, scorer)
        plain = await selector.select(task(budget=8, batch_size=2))
        gone = {plain.pool.ids[observation.document] for observation in plain.history[:3]}
        retriever.gone |= gone
        scorer.rounds.clear()
        result = await selector.select(task(budget=8, batch_size=2, return_documents=True))
        assert not gone & {text for texts in scorer.rounds for text in texts}
        assert all(texts for texts in scorer.rounds)
        selected = [result.pool.ids[position] for position in result.selection.documents]
        assert not gone & set(selected)
        assert len(selected) == 4
        assert set(selected) <= set(result.documents)
        assert len(result.history) == sum(map(len, scorer.rounds)) == 8  # what is not there costs no call
        assert any("deleted" in warning for warning in result.warnings)
        await selector.close()

    @pytest.mark.parametrize("method", METHODS)
    async def test_it_is_not_taken_for_irrelevant(self, method: str) -> None:
        """Else what is like it would seem irrelevant too: here everything scores 0.9."""

        class Constant(SeededScorer):
            async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
                return Scores(np.full(len(texts), 0.9))

        retriever = FakeRetriever()
        retriever.gone |= {f"d{number}" for number in range(0, 30, 2)}
        selector = Selector(retriever, Constant())
        result = await selector.select(replace(task(budget=10, k=15, batch_size=5), method=method))
        assert [observation.score for observation in result.history] == [0.9] * 10
        assert (result.status, result.calls) == ("complete", 10)
        guessed = result.selection.relevance[~result.selection.scored]
        assert guessed.size and guessed.min() > (0.85 if method == "trend" else 0.5)
        await selector.close()

    @pytest.mark.parametrize("budget", [0, 4])
    async def test_what_is_deleted_before_it_is_returned_makes_room(self, budget: int) -> None:
        retriever = FakeRetriever()
        selector = Selector(retriever, SeededScorer())
        wanted = task(budget=budget, k=6, return_documents=True)
        plain = await selector.select(wanted)
        unscored = plain.selection.documents[~plain.selection.scored]
        retriever.gone |= {plain.pool.ids[position] for position in unscored}
        result = await selector.select(wanted)
        chosen = {result.pool.ids[position] for position in result.selection.documents}
        assert len(chosen) == 6 and not chosen & retriever.gone
        assert chosen <= set(result.documents)
        assert list(result.history) == list(plain.history)
        assert any(f"{len(unscored)} documents were deleted" in warning for warning in result.warnings)
        await selector.close()

    @pytest.mark.parametrize("limits", [{"k": 29}, {"k": None, "max_tokens": 29}])
    async def test_what_is_found_deleted_before_the_first_round(self, limits: dict[str, Any]) -> None:
        """When its known scores, or the lengths of all documents, are read. Each of these has one token."""
        retriever = FakeRetriever()
        selector = Selector(retriever, CachingScorer(SeededScorer(), MemoryScoreCache()))
        first = await selector.select(task(budget=6))
        retriever.gone |= {first.pool.ids[observation.document] for observation in first.history}
        result = await selector.select(replace(task(budget=0), **limits))
        chosen = {result.pool.ids[position] for position in result.selection.documents}
        assert chosen == set(IDS) - retriever.gone
        await selector.close()

    async def test_before_the_scorer_fails(self) -> None:
        retriever = FakeRetriever()
        selector = Selector(retriever, Trouble(ScorerUnavailable("gone"), 0))
        retriever.gone |= {"d0", "d1"}
        result = await selector.select(task(budget=30, k=29, batch_size=30))
        chosen = {result.pool.ids[position] for position in result.selection.documents}
        assert chosen == set(IDS) - retriever.gone
        await selector.close()

    async def test_all(self) -> None:
        retriever, scorer = FakeRetriever(), SeededScorer()
        retriever.gone |= set(IDS)
        selector = Selector(retriever, scorer)
        result = await selector.select(task(budget=1, k=1, batch_size=7, return_documents=True))
        assert (result.status, result.stop_reason, result.expected_loss) == ("complete", "nothing_to_decide", 0)
        assert scorer.rounds == []
        assert len(result.history) == len(result.selection.documents) == 0
        assert len(result.selection.relevance) == len(result.selection.std) == len(result.selection.scored) == 0
        await selector.close()

    async def test_the_index(self) -> None:
        class Vanishing(FakeRetriever):
            async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
                raise UnknownIndex("gone")

        selector = Selector(Vanishing(), SeededScorer())
        with pytest.raises(UnknownIndex):
            await selector.select(task())
        await selector.close()


async def test_a_cancelled_task_asks_for_nothing_more() -> None:
    class Waiting(SeededScorer):
        def __init__(self) -> None:
            super().__init__()
            self.third = asyncio.Event()

        async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
            scores = await super().score(query, texts)
            if len(self.rounds) == 3:
                self.third.set()
                await asyncio.Event().wait()
            return scores

    scorer = Waiting()
    selector = Selector(FakeRetriever(), scorer)
    running = asyncio.create_task(selector.select(task(budget=20)))
    await scorer.third.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0.05)
    assert len(scorer.rounds) == 3
    assert len((await selector.select(task(budget=5))).history) == 5
    await selector.close()


class Trouble(SeededScorer):
    """Fails from the given round on, counted from 0."""

    def __init__(self, error: Exception, first: int) -> None:
        super().__init__()
        self.error = error
        self.first = first

    async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
        if len(self.rounds) >= self.first:
            raise self.error
        return await super().score(query, texts)


class TestLessThanWanted:
    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (DeadlineExceeded("late"), "deadline"),
            (Overloaded("busy"), "overloaded"),
            (ScorerUnavailable("gone"), "scorer_unavailable"),
            (ScorerFailed("logits"), "scorer_failed"),
        ],
    )
    @pytest.mark.parametrize("first", [0, 2])
    async def test_the_set_as_far_as_it_is_known(self, error: BoundaryMorphError, reason: str, first: int) -> None:
        selector = Selector(FakeRetriever(), Trouble(error, first))
        result = await selector.select(task(budget=20, batch_size=2))
        assert result.status == ("partial" if first else "retrieval_only")
        assert result.stop_reason == reason
        assert len(result.history) == 2 * first
        assert any(error.public in warning for warning in result.warnings)
        as_wanted = await Selector(FakeRetriever(), SeededScorer()).select(task(budget=2 * first, batch_size=2))
        np.testing.assert_array_equal(result.selection.documents, as_wanted.selection.documents)
        if not first:
            assert result.selection.documents.tolist() == [0, 1, 2, 3]
        await selector.close()

    async def test_an_error_where_that_was_asked_for(self) -> None:
        selector = Selector(FakeRetriever(), Trouble(ScorerUnavailable("gone"), 2))
        with pytest.raises(ScorerUnavailable):
            await selector.select(replace(task(budget=20), degrade=False))
        late = Selector(FakeRetriever(), Trouble(DeadlineExceeded("late"), 2))
        assert (await late.select(replace(task(budget=20), degrade=False))).status == "partial"
        await selector.close()
        await late.close()

    async def test_what_was_known_before_is_partial_too(self) -> None:
        documents = [Document(id, id) for id in IDS]
        candidates = GivenCandidates(documents, [vector_of(id) for id in IDS], vector_of(QUERY), known={"d20": 1.0})
        selector = Selector(FakeRetriever(), Trouble(ScorerUnavailable("gone"), 0))
        result = await selector.select(replace(task(), candidates=candidates))
        assert (result.status, len(result.history)) == ("partial", 0)
        assert 20 in result.selection.documents
        await selector.close()

    @pytest.mark.parametrize("fetches", [0, 2, 4])
    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (RetrieverUnavailable("nobody answers"), "retriever_unavailable"),
            (StorageFull("nobody answers"), "retriever_unavailable"),
            (RetrieverFailed("nobody answers"), "retriever_failed"),
            (Overloaded("nobody answers"), "overloaded"),
        ],
    )
    async def test_a_retriever_that_fails_on_the_way(
        self, error: BoundaryMorphError, reason: str, fetches: int
    ) -> None:
        class Leaving(FakeRetriever):
            async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
                nonlocal fetches
                if not fetches:
                    raise error
                fetches -= 1
                return await super().documents(index, ids)

        asked = fetches
        selector = Selector(Leaving(), SeededScorer())
        wanted = task(budget=8, k=12, batch_size=2, return_documents=True)
        result = await selector.select(wanted)
        assert result.status == ("partial" if asked else "retrieval_only")
        assert result.stop_reason == reason
        assert len(result.history) == 2 * asked
        assert len(result.selection.documents) == 12
        assert any(error.public in warning for warning in result.warnings)
        fetches = asked
        with pytest.raises(type(error)):
            await selector.select(replace(wanted, degrade=False))
        await selector.close()

    @pytest.mark.parametrize("trouble", ["retriever_unavailable", "retriever_failed", "overloaded", "deadline"])
    async def test_known_scores_whose_texts_cannot_be_read(self, trouble: str) -> None:
        errors = {
            "retriever_unavailable": RetrieverUnavailable("nobody answers"),
            "retriever_failed": RetrieverFailed("it broke"),
            "overloaded": Overloaded("too much to do"),
        }

        class Leaving(FakeRetriever):
            here = True

            async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
                if not self.here and trouble == "deadline":
                    await asyncio.Event().wait()
                if not self.here:
                    raise errors[trouble]
                return await super().documents(index, ids)

        retriever = Leaving()
        scorer = CachingScorer(SeededScorer(), MemoryScoreCache(2**20, seconds_to_live=60))
        selector = Selector(retriever, scorer)
        await selector.select(task())
        assert (await selector.select(task())).reused == 6
        retriever.here = False
        wanted = replace(task(return_documents=True), deadline=time.monotonic() + 0.2)
        result = await selector.select(wanted)
        assert (result.status, result.reused, len(result.selection.documents)) == ("retrieval_only", 0, 4)
        assert result.stop_reason == trouble
        assert any("known from earlier requests" in warning for warning in result.warnings)
        assert result.documents == {}
        await selector.close()

    async def test_nothing_to_decide_is_complete_without_a_scorer(self) -> None:
        selector = Selector(FakeRetriever(), Trouble(ScorerUnavailable("gone"), 0))
        assert (await selector.select(task(k=30))).status == "complete"
        assert (await selector.select(task(budget=0))).status == "complete"
        await selector.close()


class TestDeadline:
    async def test_no_round_begins_after_it(self) -> None:
        clock = Clock()
        scorer = SlowScorer(clock)
        selector = Selector(FakeRetriever(clock), scorer, clock=clock)
        wanted = replace(task(budget=20, k=9, batch_size=2), deadline=clock.now + 3 + 3 * 2.5, return_documents=True)
        result = await selector.select(wanted)
        assert (result.status, result.stop_reason, result.rounds) == ("partial", "deadline", 3)
        chosen = {result.pool.ids[position] for position in result.selection.documents}
        assert len(chosen) == 9
        assert chosen <= set(result.documents)  # there is a little time left to read them
        await selector.close()

    async def test_the_scorer_hears_of_it(self) -> None:
        class Listening(SeededScorer):
            async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
                heard.append(deadline)
                return await super().score(query, texts)

        heard: list[float | None] = []
        deadline = time.monotonic() + 60
        selector = Selector(FakeRetriever(), Listening())
        await selector.select(replace(task(), deadline=deadline))
        await selector.select(task(budget=1))
        assert heard == [deadline - RESERVE] * 6 + [None]
        await selector.close()

    async def test_without_a_pool_there_is_nothing_to_answer(self) -> None:
        class Hanging(FakeRetriever):
            async def retrieve(self, *_: object, **__: object) -> Retrieved:
                await asyncio.Event().wait()
                raise AssertionError

        selector = Selector(Hanging(), SeededScorer())
        with pytest.raises(DeadlineExceeded):
            await selector.select(replace(task(), deadline=time.monotonic() + 0.05))
        await selector.close()


async def test_each_round_tells_where_it_stands() -> None:
    selector = Selector(FakeRetriever(), SeededScorer())
    *rounds, result = [step async for step in selector.steps(task(budget=6, batch_size=2))]
    assert isinstance(result, SelectionResult)
    told = [step for step in rounds if isinstance(step, Progress)]
    assert [(step.rounds, step.calls, step.budget) for step in told] == [(0, 0, 6), (1, 2, 6), (2, 4, 6)]
    assert {step.reused for step in told} == {0}
    assert all(len(step.selected) == 4 and 0 <= step.expected_loss <= 1 for step in told)
    plain = await selector.select(task(budget=6, batch_size=2))
    np.testing.assert_array_equal(result.selection.documents, plain.selection.documents)
    assert result.expected_loss == plain.expected_loss
    await selector.close()


class CountingCache(MemoryScoreCache):
    """Keeps how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.recalls = self.reads = 0

    async def recall(self, model: str, query: str) -> Mapping[bytes, Remembered]:
        self.recalls += 1
        return await super().recall(model, query)

    async def read(self, model: str, query: str, text_digests: Sequence[bytes]) -> list[Remembered | None]:
        self.reads += 1
        return await super().read(model, query, text_digests)


class TestKnownScores:
    async def test_a_round_tells_the_whole_budget_and_what_of_it_was_known(self) -> None:
        selector = Selector(FakeRetriever(), CachingScorer(SeededScorer(), MemoryScoreCache()))
        await selector.select(task(budget=4, batch_size=2))
        steps = [step async for step in selector.steps(task(budget=6, batch_size=2))]
        assert [(step.calls, step.reused, step.budget) for step in steps if isinstance(step, Progress)] == [(0, 4, 6)]
        await selector.close()

    async def test_calls_are_what_the_scorer_computed(self) -> None:
        """Not what the cache answered, what another request was having computed, or a text that comes twice."""
        scorer = SeededScorer()
        selector = Selector(FakeRetriever(), CachingScorer(scorer, MemoryScoreCache()))
        wanted = replace(task(budget=6, batch_size=3), reuse=False)

        def computed() -> int:
            return sum(map(len, scorer.rounds))

        first = await selector.select(wanted)
        assert (first.calls, first.cached, computed()) == (6, 0, 6)
        *rounds, again = [step async for step in selector.steps(wanted)]
        assert isinstance(again, SelectionResult)
        assert (again.calls, again.cached, again.reused, computed()) == (0, 6, 0, 6)
        assert list(again.history) == list(first.history)
        assert [(step.calls, step.cached) for step in rounds if isinstance(step, Progress)] == [(0, 0), (0, 3)]

        together = await asyncio.gather(*(selector.select(replace(wanted, query="another")) for _ in range(3)))
        assert sum(result.calls for result in together) == 6 == computed() - 6
        assert all(result.calls + result.cached == 6 for result in together)

        twins = [Document(id, f"text {number // 2}") for number, id in enumerate(IDS)]
        given = GivenCandidates(twins, [vector_of(id) for id in IDS], vector_of(QUERY))
        result = await selector.select(replace(wanted, candidates=given, budget=30, k=2, batch_size=30))
        assert (result.calls, result.cached, computed()) == (15, 15, 27)
        await selector.close()

    async def test_own_pools_are_matched_by_their_texts(self) -> None:
        """Their ids mean nothing beyond the request."""
        scorer = SeededScorer()
        selector = Selector(FakeRetriever(), CachingScorer(scorer, MemoryScoreCache()))
        embeddings = [vector_of(id) for id in IDS]

        def pool(documents: Sequence[Document]) -> SelectionTask:
            return replace(task(budget=5), candidates=GivenCandidates(documents, embeddings, vector_of(QUERY)))

        first = await selector.select(pool([Document(str(n), id) for n, id in enumerate(IDS)]))
        scored = {observation.document for observation in first.history}
        renamed = await selector.select(pool([Document(f"other-{n}", id) for n, id in enumerate(IDS)]))
        assert (renamed.calls, renamed.cached, renamed.reused) == (0, 0, 5)
        assert set(np.flatnonzero([n in scored for n in renamed.selection.documents])) == set(
            np.flatnonzero(renamed.selection.scored)
        )
        swapped = await selector.select(pool([Document(str(n), IDS[(n + 15) % 30]) for n in range(30)]))
        assert swapped.reused == 5
        for observation in swapped.history:
            assert observation.score == score_of(QUERY, IDS[(observation.document + 15) % 30])
        changed = await selector.select(pool([Document(str(n), f"{id}!") for n, id in enumerate(IDS)]))
        assert (changed.calls, changed.reused) == (5, 0)
        await selector.close()

    async def test_the_ids_of_own_pools_are_not_kept(self) -> None:
        cache = MemoryScoreCache()
        selector = Selector(FakeRetriever(), CachingScorer(SeededScorer(), cache))
        given = GivenCandidates([Document(id, id) for id in IDS], [vector_of(id) for id in IDS], vector_of(QUERY))
        await selector.select(replace(task(budget=4), candidates=given))
        assert {entry.document for entry in (await cache.recall("seeded", QUERY)).values()} == {None}
        await selector.select(replace(task(budget=4), query="by index"))
        assert len({entry.document for entry in (await cache.recall("seeded", "by index")).values()} - {None}) == 4
        await selector.close()

    async def test_one_that_the_caller_gives_takes_no_call_s_place(self) -> None:
        documents = [Document(id, id) for id in IDS]
        given = GivenCandidates(documents, [vector_of(id) for id in IDS], vector_of(QUERY))
        selector = Selector(FakeRetriever(), CachingScorer(SeededScorer(), MemoryScoreCache()))
        first = await selector.select(replace(task(budget=4), candidates=given))
        scored = [first.pool.ids[observation.document] for observation in first.history]
        given = replace(given, known={id: score_of(QUERY, id) for id in scored[:3]})
        again = await selector.select(replace(task(budget=4), candidates=given))
        assert (again.reused, len(again.history)) == (1, 3)
        await selector.close()

    @pytest.mark.parametrize(("reuse", "looks"), [(True, (1, 0)), (False, (0, 3))])
    async def test_what_is_known_is_looked_up_once(self, reuse: bool, looks: tuple[int, int]) -> None:
        """Else each round would wait for the cache, and one that hangs hold up all of them."""
        cache, scorer = CountingCache(), SeededScorer()
        selector = Selector(FakeRetriever(), CachingScorer(scorer, cache))
        result = await selector.select(replace(task(budget=6, batch_size=2), reuse=reuse))
        assert (len(scorer.rounds), len(result.history)) == (3, 6)
        assert (cache.recalls, cache.reads) == looks
        await selector.close()


async def test_a_scorer_that_fails_fails_the_task() -> None:
    class Failing(SeededScorer):
        async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
            raise ConnectionError("the scorer is away")

    selector = Selector(FakeRetriever(), Failing())
    with pytest.raises(ConnectionError):
        await selector.select(task())
    await selector.close()


async def test_tasks_side_by_side_do_not_mix() -> None:
    selector = Selector(FakeRetriever(), SeededScorer())
    alone = [await selector.select(task(budget=budget)) for budget in range(8)]
    together = await asyncio.gather(*(selector.select(task(budget=budget)) for budget in range(8)))
    for one, other in zip(alone, together, strict=True):
        assert list(one.history) == list(other.history)
        np.testing.assert_array_equal(one.selection.documents, other.selection.documents)
    await selector.close()


@pytest.mark.parametrize("as_lists", [False, True])
async def test_the_event_loop_goes_on_while_a_large_pool_is_worked_on(as_lists: bool) -> None:
    count, dimension = 10_000, 512
    vectors = np.random.default_rng(1).standard_normal((count, dimension)).astype(np.float32)
    embeddings = vectors.tolist() if as_lists else vectors
    candidates = GivenCandidates([Document(str(i), str(i)) for i in range(count)], embeddings, vectors[0])
    selector = Selector(FakeRetriever(), SeededScorer())
    loop = asyncio.get_running_loop()
    ticks = [loop.time()]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.001)
            ticks.append(loop.time())

    ticking = asyncio.create_task(tick())
    result = await selector.select(SelectionTask(QUERY, candidates, 80, 50))
    ticks.append(loop.time())
    ticking.cancel()
    assert len(result.history) == 80
    assert max(np.diff(ticks)) < (ticks[-1] - ticks[0]) / 2
    await selector.close()
