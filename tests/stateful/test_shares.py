"""Admission against a model of a few lines: four turns, five places to wait, a share of three quarters, at most six
requests per caller, and a clock that only the test moves. Shares against a dictionary."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from boundarymorph.access.admission import Admission
from boundarymorph.errors import LimitExceeded, Overloaded
from boundarymorph.inference.shares import Shares
from tests.clocks import StoppedLoop
from tests.stateful.profile import draws

RUNNING, WAITING, OF_CALLER = 4, 5, 6
SHARE, TIMES_WHAT_IS_LEFT = 0.75, 3
MOST = 12


@dataclass(eq=False)
class Request:
    """One request, and what the model knows of it: it waits until its turn begins, and runs until it is done."""

    caller: str
    priority: int
    deadline: float | None
    done: asyncio.Event
    task: asyncio.Task[None] | None = None
    running: bool = False
    refusal: str | None = None


class AdmissionMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = StoppedLoop()
        self.admission = Admission(
            running=RUNNING, waiting=WAITING, share=SHARE, of_caller=OF_CALLER, clock=self.loop.time
        )
        self.inside: list[Request] = []
        self.last_turn: dict[str, int] = {}
        self.turns = 0
        self.before: list[Request] = []

    @rule(
        caller=st.sampled_from("abc"),
        priority=st.integers(-1, 1),
        seconds=st.sampled_from([None, None, -1.0, 0.5, 3.0, 30.0]),
    )
    def send(self, caller: str, priority: int, seconds: float | None) -> None:
        deadline = None if seconds is None else self.loop.now + seconds
        inside = Counter(request.caller for request in self.inside)
        room = allowed(inside, RUNNING + WAITING, caller)
        turn = allowed(self.turns_of(), RUNNING, caller)
        request = Request(caller, priority, deadline, asyncio.Event())
        request.task = self.loop.create_task(self.visit(request))
        self.step(request)
        if inside[caller] == OF_CALLER:
            assert request.refusal is not None and "limits.key_sessions" in request.refusal
        elif not room:
            assert request.refusal is not None and "in progress already" in request.refusal
        elif seconds is not None and seconds < 0:
            assert request.refusal is not None and "the deadline came" in request.refusal
        elif request.refusal is not None:
            assert not turn and seconds is not None and "too late" in request.refusal

    @precondition(lambda self: self.running())
    @rule(choice=st.integers(0, 99), seconds=st.sampled_from([0.0, 0.5, 2.0]))
    def leave(self, choice: int, seconds: float) -> None:
        running = [request for request in self.inside if request.running]
        self.loop.now += seconds
        running[choice % len(running)].done.set()
        self.step()

    @precondition(lambda self: self.inside)
    @rule(choice=st.integers(0, 99))
    def give_up(self, choice: int) -> None:
        task = self.inside[choice % len(self.inside)].task
        assert task is not None
        task.cancel()
        self.step()

    @precondition(lambda self: self.running() and len(self.inside) > self.running())
    @rule(choice=st.integers(0, 99))
    def give_up_as_a_turn_comes(self, choice: int) -> None:
        """Somebody leaves, and in the same moment one that waits gives up."""
        waiting = [request for request in self.inside if not request.running]
        next(request for request in self.inside if request.running).done.set()
        self.loop.run_until_complete(asyncio.sleep(0))
        task = waiting[choice % len(waiting)].task
        assert task is not None
        task.cancel()
        self.step(fair=False)

    @rule(seconds=st.sampled_from([0.2, 1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.now += seconds
        self.step()
        for request in self.inside:
            assert request.running or request.deadline is None or request.deadline > self.loop.now

    @invariant()
    def bounds_hold_and_nobody_is_lost(self) -> None:
        assert self.admission.inside == len(self.inside) <= RUNNING + WAITING
        assert self.admission.running == self.running() <= RUNNING
        turns = self.turns_of()
        for request in self.inside:
            assert request.running or not allowed(turns, RUNNING, request.caller), "it could have its turn"
        assert max(Counter(request.caller for request in self.inside).values(), default=0) <= OF_CALLER

    def teardown(self) -> None:
        while self.inside:
            next(request for request in self.inside if request.running).done.set()
            self.step()
        assert (self.admission.inside, self.admission.running, self.admission.waiting) == (0, 0, 0)
        self.loop.close()

    def running(self) -> int:
        return self.turns_of().total()

    def turns_of(self) -> Counter[str]:
        return Counter(request.caller for request in self.inside if request.running)

    def step(self, arrived: Request | None = None, *, fair: bool = True) -> None:
        """Let everything happen that can, and check that whoever got a turn was the one to get it."""
        self.before = self.inside
        ran = [request for request in self.inside if request.running]
        waited = [request for request in (*self.inside, *filter(None, [arrived])) if not request.running]
        self.loop.run_until_complete(_settle())
        self.inside = [
            request for request in (*self.before, *filter(None, [arrived])) if request.task and not request.task.done()
        ]
        granted = [request for request in waited if request.running]
        assert len(granted) <= 1 or not fair
        for request in granted:
            self.turns += 1
            if fair:
                self.check_fair(request, waited, Counter(other.caller for other in ran if other in self.inside))
            self.last_turn[request.caller] = self.turns

    def check_fair(self, granted: Request, waited: list[Request], running: Counter[str]) -> None:
        rivals = [request for request in waited if request in self.inside]
        claims = {
            request.caller: (running[request.caller], self.last_turn.get(request.caller, 0))
            for request in rivals
            if allowed(running, RUNNING, request.caller)
        }
        if granted.caller in claims:  # it may have come and gone in one step
            assert claims[granted.caller] == min(claims.values())
        own = [request for request in rivals if request.caller == granted.caller]
        assert granted not in own or granted is max(own, key=lambda request: request.priority)  # the first of equals

    async def visit(self, request: Request) -> None:
        try:
            with self.admission.enter(request.caller):
                async with self.admission.turn(request.caller, priority=request.priority, deadline=request.deadline):
                    request.running = True
                    await request.done.wait()
        except Overloaded as refusal:
            request.refusal = str(refusal)


async def _settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


def allowed(held: Counter[str], most: int, caller: str, amount: int = 1) -> bool:
    """What `Shares` is to allow: some of what is left, up to three times what would be left, or any of it to who has
    none."""
    left = most - held.total() - amount
    fair = not held[caller] or held[caller] + amount <= TIMES_WHAT_IS_LEFT * left
    return not amount or (left >= 0 and fair)


class SharesMachine(RuleBasedStateMachine):
    """Shares against a dictionary of what each caller has taken."""

    @initialize()
    def begin(self) -> None:
        self.shares = Shares(MOST, SHARE)
        self.taken: Counter[str] = Counter()
        self.open: dict[int, tuple[contextlib.ExitStack, Callable[[int], None], str]] = {}
        self.of_request: Counter[int] = Counter()

    @rule(name=st.integers(0, 5), amount=st.integers(0, MOST + 1))
    def take(self, name: int, amount: int) -> None:
        caller = "abc"[name % 3]
        if name not in self.open:
            stack = contextlib.ExitStack()
            self.open[name] = stack, stack.enter_context(self.shares.holding(caller)), caller
        fits = allowed(self.taken, MOST, caller, amount)
        try:
            self.open[name][1](amount)
        except (Overloaded, LimitExceeded):
            assert not fits
        else:
            assert fits
            self.taken[caller] += amount
            self.of_request[name] += amount

    @precondition(lambda self: self.open)
    @rule(choice=st.integers(0, 5))
    def end(self, choice: int) -> None:
        name = list(self.open)[choice % len(self.open)]
        stack, _, caller = self.open.pop(name)
        stack.close()
        self.taken[caller] -= self.of_request.pop(name, 0)

    @rule(amount=st.integers(1, MOST))
    def a_newcomer(self, amount: int) -> None:
        """Whoever comes finds room for what is left."""
        assert self.shares.allows("new", amount) == (amount <= MOST - self.taken.total())

    @invariant()
    def as_the_model(self) -> None:
        assert self.shares.total == self.taken.total() <= MOST
        assert all(self.shares.held(caller) == self.taken[caller] for caller in "abc")

    @invariant()
    def who_is_alone_takes_no_more_than_its_share_bit_by_bit(self) -> None:
        if not self.taken.total():
            shares = Shares(MOST, SHARE)
            while shares.allows("a"):
                shares.take("a")
            assert shares.total == shares.alone == SHARE * MOST


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = draws(40, 30)
TestShares = SharesMachine.TestCase
TestShares.settings = draws(20, 20)
