"""Shares against a dictionary of what each caller has taken."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from boundarymorph.errors import LimitExceeded, Overloaded
from boundarymorph.inference.shares import Shares
from tests.stateful.profile import draws

SHARE, TIMES_WHAT_IS_LEFT = 0.75, 3
MOST = 12


def allowed(held: Counter[str], most: int, caller: str, amount: int = 1) -> bool:
    """What `Shares` is to allow: some of what is left, up to three times what would be left, or any of it to who has
    none."""
    left = most - held.total() - amount
    fair = not held[caller] or held[caller] + amount <= TIMES_WHAT_IS_LEFT * left
    return not amount or (left >= 0 and fair)


class SharesMachine(RuleBasedStateMachine):
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


TestShares = SharesMachine.TestCase
TestShares.settings = draws(20, 20)
