"""The HTTP applications: the service, whole or in front of others, and the retriever and the scorer on their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import ModuleType

from fastapi import FastAPI

from boundarymorph import __version__
from boundarymorph.api import forward, openapi, operations, problems, retrieval, score, select
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.server import composition as wiring
from boundarymorph.server.lifecycle import Build, Built, Part, State
from boundarymorph.server.middleware import HeadAsGet, Observed, RateLimitHeaders, Unexpected, UntilEnd
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

SHARE_SECONDS = 1.0  # that what one worker's queues hold may be late in what another one shows


def create_app(
    settings: Settings,
    *,
    build: Build[wiring.Rooms] | Build[wiring.Gateway] | None = None,
    on_failure: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The service. It answers /livez at once and is ready when `build` is done and a canary has come back.

    Where the settings have a retriever elsewhere it is a gateway, and the indexes are those of the retriever.

    build: by default what the settings say. on_failure: called when that fails, or when it breaks for good later;
    /readyz then says why.
    """
    description = "Budgeted reranking: spend B cross-encoder calls where they change which k documents are returned."
    state: State[Part] = State(settings, on_failure)
    admission = state.admission
    metrics.observe_admission(lambda: admission.running, lambda: admission.waiting)
    if settings.retriever.url:
        return _application(state, build or wiring.build_gateway, _canaries, (select, forward, operations), description)
    from boundarymorph.api import indexes  # which loads FAISS

    return _application(state, build or wiring.build, _canaries, (select, indexes, operations), description)


def create_retriever_app(
    settings: Settings,
    *,
    build: Build[wiring.Retrieval] = wiring.build_retrieval,
    on_failure: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The indexes of this machine behind HTTP, with the life of `create_app`."""
    from boundarymorph.api import indexes

    description = "First-stage retrieval: pools of the documents that are nearest to a query."
    return _application(State(settings, on_failure), build, _canaries, (retrieval, indexes, operations), description)


def create_scorer_app(
    settings: Settings,
    *,
    build: Build[BatchingScorer] = wiring.build_scorer,
    on_failure: Callable[[], None] = lambda: None,
) -> FastAPI:
    """One cross-encoder behind HTTP, with the life of `create_app`."""
    description = "A cross-encoder: relevances of documents to a query, batched across requests."

    def canaries(scorer: BatchingScorer) -> dict[str, wiring.Canary]:
        return {"scorer": wiring.canary_of_scorer(scorer)}

    return _application(State(settings, on_failure), build, canaries, (score, operations), description)


def _application(
    state: State[Built],
    build: Build[Built],
    canaries: Callable[[Built], Mapping[str, wiring.Canary]],
    routes: Sequence[ModuleType],
    description: str,
) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(state.live(build, canaries))]
        if metrics.is_shared():
            tasks.append(asyncio.create_task(_share_gauges()))
        await state.may_listen()
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await state.work.close()
        if state.built is not None:
            await state.built.close()
        await state.rates.close()

    app = FastAPI(
        title="BoundaryMORPH",
        version=__version__,
        description=description,
        lifespan=lifespan,
        redirect_slashes=False,  # a client that resolves /indexes/a/documents/.. shall not be led to /indexes/a
    )
    app.state.boundarymorph = state
    for module in routes:
        app.include_router(module.router)
    problems.install(app)
    openapi.install(app)
    app.add_middleware(Unexpected)
    app.add_middleware(HeadAsGet)
    app.add_middleware(UntilEnd)
    app.add_middleware(RateLimitHeaders)
    app.add_middleware(Observed)
    return app


def _canaries(built: Part) -> Mapping[str, wiring.Canary]:
    assert isinstance(built, wiring.Retrieval | wiring.Gateway)
    return built.canaries


async def _share_gauges() -> None:
    while True:
        metrics.share_gauges()
        await asyncio.sleep(SHARE_SECONDS)
