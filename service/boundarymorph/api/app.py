"""The HTTP applications: the gateway, and the scorer on its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPMethod
from types import ModuleType

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boundarymorph import __version__, wiring
from boundarymorph.api import indexes, openapi, operations, problems, score, select
from boundarymorph.api.state import Build, Built, State
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics


def create_app(
    settings: Settings,
    *,
    build: Build[wiring.Rooms] = wiring.build,
    on_failure: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The service. It answers /livez at once and is ready when `build` is done and a canary has come back.

    on_failure: called when that fails, or when it breaks for good later; /readyz then says why.
    """
    return _application(
        State(settings, on_failure),
        build,
        (select, indexes, operations),
        "Budgeted reranking: spend B cross-encoder calls where they change which k documents are returned.",
    )


def create_scorer_app(
    settings: Settings,
    *,
    build: Build[BatchingScorer] = wiring.build_scorer,
    on_failure: Callable[[], None] = lambda: None,
) -> FastAPI:
    """One cross-encoder behind HTTP, with the life of `create_app`."""
    description = "A cross-encoder: relevances of documents to a query, batched across requests."
    return _application(State(settings, on_failure), build, (score, operations), description)


def _application(state: State[Built], build: Build[Built], routes: Sequence[ModuleType], description: str) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(state.start(build))
        yield
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if state.built is not None:
            await state.built.close()

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
    app.add_middleware(Measured)
    return app


class Measured:
    """ASGI middleware: how long each request took, by route and status."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 500

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            method = scope["method"] if scope["method"] in HTTPMethod.__members__ else "other"
            metrics.http_seconds.labels(method, route, status).observe(time.perf_counter() - start)
