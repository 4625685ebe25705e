"""How much callers may do at a time: requests, bytes, selections and threads."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import orjson

from boundarymorph.access.callers import KeyRing, Origins, Policies
from boundarymorph.access.rates import RateLimits
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import InvalidConfiguration, InvalidInput, Overloaded
from boundarymorph.inference.concurrency import FairExecutor, Shares, Turns
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

MEMORY = 0.9  # weight of earlier requests in the moving average of their seconds
PATIENCE = 0.5  # the share of its remaining time that a request may wait for its turn: the rest is for the work


class Admission:
    """Runs at most `running` selections at a time. Callers take turns (`Turns`), each within its share (`Shares`)."""

    def __init__(self, running: int, share: float = 1.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._turns = Turns(running, share)
        self._clock = clock
        self._seconds = 1.0  # moving average of the length of a turn

    @property
    def running(self) -> int:
        return self._turns.shares.total

    @property
    def waiting(self) -> int:
        return self._turns.waiting().total()

    @asynccontextmanager
    async def turn(self, caller: str, *, deadline: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn and hold it within the block. Raises Overloaded if it comes too late, or probably will."""
        wait = self._expected_wait(caller)
        left = math.inf if deadline is None else deadline - self._clock()
        if left <= 0:
            raise _refused("deadline", "the deadline came before the request was read; try again later", wait)
        if wait > PATIENCE * left:
            said = f"its turn would come in about {wait:.1f} s, too late for its deadline; try again later"
            raise _refused("too_late", said, wait)
        try:
            async with asyncio.timeout(None if deadline is None else left):
                await self._turns.take(caller)
        except TimeoutError:
            said, wait = "the deadline came before the request's turn; try again later", self._expected_wait(caller)
            raise _refused("deadline", said, wait) from None
        start = self._clock()
        try:
            yield
        finally:
            self._seconds = MEMORY * self._seconds + (1 - MEMORY) * (self._clock() - start)
            self._turns.give_back(caller)

    def _expected_wait(self, caller: str) -> float:
        """Estimate the seconds until the turn of a request that arrives now, at the recent length of turns."""
        running = self._turns.shares
        if running.allows(caller):
            return 0.0
        others = self._turns.waiting()
        own = others.pop(caller, 0)
        level = running.held(caller) + own + 1  # this caller's turns by then; no other caller gets more before it
        before = own + sum(min(count, max(0, level - running.held(other))) for other, count in others.items())
        return (before + 1) / running.alone * self._seconds


def _refused(reason: str, message: str, wait: float = 1.0) -> Overloaded:
    """Count and return a refusal. wait: seconds after which a retry makes sense."""
    metrics.requests_refused.labels(reason).inc()
    return Overloaded(message, retry_after=max(1.0, wait))


PARSING_THREADS, READ_THREADS, WRITE_THREADS = 4, 4, 4


class Work:
    """The threads of a process for kinds of blocking work. parsing: large bodies and answers; read: descriptions and
    documents of indexes; write: uploads, with their parsing, and other changes to indexes."""

    def __init__(self, share: float) -> None:
        """share: of the threads that one caller gets, as in `Shares`."""
        self.parsing = FairExecutor("parsing", threads=PARSING_THREADS, share=share)
        self.read = FairExecutor("read", threads=READ_THREADS, share=share)
        self.write = FairExecutor("write", threads=WRITE_THREADS, share=share)

    async def close(self) -> None:
        for executor in (self.parsing, self.read, self.write):
            await executor.close()


class Access:
    def __init__(self, settings: Settings, *, behind_gateways: bool = False) -> None:
        """behind_gateways: whether callers tell on whose behalf they call. Raises InvalidConfiguration for malformed
        keys, policies, rate limits and calibrations."""
        limits = settings.limits
        self.settings = settings
        self.calibration = _of_pools(settings.calibration)
        self.behind_gateways = behind_gateways
        self.keys = KeyRing(settings.keys)
        self.policies = Policies(settings, self.keys.callers)
        self.origins = Origins(settings.allowed_hosts, with_keys=bool(settings.keys))
        self.rates = RateLimits(settings.rate_limits, self.keys.callers, url=settings.counters_url)
        self.requests = Shares(limits.requests, limits.key_share, what="requests (limits.requests)")
        self.bytes_in_flight = Shares(limits.bytes_in_flight, limits.key_share, what="bytes (limits.bytes_in_flight)")
        self.admission = Admission(settings.sessions, limits.key_share)
        self.work = Work(limits.key_share)

    def enter(self, caller: str, until_end: ExitStack) -> None:
        """Count a request as in progress until its end. Raises Overloaded if the caller, or all, have too many."""
        most, own = self.settings.limits.key_requests, self.requests.held(caller)
        if most is not None and own >= most:
            raise _refused("key", f"this key has {own} requests in progress (limits.key_requests); try again later")
        try:
            until_end.enter_context(self.requests.holding(caller))(1)
        except Overloaded as error:
            raise _refused("full" if self.requests.total == self.requests.most else "share", str(error)) from None

    async def close(self) -> None:
        await self.work.close()
        await self.rates.close()


def _of_pools(path: Path | None) -> Calibration | None:
    if path is None:
        return None
    try:
        return Calibration.of_json(orjson.loads(path.read_bytes()))
    except (OSError, orjson.JSONDecodeError, InvalidInput) as error:
        raise InvalidConfiguration(f"calibration: {path} cannot be used: {error}") from None
