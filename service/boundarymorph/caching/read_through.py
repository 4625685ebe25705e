"""Reading through a cache: values that are neither cached nor being computed for another request are computed."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from boundarymorph.errors import DeadlineExceeded
from boundarymorph.telemetry import metrics
from boundarymorph.telemetry.metrics import Cache

Key = TypeVar("Key")
Value = TypeVar("Value")
log = logging.getLogger(__name__)


class _Outcome(Enum):
    """How a flight can end without a value: its request was cancelled, or the computation failed."""

    ABANDONED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, eq=False)
class _Flight(Generic[Value]):
    """A value being read or computed. due: the deadline of the request that does so."""

    due: float
    landed: asyncio.Future[Value | _Outcome]


@dataclass(frozen=True, slots=True)
class Source(Generic[Key, Value]):
    """Where the values of one call come from, and where they are stored.

    read and compute get distinct keys. compute is called once for all missing values, and again only for those that
    another request was computing when it failed.
    """

    read: Callable[[Sequence[Key]], Awaitable[Sequence[Value | None]]]
    compute: Callable[[Sequence[Key]], Awaitable[Sequence[Value]]]
    write: Callable[[Mapping[Key, Value]], Awaitable[None]]


class ReadThrough(Generic[Key, Value]):
    """Values by key, each read and computed by one request at a time (single flight), and written in the background.

    A flight stays until its value has been written, so a later request finds the value there or in the cache.
    For use on one event loop.
    """

    def __init__(self, cache: Cache, *, writes: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        """cache: its label in the metrics; writes: most background writes at a time."""
        self._cache: Cache = cache
        self._most_writes = writes
        self._clock = clock
        self._flights: dict[Key, _Flight[Value]] = {}
        self._writes: set[asyncio.Task[None]] = set()

    async def get(
        self, keys: Sequence[Key], source: Source[Key, Value], *, deadline: float | None = None
    ) -> list[Value]:
        """Return n values for n keys; equal keys are looked up once. deadline: seconds on the clock.

        Raises what source.compute raises, and DeadlineExceeded.
        """
        found: dict[Key, Value] = {}
        wanted = list(dict.fromkeys(keys))
        due = math.inf if deadline is None else deadline
        while wanted:
            followed, led = {}, []
            for key in wanted:
                flight = self._flights.get(key)
                # A request with a later deadline may be queued too far back to finish in time for this one.
                if flight is not None and (flight.due <= due or flight.landed.done()):
                    followed[key] = flight
                else:
                    led.append(key)
            if led:
                found.update(await self._lead(led, due, source))
            if not followed:
                break
            outcomes = await self._follow(followed, deadline)
            failed = [key for key, outcome in outcomes.items() if outcome is _Outcome.FAILED]
            if failed:
                computed = dict(zip(failed, await source.compute(failed), strict=True))
                found.update(computed)
                self._write_later(computed, {}, source)
            wanted = [key for key, outcome in outcomes.items() if outcome is _Outcome.ABANDONED]
            found.update({key: value for key, value in outcomes.items() if not isinstance(value, _Outcome)})
        return [found[key] for key in keys]

    async def drain(self) -> None:
        """Wait for pending writes."""
        while self._writes:
            await asyncio.gather(*self._writes)

    async def _lead(self, keys: Sequence[Key], due: float, source: Source[Key, Value]) -> dict[Key, Value]:
        loop = asyncio.get_running_loop()
        flights: dict[Key, _Flight[Value]] = {key: _Flight(due, loop.create_future()) for key in keys}
        self._flights.update(flights)
        written: dict[Key, _Flight[Value]] = {}
        outcome = _Outcome.FAILED
        try:
            known = await source.read(keys)
            found = {key: value for key, value in zip(keys, known, strict=True) if value is not None}
            self._land({key: flights[key] for key in found}, found)
            missing = [key for key in keys if key not in found]
            if missing:
                computed = dict(zip(missing, await source.compute(missing), strict=True))
                for key, value in computed.items():
                    flights[key].landed.set_result(value)
                found.update(computed)
                written = {key: flights[key] for key in computed}
                self._write_later(computed, written, source)
            return found
        except asyncio.CancelledError:
            outcome = _Outcome.ABANDONED
            raise
        except DeadlineExceeded:
            if due < math.inf:
                outcome = _Outcome.ABANDONED
            raise
        finally:
            self._land({key: flight for key, flight in flights.items() if key not in written}, {}, outcome)

    def _land(
        self,
        flights: Mapping[Key, _Flight[Value]],
        values: Mapping[Key, Value],
        otherwise: _Outcome = _Outcome.ABANDONED,
    ) -> None:
        """Hand the values to the requests that wait for them, and end the flights."""
        for key, flight in flights.items():
            if not flight.landed.done():
                flight.landed.set_result(values.get(key, otherwise))
            if self._flights.get(key) is flight:
                del self._flights[key]

    async def _follow(
        self, flights: Mapping[Key, _Flight[Value]], deadline: float | None
    ) -> dict[Key, Value | _Outcome]:
        seconds = None if deadline is None else deadline - self._clock()
        _, late = await asyncio.wait({flight.landed for flight in flights.values()}, timeout=seconds)
        if late:
            raise DeadlineExceeded("the deadline passed while another request was computing the same value")
        return {key: flight.landed.result() for key, flight in flights.items()}

    def _write_later(
        self, values: Mapping[Key, Value], flights: Mapping[Key, _Flight[Value]], source: Source[Key, Value]
    ) -> None:
        """Write in the background; the flights end when the write is done."""
        if len(self._writes) >= self._most_writes:
            metrics.cache_writes.labels(self._cache, "dropped").inc(len(values))
            self._land(flights, values)
            return
        task = asyncio.ensure_future(self._write(values, flights, source))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(
        self, values: Mapping[Key, Value], flights: Mapping[Key, _Flight[Value]], source: Source[Key, Value]
    ) -> None:
        try:
            await source.write(values)
        except Exception:
            log.exception("the cache could not write")
        finally:
            self._land(flights, values)
