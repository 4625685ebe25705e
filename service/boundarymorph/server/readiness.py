"""Whether the parts behind a process answer, asked again and again while it runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from boundarymorph.errors import Overloaded
from boundarymorph.server.composition import Canary
from boundarymorph.telemetry import metrics, tracing

RETRY_SECONDS = 1.0  # between canaries while a part is away
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartState:
    """Whether a part answers, since when it does or does not, and why not."""

    answers: bool
    since: datetime
    detail: str | None = None


class Readiness:
    """The parts by name, each as its last canary left it. They answer to begin with."""

    def __init__(
        self,
        canaries: Mapping[str, Canary],
        *,
        interval: float,
        timeout: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """interval: seconds between canaries while all parts answer; timeout: seconds that each may take."""
        self._canaries = canaries
        self._interval, self._timeout = interval, timeout
        self._now = now
        self.parts = {name: PartState(True, now()) for name in canaries}
        for name in canaries:
            metrics.part_up.labels(name).set(1)

    @property
    def missing(self) -> str | None:
        """The parts that do not answer and why; None when all do."""
        away = [f"{name}: {part.detail}" for name, part in self.parts.items() if not part.answers]
        return "; ".join(away) or None

    async def follow(self) -> None:
        """Ask for ever. No canary is sent while another is on its way."""
        while self._canaries:
            await asyncio.sleep(self._interval if self.missing is None else min(RETRY_SECONDS, self._interval))
            await self.ask()

    async def ask(self) -> None:
        """Send each part a canary, side by side."""
        await asyncio.gather(*(self._ask(name, canary) for name, canary in self._canaries.items()))

    async def _ask(self, name: str, canary: Canary) -> None:
        detail = None
        try:
            with tracing.unseen():
                async with asyncio.timeout(self._timeout):
                    await canary(time.monotonic() + self._timeout)
        except Overloaded:
            pass  # one that has too much to do is there
        except TimeoutError as error:
            detail = str(error) or f"no answer in {self._timeout:g} seconds"
        except Exception as error:
            detail = str(error) or repr(error)
        self._note(name, detail)

    def _note(self, name: str, detail: str | None) -> None:
        before, answers = self.parts[name], detail is None
        changed = before.answers != answers
        self.parts[name] = PartState(answers, self._now() if changed else before.since, detail)
        metrics.part_up.labels(name).set(answers)
        if changed and answers:
            log.info("%s: answers again", name)
        elif changed:
            log.warning("%s: does not answer: %s", name, detail)
