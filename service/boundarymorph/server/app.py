"""The application of each role: its routes, its start, readiness and end."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import ModuleType
from typing import Literal, Protocol

from fastapi import APIRouter, FastAPI

from boundarymorph import __version__
from boundarymorph.access.access import Access
from boundarymorph.agents import routes as agents
from boundarymorph.api import (
    batch,
    dify,
    forward,
    judgments,
    learned,
    openapi,
    operations,
    problems,
    retrieval,
    score,
    select,
)
from boundarymorph.api.dependencies import WithSlash
from boundarymorph.api.rerank import routes as rerank
from boundarymorph.api.schemas import PartHealth, Ready
from boundarymorph.errors import (
    BoundaryMorphError,
    EncoderUnavailable,
    InvalidConfiguration,
    NotReady,
    Overloaded,
    RetrieverUnavailable,
    ScorerUnavailable,
    StorageUnavailable,
)
from boundarymorph.server import composition
from boundarymorph.server.composition import Probe
from boundarymorph.server.middleware import (
    EncodedSlash,
    FromAllowed,
    HeadAsGet,
    InPieces,
    Observed,
    RateLimitHeaders,
    Unexpected,
    UntilEnd,
)
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics, tracing
from boundarymorph.web import pages

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


# What another process, or the disk, may still become ready for.
NOT_YET = (ScorerUnavailable, EncoderUnavailable, RetrieverUnavailable, StorageUnavailable, Overloaded)
LONGEST_PAUSE = 30.0  # seconds after which a caller is told to try again
TICK = 0.1  # seconds between checks for a signal before the server runs


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


SHARE_SECONDS = 1.0  # between writes of a worker's gauges for the others


def create_app(
    settings: Settings, *, build: Build | None = None, on_failure: Callable[[], None] = lambda: None
) -> FastAPI:
    """Create the service. It listens when `build` is done, and is ready when every part has answered a probe. If the
    settings name a remote retriever it is a gateway, and the indexes are the retriever's.

    build: by default what the settings say. on_failure: called if `build` fails, or if the service breaks for good
    later; /readyz then says why.
    """
    description = "Budgeted reranking: spend B cross-encoder calls where they change which k documents are returned."
    if settings.retriever.url:
        indexes: Sequence[APIRouter] = (forward.router,)
        build = build or composition.build_gateway
    else:
        indexes, build = (_indexes().router, judgments.router), build or composition.build
    routers = (
        select.router,
        batch.router,
        rerank.router,
        dify.router,
        *indexes,
        operations.router,
        agents.router,
        pages.playground(settings),
    )
    return _application(settings, build, on_failure, routers, description)


def create_retriever_app(
    settings: Settings, *, build: Build | None = None, on_failure: Callable[[], None] = lambda: None
) -> FastAPI:
    """Create a retriever: the indexes of this machine behind HTTP, with the lifecycle of `create_app`."""
    description = "First-stage retrieval: pools of the documents that are nearest to a query."
    return _application(
        settings,
        build or composition.build_retrieval,
        on_failure,
        (retrieval.router, _indexes().router, learned.router, judgments.router, operations.router),
        description,
        behind_gateways=True,
    )


def create_scorer_app(
    settings: Settings, *, build: Build = composition.build_scoring, on_failure: Callable[[], None] = lambda: None
) -> FastAPI:
    """Create a scorer: one cross-encoder behind HTTP, with the lifecycle of `create_app`."""
    description = "A cross-encoder: relevances of documents to a query, batched across requests."
    routers = (score.router, operations.router)
    return _application(settings, build, on_failure, routers, description, behind_gateways=True)


def _indexes() -> ModuleType:
    """Import the routes of indexes in this process. Raises InvalidConfiguration if FAISS is not installed."""
    try:
        from boundarymorph.api import indexes
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"indexes in this process need {error.name}; else set retriever.url") from None
    return indexes


def _application(
    settings: Settings,
    build: Build,
    on_failure: Callable[[], None],
    routers: Sequence[APIRouter],
    description: str,
    *,
    behind_gateways: bool = False,
) -> FastAPI:
    access, lifecycle = Access(settings, behind_gateways=behind_gateways), Lifecycle(settings, on_failure)
    metrics.observe_admission(lambda: access.admission.running, lambda: access.admission.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await lifecycle.load(build)
        tasks = [asyncio.create_task(lifecycle.live())]
        if settings.memory.audits:
            selector = lambda: getattr(lifecycle.built, "selector", None) if lifecycle.ready else None  # noqa: E731
            tasks.append(asyncio.create_task(access.audits.run(selector)))
        if metrics.is_shared():
            tasks.append(asyncio.create_task(_share_gauges()))
        await lifecycle.may_listen()
        async with AsyncExitStack() as running:
            for router in routers:
                await running.enter_async_context(router.lifespan_context(app))
            yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await access.memories.close()  # which are told at the retriever
        if lifecycle.built is not None:
            await lifecycle.built.close()
        await access.close()

    app = FastAPI(
        title="BoundaryMORPH",
        version=__version__,
        description=description,
        lifespan=lifespan,
        routes=[route for router in (*routers, pages.docs()) for route in router.routes],
        docs_url=None,  # FastAPI's pages load their scripts from another server; ours is in `pages.docs`
        redoc_url=None,
        openapi_url=None,  # ours is made once, in `openapi.install`
        redirect_slashes=False,  # must not redirect a client that resolves /indexes/a/documents/.. to /indexes/a
    )
    app.state.access, app.state.lifecycle = access, lifecycle
    problems.install(app)
    operations.install(app, settings.metrics_seconds)
    openapi.install(app, settings.public_url)
    app.add_middleware(WithSlash, routes=app.routes)
    app.add_middleware(Unexpected)
    app.add_middleware(InPieces)
    app.add_middleware(HeadAsGet)
    app.add_middleware(EncodedSlash)
    app.add_middleware(UntilEnd)
    app.add_middleware(RateLimitHeaders)
    app.add_middleware(FromAllowed, origins=access.origins)
    app.add_middleware(Observed)
    return app


async def _share_gauges() -> None:
    while True:
        metrics.share_gauges()
        await asyncio.sleep(SHARE_SECONDS)
