"""The parts of a process, whether they answer, and the process from its start to its end."""

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

PROBE_SECONDS = 5.0  # that a part has to answer a probe
RETRY_SECONDS = 1.0  # between probes while a part does not answer
# What another process, or the disk, may still become ready for.
NOT_YET = (ScorerUnavailable, EncoderUnavailable, RetrieverUnavailable, StorageUnavailable, Overloaded)
LONGEST_PAUSE = 30.0  # seconds, the longest `Retry-After`
ABSENT: Any = None  # in place of a part that a role does not have
Probe = Callable[[float], Awaitable[object]]  # a small call of a part; takes its deadline on `time.monotonic()`
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The parts of a process. A role has those that its routes use: indexes with their encoder and retriever, or the
    client of a retriever elsewhere, or a scorer alone. probes: of the running process, by the name of their part."""

    catalog: Catalog = ABSENT
    encoder: Encoder = ABSENT
    retriever: IndexRetriever | RemoteRetriever = ABSENT
    scorer: Scorer = ABSENT
    selector: Selector = ABSENT
    caches: Caches = field(default_factory=Caches, kw_only=True)
    probes: Mapping[str, Probe] = field(default_factory=dict, kw_only=True)

    async def check(self) -> None:
        """Warm up and try every part once. Raises the error of a part that does not work."""
        if self.catalog is not ABSENT:
            await self.encoder.check()
            probe = self.probes.get("indexes")
            await (asyncio.to_thread(self.catalog.check) if probe is None else probe(math.inf))
        elif self.retriever is not ABSENT:
            await cast("RemoteRetriever", self.retriever).check()
        if self.scorer is not ABSENT:
            await self.scorer.check()

    async def close(self) -> None:
        """Release threads, files and connections, users before what they use."""
        parts: tuple[Any, ...] = (self.selector, self.scorer, self.retriever, self.encoder)
        for part in parts:
            if part is not ABSENT:
                await part.close()
        if self.catalog is not ABSENT:
            self.catalog.close()
        await self.caches.close()


Build = Callable[[Settings, Callable[[], None]], Parts]  # the second argument is called when the part breaks for good


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

    built: its parts, once they are built; ready: they have answered a first probe, and nothing has broken for good
    since; readiness: the state of the parts from then on; waiting: what the process waits for, as shown to callers;
    trouble: the same for operators; failure: why waiting is useless; draining: it has been told to stop.
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
        """Build the parts, whose models load meanwhile. Call `on_failure` after an error."""
        try:
            self.built = await asyncio.to_thread(
                build, self.settings, partial(self._fail, "the device is lost; start a new process")
            )
        except Exception as error:
            self._fail_at_start(error)

    async def live(self) -> None:
        """Warm up, become ready, and from then on keep probing the parts. Wait for other processes; call `on_failure`
        after any other error."""
        if self.built is None:
            return
        try:
            await self._check(self.built)
        except Exception as error:
            return self._fail_at_start(error)
        # Objects of the start live on; without this, the collector would traverse them while parsing a large pool.
        gc.collect()
        gc.freeze()
        self.ready = True
        log.info("ready")
        interval = self.settings.ready_interval_seconds
        self.readiness = Readiness(self.built.probes, interval=interval, timeout=PROBE_SECONDS)
        await self.readiness.follow()

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
        status: Literal["ok", "unready"] = "ok" if missing is None else "unready"
        return Ready(status=status, detail=missing, parts=parts, scorer=self._scorer())

    def _scorer(self) -> ScorerInUse | None:
        """Return the scorer of the process, if it selects."""
        if self.built is None or self.built.selector is ABSENT:
            return None
        selector = self.built.selector
        return ScorerInUse(model=selector.model, trust=selector.trust)

    def require(self, *, probed: bool = True) -> Parts:
        """Return the parts. Raises NotReady until they have answered a first probe, or, if not `probed`, until they are
        built, and after a failure."""
        if self.failure is not None:
            raise NotReady("the service could not start, or failed; its log says why")
        if self.built is None or (probed and not self.ready):
            # As long as it has taken so far: nobody knows how long a model takes, or when another process comes.
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
