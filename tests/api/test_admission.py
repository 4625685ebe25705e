"""Work in hand: bounds, turns, fairness, and those who give up waiting."""

import asyncio
import random
import time

import pytest

from boundarymorph.api.admission import Admission
from boundarymorph.errors import DeadlineExceeded, Overloaded


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
    visitors = Visitors(Admission(running=1, waiting=9))
    visitors.send("first")
    await settle()
    impatient = visitors.send("impatient", deadline=time.monotonic() + 0.02)
    gone = visitors.send("gone")
    visitors.send("last")
    with pytest.raises(DeadlineExceeded):
        await impatient
    gone.cancel()
    await settle()
    await visitors.leave("first", "last")
    assert visitors.order == ["first", "last"]
    assert (visitors.admission.inside, visitors.admission.running) == (0, 0)


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
    assert {type(outcome) for outcome in outcomes} <= {type(None), DeadlineExceeded, asyncio.CancelledError}
    assert most == 3
    assert (admission.inside, admission.running) == (0, 0)
