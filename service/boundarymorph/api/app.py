"""The HTTP application."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPMethod

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boundarymorph import __version__, wiring
from boundarymorph.api import indexes, openapi, operations, problems, select
from boundarymorph.api.state import State
from boundarymorph.errors import BoundaryMorphError
from boundarymorph.settings import Settings
from boundarymorph.telemetry import metrics

log = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    *,
    build: Callable[[Settings], wiring.Rooms] = wiring.build,
    on_failure: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The service. It answers /livez at once and is ready when `build` is done and a canary has come back.

    on_failure: called when that fails; /readyz then says why.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state: State = app.state.boundarymorph
        starting = asyncio.create_task(_start(state, build, on_failure))
        yield
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if state.built is not None:
            await state.built.close()

    app = FastAPI(
        title="BoundaryMORPH",
        version=__version__,
        description="Budgeted reranking: spend B cross-encoder calls where they change which k documents are returned.",
        lifespan=lifespan,
        redirect_slashes=False,  # a client that resolves /indexes/a/documents/.. shall not be led to /indexes/a
    )
    app.state.boundarymorph = State(settings)
    for routes in (select, indexes, operations):
        app.include_router(routes.router)
    problems.install(app)
    openapi.install(app)
    app.add_middleware(Measured)
    return app


async def _start(state: State, build: Callable[[Settings], wiring.Rooms], on_failure: Callable[[], None]) -> None:
    try:
        state.built = await asyncio.to_thread(build, state.settings)
        await state.built.check()
    except Exception as error:
        log.error("the service cannot start: %s", error, exc_info=not isinstance(error, BoundaryMorphError))
        state.failure = str(error) or repr(error)
        on_failure()
    else:
        # What stands now stays; without this, parsing one large pool makes the collector walk through all of it again.
        gc.collect()
        gc.freeze()
        state.ready = True
        log.info("ready")


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
