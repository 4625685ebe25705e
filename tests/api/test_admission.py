"""Work in hand: bounds, turns, fairness, and those who give up waiting."""

import asyncio
import random
import time

import pytest

from boundarymorph.api.admission import Admission
from boundarymorph.errors import Overloaded
from tests.caching.servers import Clock


class Visitors:
    """Callers who note when their turn comes and leave when told."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.order: list[str] = []
        self.done: dict[str, asyncio.Event] = {}

    def send(
        self, name: str, caller: str = "a", *, priority: int = 0, deadline: float | None = None
    ) -> asyncio.Task[None]:
        self.done[name] = asyncio.Event()

        async def visit() -> None:
            with self.admission.enter():
                async with self.admission.turn(caller, priority=priority, deadline=deadline):
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


async def test_bounds_at_their_edges() -> None:
    visitors = Visitors(Admission(running=2, waiting=1))
    tasks = [visitors.send(str(number)) for number in range(4)]
    await settle()
    assert visitors.order == ["0", "1"]
    assert (visitors.admission.inside, visitors.admission.running) == (3, 2)
    with pytest.raises(Overloaded) as error:
        await tasks[3]
    assert error.value.retry_after >= 1
    await visitors.leave("0", "1", "2")
    assert visitors.order == ["0", "1", "2"]
    assert (visitors.admission.inside, visitors.admission.running) == (0, 0)


async def test_the_first_comes_first_among_equals() -> None:
    visitors = Visitors(Admission(running=1, waiting=9))
    names = [str(number) for number in range(5)]
    for name in names:
        visitors.send(name)
    await settle()
    await visitors.leave(*names)
    assert visitors.order == names


async def test_a_busy_caller_lets_others_pass() -> None:
    visitors = Visitors(Admission(running=2, waiting=9))
    for name in ("a1", "a2", "a3", "a4"):
        visitors.send(name, "a")
    visitors.send("b1", "b")
    await settle()
    await visitors.leave("a1")
    assert visitors.order == ["a1", "a2", "b1"]
    await visitors.leave("a2", "b1", "a3", "a4")
    assert visitors.order == ["a1", "a2", "b1", "a3", "a4"]


async def test_priority_before_fairness() -> None:
    visitors = Visitors(Admission(running=1, waiting=9))
    for name, caller, priority in (("now", "a", 0), ("low", "b", -1), ("same", "b", 0), ("high", "a", 5)):
        visitors.send(name, caller, priority=priority)
    await settle()
    await visitors.leave("now", "high", "same", "low")
    assert visitors.order == ["now", "high", "same", "low"]


async def test_who_gives_up_leaves_no_gap() -> None:
    clock = Clock()
    visitors = Visitors(Admission(running=1, waiting=9, clock=clock))
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
    assert (visitors.admission.inside, visitors.admission.running) == (0, 0)


async def test_a_deadline_that_comes_before_the_turn() -> None:
    """Turns were short lately, and then one is not."""
    admission = Admission(running=1, waiting=9)
    for _ in range(100):
        with admission.enter():
            async with admission.turn("a"):
                pass
    visitors = Visitors(admission)
    visitors.send("endless")
    await settle()
    waiting = visitors.send("waiting", deadline=time.monotonic() + 0.5)
    visitors.send("next")
    with pytest.raises(Overloaded, match="deadline came"):
        await waiting
    await visitors.leave("endless", "next")
    assert visitors.order == ["endless", "next"]
    assert (admission.inside, admission.running) == (0, 0)


@pytest.mark.parametrize(("seconds", "admitted"), [(4.0, True), (3.99, False)])
async def test_who_would_wait_for_half_of_its_time_is_refused_at_once(seconds: float, admitted: bool) -> None:
    """Two run and three wait, each a second: the next one's turn comes in two."""
    clock = Clock()
    visitors = Visitors(Admission(running=2, waiting=9, clock=clock))
    for number in range(5):
        visitors.send(str(number))
    await settle()
    last = visitors.send("last", deadline=clock.now + seconds)
    await settle()
    if not admitted:
        with pytest.raises(Overloaded, match="too late") as error:
            await last
        assert error.value.retry_after == 2.0
    await visitors.leave(*map(str, range(5)), "last")
    assert ("last" in visitors.order) == admitted
    assert (visitors.admission.inside, visitors.admission.running) == (0, 0)


async def test_a_high_priority_waits_for_its_equals_only() -> None:
    clock = Clock()
    visitors = Visitors(Admission(running=1, waiting=9, clock=clock))
    for number in range(5):
        visitors.send(str(number))
    await settle()
    visitors.send("urgent", priority=1, deadline=clock.now + 2.0)
    await settle()
    await visitors.leave("0", "urgent")
    assert visitors.order[:2] == ["0", "urgent"]


async def test_where_there_is_room_nobody_is_refused() -> None:
    clock = Clock()
    visitors = Visitors(Admission(running=1, waiting=0, clock=clock))
    slow = visitors.send("slow")
    await settle()
    clock.now += 1_000
    await visitors.leave("slow")
    await slow
    visitors.send("hurried", deadline=clock.now + 0.5)
    await settle()
    assert visitors.order == ["slow", "hurried"]
    await visitors.leave("hurried")


async def test_a_turn_that_comes_as_its_owner_leaves_goes_to_the_next() -> None:
    visitors = Visitors(Admission(running=1, waiting=9))
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
    assert (visitors.admission.inside, visitors.admission.running) == (0, 0)


async def test_nothing_is_lost_in_a_crowd() -> None:
    rng = random.Random(4)
    admission = Admission(running=3, waiting=1_000)
    most = 0

    async def visit(number: int) -> None:
        nonlocal most
        deadline = time.monotonic() + rng.uniform(0, 0.05) if rng.random() < 0.3 else None
        with admission.enter():
            async with admission.turn(str(number % 5), priority=number % 3, deadline=deadline):
                most = max(most, admission.running)
                await asyncio.sleep(rng.uniform(0, 0.002))

    tasks = [asyncio.create_task(visit(number)) for number in range(300)]
    await asyncio.sleep(0.01)
    for task in rng.sample(tasks, 60):
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), Overloaded, asyncio.CancelledError}
    assert most == 3
    assert (admission.inside, admission.running) == (0, 0)
