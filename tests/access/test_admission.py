"""Work in hand: bounds, turns, fairness, and those who give up waiting."""

import asyncio
import random
import time

import pytest

from boundarymorph.access.limits import Admission
from boundarymorph.errors import Overloaded
from tests import metrics
from tests.clocks import Clock


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
            with self.admission.enter(caller):
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


async def test_priority_orders_the_requests_of_one_caller() -> None:
    visitors = Visitors(Admission(running=1, waiting=9))
    for name, priority in (("now", 0), ("low", -1), ("same", 0), ("high", 5)):
        visitors.send(name, priority=priority)
    await settle()
    await visitors.leave("now", "high", "same", "low")
    assert visitors.order == ["now", "high", "same", "low"]


async def test_priority_is_worth_nothing_against_other_callers() -> None:
    """They take turns, however urgent the requests of one of them."""
    visitors = Visitors(Admission(running=1, waiting=99))
    urgent = [f"a{number}" for number in range(20)]
    others = [f"b{number}" for number in range(5)]
    for name in urgent:
        visitors.send(name, "a", priority=9)
    for name in others:
        visitors.send(name, "b")
    await settle()
    for _ in range(25):
        await visitors.leave(visitors.order[-1])
    assert visitors.order[:10] == [name for pair in zip(urgent, others, strict=False) for name in pair]
    assert sorted(visitors.order) == sorted(urgent + others)


async def test_the_caller_with_fewer_running_is_next_even_if_its_last_turn_was_later() -> None:
    visitors = Visitors(Admission(running=2, waiting=9))
    for name in ("a1", "c1", "b1", "a2", "b2"):
        visitors.send(name, name[0])
        await settle()
    await visitors.leave("c1", "b1")
    assert visitors.order == ["a1", "c1", "b1", "b2"]
    await visitors.leave("a1", "b2", "a2")
    assert visitors.order[-1] == "a2"


async def test_what_turns_took_lately_is_what_the_next_is_expected_to_take() -> None:
    """A second each at first; one of eleven seconds makes it two, a tenth of the new one and nine of the old."""
    clock = Clock()
    visitors = Visitors(Admission(running=1, waiting=9, clock=clock))
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


async def test_callers_take_turns_whoever_came_first() -> None:
    visitors = Visitors(Admission(running=1, waiting=9))
    for name in ("a1", "a2", "a3", "b1", "b2"):
        visitors.send(name, name[0])
    await settle()
    await visitors.leave("a1", "b1", "a2", "b2", "a3")
    assert visitors.order == ["a1", "b1", "a2", "b2", "a3"]


@pytest.mark.parametrize(("seconds", "admitted"), [(2.0, True), (1.99, False)])
async def test_requests_of_another_caller_are_no_reason_for_a_refusal(seconds: float, admitted: bool) -> None:
    """One runs and eight wait, each a second; the first of another caller is next, and one that follows it third."""
    clock = Clock()
    visitors = Visitors(Admission(running=1, waiting=19, clock=clock))
    for number in range(9):
        visitors.send(f"a{number}", "a", priority=9)
    await settle()
    first = visitors.send("b1", "b", deadline=clock.now + seconds)
    await settle()
    assert first.done() != admitted
    if admitted:
        second = visitors.send("b2", "b", deadline=clock.now + 5.99)
        third = visitors.send("b3", "b", deadline=clock.now + 6.0)
        await settle()
        assert [second.done(), third.done()] == [True, False]
        second.exception()
        third.cancel()
    else:
        with pytest.raises(Overloaded, match="too late"):
            await first


@pytest.mark.parametrize(("seconds", "refused"), [(1.99, True), (2.0, False)])
async def test_others_who_have_as_many_running_may_come_first(seconds: float, refused: bool) -> None:
    """One of each runs and three of the other caller wait: one of these comes first, and turns take half a second."""
    clock = Clock()
    visitors = Visitors(Admission(running=2, waiting=9, clock=clock))
    for name in ("a1", "b1", "a2", "a3", "a4"):
        visitors.send(name, name[0])
        await settle()
    task = visitors.send("b2", "b", deadline=clock.now + seconds)
    await settle()
    assert task.done() == refused
    if refused:
        with pytest.raises(Overloaded, match=r"in about 1\.0 s, too late"):
            await task


async def test_so_many_of_one_caller_and_no_more() -> None:
    before = metrics.counted("boundarymorph_select_refused_total", reason="key")
    visitors = Visitors(Admission(running=1, waiting=9, of_caller=2))
    tasks = [visitors.send(name, name[0]) for name in ("a1", "a2", "a3", "b1")]
    await settle()
    assert [task.done() for task in tasks] == [False, False, True, False]
    with pytest.raises(Overloaded, match=r"2 selections in progress, as many as limits\.key_sessions"):
        await tasks[2]
    assert metrics.counted("boundarymorph_select_refused_total", reason="key") == before + 1
    await visitors.leave("a1", "b1")
    visitors.send("a4", "a")
    await settle()
    await visitors.leave("a2", "a4")
    assert visitors.order == ["a1", "b1", "a2", "a4"]
    assert visitors.admission.inside == 0


async def test_a_deadline_that_came_while_threads_were_busy_is_not_too_late_for_a_turn() -> None:
    """There is room: what came too late is the request itself, after it was read."""

    def refused(reason: str) -> float:
        return metrics.counted("boundarymorph_select_refused_total", reason=reason)

    too_late, deadline = refused("too_late"), refused("deadline")
    clock = Clock()
    visitors = Visitors(Admission(running=1, waiting=9, clock=clock))
    late = visitors.send("late", deadline=clock.now - 0.1)
    with pytest.raises(Overloaded, match="before the request was read"):
        await late
    assert (refused("too_late"), refused("deadline")) == (too_late, deadline + 1)
    assert visitors.admission.inside == 0


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
        with admission.enter("a"):
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


class TestShares:
    async def test_one_caller_alone_has_its_share_of_turns_and_places(self) -> None:
        """Three of four turns, and nine of twelve places; another caller has the fourth turn at once."""
        visitors = Visitors(Admission(running=4, waiting=8, share=0.75))
        tasks = [visitors.send(f"a{number}", "a") for number in range(10)]
        await settle()
        assert visitors.order == ["a0", "a1", "a2"]
        with pytest.raises(Overloaded, match="9 requests are in progress already, 9 of them of this caller") as error:
            await tasks[9]
        assert error.value.retry_after >= 1
        visitors.send("b0", "b")
        await settle()
        assert visitors.order == ["a0", "a1", "a2", "b0"]
        await visitors.leave("a0")
        assert "a3" not in visitors.order, "two callers have two turns each, or one is left"
        await visitors.leave("b0")
        assert visitors.order[-1] == "a3"

    @pytest.mark.parametrize(("seconds", "refused"), [(1.99, True), (2.0, False)])
    async def test_the_wait_of_a_caller_alone_is_that_for_its_share(self, seconds: float, refused: bool) -> None:
        """Three of four turns are its own, of a second each, and two wait: the next is the last of three."""
        clock = Clock()
        visitors = Visitors(Admission(running=4, waiting=16, share=0.75, clock=clock))
        for number in range(5):
            visitors.send(str(number))
        await settle()
        task = visitors.send("last", deadline=clock.now + seconds)
        await settle()
        assert task.done() == refused
        if refused:
            with pytest.raises(Overloaded, match=r"in about 1\.0 s, too late"):
                await task


async def test_refusals_are_counted_by_their_reason() -> None:
    def counted() -> dict[str, float]:
        reasons = ("full", "share", "too_late", "deadline")
        return {reason: metrics.counted("boundarymorph_select_refused_total", reason=reason) for reason in reasons}

    before = counted()
    visitors = Visitors(Admission(running=2, waiting=2, share=0.75))
    tasks = [visitors.send(name, name[0]) for name in ("a1", "a2", "a3", "a4")]
    await settle()
    tasks.append(visitors.send("b1", "b"))
    await settle()
    tasks.append(visitors.send("c1", "c"))
    await settle()
    await visitors.leave("a1", "a2", "a3", "b1")
    tasks += [visitors.send("d1", "d"), visitors.send("d2", "d", deadline=time.monotonic() + 1)]
    await settle()
    await visitors.leave("d1")
    await asyncio.gather(*tasks, return_exceptions=True)
    grown = {reason: count - before[reason] for reason, count in counted().items()}
    assert grown == {"full": 1, "share": 1, "too_late": 1, "deadline": 0}


@pytest.mark.parametrize("waiting", [1_000, 20])
async def test_every_caller_of_a_crowd_is_served_or_refused(waiting: int) -> None:
    rng = random.Random(4)
    admission = Admission(running=3, waiting=waiting)
    most = 0

    async def visit(number: int) -> None:
        nonlocal most
        deadline = time.monotonic() + rng.uniform(0, 0.05) if rng.random() < 0.3 else None
        await asyncio.sleep(rng.uniform(0, 0.02))
        caller = str(number % 5)
        with admission.enter(caller):
            async with admission.turn(caller, priority=number % 3, deadline=deadline):
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
