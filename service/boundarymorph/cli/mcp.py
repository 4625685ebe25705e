"""`boundarymorph mcp`: serves the tools for language models on stdin and stdout."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import typer

from boundarymorph.agents.rest import Rest
from boundarymorph.cli.common import DataDirectory, LogLevel, fail
from boundarymorph.settings import RateLimitSettings, Settings

CONNECT_SECONDS = 5.0
GRACE_SECONDS = 10.0  # to wait for an answer beyond its longest deadline


def mcp(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="BOUNDARYMORPH_URL",
            help="URL of a service, called with the key in BOUNDARYMORPH_API_KEY if it is set.",
            show_default="this process, on the indexes of this machine",
        ),
    ] = None,
    data_directory: DataDirectory = None,
    log_level: LogLevel = "warning",
) -> None:
    """Serve the tools for language models on stdin and stdout, with the Model Context Protocol."""
    try:
        from boundarymorph.agents.mcp_server import serve_stdio
    except ModuleNotFoundError as error:
        fail(f"mcp needs {error.name}: pip install 'boundarymorph[mcp]'")
    from boundarymorph.telemetry import logs

    settings = Settings.load(data_directory=data_directory, log_level=log_level)
    logs.configure(settings.log_level, settings.log_format)

    async def serve() -> None:
        async with _here(settings) if url is None else _at(url, settings) as rest:
            await serve_stdio(settings.agents, rest)

    asyncio.run(serve())


@asynccontextmanager
async def _here(settings: Settings) -> AsyncIterator[Rest]:
    """Run a service in this process and yield its API. It needs no key, as only the parent process can call it."""
    from boundarymorph.server.app import create_app

    app = create_app(settings.model_copy(update={"keys": (), "rate_limits": RateLimitSettings()}))
    async with app.router.lifespan_context(app):
        yield Rest(app.state.loopback, f"http://{settings.host}:{settings.port}")


@asynccontextmanager
async def _at(url: str, settings: Settings) -> AsyncIterator[Rest]:
    """Yield the API of a running service."""
    if not url.startswith(("http://", "https://")):
        fail(f"--url is {url!r}, not an http:// or https:// URL")
    key = os.environ.get("BOUNDARYMORPH_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(settings.limits.deadline_seconds + GRACE_SECONDS, connect=CONNECT_SECONDS)
    shown = str(httpx.URL(url).copy_with(username=None, password=None))
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout) as http:
        try:
            await http.get("/livez")
        except httpx.HTTPError as error:  # a service that is started later will answer
            said = str(error) or type(error).__name__
            typer.echo(f"warning: nothing answers at {shown} now ({said}); is it running?", err=True)
        yield Rest(http, shown)
