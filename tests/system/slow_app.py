"""Serve an application without models, whose route takes a given time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

from fastapi import FastAPI

from boundarymorph.inference.concurrency import FairExecutor
from boundarymorph.server import process
from boundarymorph.settings import Settings

process.LAST_SECONDS = 1.0


def create(settings: Settings, *, on_failure: Callable[[], None]) -> FastAPI:
    executor = FairExecutor("search", threads=1)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await executor.close()

    app = FastAPI(lifespan=lifespan)
    app.state.lifecycle = SimpleNamespace(draining=False, listen_when_ready=False)

    @app.get("/slow/{seconds}")
    async def slow(seconds: float) -> str:
        print("begun", flush=True)
        await asyncio.sleep(seconds)
        return "done"

    @app.get("/stuck/{seconds}")
    async def stuck(seconds: float) -> str:
        print("begun", flush=True)
        await executor.run(time.sleep, seconds)
        return "done"

    return app


def main() -> None:
    raise SystemExit(process.serve(create, Settings.load(), "test"))
