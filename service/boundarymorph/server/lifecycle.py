"""The lifecycle of a process: starting, ready, draining, failed."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from boundarymorph.api.schemas import Ready
from boundarymorph.errors import (
    BoundaryMorphError,
    EncoderUnavailable,
    NotReady,
    Overloaded,
    RetrieverUnavailable,
    ScorerUnavailable,
    StorageUnavailable,
)
from boundarymorph.server.composition import Probe
from boundarymorph.server.readiness import RETRY_SECONDS, Readiness
from boundarymorph.settings import Settings
from boundarymorph.telemetry import tracing

# What another process, or the disk, may still become ready for.
NOT_YET = (ScorerUnavailable, EncoderUnavailable, RetrieverUnavailable, StorageUnavailable, Overloaded)
LONGEST_PAUSE = 30.0  # seconds after which a caller is told to try again
TICK = 0.1  # seconds between checks for a signal before the server runs
log = logging.getLogger(__name__)


class Part(Protocol):
    """The parts of a process, as one."""

    @property
    def probes(self) -> Mapping[str, Probe]:
        """Return the probes of the running process by the name of their part."""

    async def check(self) -> None:
        """Warm up and try every part once. Raises the error of a part that does not work."""

    async def close(self) -> None:
        """Release everything."""


Build = Callable[[Settings, Callable[[], None]], Part]  # the second argument is called when the part breaks for good


@dataclass(slots=True)
class Lifecycle:
    """The lifecycle of a process.

    built: its parts, once they are built; ready: they have answered a first probe, and nothing has broken for good
    since; readiness: the state of the parts from then on; waiting: what the process waits for, as shown to callers;
    trouble: the same for operators; failure: why waiting is useless; draining: it has been told to stop;
    listen_when_ready: it accepts no connection before it is ready.
    """

    settings: Settings
    on_failure: Callable[[], None] = lambda: None
    built: Part | None = None
    ready: bool = False
    waiting: str = "the models are warming up"
    trouble: str | None = None
    failure: str | None = None
    draining: bool = False
    listen_when_ready: bool = False
    readiness: Readiness | None = None
    begun: float = field(default_factory=time.monotonic)

    async def load(self, build: Build) -> None:
        """Build the parts, whose models load meanwhile. Call `on_failure` after an error."""
        try:
            self.built = await asyncio.to_thread(build, self.settings, self._break)
        except Exception as error:
            self._fail_at_start(error)

    async def live(self) -> None:
        """Become ready, and from then on keep probing the parts."""
        if self.built is None:
            return
        await self._warm_up(self.built)
        if self.ready:
            self.readiness = Readiness(
                self.built.probes,
                interval=self.settings.ready_interval_seconds,
                timeout=self.settings.ready_timeout_seconds,
            )
            await self.readiness.follow()

    async def _warm_up(self, built: Part) -> None:
        """Warm up, and become ready. Wait for other processes; call `on_failure` after any other error."""
        try:
            await self._check(built)
        except Exception as error:
            self._fail_at_start(error)
        else:
            # Objects of the start live on; without this, the collector would traverse them while parsing a large pool.
            gc.collect()
            gc.freeze()
            self.ready = True
            log.info("ready")

    def health(self) -> Ready:
        """Return whether the process can serve, with every detail."""
        parts = {} if self.readiness is None else self.readiness.parts
        if self.failure is not None:
            return Ready(status="failed", detail=self.failure, parts=parts)
        if self.draining:
            return Ready(status="draining", detail="finishing running requests", parts=parts)
        if not self.ready:
            return Ready(status="starting", detail=self.trouble or self.waiting)
        missing = None if self.readiness is None else self.readiness.missing
        return Ready(status="ok" if missing is None else "unready", detail=missing, parts=parts)

    def require(self, *, probed: bool = True) -> Part:
        """Return the parts. Raises NotReady until they have answered a first probe, or, if not `probed`, until they are
        built, and after a failure."""
        if self.failure is not None:
            raise NotReady("the service could not start, or failed; its log says why")
        if self.built is None or (probed and not self.ready):
            # As long as it has taken so far: nobody knows how long a model takes, or when another process comes.
            seconds = math.ceil(min(max(time.monotonic() - self.begun, 1.0), LONGEST_PAUSE))
            again = "in a second" if seconds == 1 else f"in {seconds} seconds"
            raise NotReady(f"{self.waiting}; try again {again}", retry_after=seconds)
        return self.built

    async def may_listen(self) -> None:
        """Wait until the process may accept connections: with listen_when_ready, until ready, failed or draining."""
        while self.listen_when_ready and not (self.ready or self.failure or self.draining):  # noqa: ASYNC110
            await asyncio.sleep(TICK)  # the signal handler, for example, cannot set an event

    async def _check(self, built: Part) -> None:
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

    def _fail_at_start(self, error: Exception) -> None:
        log.error("the service cannot start: %s", error, exc_info=not isinstance(error, BoundaryMorphError))
        self._fail(str(error) or repr(error))

    def _break(self) -> None:
        self._fail("the device is lost; start a new process")

    def _fail(self, reason: str) -> None:
        self.ready, self.failure = False, reason
        self.on_failure()
