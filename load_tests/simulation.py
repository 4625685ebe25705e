"""Simulates a service of many replicas: where requests wait, and which stage is overloaded first.

Assumptions, most of them optimistic:

- Requests arrive as a Poisson process, all of one size, without known scores, and nobody disconnects.
- A load balancer uses the gateways in turn. A gateway sends a call to the retriever and to the scorer with the fewest
  of its own calls in progress, as it knows no others; at random among equals (our balancer).
- A replica of gateway or retriever has cores, each of which processes pieces of requests in the order of arrival. A
  gateway's CPU time is split evenly between the start and each round; a retriever's, apart from the search, between the
  reading of texts before each round.
- A replica of a scorer is a device that, when free, takes the queue, oldest first, up to its tokens per batch, and
  needs a fixed time per batch and a time per token.
- Each message between two machines takes the network's time; nothing is lost. Redis is shards with one core each; a
  lookup is awaited, up to LOOKUP_SECONDS, and writes are not.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

LOOKUP_SECONDS = 0.05  # the longest wait of the service for its cache
Event = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A service: replicas of each stage, cores of each replica, and the CPU seconds of a request."""

    gateways: int
    gateway_cores: int
    retrievers: int
    retriever_cores: int
    scorers: int
    redis_shards: int
    gateway_seconds: float
    search_seconds: float
    texts_seconds: float
    redis_seconds: float
    rounds: int
    round_tokens: float
    scorer_tokens_per_second: float
    scorer_batch_seconds: float = 0.005
    scorer_batch_tokens: float = 16_384
    network_seconds: float = 0.0005


@dataclass
class Outcome:
    """seconds: of each finished request; waits: mean seconds of a request in each stage's queue; busy: utilisation of
    the cores or devices of each stage; unfinished: requests in progress at the end."""

    seconds: list[float] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    unfinished: int = 0

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share)) if self.seconds else float("nan")

    @property
    def bottleneck(self) -> str:
        """The stage at which requests wait the longest."""
        return max(self.waits, key=self.waits.__getitem__)


def simulated(plan: Plan, rate: float, seconds: float, *, warm: float = 1.0, seed: int = 0) -> Outcome:
    """Simulate requests at a rate for `warm` seconds that do not count, and then for `seconds` that do."""
    return _Service(plan, seed).run(rate, seconds, warm)


class _Stage:
    """Replicas of one kind, with their queues and utilisation."""

    def __init__(self) -> None:
        self.waited = 0.0
        self.worked = 0.0
        self.counts = False


class _Cores(_Stage):
    def __init__(self, environment: simpy.Environment, replicas: int, cores: int) -> None:
        super().__init__()
        self._environment = environment
        self._replicas = [simpy.Resource(environment, cores) for _ in range(replicas)]
        self.capacity = replicas * cores

    def use(self, replica: int, seconds: float) -> Event:
        start = self._environment.now
        with self._replicas[replica].request() as turn:
            yield turn
            if self.counts:
                self.waited += self._environment.now - start
                self.worked += seconds
            yield self._environment.timeout(seconds)


class _Devices(_Stage):
    def __init__(self, environment: simpy.Environment, plan: Plan) -> None:
        super().__init__()
        self._environment = environment
        self._plan = plan
        self._queues: list[deque[tuple[float, simpy.Event]]] = [deque() for _ in range(plan.scorers)]
        self._idle = [True] * plan.scorers
        self.capacity = plan.scorers

    def score(self, replica: int, tokens: float) -> Event:
        done = self._environment.event()
        self._queues[replica].append((tokens, done))
        if self._idle[replica]:
            self._idle[replica] = False
            self._environment.process(self._work(replica))
        start = self._environment.now
        yield done
        if self.counts:
            alone = self._plan.scorer_batch_seconds + tokens / self._plan.scorer_tokens_per_second
            self.waited += self._environment.now - start - alone

    def _work(self, replica: int) -> Event:
        plan, queue = self._plan, self._queues[replica]
        while queue:
            batch: list[simpy.Event] = []
            tokens = 0.0
            while queue and (not batch or tokens + queue[0][0] <= plan.scorer_batch_tokens):
                more, done = queue.popleft()
                batch.append(done)
                tokens += more
            seconds = plan.scorer_batch_seconds + tokens / plan.scorer_tokens_per_second
            yield self._environment.timeout(seconds)
            if self.counts:
                self.worked += seconds
            for done in batch:
                done.succeed()
        self._idle[replica] = True


class _Service:
    def __init__(self, plan: Plan, seed: int) -> None:
        self._plan = plan
        self._rng = random.Random(seed)
        self._environment = environment = simpy.Environment()
        self._gateways = _Cores(environment, plan.gateways, plan.gateway_cores)
        self._retrievers = _Cores(environment, plan.retrievers, plan.retriever_cores)
        self._redis = _Cores(environment, plan.redis_shards, 1)
        self._scorers = _Devices(environment, plan)
        # For each gateway its own calls in progress at each replica.
        self._at_retrievers = [[0] * plan.retrievers for _ in range(plan.gateways)]
        self._at_scorers = [[0] * plan.scorers for _ in range(plan.gateways)]
        self._outcome = Outcome()
        self._under_way = 0

    def run(self, rate: float, seconds: float, warm: float) -> Outcome:
        environment = self._environment
        environment.process(self._arrivals(rate))
        if warm:
            environment.run(until=warm)
        stages: Mapping[str, Any] = {
            "gateway": self._gateways,
            "retriever": self._retrievers,
            "scorer": self._scorers,
            "redis": self._redis,
        }
        for stage in stages.values():
            stage.counts = True
        self._outcome.seconds.clear()
        environment.run(until=warm + seconds)
        outcome = self._outcome
        outcome.unfinished = self._under_way
        outcome.busy = {name: stage.worked / (stage.capacity * seconds) for name, stage in stages.items()}
        outcome.waits = {name: stage.waited / (rate * seconds) for name, stage in stages.items()}
        return outcome

    def _arrivals(self, rate: float) -> Event:
        number = 0
        while True:
            yield self._environment.timeout(self._rng.expovariate(rate))
            self._environment.process(self._request(number % self._plan.gateways))
            number += 1

    def _request(self, gateway: int) -> Event:
        plan, environment = self._plan, self._environment
        start = environment.now
        self._under_way += 1
        piece = plan.gateway_seconds / (plan.rounds + 1)
        yield from self._lookup()
        yield from self._retrieve(gateway, plan.search_seconds)
        yield from self._gateways.use(gateway, piece)
        for _ in range(plan.rounds):
            yield from self._retrieve(gateway, plan.texts_seconds / plan.rounds)
            scorer = self._fewest(self._at_scorers[gateway])
            self._at_scorers[gateway][scorer] += 1
            yield environment.timeout(plan.network_seconds)
            yield from self._scorers.score(scorer, plan.round_tokens)
            yield environment.timeout(plan.network_seconds)
            self._at_scorers[gateway][scorer] -= 1
            environment.process(self._redis_use(plan.redis_seconds / (plan.rounds + 1)))
            yield from self._gateways.use(gateway, piece)
        self._under_way -= 1
        self._outcome.seconds.append(environment.now - start)

    def _lookup(self) -> Event:
        seconds = self._plan.redis_seconds / (self._plan.rounds + 1)
        used = self._environment.process(self._redis_use(seconds))
        yield used | self._environment.timeout(LOOKUP_SECONDS)

    def _redis_use(self, seconds: float) -> Event:
        yield self._environment.timeout(self._plan.network_seconds)
        yield from self._redis.use(self._rng.randrange(self._plan.redis_shards), seconds)
        yield self._environment.timeout(self._plan.network_seconds)

    def _retrieve(self, gateway: int, seconds: float) -> Event:
        retriever = self._fewest(self._at_retrievers[gateway])
        self._at_retrievers[gateway][retriever] += 1
        yield self._environment.timeout(self._plan.network_seconds)
        yield from self._retrievers.use(retriever, seconds)
        yield self._environment.timeout(self._plan.network_seconds)
        self._at_retrievers[gateway][retriever] -= 1

    def _fewest(self, calls: Sequence[int]) -> int:
        """Return a replica with the fewest of these calls, at random among equals."""
        fewest = min(calls)
        start = self._rng.randrange(len(calls))
        return next(
            number % len(calls) for number in range(start, start + len(calls)) if calls[number % len(calls)] == fewest
        )
