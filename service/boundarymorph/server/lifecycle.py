"""A process from its start to its end: the settings and, once it stands, what is behind its routes."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from boundarymorph.access.admission import Admission
from boundarymorph.access.bodies import BytesInHand
from boundarymorph.access.keys import KeyRing
from boundarymorph.access.rates import RateLimits
from boundarymorph.errors import (
    BoundaryMorphError,
    EncoderUnavailable,
    NotReady,
    Overloaded,
    RetrieverUnavailable,
    ScorerUnavailable,
)
from boundarymorph.inference.executors import BoundedExecutor
from boundarymorph.server.composition import Canary
from boundarymorph.server.readiness import RETRY_SECONDS, Readiness
from boundarymorph.settings import Settings, WorkSettings
from boundarymorph.telemetry import tracing

NOT_YET = (ScorerUnavailable, EncoderUnavailable, RetrieverUnavailable, Overloaded)  # what another process may say then
TICK = 0.1  # seconds within which a signal is noticed before the server runs
log = logging.getLogger(__name__)


class Part(Protocol):
    """What a process serves."""

    async def check(self) -> None:
        """Warm up and let a canary through. Raises what keeps it from working."""

    async def close(self) -> None:
        """Release everything."""


@dataclass(frozen=True, slots=True)
class Work:
    """The threads of a process's blocking work by its kind; those that search are the retriever's own.

    parsing: large bodies of requests and answers; read: what is known of indexes, and their documents; write: uploads,
    from the parsing of their documents on, and other changes to indexes.
    """

    parsing: BoundedExecutor
    read: BoundedExecutor
    write: BoundedExecutor

    @classmethod
    def of(cls, settings: WorkSettings) -> Work:
        return cls(
            BoundedExecutor("parsing", threads=settings.parsing_threads, waiting=settings.parsing_waiting),
            BoundedExecutor("read", threads=settings.read_threads, waiting=settings.read_waiting),
            BoundedExecutor("write", threads=settings.write_threads, waiting=settings.write_waiting),
        )

    async def close(self) -> None:
        """Wait for the calls that run, and release the threads."""
        for executor in (self.parsing, self.read, self.write):
            await executor.close()


Built = TypeVar("Built", bound=Part)
Build = Callable[[Settings, Callable[[], None]], Built]  # the second: to be called when it is broken for good


@dataclass(slots=True)
class State(Generic[Built]):
    """A process from its start to its end.

    built: what it serves, as soon as that stands; ready: a canary came back, and nothing broke since; readiness: of the
    parts behind it, from then on; waiting: for what, as callers read it; trouble: the same for operators; failure: why
    there is nothing to wait for; draining: it was told to stop; listen_when_ready: its door stays closed until then.
    """

    settings: Settings
    on_failure: Callable[[], None] = lambda: None
    built: Built | None = None
    ready: bool = False
    waiting: str = "the models are loading"
    trouble: str | None = None
    failure: str | None = None
    draining: bool = False
    listen_when_ready: bool = False
    readiness: Readiness | None = None
    keys: KeyRing = field(init=False)
    rates: RateLimits = field(init=False)
    admission: Admission = field(init=False)
    bytes_in_hand: BytesInHand = field(init=False)
    work: Work = field(init=False)

    def __post_init__(self) -> None:
        """Raises InvalidConfiguration for malformed keys and rate limits."""
        self.keys = KeyRing(self.settings.keys)
        redis = self.settings.rate_limits.url or self.settings.cache.url
        self.rates = RateLimits(
            self.settings.rate_limits, self.keys.callers, url=None if redis is None else redis.get_secret_value()
        )
        limits = self.settings.limits
        self.admission = Admission(
            running=self.settings.sessions, waiting=limits.waiting, of_caller=limits.key_sessions
        )
        self.bytes_in_hand = BytesInHand(limits.bytes_in_hand)
        self.work = Work.of(self.settings.work)

    async def live(self, build: Build[Built], canaries: Callable[[Built], Mapping[str, Canary]]) -> None:
        """Start, and from then on ask the parts whether they are still there."""
        await self.start(build)
        if self.built is not None and self.ready:
            self.readiness = Readiness(
                canaries(self.built),
                interval=self.settings.ready_interval_seconds,
                timeout=self.settings.ready_timeout_seconds,
            )
            await self.readiness.follow()

    async def start(self, build: Build[Built]) -> None:
        """Build, warm up, be ready; a failure is for `on_failure`, except that another process is waited for."""
        try:
            self.built = await asyncio.to_thread(build, self.settings, self._break)
            await self._check(self.built)
        except Exception as error:
            log.error("the service cannot start: %s", error, exc_info=not isinstance(error, BoundaryMorphError))
            self._fail(str(error) or repr(error))
        else:
            # What stands now stays; without this, parsing one large pool makes the collector walk through it all again.
            gc.collect()
            gc.freeze()
            self.ready = True
            log.info("ready")

    def require(self) -> Built:
        """Raises NotReady before the canary has come back, and after a breakdown."""
        if self.built is None or not self.ready:
            if self.failure is not None:
                raise NotReady("the service could not start, or broke; its log says why")
            raise NotReady(f"{self.waiting}; try again in a second")
        return self.built

    async def may_listen(self) -> None:
        """Wait until its door may be opened: at once, or when it is ready, has failed or is told to stop."""
        while self.listen_when_ready and not (self.ready or self.failure or self.draining):  # noqa: ASYNC110
            await asyncio.sleep(TICK)  # the signal handler, for one, has no event to set

    async def _check(self, built: Built) -> None:
        while True:
            try:
                with tracing.unseen():
                    return await built.check()
            except NOT_YET as error:
                if self.failure is not None:
                    raise
                self.waiting, self.trouble = error.public, str(error)
                log.warning("not ready: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    def _break(self) -> None:
        self._fail("the device is lost; a new process is needed")

    def _fail(self, reason: str) -> None:
        self.ready, self.failure = False, reason
        self.on_failure()
