"""A process that serves an application until it is asked to stop and then shuts down gracefully; or several."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from types import FrameType
from typing import Protocol

import uvicorn
from fastapi import FastAPI
from starlette.routing import NoMatchFound

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.server import supervisor
from boundarymorph.server.protocol import ProblemProtocol
from boundarymorph.settings import Settings
from boundarymorph.telemetry import logs, metrics, tracing

LAST_SECONDS = 10.0  # in which a worker closes what it has, after its grace time
BACKLOG = 2048  # connections that wait for several processes
ARENAS = 2
_M_ARENA_MAX = -8  # of glibc's malloc.h
NO_LISTENER = 3  # the exit code when the address cannot be had
log = logging.getLogger(__name__)


class Create(Protocol):
    """What makes an application, such as `create_app`; a function of a module where there are several workers."""

    def __call__(self, settings: Settings, *, on_failure: Callable[[], None]) -> FastAPI: ...


def serve(create: Create, settings: Settings, name: str) -> int:
    """Run an application, in as many processes as the settings say; the exit code.

    name: of the service, in traces. When the application calls `on_failure`, there is nothing left to serve, and the
    exit code is 1.

    The first SIGTERM or SIGINT makes it unready, lets it work on for drain_seconds, then stops listening and gives what
    runs grace_seconds to finish. The exit code is 0 if all of it did, and 1 if requests had to be broken off. A second
    signal N ends it at once with 128 + N.

    Raises InvalidConfiguration for an address that others can reach, without keys, for traces without the extra, and as
    `create` does.
    """
    if not (settings.keys or settings.without_keys or _is_loopback(settings.host)):
        raise InvalidConfiguration(
            f"others can reach {settings.host}, and there are no keys: make one with `boundarymorph key`, or set "
            "without_keys if something in front of this service checks who calls"
        )
    logs.configure(settings.log_level, settings.log_format)
    if settings.workers == 1:
        return _serve(create, settings, name)
    create(settings, on_failure=lambda: None)  # what is wrong with the settings shows here, once for all workers
    _trace(settings.traces.url, name)()
    try:
        listener = _listen(settings.host, settings.port)
    except OSError as error:
        log.error("%s", error)
        return NO_LISTENER
    shared = tempfile.mkdtemp(prefix="boundarymorph-metrics-")
    os.environ[metrics.SHARED_DIRECTORY] = shared
    try:
        return supervisor.supervise(
            partial(_work, create, settings, name, listener),
            settings.workers,
            patience=settings.drain_seconds + settings.grace_seconds + LAST_SECONDS,
            restarts=settings.worker_restarts,
            window=settings.worker_restart_seconds,
            on_death=metrics.forget_worker,
        )
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def _work(create: Create, settings: Settings, name: str, listener: socket.socket, again: bool) -> int:
    """The life of one of several workers. again: it waits with listening until it is ready; others are there."""
    warnings.filterwarnings("ignore", "Removal of labels", UserWarning)  # prometheus_client, of a gauge at its end
    logs.configure(settings.log_level, settings.log_format)
    return _serve(create, settings, name, listener, listen_when_ready=again)


def _serve(
    create: Create,
    settings: Settings,
    name: str,
    listener: socket.socket | None = None,
    *,
    listen_when_ready: bool = False,
) -> int:
    share_arenas()
    failed = False

    def fail() -> None:
        nonlocal failed
        failed = server.should_exit = True

    app = create(settings, on_failure=fail)
    app.state.lifecycle.listen_when_ready = listen_when_ready
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=ProblemProtocol,
        log_config=None,
        access_log=False,  # the middleware logs each request, with its id
        timeout_graceful_shutdown=settings.grace_seconds,
    )
    server = _DrainingServer(config, app, settings.drain_seconds)
    end_traces = _trace(settings.traces.url, name)
    try:
        server.run(None if listener is None else [listener])
    finally:
        end_traces()
    return 1 if failed or server.broken_off or not server.started else 0


def share_arenas() -> None:
    """Let all threads to come allocate from two of malloc's arenas, unless MALLOC_ARENA_MAX says how many.

    By default glibc makes up to eight a core, and each keeps what its threads ever held at once. Under searches in 16
    threads that is most of the memory of a process, and it grows for hours. Other C libraries have no such arenas.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


def _trace(url: str | None, name: str) -> Callable[[], None]:
    if url is None:
        return lambda: None
    try:
        return tracing.configure(url, name)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"traces.url needs {error.name}: pip install 'boundarymorph[otel]'") from None


def _listen(host: str, port: int) -> socket.socket:
    """A socket for several processes. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves Nagle's algorithm on
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class _DrainingServer(uvicorn.Server):
    """A server that is unready for a while before it stops listening.

    broken_off: whether requests were still running when its grace time was over.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_seconds: float) -> None:
        super().__init__(config)
        self._app = app
        self._drain_seconds = drain_seconds
        self._exit_at: float | None = None
        self.broken_off = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self._exit_at is not None:
            os._exit(128 + sig)  # an end in order would wait for threads, such as one whose disk hangs
        self._app.state.lifecycle.draining = True
        self._exit_at = time.monotonic() + self._drain_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell people where there is a page for them."""
        await super().startup(sockets)
        if not self.started:
            return
        with suppress(NoMatchFound):
            path = self._app.url_path_for("playground")
            host, port = (sockets or self.servers[0].sockets)[0].getsockname()[:2]
            log.info("to try it: http://%s:%d%s", f"[{host}]" if ":" in host else host, port, path)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if self._exit_at is not None and time.monotonic() >= self._exit_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish, and cancel those that do not in time."""
        running = set(self.server_state.tasks)
        await super().shutdown(sockets)
        self.broken_off = any(task.cancelling() for task in running)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
