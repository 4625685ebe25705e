"""Admission against a model of a few lines: two turns, three places to wait, at most four requests per caller, and a
clock that only the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from boundarymorph.access.admission import FEWER, Admission
from boundarymorph.access.memory import BytesInHand
from boundarymorph.errors import Overloaded
from tests.clocks import StoppedLoop
from tests.stateful.profile import draws

RUNNING, WAITING, OF_CALLER = 2, 3, 4
IN_HAND = 10


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
        self.admission = Admission(running=RUNNING, waiting=WAITING, of_caller=OF_CALLER, clock=self.loop.time)
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
        full, busy = len(self.inside) == RUNNING + WAITING, self.running() == RUNNING
        request = Request(caller, priority, deadline, asyncio.Event())
        request.task = self.loop.create_task(self.visit(request))
        crowd = max((inside[waiting.caller] for waiting in self.inside if not waiting.running), default=0)
        self.step(request)
        made_room = [other for other in self.before if other.refusal and "most requests in progress" in other.refusal]
        if inside[caller] == OF_CALLER:
            assert request.refusal is not None and "limits.key_sessions" in request.refusal
            assert not made_room
        elif full:
            fair = crowd >= inside[caller] + FEWER
            assert len(made_room) == fair
            assert all(inside[other.caller] == crowd for other in made_room)
            assert fair or (request.refusal is not None and "in progress already" in request.refusal)
        elif seconds is not None and seconds < 0:
            assert request.refusal is not None and "the deadline came" in request.refusal
        elif request.refusal is not None:
            assert busy and seconds is not None and "too late" in request.refusal

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
        assert self.admission.running == self.running() == min(RUNNING, len(self.inside))
        assert max(Counter(request.caller for request in self.inside).values(), default=0) <= OF_CALLER

    def teardown(self) -> None:
        while self.inside:
            next(request for request in self.inside if request.running).done.set()
            self.step()
        assert (self.admission.inside, self.admission.running, self.admission.waiting) == (0, 0, 0)
        self.loop.close()

    def running(self) -> int:
        return sum(request.running for request in self.inside)

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
            request.caller: (running[request.caller], self.last_turn.get(request.caller, 0)) for request in rivals
        }
        if granted.caller in claims:  # it may have come and gone in one step
            assert claims[granted.caller] == min(claims.values())
        own = [request for request in rivals if request.caller == granted.caller]
        assert granted not in own or granted is max(own, key=lambda request: request.priority)  # the first of equals

    async def visit(self, request: Request) -> None:
        try:
            with self.admission.enter(request.caller) as inside:
                async with self.admission.turn(inside, priority=request.priority, deadline=request.deadline):
                    request.running = True
                    await request.done.wait()
        except Overloaded as refusal:
            request.refusal = str(refusal)


async def _settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


class BytesMachine(RuleBasedStateMachine):
    """Bytes in hand against a dictionary of what each request has taken."""

    @initialize()
    def begin(self) -> None:
        self.hand = BytesInHand(IN_HAND)
        self.taken: dict[int, int] = {}
        self.open: dict[int, tuple[contextlib.ExitStack, object]] = {}

    @rule(name=st.integers(0, 3), size=st.integers(0, IN_HAND + 1))
    def take(self, name: int, size: int) -> None:
        if name not in self.open:
            stack = contextlib.ExitStack()
            self.open[name] = stack, stack.enter_context(self.hand.of_request())
        try:
            self.open[name][1](size)  # type: ignore[operator]
        except Overloaded:
            assert sum(self.taken.values()) + size > IN_HAND
        else:
            self.taken[name] = self.taken.get(name, 0) + size

    @precondition(lambda self: self.open)
    @rule(choice=st.integers(0, 3))
    def end(self, choice: int) -> None:
        name = list(self.open)[choice % len(self.open)]
        self.open.pop(name)[0].close()
        self.taken.pop(name, None)

    @invariant()
    def as_the_model(self) -> None:
        assert self.hand.total == sum(self.taken.values()) <= IN_HAND


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = draws(40, 30)
TestBytesInHand = BytesMachine.TestCase
TestBytesInHand.settings = draws(20, 20)
