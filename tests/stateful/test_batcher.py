"""A batcher with a scripted model, in virtual time: each request has exactly one outcome, the right one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from boundarymorph.errors import DeadlineExceeded, LimitExceeded, Overloaded, ScorerFailed, ScorerUnavailable
from boundarymorph.inference import batching
from boundarymorph.inference.batching import Batcher
from boundarymorph.inference.models import DeviceLost, OutOfMemory, Results, TokenSequence
from boundarymorph.scoring.scorer import SCORER
from tests.clocks import StoppedLoop
from tests.stateful.profile import draws

MOST_WAITING = 24  # tokens
BATCH = 11
LONGEST = 6
NONSENSE: dict[str, Any] = {
    "nothing": None,
    "a list": [0.5],
    "too few": np.empty(0),
    "words": np.array(["x"]),
}


@dataclass(eq=False)
class Batch:
    """What the model was given, and what it shall do."""

    pairs: Sequence[TokenSequence]
    verdict: str = ""
    given: threading.Event = field(default_factory=threading.Event)


class ObedientModel:
    """A model that waits at each batch to be told what to do. A pair's score is drawn from its first id."""

    name, backend = "obedient", "test"
    max_length, batch_tokens, parallel = LONGEST, BATCH, False

    def __init__(self, workers: int, pads: bool) -> None:
        self.workers, self.pads = workers, pads
        self.waiting: list[Batch] = []

    def run(self, pairs: Sequence[TokenSequence]) -> NDArray[np.float64]:
        batch = Batch(pairs)
        self.waiting.append(batch)
        batch.given.wait()
        match batch.verdict:
            case "out of memory":
                raise OutOfMemory
            case "lost":
                raise DeviceLost("struck")
            case "broken":
                raise ZeroDivisionError
            case "nan":
                return np.full(len(pairs), np.nan)
            case nonsense if nonsense in NONSENSE:
                answer: NDArray[np.float64] = NONSENSE[nonsense]
                return answer
        return np.array([score_of(int(pair.ids[0])) for pair in pairs])

    def close(self) -> None:
        pass


def score_of(number: int) -> float:
    return (number * 0.618) % 1


@dataclass(eq=False)
class Request:
    """numbers: of its pairs; failed: whether one of them was refused alone."""

    task: asyncio.Task[Results]
    numbers: list[int]
    deadline: float | None
    seen: bool = False
    failed: bool = False
    cancelled: bool = False


class Batches(Batcher[Any]):
    role = SCORER


class BatcherMachine(RuleBasedStateMachine):
    @initialize(workers=st.integers(1, 2), pads=st.booleans())
    def begin(self, workers: int, pads: bool) -> None:
        self.loop = StoppedLoop()
        self.model = ObedientModel(workers, pads)
        self.lost = 0
        self.batcher: Batcher[Any] = Batches(
            self.model,
            queue_tokens=MOST_WAITING,
            patience=30,
            on_lost=self.on_lost,
            clock=self.loop.time,
        )
        self.requests: list[Request] = []
        self.count = 0
        self.settle()

    def on_lost(self) -> None:
        self.lost += 1

    def settle(self) -> None:
        """Until all threads wait: for something to do, or to be told what."""
        for _ in range(10_000):
            for _ in range(5):
                self.loop.run_until_complete(asyncio.sleep(0))
            with self.batcher._changed:
                told = [batch for batch in self.model.waiting if batch.given.is_set()]
                idle = self.batcher.idle + len(self.model.waiting) == self.model.workers and not told
                waits = self.batcher._queue and self.batcher.idle
                if idle and not waits and not self.batcher._tokenizing:
                    break
            time.sleep(0.0005)
        else:
            raise AssertionError("a thread of the batcher is gone or hangs")
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))

    @rule(
        lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=5),
        seconds=st.sampled_from([None, None, -1, 2, 20, 100]),
    )
    def submit(self, lengths: list[int], seconds: int | None) -> None:
        numbers = list(range(self.count, self.count + len(lengths)))
        self.count += len(lengths)
        deadline = None if seconds is None else self.loop.now + seconds
        pairs = [
            TokenSequence(np.array([number] * length), False) for number, length in zip(numbers, lengths, strict=True)
        ]
        alone = self.batcher.waiting() == (0, 0)
        task = self.loop.create_task(
            self.batcher.run(lambda: pairs, [4 * length for length in lengths], deadline=deadline)
        )
        self.requests.append(Request(task, numbers, deadline))
        self.settle()
        if alone and not self.lost and task.done():
            fits = sum(lengths) <= MOST_WAITING
            assert isinstance(task.exception(), DeadlineExceeded if seconds == -1 and fits else LimitExceeded)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        live = [request for request in self.requests if not request.task.done()]
        if live:
            request = data.draw(st.sampled_from(live))
            request.cancelled = True
            request.task.cancel()
            self.settle()

    @rule(seconds=st.sampled_from([1, 10, 50]))
    def wait(self, seconds: int) -> None:
        self.loop.now += seconds
        self.settle()

    @precondition(lambda self: self.model.waiting)
    @rule(verdict=st.sampled_from(["good"] * 8 + ["out of memory"] * 2 + ["broken", "nan", *NONSENSE]), data=st.data())
    def answer(self, verdict: str, data: st.DataObject) -> None:
        """A batch is answered, and comes in halves again if that cannot be used."""
        self.tell(data.draw(st.sampled_from(self.model.waiting)), verdict)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if data.draw(st.integers(0, 4)) == 0:  # seldom, since nothing much happens after that
            self.tell(data.draw(st.sampled_from(self.model.waiting)), "lost")
            assert self.lost == 1
            assert self.batcher.waiting() == (0, 0)

    def tell(self, batch: Batch, verdict: str) -> None:
        self.model.waiting.remove(batch)
        if verdict not in ("good", "lost") and len(batch.pairs) == 1:
            for request in self.requests:
                request.failed |= int(batch.pairs[0].ids[0]) in request.numbers
        size = self.batcher.batch_tokens
        batch.verdict = verdict
        batch.given.set()
        self.settle()
        assert verdict != "out of memory" or self.batcher.batch_tokens <= size

    def settle_tasks(self) -> None:
        async def all_over() -> None:
            await asyncio.gather(*(one.task for one in self.requests), return_exceptions=True)

        self.loop.run_until_complete(all_over())

    @invariant()
    def each_request_has_the_right_outcome(self) -> None:
        for request in getattr(self, "requests", []):
            if request.deadline is not None and request.deadline <= self.loop.now:
                assert request.task.done()
            if not request.task.done() or request.seen:
                continue
            request.seen = True
            if request.task.cancelled():
                assert request.cancelled
                continue
            match request.task.exception():
                case None:
                    assert not request.failed
                    expected = [score_of(number) for number in request.numbers]
                    assert request.task.result().values.tolist() == expected
                case DeadlineExceeded():
                    assert request.deadline is not None and request.deadline <= self.loop.now
                case ScorerFailed():
                    assert request.failed
                case ScorerUnavailable():
                    assert self.lost
                case error:
                    assert isinstance(error, Overloaded | LimitExceeded)

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "batcher"):
            return
        pairs, tokens = self.batcher.waiting()
        assert tokens <= MOST_WAITING
        assert (pairs == 0) == (tokens == 0)
        for batch in self.model.waiting:
            lengths = [len(pair) for pair in batch.pairs]
            cost = max(lengths) * len(lengths) if self.model.pads else sum(lengths)
            assert len(lengths) == 1 or cost <= BATCH
        if all(request.task.done() for request in self.requests):
            assert (pairs, tokens) == (0, 0)

    def teardown(self) -> None:
        if not hasattr(self, "batcher"):
            return
        try:
            while self.model.waiting and not self.lost:
                self.tell(self.model.waiting[0], "good")
            self.each_request_has_the_right_outcome()
            assert all(request.task.done() for request in self.requests)
        finally:
            closing = self.loop.create_task(self.batcher.close())
            while not closing.done():
                for batch in self.model.waiting:
                    batch.given.set()
                self.loop.run_until_complete(asyncio.sleep(0))
                time.sleep(0.0005)
            for request in self.requests:
                request.task.cancel()
            self.settle_tasks()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


@pytest.fixture(scope="module", autouse=True)
def _soon() -> Iterator[None]:
    """Batches grow again soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "GROW_AFTER", 3)
        yield


TestBatcher = BatcherMachine.TestCase
TestBatcher.settings = draws(25, 30)
