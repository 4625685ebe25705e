"""Build the parts of a process, probe them, and follow it from its start to its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from boundarymorph.api.schemas import PartHealth, Ready, ScorerInUse
from boundarymorph.caching.build import Caches
from boundarymorph.errors import (
    BoundaryMorphError,
    EncoderUnavailable,
    NotReady,
    Overloaded,
    RetrieverUnavailable,
    ScorerUnavailable,
    StorageUnavailable,
)
from boundarymorph.scoring.scorer import Scorer
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics, tracing

if TYPE_CHECKING:  # a gateway loads neither FAISS nor ONNX
    from boundarymorph.retrieval.encoders import Encoder
    from boundarymorph.retrieval.index_retriever import IndexRetriever
    from boundarymorph.retrieval.interfaces import Catalog
    from boundarymorph.retrieval.remote import RemoteRetriever

PROBE_SECONDS = 5.0  # time in which a part must answer a probe
RETRY_SECONDS = 1.0  # pause between probes while a part does not answer
# Errors that end when another process, or the disk, becomes ready.
NOT_YET = (ScorerUnavailable, EncoderUnavailable, RetrieverUnavailable, StorageUnavailable, Overloaded)
LONGEST_PAUSE = 30.0  # seconds of the longest `Retry-After`
ABSENT: Any = None  # stands for a part that a role does not have
Probe = Callable[[float], Awaitable[object]]  # a small call of a part; takes its deadline on `time.monotonic()`
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The parts of a process.

    A role has the parts that its routes use: indexes with their encoder and retriever, or the client of a retriever
    elsewhere, or a scorer alone.

    Attributes:
        catalog: The indexes.
        encoder: The encoder of queries and documents.
        retriever: The retriever, here or elsewhere.
        scorer: The scorer.
        selector: The selector.
        caches: The caches of scores and vectors.
        probes: Small calls that show whether a part answers, by the part's name.
    """

    catalog: Catalog = ABSENT
    encoder: Encoder = ABSENT
    retriever: IndexRetriever | RemoteRetriever = ABSENT
    scorer: Scorer = ABSENT
    selector: Selector = ABSENT
    caches: Caches = field(default_factory=Caches, kw_only=True)
    probes: Mapping[str, Probe] = field(default_factory=dict, kw_only=True)

    async def check(self) -> None:
        """Warm up and try every part once. Errors of a part that does not work pass through."""
        if self.catalog is not ABSENT:
            await self.encoder.check()
            probe = self.probes.get("indexes")
            await (asyncio.to_thread(self.catalog.check) if probe is None else probe(math.inf))
        elif self.retriever is not ABSENT:
            await cast("RemoteRetriever", self.retriever).check()
        if self.scorer is not ABSENT:
            await self.scorer.check()

    async def close(self) -> None:
        """Release threads, files, and connections, users before what they use."""
        parts: tuple[Any, ...] = (self.selector, self.scorer, self.retriever, self.encoder)
        for part in parts:
            if part is not ABSENT:
                await part.close()
        if self.catalog is not ABSENT:
            self.catalog.close()
        await self.caches.close()


Build = Callable[[Settings, Callable[[], None]], Parts]  # parts call the second argument when they break for good


class Readiness:
    """The state of each part after its last probe."""

    def __init__(
        self,
        probes: Mapping[str, Probe],
        *,
        interval: float,
        timeout: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Start with all parts as answering.

        Args:
            probes: The probes by the names of their parts.
            interval: Seconds between probes while all parts answer.
            timeout: Most seconds of a probe.
            now: The clock.
        """
        self._probes = probes
        self._interval, self._timeout = interval, timeout
        self._now = now
        self.parts = {name: PartHealth(status="ok", since=now()) for name in probes}
        for name in probes:
            metrics.part_up.labels(name).set(1)

    @property
    def missing(self) -> str | None:
        """The parts that do not answer, with the reasons; None if all answer."""
        away = [f"{name}: {part.detail}" for name, part in self.parts.items() if part.status != "ok"]
        return "; ".join(away) or None

    async def keep_probing(self) -> None:
        """Probe all parts again and again, until cancelled."""
        while self._probes:
            await asyncio.sleep(self._interval if self.missing is None else min(RETRY_SECONDS, self._interval))
            await self.probe()

    async def probe(self) -> None:
        """Probe all parts concurrently."""
        await asyncio.gather(*(self._probe(name, probe) for name, probe in self._probes.items()))

    async def _probe(self, name: str, probe: Probe) -> None:
        detail = None
        try:
            with tracing.without_trace():
                async with asyncio.timeout(self._timeout):
                    await probe(time.monotonic() + self._timeout)
        except Overloaded:
            pass  # an overloaded part is up
        except TimeoutError as error:
            detail = str(error) or f"no answer in {self._timeout:g} seconds"
        except Exception as error:
            detail = str(error) or repr(error)
        before = self.parts[name]
        status: Literal["ok", "away"] = "ok" if detail is None else "away"
        changed = before.status != status
        self.parts[name] = PartHealth(status=status, since=self._now() if changed else before.since, detail=detail)
        metrics.part_up.labels(name).set(status == "ok")
        if changed and status == "ok":
            log.info("%s: ready again", name)
        elif changed:
            log.warning("%s: not ready: %s", name, detail)


class Lifecycle:
    """The lifecycle of a process.

    Attributes:
        settings: The settings of the process.
        on_failure: A function that is called when the process fails for good.
        built: Its parts; None until they are built.
        ready: Whether the parts have answered a first probe, and nothing has broken for good since.
        draining: Whether the process finishes running requests, and stops then.
        waiting: The reason why the process is not ready, as callers see it.
        trouble: The same for operators.
        failure: The reason why the process will not become ready again.
        readiness: The state of the parts; None until the process is ready.
    """

    def __init__(self, settings: Settings, on_failure: Callable[[], None] = lambda: None) -> None:
        self.settings, self.on_failure = settings, on_failure
        self.built: Parts | None = None
        self.ready = self.draining = False
        self.waiting = "the models are warming up"
        self.trouble: str | None = None
        self.failure: str | None = None
        self.readiness: Readiness | None = None
        self._begun = time.monotonic()

    async def load(self, build: Build) -> None:
        """Build the parts and load their models. Call `on_failure` after an error."""
        try:
            self.built = await asyncio.to_thread(
                build, self.settings, partial(self._fail, "the device is lost; start a new process")
            )
        except Exception as error:
            self._fail_at_start(error)

    async def run(self) -> None:
        """Warm up, become ready, and keep probing the parts.

        Wait for other processes that are not ready yet. Call `on_failure` after any other error.
        """
        if self.built is None:
            return
        try:
            await self._check(self.built)
        except Exception as error:
            return self._fail_at_start(error)
        # Objects made at the start stay alive. Unless frozen, the collector would traverse them during requests.
        gc.collect()
        gc.freeze()
        self.ready = True
        log.info("ready")
        interval = self.settings.ready_interval_seconds
        self.readiness = Readiness(self.built.probes, interval=interval, timeout=PROBE_SECONDS)
        await self.readiness.keep_probing()

    def health(self) -> Ready:
        """Return whether the process can serve, with all details."""
        parts = {} if self.readiness is None else self.readiness.parts
        if self.failure is not None:
            return Ready(status="failed", detail=self.failure, parts=parts)
        if self.draining:
            return Ready(status="draining", detail="finishing running requests", parts=parts)
        if not self.ready:
            return Ready(status="starting", detail=self.trouble or self.waiting)
        missing = None if self.readiness is None else self.readiness.missing
        status: Literal["ok", "unready"] = "ok" if missing is None else "unready"
        return Ready(status=status, detail=missing, parts=parts, scorer=self._scorer())

    def _scorer(self) -> ScorerInUse | None:
        """Return the scorer of the process, if it selects."""
        if self.built is None or self.built.selector is ABSENT:
            return None
        selector = self.built.selector
        return ScorerInUse(model=selector.model, trust=selector.trust)

    def require(self, *, probed: bool = True) -> Parts:
        """Return the parts.

        Args:
            probed: Whether they must have answered a first probe; else they must only be built.

        Raises:
            NotReady: Until then, and after a failure.
        """
        if self.failure is not None:
            raise NotReady("the service could not start, or failed; its log says why")
        if self.built is None or (probed and not self.ready):
            # The time to wait is unknown, so take the time that has passed since the start.
            seconds = math.ceil(min(max(time.monotonic() - self._begun, 1.0), LONGEST_PAUSE))
            again = "in a second" if seconds == 1 else f"in {seconds} seconds"
            raise NotReady(f"{self.waiting}; try again {again}", retry_after=seconds)
        return self.built

    async def _check(self, built: Parts) -> None:
        while True:
            try:
                with tracing.without_trace():
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

    def _fail(self, reason: str) -> None:
        self.ready, self.failure = False, reason
        self.on_failure()
