"""Test batches across requests: order, admission, deadlines, memory, and a lost device."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from boundarymorph.errors import (
    DeadlineExceeded,
    LimitExceeded,
    Overloaded,
    ScorerFailed,
    ScorerUnavailable,
    TextTooLong,
)
from boundarymorph.inference.batching import GROW_AFTER
from boundarymorph.inference.models import TokenSequence
from boundarymorph.scoring.scorer import BatchingScorer
from tests import metrics
from tests.contract.scorer import ScorerContract
from tests.fakes.scorer import SeededCrossEncoder, score_of
from tests.patience import until_async

LABELS = {"model": "seeded", "backend": "test"}


def metric(name: str, **labels: str) -> float:
    return metrics.counted(f"boundarymorph_scorer_{name}", **(LABELS | labels))


def start_scoring(scorer: BatchingScorer, query: str, *texts: str, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(scorer.score(query, texts, **options))


async def await_queued(scorer: BatchingScorer, pairs: int) -> None:
    await until_async(lambda: scorer.waiting()[0] == pairs)


def hold_tokenizer(model: SeededCrossEncoder, query: str = "slow") -> threading.Event:
    """Delay the tokenization of a query's texts until the returned event is set."""
    tokenize, may_go_on = model.tokenize, threading.Event()

    def held(asked: str, texts: Sequence[str], instruction: str | None = None) -> list[TokenSequence]:
        assert asked != query or may_go_on.wait(10)
        return tokenize(asked, texts, instruction)

    model.tokenize = held  # type: ignore[method-assign, assignment]
    return may_go_on


class Bench:
    """A scorer whose model waits while requests gather behind a first one."""

    def __init__(self, **options: Any) -> None:
        scorer_options = {
            name: options.pop(name) for name in ("queue_tokens", "patience", "on_lost") if name in options
        }
        self.model = SeededCrossEncoder(open=False, **options)
        self.scorer = BatchingScorer(self.model, **scorer_options)

    async def queue(self, query: str, *texts: str, **options: Any) -> asyncio.Task[Any]:
        """Start a request that waits behind the first one."""
        before = self.scorer.waiting()[0]
        task = start_scoring(self.scorer, query, *texts, **options)
        await await_queued(self.scorer, before + len(texts))
        return task

    async def release(self, *tasks: asyncio.Task[Any]) -> None:
        self.model.open.set()
        await asyncio.gather(*tasks)

    async def __aenter__(self) -> "Bench":
        self.first = start_scoring(self.scorer, "first", "first")
        await until_async(lambda: len(self.model.batches) == 1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.model.open.set()
        await asyncio.gather(self.first, return_exceptions=True)
        await self.scorer.close()


@pytest.mark.parametrize("pads", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
class TestContract(ScorerContract):
    @pytest.fixture
    async def scorer(self, pads: bool, workers: int) -> AsyncIterator[BatchingScorer]:
        scorer = BatchingScorer(SeededCrossEncoder(pads=pads, workers=workers))
        yield scorer
        await scorer.close()

    async def test_concurrent_requests_get_their_own_scores(self, scorer: BatchingScorer) -> None:
        requests = [(f"query {n}", [f"text {n} {m}" + "x" * (n * m % 50) for m in range(n % 7)]) for n in range(60)]
        answers = await asyncio.gather(*(scorer.score(query, texts) for query, texts in requests))
        for (query, texts), scores in zip(requests, answers, strict=True):
            assert scores.values.tolist() == [score_of(query, text) for text in texts]


class TestBatches:
    async def test_batches_combine_pairs_of_several_requests(self) -> None:
        async with Bench(batch_tokens=50) as bench:
            tasks = [start_scoring(bench.scorer, f"query {n}", "x" * 10, "y" * 10) for n in range(4)]
            await await_queued(bench.scorer, 8)
            await bench.release(*tasks)
            assert [len(batch) for batch in bench.model.batches] == [1, 5, 3]

    async def test_batches_take_the_earliest_deadline_first(self) -> None:
        async with Bench(batch_tokens=1, patience=30) as bench:
            now = time.monotonic()
            tasks = []
            for number, deadline in enumerate((None, now + 50, now + 5, now + 20)):
                tasks.append(await bench.queue("q", f"{number}", deadline=deadline))
            await bench.release(*tasks)
            assert bench.model.batches[1:] == [["2"], ["3"], ["0"], ["1"]]

    async def test_short_request_overtakes_a_long_one(self) -> None:
        async with Bench(batch_tokens=1) as bench:
            bench.scorer.token_seconds = 0.01
            long = await bench.queue("q", *["long text"] * 50)
            short = await bench.queue("q", "short text")
            await bench.release(long, short)
            assert bench.model.batches[1] == ["short text"]

    async def test_equal_requests_are_finished_one_after_another(self) -> None:
        """If they took turns, all of them would end late."""
        async with Bench(batch_tokens=1) as bench:
            bench.scorer.token_seconds = 0.01
            tasks = []
            for number in range(3):
                tasks.append(await bench.queue("q", *[f"of {number}"] * 4))
            await bench.release(*tasks)
            assert bench.model.batches[1:] == [[f"of {number}"] for number in range(3) for _ in range(4)]

    @pytest.mark.parametrize(("parallel", "batches"), [(True, [1, 1, 2, 2, 2]), (False, [1, 1, 1, 6])])
    async def test_idle_workers_share_the_waiting_pairs(self, parallel: bool, batches: list[int]) -> None:
        model = SeededCrossEncoder(workers=3, parallel=parallel, batch_tokens=60, open=False)
        scorer = BatchingScorer(model)
        for number in range(2 if parallel else 3):
            start_scoring(scorer, "q", f"{number}")
            await until_async(lambda number=number: len(model.batches) == number + 1)  # type: ignore[misc]
        model.open.set()
        await until_async(lambda: scorer.idle == 3)
        model.open.clear()
        task = start_scoring(scorer, "q", *["x" * 10] * 6)
        await until_async(lambda: scorer.waiting()[0] == 0 and len(model.batches) == len(batches))
        assert sorted(map(len, model.batches)) == batches
        model.open.set()
        await task
        await scorer.close()


class TestQueueAdmission:
    async def test_request_over_the_queue_limit_is_refused_whole(self) -> None:
        async with Bench(queue_tokens=30) as bench:
            refused = metric("refused_requests_total")
            kept = await bench.queue("q", "x" * 10, "y" * 10)
            with pytest.raises(Overloaded) as error:
                await bench.scorer.score("q", ["z" * 10, "z"])
            assert error.value.retry_after >= 1
            with pytest.raises(LimitExceeded, match="30 tokens"):
                await bench.scorer.score("q", ["x" * 31])
            assert bench.scorer.waiting() == (2, 20)
            at_the_edge = await bench.queue("q", "z" * 10)
            assert metric("refused_requests_total") == refused + 1
            bench.model.open.set()
            assert len((await kept).values) == 2
            await at_the_edge

    async def test_request_that_would_miss_its_deadline_is_refused(self) -> None:
        async with Bench() as bench:
            bench.scorer.token_seconds = 1.0
            kept = await bench.queue("q", "x" * 10, deadline=time.monotonic() + 12)
            with pytest.raises(Overloaded) as error:
                await bench.scorer.score("q", ["y" * 10], deadline=time.monotonic() + 15)
            assert 4 <= error.value.retry_after <= 6
            alive = await bench.queue("q", "y" * 10, deadline=time.monotonic() + 25)
            await bench.release(kept, alive)

    async def test_less_urgent_request_delays_no_urgent_one(self) -> None:
        async with Bench(batch_tokens=1) as bench:
            bench.scorer.token_seconds = 0.01
            patient = await bench.queue("q", *["x" * 100] * 10)
            urgent = await bench.queue("q", "y" * 7, deadline=time.monotonic() + 5)
            bench.model.open.set()
            assert (await urgent).values.tolist() == [score_of("q", "y" * 7)]
            await patient
            assert bench.model.batches[1] == ["y" * 7]

    async def test_text_being_tokenized_counts_in_queue_and_wait(self) -> None:
        async with Bench(queue_tokens=120) as bench:
            may_go_on = hold_tokenizer(bench.model)
            slow = start_scoring(bench.scorer, "slow", "x" * 400, deadline=time.monotonic() + 20)
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await bench.scorer.score("q", ["y" * 100])
            bench.scorer.token_seconds = 1.0
            with pytest.raises(Overloaded):
                await bench.scorer.score("q", ["y" * 8], deadline=time.monotonic() + 50)
            bench.scorer.token_seconds = 0.0
            may_go_on.set()
            await bench.release(slow)

    async def test_deadline_ends_the_wait_for_the_tokenizer(self) -> None:
        scorer = BatchingScorer(model := SeededCrossEncoder())
        may_go_on = hold_tokenizer(model)
        with pytest.raises(DeadlineExceeded):
            await scorer.score("slow", ["text"], deadline=time.monotonic() + 0.05)
        assert not may_go_on.is_set()
        assert (await scorer.score("q", ["next"])).values.tolist() == [score_of("q", "next")]
        may_go_on.set()
        await scorer.close()
        assert model.batches == [["next"]]

    async def test_long_text_is_refused_if_truncation_is_off(self) -> None:
        scorer = BatchingScorer(model := SeededCrossEncoder())
        with pytest.raises(TextTooLong, match=r"text 1 .*100 tokens"):
            await scorer.score("q", ["short", "x" * 101], truncate=False)
        assert model.batches == []
        assert (await scorer.score("q", ["short", "x" * 101])).truncated == 1
        await scorer.score("q", ["x" * 100], truncate=False)
        await scorer.close()


class TestCancellation:
    async def test_pairs_of_a_cancelled_request_never_reach_the_model(self) -> None:
        async with Bench(batch_tokens=1) as bench:
            dropped = metric("dropped_pairs_total", reason="cancelled")
            leaving, staying = (
                await bench.queue("q", "leaving", "leaving too"),
                start_scoring(bench.scorer, "q", "staying"),
            )
            leaving.cancel()
            await await_queued(bench.scorer, 1)
            assert metric("dropped_pairs_total", reason="cancelled") == dropped + 2
            await bench.release(staying)
            assert bench.model.batches == [["first"], ["staying"]]

    async def test_request_past_its_deadline_leaves_the_queue(self) -> None:
        async with Bench(batch_tokens=1) as bench:
            with pytest.raises(DeadlineExceeded):
                await bench.scorer.score("q", ["late"], deadline=time.monotonic() + 0.02)
            with pytest.raises(DeadlineExceeded):
                await bench.scorer.score("q", ["too late"], deadline=time.monotonic() - 1)
            assert bench.scorer.waiting() == (0, 0)
            bench.model.open.set()
            await bench.scorer.score("q", ["next"])
            assert bench.model.batches == [["first"], ["next"]]

    async def test_close_fails_waiting_requests(self) -> None:
        model = SeededCrossEncoder(open=False, batch_tokens=1)
        scorer = BatchingScorer(model)
        running = start_scoring(scorer, "q", "running")
        await until_async(lambda: model.batches == [["running"]])
        waiting = start_scoring(scorer, "q", "waiting")
        await await_queued(scorer, 1)
        closing = asyncio.create_task(scorer.close())
        with pytest.raises(ScorerUnavailable, match="shutting down"):
            await waiting
        model.open.set()
        await closing
        assert (await running).values.tolist() == [score_of("q", "running")]
        assert model.closed
        with pytest.raises(RuntimeError):
            await scorer.score("q", ["after"])

    async def test_close_fails_a_request_being_tokenized(self) -> None:
        scorer = BatchingScorer(model := SeededCrossEncoder())
        may_go_on = hold_tokenizer(model)
        task = start_scoring(scorer, "slow", "text")
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(scorer.close())
        await asyncio.sleep(0.01)
        may_go_on.set()
        with pytest.raises(ScorerUnavailable, match="shutting down"):
            await task
        await closing


class TestFailures:
    @pytest.mark.parametrize(
        ("nonsense", "message"),
        [
            (None, "gave NoneType, not numbers, as scores"),
            (np.array(["0.5"]), "gave ndarray, not numbers"),
            (np.array(0.5), r"gave \(\) scores for 1 pairs"),
            (np.array([0.5, 0.5]), r"gave \(2,\) scores for 1 pairs"),
            (np.array([np.nan]), "nan or inf"),
        ],
    )
    async def test_malformed_model_output_fails_only_its_request(
        self, monkeypatch: Any, nonsense: object, message: str
    ) -> None:
        async with Bench(batch_tokens=1_000) as bench:
            run = bench.model.run

            def sometimes(pairs: Sequence[TokenSequence]) -> Any:
                return nonsense if any(bench.model.asked[pair][0] == "nonsense" for pair in pairs) else run(pairs)

            monkeypatch.setattr(bench.model, "run", sometimes)
            requests = [start_scoring(bench.scorer, "nonsense", "a"), start_scoring(bench.scorer, "q", "b", "c")]
            await await_queued(bench.scorer, 3)
            bench.model.open.set()
            with pytest.raises(ScorerFailed, match=message):
                await requests[0]
            assert (await requests[1]).values.tolist() == [score_of("q", "b"), score_of("q", "c")]
            assert (await bench.scorer.score("q", ["d"])).values.tolist() == [score_of("q", "d")]

    @pytest.mark.parametrize("where", ["batch_tokens", "wait_seconds"])
    async def test_worker_thread_that_ends_fails_all_requests(self, monkeypatch: Any, where: str) -> None:
        """Present and later requests fail, and the process is notified."""
        calls: list[None] = []

        def broken(amount: float) -> None:
            raise SystemExit(f"no {where}")

        async with Bench(batch_tokens=1, on_lost=lambda: calls.append(None)) as bench:
            monkeypatch.setattr(getattr(bench.scorer._metrics, where), "observe", broken)
            requests = [start_scoring(bench.scorer, "q", "a", "b"), start_scoring(bench.scorer, "q", "c")]
            await await_queued(bench.scorer, 3)
            bench.model.open.set()
            for error in await asyncio.gather(*requests, return_exceptions=True):
                assert isinstance(error, ScorerUnavailable)
            with pytest.raises(ScorerUnavailable, match=r"a thread of the scorer has ended \(SystemExit\)"):
                await bench.scorer.score("q", ["later"])
            assert calls == [None]
            assert bench.scorer.waiting() == (0, 0)

    async def test_out_of_memory_halves_the_batch(self) -> None:
        model = SeededCrossEncoder(batch_tokens=80, memory=25)
        scorer = BatchingScorer(model)
        before = metric("out_of_memory_total")
        texts = [f"{number:10}" for number in range(8)]
        assert (await scorer.score("q", texts)).values.tolist() == [score_of("q", text) for text in texts]
        assert [len(batch) for batch in model.batches] == [8, 4, 2, 2, 4, 2, 2]
        assert metric("out_of_memory_total") == before + 3
        await scorer.close()

    async def test_batches_grow_again_after_several_fit(self) -> None:
        model = SeededCrossEncoder(batch_tokens=400, memory=200)
        scorer = BatchingScorer(model)
        await scorer.score("q", ["x" * 50] * 8)
        assert scorer.batch_tokens == 200
        for _ in range(GROW_AFTER - 3):  # two batches have succeeded already
            await scorer.score("q", ["x"])
        assert scorer.batch_tokens == 200
        await scorer.score("q", ["x"])
        assert scorer.batch_tokens == 400
        await scorer.score("q", ["x" * 50] * 8)
        assert scorer.batch_tokens == 200
        await scorer.close()

    async def test_single_pair_model_keeps_single_pairs_after_a_failure(self) -> None:
        model = SeededCrossEncoder(batch_tokens=1, memory=25)
        scorer = BatchingScorer(model)
        with pytest.raises(ScorerFailed, match="single pair of 30 tokens"):
            await scorer.score("q", ["x" * 30])
        await scorer.score("q", ["a", "b", "c"])
        assert list(map(len, model.batches)) == [1, 1, 1, 1]
        assert scorer.batch_tokens == 1
        await scorer.close()

    async def test_pair_that_breaks_a_batch_fails_only_its_request(self) -> None:
        async with Bench(batch_tokens=1_000) as bench:
            requests = [
                start_scoring(bench.scorer, "q", "good", "poison"),
                start_scoring(bench.scorer, "q", "good", "better"),
            ]
            await await_queued(bench.scorer, 4)
            bench.model.open.set()
            with pytest.raises(ScorerFailed, match="seeded fails on a pair") as error:
                await requests[0]
            assert isinstance(error.value.__cause__, ZeroDivisionError)
            assert (await requests[1]).values.tolist() == [score_of("q", "good"), score_of("q", "better")]

    async def test_lost_device_fails_all_requests_and_is_reported_once(self) -> None:
        calls: list[None] = []
        async with Bench(batch_tokens=1, on_lost=lambda: calls.append(None)) as bench:
            requests = [
                start_scoring(bench.scorer, "q", "lightning", "more"),
                start_scoring(bench.scorer, "q", "bystander"),
            ]
            await await_queued(bench.scorer, 3)
            bench.model.open.set()
            for error in await asyncio.gather(*requests, return_exceptions=True):
                assert isinstance(error, ScorerUnavailable)
            with pytest.raises(ScorerUnavailable, match="struck"):
                await bench.scorer.score("q", ["later"])
            assert calls == [None]


class TestMetrics:
    async def test_batch_metrics_count_pairs_tokens_and_padding(self) -> None:
        names = ("batch_pairs_sum", "batch_tokens_sum", "batch_padding_ratio_sum", "truncated_pairs_total")
        counts = ("wait_seconds_count", "tokenize_seconds_count", "compute_seconds_count")
        async with Bench(pads=True, batch_tokens=400) as bench:
            bench.model.open.set()
            await bench.first
            before = {name: metric(name) for name in (*names, *counts)}
            await bench.scorer.score("q", ["x" * 50, "x" * 150])
            added = {name: metric(name) - before[name] for name in before}
        assert [added[name] for name in names] == pytest.approx([2, 150, 0.25, 1])  # sums of floats since the start
        assert [added[name] for name in counts] == [2, 1, 1]


class TestCallers:
    async def test_caller_leaves_room_in_the_queue_for_another(self) -> None:
        """The share is three quarters of 400 tokens, besides those in the model."""
        model = SeededCrossEncoder(open=False)
        scorer = BatchingScorer(model, queue_tokens=400, share=0.75)

        async def on_behalf(caller: str, texts: list[str]) -> Any:
            return await scorer.score("q", texts, caller=caller)

        try:
            running = asyncio.create_task(on_behalf("greedy", ["r" * 50]))
            await until_async(lambda: len(model.batches) == 1)
            waiting = [asyncio.create_task(on_behalf("greedy", [letter * 50])) for letter in "abcdef"]
            await await_queued(scorer, 6)
            with pytest.raises(Overloaded):
                await on_behalf("greedy", ["g" * 10])
            modest = asyncio.create_task(on_behalf("modest", ["m" * 50]))
            await await_queued(scorer, 7)
            model.open.set()
            await asyncio.gather(running, modest, *waiting)
            assert ["m" * 50] in model.batches[1:3], "it is among the next two"
        finally:
            model.open.set()
            await scorer.close()
