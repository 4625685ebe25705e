"""Periodic probes of the parts of a running process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

from boundarymorph.api.schemas import PartHealth
from boundarymorph.errors import Overloaded
from boundarymorph.server.composition import Probe
from boundarymorph.telemetry import metrics, tracing

RETRY_SECONDS = 1.0  # between probes while a part does not answer
log = logging.getLogger(__name__)


class Readiness:
    """The state of each part after its last probe. All parts start as answering."""

    def __init__(
        self,
        probes: Mapping[str, Probe],
        *,
        interval: float,
        timeout: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """interval: seconds between probes while all parts answer; timeout: seconds that each may take."""
        self._probes = probes
        self._interval, self._timeout = interval, timeout
        self._now = now
        self.parts = {name: PartHealth(status="ok", since=now()) for name in probes}
        for name in probes:
            metrics.part_up.labels(name).set(1)

    @property
    def missing(self) -> str | None:
        """The parts that do not answer and why; None if all do."""
        away = [f"{name}: {part.detail}" for name, part in self.parts.items() if part.status != "ok"]
        return "; ".join(away) or None

    async def follow(self) -> None:
        """Probe until cancelled, one round of probes after another."""
        while self._probes:
            await asyncio.sleep(self._interval if self.missing is None else min(RETRY_SECONDS, self._interval))
            await self.ask()

    async def ask(self) -> None:
        """Probe all parts concurrently."""
        await asyncio.gather(*(self._ask(name, probe) for name, probe in self._probes.items()))

    async def _ask(self, name: str, probe: Probe) -> None:
        detail = None
        try:
            with tracing.unseen():
                async with asyncio.timeout(self._timeout):
                    await probe(time.monotonic() + self._timeout)
        except Overloaded:
            pass  # an overloaded part is up
        except TimeoutError as error:
            detail = str(error) or f"no answer in {self._timeout:g} seconds"
        except Exception as error:
            detail = str(error) or repr(error)
        self._note(name, detail)

    def _note(self, name: str, detail: str | None) -> None:
        before = self.parts[name]
        status: Literal["ok", "away"] = "ok" if detail is None else "away"
        changed = before.status != status
        self.parts[name] = PartHealth(status=status, since=self._now() if changed else before.since, detail=detail)
        metrics.part_up.labels(name).set(status == "ok")
        if changed and status == "ok":
            log.info("%s: ready again", name)
        elif changed:
            log.warning("%s: not ready: %s", name, detail)
