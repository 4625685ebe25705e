"""Serving an application in one process or several, until a signal asks for a graceful shutdown."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI
from starlette.routing import NoMatchFound
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from boundarymorph.access.callers import is_loopback
from boundarymorph.errors import InvalidConfiguration, missing_package
from boundarymorph.remote.urls import own_url
from boundarymorph.server.protocol import check_connections, configured
from boundarymorph.settings import Settings, TraceSettings
from boundarymorph.telemetry import metrics, tracing

HUNG_SECONDS = 60  # without an answer of a worker, which may be importing a large library, until it is killed
TICK = 0.1  # seconds between looks for signals and ended workers while all are stopping
log = logging.getLogger(__name__)
Make = Callable[[bool], "_DrainingServer"]
Create = Callable[..., FastAPI]  # such as `create_app`, of settings and `on_failure`; picklable with several workers


class Worker(multiprocess.Process):
    """A worker, which ends with its supervisor. The configuration's `app` makes its server."""

    asked: float | None = None  # when the supervisor asked whether it lives, if it has not answered

    def is_alive(self, timeout: float = 5) -> bool:
        """Whether it runs and has answered within so many seconds. Does not wait, so that signals are heard."""
        if not self.process.is_alive():
            return False
        if self.parent_conn.poll():
            self.parent_conn.recv()
            self.asked = None
        if self.asked is None:
            self.asked = time.monotonic()
            self.parent_conn.send(b"ping")
        return time.monotonic() - self.asked < timeout

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, in a new process. Raises SystemExit."""
        os.setpgid(0, 0)  # Ctrl-C then reaches only the supervisor, which passes it on once
        threading.Thread(target=_follow_parent, daemon=True).start()
        make, replaces = cast("tuple[Make, bool]", self.config.app)
        self.made = make(replaces)
        super().target(sockets)
        raise SystemExit(self.made.code)

    @property
    def server(self) -> _DrainingServer:
        """The server of this process."""
        return self.made


class Workers(multiprocess.Multiprocess):
    """uvicorn's supervisor, with an exit code. A second signal does not wait for requests."""

    code = 0

    def init_processes(self) -> None:
        """Start all workers. Those that come later replace one of them."""
        super().init_processes()
        make, _ = cast("tuple[Make, bool]", self.config.app)
        self.config.app = cast("str", (make, True))

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended, and forget their gauges."""
        before = list(self.processes)
        super().keep_subprocess_alive()
        for worker in before:
            if worker.exitcode is not None and worker.pid is not None:
                metrics.forget_worker(worker.pid)

    def handle_signals(self) -> None:
        """Handle one signal of those that have come."""
        others = [self.signal_queue.pop() for _ in self.signal_queue[1:]]
        super().handle_signals()
        self.signal_queue += others

    def join_all(self) -> None:
        """Wait for the end of all workers."""
        while any(process.exitcode is None for process in self.processes):
            number = self.signal_queue.pop(0) if self.signal_queue else None
            if number in (signal.SIGTERM, signal.SIGINT):
                self.code = 128 + number
                for process in self.processes:
                    if process.exitcode is None and process.pid is not None:
                        os.kill(process.pid, signal.SIGTERM)
            time.sleep(TICK)
        for process in self.processes:
            if process.exitcode not in (0, -signal.SIGTERM):  # the latter if it was still starting
                log.error("worker %s exited with %s", process.pid, process.exitcode)
                self.code = self.code or 1


def supervise(make: Make, workers: int, sockets: Sequence[socket.socket]) -> int:
    """Serve in so many processes until SIGTERM or SIGINT, which is passed on to them as SIGTERM.

    make: makes the server of a process; picklable; takes whether it replaces a worker. A worker that
    cannot start ends all. Returns 0 if all have ended normally, 128 + N after a second signal N, else 1.
    """
    multiprocess.Process = Worker  # type: ignore[misc]  # the supervisor has no other way to name the class
    config = uvicorn.Config(
        cast("str", (make, False)), workers=workers, timeout_worker_healthcheck=HUNG_SECONDS, log_config=None
    )
    supervisor = Workers(config, list(sockets))
    supervisor.run()
    return supervisor.code


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


LAST_SECONDS = 10.0  # for a process to release its resources, after its grace time
KILL_SECONDS = 5.0  # after that, for what is left to the interpreter, or to the first of several processes
PACKAGE = str(Path(__file__).parents[1])
BACKLOG = 2048  # connections that may wait to be accepted by several processes
ARENAS = 2
_M_ARENA_MAX = -8  # of glibc's malloc.h


def serve(create: Create, settings: Settings, name: str) -> int:
    """Run an application in as many processes as the settings say, and return the exit code.

    name: of the service, in traces. If the application calls `on_failure`, it stops with exit code 1.

    The first SIGTERM or SIGINT makes it unready. It keeps accepting requests for drain_seconds, then stops listening
    and gives running requests grace_seconds to finish. The exit code is 0 if all did, and 1 if some had to be aborted.
    A second signal N ends it at once with 128 + N.

    Raises InvalidConfiguration for a public address without keys, for more connections than there are descriptors, for
    traces without the extra, and as `create` does.
    """
    if not (settings.keys or settings.without_keys or is_loopback(settings.host)):
        raise InvalidConfiguration(
            f"others can reach {settings.host}, and there are no keys: make one with `boundarymorph key`, or set "
            "without_keys if something in front of this service checks who calls"
        )
    tracing.configure_logs(settings.log_level, settings.log_format)
    check_connections(settings.limits.connections)
    if settings.workers == 1:
        server = _server(create, settings, name)
        server.run()
        return min(server.code, 1)
    create(settings, on_failure=lambda: None)  # reports wrong settings once, instead of in every worker
    _trace(settings.traces, name)()
    try:
        listener = _listen(settings.host, settings.port)
    except (OSError, ValueError) as error:  # ValueError where there is no IPv6
        log.error("%s", error)
        return STARTUP_FAILURE
    shared = tempfile.mkdtemp(prefix="boundarymorph-metrics-")
    os.environ[metrics.SHARED_DIRECTORY] = shared
    try:
        return supervise(partial(_server, create, settings, name), settings.workers, [listener])
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def _server(create: Create, settings: Settings, name: str, replaces: bool = False) -> _DrainingServer:
    """Return the server of a process. replaces: it takes the place of another worker, and listens when it is ready."""
    warnings.filterwarnings("ignore", "Removal of labels", UserWarning)  # from prometheus_client, at a gauge's end
    tracing.configure_logs(settings.log_level, settings.log_format)
    share_arenas()
    server: _DrainingServer
    app = create(settings, on_failure=lambda: server.fail())
    app.state.lifecycle.listen_when_ready = replaces
    config = configured(
        _honest(app, lambda: server.failed),
        settings,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,  # the middleware logs each request, with its id
        timeout_graceful_shutdown=settings.grace_seconds,
    )
    server = _DrainingServer(config, app, settings.drain_seconds, _trace(settings.traces, name))
    return server


def _honest(app: FastAPI, failed: Callable[[], bool]) -> ASGIApp:
    """Return the application, which tells uvicorn of a failed start instead of a complete one."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete" and failed():
                message = {"type": "lifespan.startup.failed"}
            await send(message)

        await app(scope, receive, told if scope["type"] == "lifespan" else send)

    return served


def share_arenas() -> None:
    """Limit malloc to two arenas for all new threads, unless MALLOC_ARENA_MAX sets the number.

    By default glibc makes up to eight per core, and each keeps the most memory that its threads ever held at once. With
    searches in 16 threads that is most of the memory of a process, and it grows for hours. Other C libraries have no
    such arenas.
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


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket for several processes. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=":" in host)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which its connections have, too
    return listener


class _DrainingServer(uvicorn.Server):
    """A server that drains before it stops listening: it is unready but still accepts requests."""

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
        """Stop with an error."""
        self.failed = self.should_exit = True

    @property
    def code(self) -> int:
        """The exit code: 0 if all requests could finish; STARTUP_FAILURE if it was never ready; else 1."""
        if self.failed and self._app.state.lifecycle.readiness is None:
            return STARTUP_FAILURE
        return int(self.failed or self._broken_off or not self.started)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal asks for the end."""
        try:
            super().run(sockets)
        finally:
            self._end_traces()
        if self.failed:
            log.error("the service has ended: %s", self._app.state.lifecycle.failure)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start draining at the first signal, exit at the second, or at once while nothing is served."""
        if self._exit_at is not None or not self.started:
            # A normal exit would wait for threads, for instance one blocked by its disk.
            os._exit(128 + sig if self.started else 0)
        self._app.state.lifecycle.draining = True
        self._exit_at = time.monotonic() + self._drain_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and log the URL of the playground."""
        try:
            await super().startup(sockets)
        except SystemExit:
            if not self.failed:
                raise
            await self.lifespan.receive_queue.put({"type": "lifespan.shutdown"})  # releases what has been built
            await self.lifespan.shutdown_event.wait()
        if not self.started:
            return
        with suppress(NoMatchFound):
            path = self._app.url_path_for("playground")
            host, port = (sockets or self.servers[0].sockets)[0].getsockname()[:2]
            log.info("to try it: %s%s", own_url(host, port), path)

    async def on_tick(self, counter: int) -> bool:
        """Stop when draining is over. Called ten times a second."""
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
    """End this process after so many seconds, whatever a thread does: the interpreter would wait for all of them."""
    timer = threading.Timer(seconds, _exit_although)
    timer.daemon = True
    timer.start()
    with suppress(RuntimeError, ValueError):  # without a stderr
        faulthandler.dump_traceback_later(seconds + KILL_SECONDS, exit=True)  # even if a thread holds the interpreter


def _exit_although() -> None:
    """End the process, with a log line about what still runs."""
    frames = sys._current_frames()
    running = [
        f"{thread.name} in {found.name} ({found.filename}:{found.lineno})"
        for thread in threading.enumerate()
        if not thread.daemon and thread.ident in frames and thread is not threading.main_thread()
        for stack in [traceback.extract_stack(frames[thread.ident])]
        for found in stack[-1:]  # the innermost call of a thread that does some work of ours
        if any(PACKAGE in frame.filename for frame in stack)
    ]
    log.critical("exiting although this does not end: %s", "; ".join(running) or "unknown; no thread of ours")
    os._exit(1)
