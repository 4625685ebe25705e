"""Test the admission of requests: bounds, turns, fairness, and callers that stop waiting."""

import asyncio
import random
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from boundarymorph.access.admission import Admission
from boundarymorph.access.limits import Access
from boundarymorph.errors import Overloaded
from boundarymorph.settings import Limits, Settings
from tests import metrics
from tests.clocks import Clock


class QueuedRequests:
    """Requests that record the order of their turns and leave when the test says so."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.order: list[str] = []
        self.done: dict[str, asyncio.Event] = {}

    def send(self, name: str, caller: str = "a", *, deadline: float | None = None) -> asyncio.Task[None]:
        self.done[name] = asyncio.Event()

        async def visit() -> None:
            async with self.admission.turn(caller, deadline=deadline):
                self.order.append(name)
                await self.done[name].wait()

        return asyncio.create_task(visit())

    async def leave(self, *names: str) -> None:
        for name in names:
            self.done[name].set()
            await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("running", "come", "leave", "order"),
    [
        (1, "a0 a1 a2 a3 a4", "a0 a1 a2 a3 a4", "a0 a1 a2 a3 a4"),  # among equals the first comes first
        (2, "a1 a2 a3 a4 b1", "a1 a2 b1 a3 a4", "a1 a2 b1 a3 a4"),  # a busy caller lets others pass
        (1, "a1 a2 a3 b1 b2", "a1 b1 a2 b2 a3", "a1 b1 a2 b2 a3"),  # callers take turns in any order of arrival
        # The caller with fewer running requests is next, even if its last turn was later.
        (2, "a1 c1 b1 a2 b2", "c1 b1 a1 b2 a2", "a1 c1 b1 b2 a2"),
    ],
)
async def test_admission_gives_turns_in_fair_order(running: int, come: str, leave: str, order: str) -> None:
    visitors = QueuedRequests(Admission(running=running))
    for name in come.split():
        visitors.send(name, name[0])
        await settle()
    await visitors.leave(*leave.split())
    assert visitors.order == order.split()


async def test_admission_expects_a_turn_to_take_as_long_as_recent_turns() -> None:
    """The first estimate is one second; a turn of 11 seconds moves it by a tenth, to 2."""
    clock = Clock()
    visitors = QueuedRequests(Admission(running=1, clock=clock))
    slow = visitors.send("slow")
    await settle()
    clock.now += 11
    await visitors.leave("slow")
    await slow
    visitors.send("running")
    await settle()
    for seconds, refused in ((3.99, True), (4.0, False)):
        task = visitors.send(str(seconds), deadline=clock.now + seconds)
        await settle()
        assert task.done() == refused
        task.exception() if refused else task.cancel()
    await settle()
    await visitors.leave("running")


@pytest.mark.parametrize(
    ("admission", "there", "comes", "seconds"),
    [
        ({"running": 2}, "a0 a1 a2 a3 a4", "a5", 2.0),  # two run and three wait
        # Requests of another caller cause no refusal: the caller's first request is next, and its second is third.
        ({"running": 1}, "a0 a1 a2 a3 a4 a5 a6 a7 a8", "b1", 1.0),
        ({"running": 1}, "a0 a1 a2 a3 a4 a5 a6 a7 a8 b1", "b2", 3.0),
        # Callers with as many running requests may come first: one of three waits, and turns take half a second.
        ({"running": 2}, "a1 b1 a2 a3 a4", "b2", 1.0),
        ({"running": 4, "share": 0.75}, "a0 a1 a2 a3 a4", "a5", 1.0),  # three turns are its own, and two wait for them
    ],
)
@pytest.mark.parametrize("refused", [True, False])
async def test_request_that_would_wait_half_its_time_is_refused_at_once(
    admission: dict[str, Any], there: str, comes: str, seconds: float, refused: bool
) -> None:
    """`seconds` is the expected wait, where each turn takes one second."""
    clock = Clock()
    visitors = QueuedRequests(Admission(clock=clock, **admission))
    for name in there.split():
        visitors.send(name, name[0])
        await settle()
    task = visitors.send(comes, comes[0], deadline=clock.now + 2 * seconds - 0.01 * refused)
    await settle()
    assert task.done() == refused
    if refused:
        with pytest.raises(Overloaded, match=rf"in about {seconds:.1f} s, too late") as error:
            await task
        assert error.value.retry_after == seconds


@pytest.mark.parametrize("ago", [0, 0.1])
async def test_request_whose_deadline_passed_gets_a_free_turn(ago: float) -> None:
    """A turn is free, so admission does not refuse; the deadline is checked later."""

    def refused(reason: str) -> float:
        return metrics.counted("boundarymorph_requests_refused_total", reason=reason)

    too_late, deadline = refused("too_late"), refused("deadline")
    clock = Clock()
    visitors = QueuedRequests(Admission(running=1, clock=clock))
    late = visitors.send("late", deadline=clock.now - ago)
    await settle()
    assert late.done()
    with pytest.raises(Overloaded, match="before the request was read; allow more time"):
        await late
    assert (refused("too_late"), refused("deadline")) == (too_late, deadline + 1)
    assert visitors.admission.waiting == 0


async def test_request_that_gives_up_leaves_the_queue() -> None:
    clock = Clock()
    visitors = QueuedRequests(Admission(running=1, clock=clock))
    visitors.send("first")
    await settle()
    impatient = visitors.send("impatient", deadline=clock.now + 2.5)
    gone = visitors.send("gone")
    visitors.send("last")
    await settle()
    gone.cancel()
    impatient.cancel()
    await settle()
    await visitors.leave("first", "last")
    assert visitors.order == ["first", "last"]
    assert (visitors.admission.waiting, visitors.admission.running) == (0, 0)


async def test_request_is_refused_when_its_deadline_passes_in_the_queue() -> None:
    """Recent turns were short, so the request waits; but the running turn does not end."""
    admission = Admission(running=1)
    for _ in range(100):
        async with admission.turn("a"):
            pass
    visitors = QueuedRequests(admission)
    visitors.send("endless")
    await settle()
    waiting = visitors.send("waiting", deadline=time.monotonic() + 0.5)
    visitors.send("next")
    with pytest.raises(Overloaded, match="deadline came"):
        await waiting
    await visitors.leave("endless", "next")
    assert visitors.order == ["endless", "next"]
    assert (admission.waiting, admission.running) == (0, 0)


async def test_turn_of_a_request_cancelled_on_its_turn_goes_to_the_next() -> None:
    visitors = QueuedRequests(Admission(running=1))
    visitors.send("first")
    await settle()
    leaving = visitors.send("leaving")
    visitors.send("next")
    await settle()
    visitors.done["first"].set()
    await asyncio.sleep(0)
    leaving.cancel()
    await settle()
    assert visitors.order[-1] == "next"
    await visitors.leave("next")
    assert (visitors.admission.waiting, visitors.admission.running) == (0, 0)


async def test_single_caller_gets_no_more_than_its_share_of_turns() -> None:
    """One caller has three of four turns; another caller gets the fourth at once."""
    visitors = QueuedRequests(Admission(running=4, share=0.75))
    for number in range(9):
        visitors.send(f"a{number}", "a")
    await settle()
    assert visitors.order == ["a0", "a1", "a2"]
    visitors.send("b0", "b")
    await settle()
    assert visitors.order == ["a0", "a1", "a2", "b0"]
    await visitors.leave("a0")
    assert "a3" not in visitors.order, "two callers have two turns each, or one is left"
    await visitors.leave("b0")
    assert visitors.order[-1] == "a3"


class TestRequests:
    """Requests of all kinds in progress, as counted by `Access.enter`."""

    def test_caller_gets_its_share_of_requests_and_another_the_rest(self, tmp_path: Path) -> None:
        access = Access(Settings(data_directory=tmp_path, limits=Limits(requests=4)))
        with ExitStack() as held:
            for _ in range(3):
                access.enter("a", held)
            with pytest.raises(Overloaded, match=r"3 of 4 requests \(limits\.requests\) are taken, 3 by this caller"):
                access.enter("a", held)
            access.enter("b", held)
            with pytest.raises(Overloaded, match=r"4 of 4 requests"):
                access.enter("c", held)
        assert access.requests.total == 0

    def test_key_requests_limits_the_requests_of_one_key(self, tmp_path: Path) -> None:
        access = Access(Settings(data_directory=tmp_path, limits=Limits(key_requests=2)))
        with ExitStack() as held:
            access.enter("a", held)
            access.enter("a", held)
            with pytest.raises(Overloaded, match=r"2 requests in progress \(limits\.key_requests\)"):
                access.enter("a", held)
            access.enter("b", held)

    def test_refused_requests_are_counted_by_reason(self, tmp_path: Path) -> None:
        before = refusals()
        access = Access(Settings(data_directory=tmp_path, limits=Limits(requests=4, key_requests=3)))
        with ExitStack() as held:
            for caller in "aaaabbc":
                with suppress(Overloaded):
                    access.enter(caller, held)
        grown = {reason: count - before[reason] for reason, count in refusals().items()}
        assert grown == {"full": 2, "share": 0, "key": 1, "too_late": 0, "deadline": 0}


def refusals() -> dict[str, float]:
    reasons = ("full", "share", "key", "too_late", "deadline")
    return {reason: metrics.counted("boundarymorph_requests_refused_total", reason=reason) for reason in reasons}


async def test_admission_serves_or_refuses_each_of_many_callers() -> None:
    rng = random.Random(4)
    admission = Admission(running=3)
    most = 0

    async def visit(number: int) -> None:
        nonlocal most
        deadline = time.monotonic() + rng.uniform(0, 0.05) if rng.random() < 0.3 else None
        await asyncio.sleep(rng.uniform(0, 0.02))
        caller = str(number % 5)
        async with admission.turn(caller, deadline=deadline):
            most = max(most, admission.running)
            await asyncio.sleep(rng.uniform(0, 0.002))

    tasks = [asyncio.create_task(visit(number)) for number in range(300)]
    await asyncio.sleep(0.01)
    for task in rng.sample(tasks, 60):
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), Overloaded, asyncio.CancelledError}
    assert most == 3
    assert (admission.waiting, admission.running) == (0, 0)
