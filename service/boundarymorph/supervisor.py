"""Several worker processes: started, told to stop, and replaced when they die."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.context import SpawnProcess

TICK = 0.1  # seconds within which a signal is passed on
RESTART_SECONDS = 1.0  # before a dead worker is replaced, so that one that dies at once does not keep the machine busy
log = logging.getLogger(__name__)


def supervise(
    work: Callable[[bool], int],
    workers: int,
    *,
    patience: float,
    on_death: Callable[[int], None] = lambda pid: None,
) -> int:
    """Run `work` in so many processes until SIGTERM or SIGINT, which each of them gets as SIGTERM; the exit code.

    work: picklable; told whether it takes the place of one that died; its result is the exit code of its process. A
    worker that is killed is replaced. One that ends with an error would do so again, and ends all with its code.
    patience: seconds after the first signal until those that are still there are killed. on_death: called with the
    process id of each that has ended.
    """
    return _Supervisor(work, patience, on_death).run(workers)


class _Supervisor:
    def __init__(self, work: Callable[[bool], int], patience: float, on_death: Callable[[int], None]) -> None:
        self._work = work
        self._patience = patience
        self._on_death = on_death
        self._workers: list[SpawnProcess] = []
        self._due: list[float] = []  # when dead ones are replaced
        self._signals = 0
        self._code = 0

    def run(self, workers: int) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        for _ in range(workers):
            self._start(again=False)
        passed_on, kill_at = 0, float("inf")
        while self._workers or not self._signals:
            connection.wait([worker.sentinel for worker in self._workers], TICK)
            self._bury()
            if self._signals > passed_on:
                if not passed_on:
                    kill_at = time.monotonic() + self._patience
                passed_on += 1
                for worker in self._workers:
                    worker.terminate()
            if time.monotonic() >= kill_at:
                log.error("%d workers have not ended in time and are killed", len(self._workers))
                self._code, kill_at = 1, float("inf")
                for worker in self._workers:
                    worker.kill()
            while not self._signals and self._due and time.monotonic() >= self._due[0]:
                self._due.pop(0)
                self._start(again=True)
        return self._code

    def _note(self, number: int, frame: object) -> None:
        self._signals += 1

    def _start(self, *, again: bool) -> None:
        worker = multiprocessing.get_context("spawn").Process(target=_run, args=(self._work, again), daemon=True)
        worker.start()
        self._workers.append(worker)

    def _bury(self) -> None:
        for worker in [worker for worker in self._workers if worker.exitcode is not None]:
            self._workers.remove(worker)
            assert worker.pid is not None and worker.exitcode is not None
            self._on_death(worker.pid)
            if worker.exitcode > 0:
                log.error("worker %d has ended with %d, and so does the service", worker.pid, worker.exitcode)
                self._code = worker.exitcode
                self._signals = max(1, self._signals)
            elif not self._signals:
                log.warning("worker %d has died (%d); another one takes its place", worker.pid, worker.exitcode)
                self._due.append(time.monotonic() + RESTART_SECONDS)


def _run(work: Callable[[bool], int], again: bool) -> None:
    os.setpgid(0, 0)  # Ctrl-C is for the supervisor, which passes it on once
    threading.Thread(target=_follow_parent, daemon=True).start()
    raise SystemExit(work(again))


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
