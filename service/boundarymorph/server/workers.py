"""Several workers on one port, by uvicorn's supervisor: it replaces those that die or hang, one by one on SIGHUP."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import uvicorn
from uvicorn.supervisors import multiprocess

from boundarymorph.telemetry import metrics

HUNG_SECONDS = 60  # without an answer of a worker, which may be importing a large library, until it is killed
TICK = 0.1  # seconds between looks for signals and ended workers while all are stopping
log = logging.getLogger(__name__)


class WithCode(uvicorn.Server):
    """A server of a worker."""

    @property
    def code(self) -> int:
        """The exit code of its process, once it has ended."""
        return 0


Make = Callable[[bool], WithCode]


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
    def server(self) -> WithCode:
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
        for process in before:
            if process.exitcode is not None and process.pid is not None:
                metrics.forget_worker(process.pid)

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
