"""The choice of the next server, over random histories in virtual time."""

import random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from boundarymorph.remote.replicas import LONGEST_HOLD, MISSES, MOST_BACKOFF, Replicas, Ticket
from tests.stateful.profile import draws

MOST_REQUESTS, MOST_TEXTS = 2, 4
OUTCOMES = ["success", "failure", "pause", "miss", "cancel"]
ROUNDING = 1e-9


class Model:
    """One server as far as it is known: up, down or paused, until when it is left alone, and what is under way."""

    def __init__(self) -> None:
        self.state, self.free_at, self.fault_at = "up", 0.0, 0.0
        self.checked, self.misses = False, 0
        self.under_way: list[Ticket] = []

    def fault(self, state: str, now: float) -> None:
        self.state, self.fault_at, self.checked = state, now, False

    @property
    def trial_under_way(self) -> bool:
        return any(ticket.trial for ticket in self.under_way)

    @property
    def doubtful(self) -> bool:
        return (self.state == "down" and not self.checked) or self.misses >= MISSES

    def may_take(self, texts: int, now: float) -> bool:
        if now < self.free_at:
            return False
        if self.state != "up":
            return not self.trial_under_way
        load = sum(ticket.texts for ticket in self.under_way)
        return not self.under_way or (len(self.under_way) < MOST_REQUESTS and load + texts <= MOST_TEXTS)


class BalancerMachine(RuleBasedStateMachine):
    @initialize(count=st.integers(1, 3), seed=st.integers(0, 9))
    def start(self, count: int, seed: int) -> None:
        self.now = 100.0
        self.real = Replicas(count, requests=MOST_REQUESTS, clock=lambda: self.now, seed=seed)
        for index in range(count):
            self.real.limit(index, MOST_TEXTS)
        self.servers = [Model() for _ in range(count)]

    @rule(seconds=st.sampled_from([0.1, 0.25, 1.0, LONGEST_HOLD]), checks=st.sampled_from([None, True, False]))
    def time_goes_on(self, seconds: float, checks: bool | None) -> None:
        """checks: whether the balancer looks at what is due, and what it finds."""
        self.now += seconds
        if checks is not None:
            self._check_what_is_due(checks)

    def _check_what_is_due(self, works: bool) -> None:
        """What the balancer does with those that should be looked at."""
        expected = [
            index
            for index, server in enumerate(self.servers)
            if server.doubtful and self.now >= server.free_at and not server.trial_under_way
        ]
        assert self.real.to_probe() == expected
        for index in expected:
            server = self.servers[index]
            if works and index:  # what a check can show differs by the kind of server
                self.real.probed(index)
                server.checked, server.misses = server.state == "down", 0
            elif works:
                self.real.readmit(index)
                server.state, server.free_at, server.checked, server.misses = "up", 0.0, False, 0
            else:
                self.real.failed(index)
                server.fault("down", self.now)
                server.free_at = self._until_free(index)

    @rule(
        texts=st.lists(st.integers(1, 6), min_size=1, max_size=4),
        tried=st.sampled_from([set(), set(), set(), {0}, {1, 2}]),
    )
    def ask(self, texts: list[int], tried: set[int]) -> None:
        for count in texts:
            self._ask(count, tried)

    def _ask(self, texts: int, tried: set[int]) -> None:
        known = [(index, server) for index, server in enumerate(self.servers) if index not in tried]
        free = [(index, server) for index, server in known if server.may_take(texts, self.now)]
        choice = self.real.pick(texts, tried)
        if isinstance(choice, int):
            best = [(index, server) for index, server in free if not server.doubtful] or free
            least = min(sum(ticket.texts for ticket in server.under_way) for _, server in best)
            assert choice in [i for i, server in best if sum(t.texts for t in server.under_way) == least]
            ticket = self.real.begin(choice, texts)
            assert ticket.trial == (self.servers[choice].state != "up")
            self.servers[choice].under_way.append(ticket)
        else:
            assert not free, "somebody waits though a server is free"
            ready = [server for _, server in known if self.now >= server.free_at]
            assert choice.busy == any(server.state != "down" for server in ready)
            holds = [s.free_at - self.now for _, s in known if s.state == "paused" and s.free_at > self.now]
            assert choice.hold == min(holds, default=None)

    @precondition(lambda self: any(server.under_way for server in self.servers))
    @rule(data=st.data(), outcomes=st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=4))
    def requests_end(self, data: Any, outcomes: list[str]) -> None:
        for outcome in outcomes:
            if any(server.under_way for server in self.servers):
                self._request_ends(data, outcome)

    def _request_ends(self, data: Any, outcome: str) -> None:
        index = data.draw(st.sampled_from([i for i, server in enumerate(self.servers) if server.under_way]))
        server = self.servers[index]
        ticket = server.under_way.pop(data.draw(st.integers(0, len(server.under_way) - 1)))
        if outcome == "success":
            counts = ticket.began >= server.fault_at and not (server.state == "paused" and self.now < server.free_at)
            assert self.real.succeeded(ticket) == counts
            server.misses = 0
            if counts:
                server.state, server.free_at, server.checked = "up", 0.0, False
        elif outcome == "failure":
            self.real.failed(index)
            if server.state != "down" or self.now >= server.free_at:
                server.fault("down", self.now)
                server.free_at = self._until_free(index)
                assert 0 < server.free_at - self.now <= MOST_BACKOFF + ROUNDING
        elif outcome == "pause":
            seconds = data.draw(st.sampled_from([None, 0.0, 0.5, 1e9]))
            left = self.real.paused(index, seconds)
            asked = 0.0 if seconds is None else min(seconds, LONGEST_HOLD)
            assert max(asked, server.free_at - self.now) - ROUNDING <= left <= LONGEST_HOLD + ROUNDING
            server.fault("paused", self.now)
            server.misses = 0
            server.free_at = self._until_free(index)
        elif outcome == "miss":
            self.real.missed(index)
            server.misses += 1
        self.real.end(ticket)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.real.any_works() == any(server.state != "down" for server in self.servers)
        for server, replica in zip(self.servers, self.real._replicas, strict=True):
            assert replica.requests == len(server.under_way)
            assert replica.texts == sum(ticket.texts for ticket in server.under_way)
            assert replica.trials == sum(ticket.trial for ticket in server.under_way)

    def teardown(self) -> None:
        """When all requests have ended, every server is tried again in the end."""
        if not hasattr(self, "servers"):
            return
        for server in self.servers:
            for ticket in server.under_way:
                self.real.end(ticket)
        self.now += LONGEST_HOLD + MOST_BACKOFF
        assert [replica.requests + replica.texts + replica.trials for replica in self.real._replicas] == [0] * len(
            self.servers
        )
        for index in random.Random(0).sample(range(len(self.servers)), len(self.servers)):
            assert self.real.pick(1, {other for other in range(len(self.servers)) if other != index}) == index

    def _until_free(self, index: int) -> float:
        """From when on it may be asked again, of which the model knows the bounds only."""
        return max(self.now, self.real._replicas[index].free_at)


TestBalancer = BalancerMachine.TestCase
TestBalancer.settings = draws(120, 40)
