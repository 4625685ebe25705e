"""Serve an application until a signal asks for a graceful shutdown."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.routing import NoMatchFound
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE

from boundarymorph.access.callers import is_loopback
from boundarymorph.errors import InvalidConfiguration, missing_package
from boundarymorph.remote.urls import own_url
from boundarymorph.server.protocol import check_connections, configured
from boundarymorph.settings import Settings, TraceSettings
from boundarymorph.telemetry import tracing

log = logging.getLogger(__name__)
AppFactory = Callable[..., FastAPI]  # such as `create_app`; takes settings and `on_failure`

LAST_SECONDS = 10.0  # seconds for a process to release its resources, after its grace time
KILL_SECONDS = 5.0  # seconds after that for the interpreter to end
PACKAGE = str(Path(__file__).parents[1])
ARENAS = 2
_M_ARENA_MAX = -8  # from glibc's malloc.h


def serve(factory: AppFactory, settings: Settings, name: str) -> int:
    """Run an application in this process, and return the exit code.

    The first SIGTERM or SIGINT makes it unready. It accepts requests for drain_seconds, then gives running ones
    grace_seconds to finish. The code is 0 if all did, and 1 if some were aborted or the application called
    `on_failure`. A second signal N ends it at once with 128 + N.

    Args:
        factory: Creates the application, such as `create_app`.
        settings: The settings of the service.
        name: The name of the service in traces.

    Raises:
        InvalidConfiguration: For a public address without keys, too many connections, or traces without the extra.
            Errors of `factory` pass through.
    """
    if not (settings.keys or settings.without_keys or is_loopback(settings.host)):
        raise InvalidConfiguration(
            f"others can reach {settings.host}, and there are no keys: make one with `boundarymorph key`, or set "
            "without_keys if something in front of this service checks who calls"
        )
    tracing.configure_logs(settings.log_level, settings.log_format)
    check_connections(settings.limits.connections)
    server = _server(factory, settings, name)
    server.run()
    return min(server.code, 1)


def _server(factory: AppFactory, settings: Settings, name: str) -> _DrainingServer:
    warnings.filterwarnings("ignore", "Removal of labels", UserWarning)  # from prometheus_client, at a gauge's end
    share_arenas()
    server: _DrainingServer
    app = factory(settings, on_failure=lambda: server.fail())
    config = configured(
        _reporting_failed_start(app, lambda: server.failed),
        settings,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,  # the middleware logs each request, with its id
        timeout_graceful_shutdown=settings.grace_seconds,
    )
    server = _DrainingServer(config, app, settings.drain_seconds, _trace(settings.traces, name))
    return server


def _reporting_failed_start(app: FastAPI, failed: Callable[[], bool]) -> ASGIApp:
    """Return the application, which reports a failed start to uvicorn instead of a complete one."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete" and failed():
                message = {"type": "lifespan.startup.failed"}
            await send(message)

        await app(scope, receive, told if scope["type"] == "lifespan" else send)

    return served


def share_arenas() -> None:
    """Limit `malloc` to two arenas for new threads, unless MALLOC_ARENA_MAX is set.

    By default there are up to eight per core, and each keeps the most memory that its threads ever held at once.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


def _trace(settings: TraceSettings, name: str) -> Callable[[], None]:
    if settings.url is None:
        return lambda: None
    try:
        return tracing.configure(settings.url, name, texts=settings.texts)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(missing_package("traces.url", error.name, "otel")) from None


class _DrainingServer(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, app: FastAPI, drain_seconds: float, end_traces: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._app = app
        self._drain_seconds = drain_seconds
        self._end_traces = end_traces
        self._exit_at: float | None = None
        self.failed = self._broken_off = False

    def fail(self) -> None:
        self.failed = self.should_exit = True

    @property
    def code(self) -> int:
        """The exit code: 0 if all requests finished; STARTUP_FAILURE if it was never ready; else 1."""
        if self.failed and self._app.state.lifecycle.readiness is None:
            return STARTUP_FAILURE
        return int(self.failed or self._broken_off or not self.started)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().run(sockets)
        finally:
            self._end_traces()
        if self.failed:
            log.error("the service has ended: %s", self._app.state.lifecycle.failure)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start draining at the first signal.

        Exit at the second, or at once while nothing is served.
        """
        if self._exit_at is not None or not self.started:
            # A normal exit would wait for threads, for instance one blocked by its disk.
            os._exit(128 + sig if self.started else 0)
        self._app.state.lifecycle.draining = True
        self._exit_at = time.monotonic() + self._drain_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:
            if not self.failed:
                if not self.lifespan.should_exit:  # uvicorn has said why it cannot listen
                    log.error("choose another port with --port, or end the program that uses port %d", self.config.port)
                raise
            await self.lifespan.receive_queue.put(
                {"type": "lifespan.shutdown"}
            )  # releases the parts that have been built
            await self.lifespan.shutdown_event.wait()
        if not self.started:
            return
        with suppress(NoMatchFound):
            path = self._app.url_path_for("playground")
            host, port = (sockets or self.servers[0].sockets)[0].getsockname()[:2]
            log.info("to try it: %s%s", own_url(host, port), path)

    async def on_tick(self, counter: int) -> bool:
        if self._exit_at is not None and time.monotonic() >= self._exit_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish, and cancel those that do not finish in time."""
        _exit_within((self.config.timeout_graceful_shutdown or 0) + LAST_SECONDS)
        running = set(self.server_state.tasks)
        await super().shutdown(sockets)
        self._broken_off = any(task.cancelling() for task in running)


def _exit_within(seconds: float) -> None:
    """End this process after `seconds`, even if threads still run."""
    timer = threading.Timer(seconds, _exit_although)
    timer.daemon = True
    timer.start()
    with suppress(RuntimeError, ValueError):  # without a stderr
        faulthandler.dump_traceback_later(seconds + KILL_SECONDS, exit=True)  # even if a thread holds the interpreter


def _exit_although() -> None:
    frames = sys._current_frames()
    running = [
        f"{thread.name} in {found.name} ({found.filename}:{found.lineno})"
        for thread in threading.enumerate()
        if not thread.daemon and thread.ident in frames and thread is not threading.main_thread()
        for stack in [traceback.extract_stack(frames[thread.ident])]
        for found in stack[-1:]  # the innermost call of a thread that does our work
        if any(PACKAGE in frame.filename for frame in stack)
    ]
    log.critical("exiting although this does not end: %s", "; ".join(running) or "unknown; no thread of ours")
    os._exit(1)
