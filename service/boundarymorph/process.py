"""A process that serves an application until it is told to stop, and then ends in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import ip_address
from types import FrameType

import uvicorn
from fastapi import FastAPI

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.settings import Settings
from boundarymorph.telemetry import logs


def serve(create: Callable[[Callable[[], None]], FastAPI], settings: Settings) -> int:
    """Run the application that `create` makes; the exit code.

    What `create` is given is to be called when there is nothing left to serve: the process then ends with 1.

    The first SIGTERM or SIGINT makes it unready, lets it work on for drain_seconds, then closes its door and gives what
    runs grace_seconds to finish. A second one ends it at once.

    Raises InvalidConfiguration for an address that others can reach, without keys.
    """
    if not (settings.keys or settings.without_keys or _is_loopback(settings.host)):
        raise InvalidConfiguration(
            f"others can reach {settings.host}, and there are no keys: make one with `boundarymorph key`, or set "
            "without_keys if something in front of this service checks who calls"
        )
    logs.configure(settings.log_level, settings.log_format)
    failed = False

    def fail() -> None:
        nonlocal failed
        failed = server.should_exit = True

    app = create(fail)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,  # the middleware logs each request, with its id
        timeout_graceful_shutdown=settings.grace_seconds,
    )
    server = _DrainingServer(config, app, settings.drain_seconds)
    server.run()
    return 1 if failed or not server.started else 0


class _DrainingServer(uvicorn.Server):
    """A server that is unready for a while before it closes its door."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_seconds: float) -> None:
        super().__init__(config)
        self._app = app
        self._drain_seconds = drain_seconds
        self._exit_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self._exit_at is not None:
            self.should_exit = self.force_exit = True
            return
        self._app.state.boundarymorph.draining = True
        self._exit_at = time.monotonic() + self._drain_seconds

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if self._exit_at is not None and time.monotonic() >= self._exit_at:
            self.should_exit = True
        return await super().on_tick(counter)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
