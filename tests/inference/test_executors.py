"""Test threads that callers share."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from boundarymorph.inference import concurrency
from boundarymorph.inference.concurrency import FairExecutor, compute_slot
from tests.patience import PATIENCE, until_async


class Busy:
    """Calls of several callers, which end when the test says so."""

    def __init__(self, executor: FairExecutor) -> None:
        self.executor = executor
        self.begun: list[str] = []
        self.goes_on = threading.Event()

    def call(self, caller: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.executor.run(self._block, caller, caller=caller))

    def _block(self, caller: str) -> None:
        self.begun.append(caller)
        assert self.goes_on.wait(PATIENCE)


@pytest.fixture
async def busy() -> AsyncIterator[Busy]:
    busy = Busy(FairExecutor("read", threads=4, share=0.75))
    yield busy
    busy.goes_on.set()
    await busy.executor.close()


async def test_executor_keeps_a_thread_free_for_another_caller(busy: Busy) -> None:
    greedy = [busy.call("greedy") for _ in range(12)]
    await until_async(lambda: len(busy.begun) == 3)
    modest = busy.call("modest")
    await until_async(lambda: busy.begun[-1] == "modest")
    busy.goes_on.set()
    await asyncio.gather(modest, *greedy)


async def test_executor_serves_the_caller_with_the_fewest_turns_next(busy: Busy) -> None:
    calls = [busy.call(caller) for caller in ("greedy",) * 12 + ("other",)]
    await until_async(lambda: len(busy.begun) == 4)
    calls += [busy.call("third"), busy.call("greedy")]
    await asyncio.sleep(0.01)
    busy.goes_on.set()
    await asyncio.gather(*calls)
    assert busy.begun[4] == "third"


async def test_cancelled_call_holds_its_thread_until_it_ends(busy: Busy) -> None:
    calls = [busy.call("greedy") for _ in range(4)]
    await until_async(lambda: len(busy.begun) == 3)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    later = busy.call("greedy")
    await asyncio.sleep(0.01)
    assert len(busy.begun) == 3, "three threads are still busy, and the fourth call has not begun"
    busy.goes_on.set()
    await later


class TestComputing:
    """The limit on computing threads, on two cores."""

    @pytest.fixture(autouse=True)
    def _two(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(concurrency, "_cores", threading.Semaphore(2))

    def test_computing_admits_as_many_threads_as_cores(self) -> None:
        inside, most, lock = 0, 0, threading.Lock()

        def work() -> None:
            nonlocal inside, most
            for _ in range(20):
                with compute_slot():
                    with lock:
                        inside += 1
                        most = max(most, inside)
                    time.sleep(1e-4)
                    with lock:
                        inside -= 1

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(work) for _ in range(8)]:
                done.result(PATIENCE)
        assert most == 2

    def test_computing_admits_others_after_waiting_for_hung_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(concurrency, "PATIENCE", 0.01)
        with compute_slot(), compute_slot():
            for _ in range(3):
                with compute_slot():
                    pass
            assert not concurrency._cores.acquire(blocking=False)  # no core is released twice
        for _ in range(2):
            assert concurrency._cores.acquire(blocking=False)
