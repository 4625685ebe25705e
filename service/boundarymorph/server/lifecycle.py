"""A process from its start to its end: what it serves, and whether it can."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from boundarymorph.api.schemas import Ready
from boundarymorph.errors import (
    BoundaryMorphError,
    EncoderUnavailable,
    NotReady,
    Overloaded,
    RetrieverUnavailable,
    ScorerUnavailable,
)
from boundarymorph.server.composition import Probe
from boundarymorph.server.readiness import RETRY_SECONDS, Readiness
from boundarymorph.settings import Settings
from boundarymorph.telemetry import tracing

NOT_YET = (ScorerUnavailable, EncoderUnavailable, RetrieverUnavailable, Overloaded)  # what another process may say then
TICK = 0.1  # seconds within which a signal is noticed before the server runs
log = logging.getLogger(__name__)


class Part(Protocol):
    """What a process serves."""

    @property
    def probes(self) -> Mapping[str, Probe]:
        """By the name of what is probed while the process runs."""

    async def check(self) -> None:
        """Warm up and try every part once. Raises what keeps it from working."""

    async def close(self) -> None:
        """Release everything."""


Build = Callable[[Settings, Callable[[], None]], Part]  # the second: to be called when it is broken for good


@dataclass(slots=True)
class Lifecycle:
    """A process from its start to its end.

    built: what it serves, once that is there; ready: its parts have answered a first probe, and nothing broke since;
    readiness: of the parts behind it, from then on; waiting: for what, as callers read it; trouble: the same for
    operators; failure: why there is nothing to wait for; draining: it is to stop; listen_when_ready: it accepts
    no connection before.
    """

    settings: Settings
    on_failure: Callable[[], None] = lambda: None
    built: Part | None = None
    ready: bool = False
    waiting: str = "the models are loading"
    trouble: str | None = None
    failure: str | None = None
    draining: bool = False
    listen_when_ready: bool = False
    readiness: Readiness | None = None

    async def live(self, build: Build) -> None:
        """Start, and from then on ask the parts whether they are still there."""
        await self.start(build)
        if self.built is not None and self.ready:
            self.readiness = Readiness(
                self.built.probes,
                interval=self.settings.ready_interval_seconds,
                timeout=self.settings.ready_timeout_seconds,
            )
            await self.readiness.follow()

    async def start(self, build: Build) -> None:
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

    def health(self) -> Ready:
        """Whether it can serve, with every detail."""
        parts = {} if self.readiness is None else self.readiness.parts
        if self.failure is not None:
            return Ready(status="failed", detail=self.failure, parts=parts)
        if self.draining:
            return Ready(status="draining", detail="finishing what is under way", parts=parts)
        if not self.ready:
            return Ready(status="starting", detail=self.trouble or self.waiting)
        missing = None if self.readiness is None else self.readiness.missing
        return Ready(status="ok" if missing is None else "unready", detail=missing, parts=parts)

    def require(self) -> Part:
        """Raises NotReady before the probe has come back, and after a breakdown."""
        if self.built is None or not self.ready:
            if self.failure is not None:
                raise NotReady("the service could not start, or broke; its log says why")
            raise NotReady(f"{self.waiting}; try again in a second")
        return self.built

    async def may_listen(self) -> None:
        """Wait until it may accept connections: at once, or once it is ready, has failed or is to stop."""
        while self.listen_when_ready and not (self.ready or self.failure or self.draining):  # noqa: ASYNC110
            await asyncio.sleep(TICK)  # the signal handler, for one, has no event to set

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

    def _break(self) -> None:
        self._fail("the device is lost; a new process is needed")

    def _fail(self, reason: str) -> None:
        self.ready, self.failure = False, reason
        self.on_failure()
