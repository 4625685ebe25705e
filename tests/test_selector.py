"""The hall, with fakes in all rooms: its order, its clock, cancellation, and what is deleted on the way."""

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import UnknownIndex
from boundarymorph.retrieval.candidates import GivenCandidates, IndexedCandidates
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.retriever import Retrieved
from boundarymorph.scoring.scorer import Scores
from boundarymorph.selection import Pool
from boundarymorph.selector import SelectionTask, Selector
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

    async def retrieve(self, index: str, query: str, depth: int, query_embedding: ArrayLike | None = None) -> Retrieved:
        self.clock.now += 3
        return Retrieved(Pool.of(IDS[:depth], np.array([vector_of(id) for id in IDS[:depth]]), vector_of(query)))

    async def documents(self, index: str, ids: Sequence[str]) -> Mapping[str, Document]:
        self.clock.now += 0.5
        self.fetched += ids
        return {id: Document(id, id) for id in ids if id not in self.gone}

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        return {id: len(id) for id in ids}

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
        assert len(result.history) == sum(map(len, scorer.rounds)) < 8
        assert any("deleted" in warning for warning in result.warnings)
        await selector.close()

    async def test_all(self) -> None:
        retriever, scorer = FakeRetriever(), SeededScorer()
        retriever.gone |= set(IDS)
        selector = Selector(retriever, scorer)
        result = await selector.select(task(budget=30, k=29, batch_size=7))
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
