"""A process that serves an application without models, with a route that takes a given time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

from fastapi import FastAPI

from boundarymorph.server import process
from boundarymorph.settings import Settings


def create(settings: Settings, *, on_failure: Callable[[], None]) -> FastAPI:
    app = FastAPI()
    app.state.lifecycle = SimpleNamespace(draining=False, listen_when_ready=False)

    @app.get("/slow/{seconds}")
    async def slow(seconds: float) -> str:
        print("begun", flush=True)
        await asyncio.sleep(seconds)
        return "done"

    return app


def main() -> None:
    raise SystemExit(process.serve(create, Settings.load(), "test"))
