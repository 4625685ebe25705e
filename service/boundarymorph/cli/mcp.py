"""Serve the tools for language models on standard input and output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from boundarymorph.cli.common import DataDirectory, LogLevel, fail, option
from boundarymorph.errors import InvalidConfiguration, missing_package
from boundarymorph.settings import RateLimitSettings, Settings, header_key

if TYPE_CHECKING:
    from boundarymorph.agents.rest import Service

CONNECT_SECONDS = 5.0
GRACE_SECONDS = 10.0  # seconds to wait for an answer beyond its longest deadline


def mcp(
    url: Annotated[
        str | None,
        option(
            "URL of a service, called with the key in BOUNDARYMORPH_API_KEY if it is set.",
            default="this process, on the indexes of this machine",
            envvar="BOUNDARYMORPH_URL",
        ),
    ] = None,
    data_directory: DataDirectory = None,
    log_level: LogLevel = "warning",
) -> None:
    """Serve the tools for language models on standard input and output.

    They use the Model Context Protocol.
    """
    from boundarymorph.telemetry import tracing

    settings = Settings.load(data_directory=data_directory, log_level=log_level)
    tracing.configure_logs(settings.log_level, settings.log_format)
    try:
        from boundarymorph.agents import tools
    except ModuleNotFoundError as error:
        fail(missing_package("mcp", error.name, "mcp"))

    async def serve() -> None:
        async with _own_service(settings) if url is None else _remote_service(url.strip(), settings) as service:
            await tools.server_of(service).run_stdio_async()

    asyncio.run(serve())


@asynccontextmanager
async def _own_service(settings: Settings) -> AsyncIterator[Service]:
    # It needs no key, as only the parent process can call it.
    from boundarymorph.agents.rest import local_service
    from boundarymorph.server.app import create_app

    app = create_app(settings.model_copy(update={"keys": (), "rate_limits": RateLimitSettings()}))
    async with app.router.lifespan_context(app):
        yield local_service(app, f"http://{settings.host}:{settings.port}", {}, settings.agents)


@asynccontextmanager
async def _remote_service(url: str, settings: Settings) -> AsyncIterator[Service]:
    import httpx2

    from boundarymorph.agents.rest import Service
    from boundarymorph.remote.urls import parse_plain

    try:
        url, key = parse_plain(url, "the service"), header_key(os.environ.get("BOUNDARYMORPH_API_KEY", ""))
    except (InvalidConfiguration, ValueError) as error:
        fail(f"--url or BOUNDARYMORPH_API_KEY: {error}")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx2.Timeout(settings.limits.deadline_seconds + GRACE_SECONDS, connect=CONNECT_SECONDS)
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout) as http:
        try:
            await http.get("/livez")
        except httpx2.HTTPError as error:  # a service that is started later will answer
            said = str(error) or type(error).__name__
            typer.echo(f"warning: nothing answers at {url} now ({said}); is it running?", err=True)
        yield Service(http, url, settings.agents)
