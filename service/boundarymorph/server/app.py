"""Create the application of each role: its routes, its start, readiness, and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from boundarymorph import __version__
from boundarymorph.access.limits import Access
from boundarymorph.agents import routes as agents
from boundarymorph.agents.notes import ShownNotes
from boundarymorph.api import forward, openapi, operations, problems, retrieval, score, select
from boundarymorph.api.compression import Compression
from boundarymorph.api.lifecycle import Build, Lifecycle
from boundarymorph.api.middleware import (
    HeadAsGet,
    LargeAnswers,
    OriginCheck,
    PathCorrection,
    RequestLog,
    UnexpectedErrors,
)
from boundarymorph.api.rerank import routes as rerank
from boundarymorph.errors import InvalidConfiguration
from boundarymorph.server import composition
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics
from boundarymorph.web import pages


def create_app(
    settings: Settings, *, build: Build | None = None, on_failure: Callable[[], None] = lambda: None
) -> FastAPI:
    """Create the service, or with a remote retriever a gateway.

    It listens when `build` is done and is ready when each part has answered a probe.

    Args:
        settings: The settings of the service.
        build: Builds the parts.
        on_failure: Called if `build` fails or the service breaks for good.
    """
    description = "Budgeted reranking: spend B cross-encoder calls where they change which k documents are returned."
    if settings.retriever.url:
        indexes = forward.router
        build = build or composition.build_gateway
    else:
        indexes, build = _indexes(), build or composition.build
    playground = pages.playground(settings)
    routers = (select.router, rerank.router, indexes, operations.router, agents.router, playground)
    app = _application(settings, build, on_failure, routers, description)
    app.state.shown_notes = ShownNotes()
    if settings.playground:
        app.openapi_external_docs = {"url": "playground", "description": "Try it in the playground"}
    return app


def create_retriever_app(
    settings: Settings, *, build: Build | None = None, on_failure: Callable[[], None] = lambda: None
) -> FastAPI:
    description = "First-stage retrieval: pools of the documents that are nearest to a query."
    routers, build = (retrieval.router, _indexes(), operations.router), build or composition.build_retrieval
    return _application(settings, build, on_failure, routers, description, behind_gateways=True)


def create_scorer_app(
    settings: Settings, *, build: Build = composition.build_scoring, on_failure: Callable[[], None] = lambda: None
) -> FastAPI:
    description = "A cross-encoder: the relevance of documents to a query, batched across requests."
    routers = (score.router, operations.router)
    return _application(settings, build, on_failure, routers, description, behind_gateways=True)


def _indexes() -> APIRouter:
    try:
        from boundarymorph.api import indexes
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"indexes in this process need {error.name}; else set retriever.url") from None
    return indexes.router


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
    metrics.select_running.set_function(lambda: access.admission.running)
    metrics.select_waiting.set_function(lambda: access.admission.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await lifecycle.load(build)
        living = asyncio.create_task(lifecycle.run())
        yield
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        if lifecycle.built is not None:
            await lifecycle.built.close()
        await access.close()

    app = openapi.DescribedApp(
        title="BoundaryMORPH",
        version=__version__,
        description=description,
        lifespan=lifespan,
        routes=[route for router in (*routers, pages.docs()) for route in router.routes],
        docs_url=None,  # FastAPI's pages load their scripts from another server; ours is in `pages.docs`
        redoc_url=None,
        openapi_url=None,  # ours is made once, in `openapi.install`
        redirect_slashes=False,  # a client that resolves /indexes/a/documents/.. must not be redirected to /indexes/a
    )
    app.state.access, app.state.lifecycle = access, lifecycle
    problems.install(app)
    operations.install(app, settings.metrics_seconds)
    app.public_url = settings.public_url
    openapi.install(app)
    for middleware in (UnexpectedErrors, LargeAnswers, Compression, HeadAsGet):
        app.add_middleware(middleware)
    app.add_middleware(PathCorrection, routes=app.routes)
    app.add_middleware(OriginCheck, origins=access.origins)
    app.add_middleware(RequestLog)
    return app
