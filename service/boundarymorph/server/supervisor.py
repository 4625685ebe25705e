"""Starts and stops several worker processes, and replaces those that are killed."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.context import SpawnProcess

TICK = 0.1  # seconds between checks for signals and ended workers
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a killed worker is replaced; doubles with each of its deaths
RESTARTS, RESTART_SECONDS = 5, 300.0
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Actions:
    """The actions that are due. start: workers, by number; kill, terminate: whether to kill or terminate all."""

    start: list[int] = field(default_factory=list)
    terminate: bool = False
    kill: bool = False


class RestartPolicy:
    """Decides which of several workers run, and when all stop. It uses neither processes nor a clock.

    A worker that dies is replaced after a pause, which doubles with each of its deaths in the last `window` seconds.
    If a worker dies more than `restarts` times in that window, all workers are stopped. The same happens if a worker
    exits by itself with an error, as its successor would do the same.
    """

    def __init__(
        self, workers: int, *, patience: float, restarts: int = RESTARTS, window: float = RESTART_SECONDS
    ) -> None:
        """patience: seconds after the first signal until workers that still run are killed."""
        self.code = 0
        self._patience = patience
        self._restarts = restarts
        self._window = window
        self._deaths: list[deque[float]] = [deque() for _ in range(workers)]
        self._due = dict.fromkeys(range(workers), float("-inf"))  # start times of workers that do not run
        self._running: set[int] = set()
        self._signals = self._passed_on = 0
        self._kill_at = float("inf")

    @property
    def stopping(self) -> bool:
        return self._signals > 0

    @property
    def over(self) -> bool:
        return self.stopping and not self._running

    def signal(self, number: int, now: float) -> None:
        """Handle SIGTERM or SIGINT. The first lets all workers finish; a later one does not wait for them."""
        if self.stopping:
            self.code = self.code or 128 + number
        self._stop(now)

    def ended(self, worker: int, code: int, now: float) -> None:
        """Handle the end of a worker. code: its exit code, or the negative number of the signal that killed it."""
        self._running.remove(worker)
        if self.stopping:
            in_order = code in (0, -signal.SIGTERM)  # the latter if it was still starting
            self.code = self.code or (0 if in_order else max(1, code))
        elif code > 0:
            log.error("worker %d exited with code %d, so the service exits too", worker, code)
            self.code = code
            self._stop(now)
        else:
            self._died(worker, code, now)

    def actions(self, now: float) -> Actions:
        """Return the actions that are due now, and count them as done."""
        actions = Actions()
        if self.stopping:
            actions.terminate = self._signals > self._passed_on
            self._passed_on += actions.terminate
            if now >= self._kill_at and self._running:
                log.error("%d workers did not exit in time and are killed", len(self._running))
                self.code, self._kill_at, actions.kill = self.code or 1, float("inf"), True
            return actions
        actions.start = [worker for worker, due in self._due.items() if now >= due]
        for worker in actions.start:
            del self._due[worker]
            self._running.add(worker)
        return actions

    def _died(self, worker: int, code: int, now: float) -> None:
        deaths = self._deaths[worker]
        deaths.append(now)
        while deaths[0] <= now - self._window:
            deaths.popleft()
        if len(deaths) > self._restarts:
            log.error(
                "worker %d died (%d), %d times in %g s: it is no longer replaced, and the service exits",
                *(worker, code, len(deaths), self._window),
            )
            self.code = 1
            self._stop(now)
            return
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (len(deaths) - 1))
        log.warning("worker %d died (%d); it is replaced in %g s", worker, code, pause)
        self._due[worker] = now + pause

    def _stop(self, now: float) -> None:
        if not self.stopping:
            self._kill_at = now + self._patience
        self._signals += 1


def supervise(
    work: Callable[[bool], int],
    workers: int,
    *,
    patience: float,
    restarts: int = RESTARTS,
    window: float = RESTART_SECONDS,
    on_death: Callable[[int], None] = lambda pid: None,
) -> int:
    """Run `work` in so many processes until SIGTERM or SIGINT, which is passed on to them as SIGTERM.

    work: picklable; takes whether the process replaces one that was killed, and returns its exit code. patience,
    restarts, window: as in `RestartPolicy`. on_death: called with the process id of each worker that has ended.

    Returns 0 if all workers have ended normally, 128 + N after a second signal N, 1 if workers had to be killed or died
    too often, else the exit code of the first worker that ended with an error.
    """
    policy = RestartPolicy(workers, patience=patience, restarts=restarts, window=window)
    return _Supervisor(work, policy, on_death).run()


class _Supervisor:
    """Carries out the actions of a policy with real processes."""

    def __init__(self, work: Callable[[bool], int], policy: RestartPolicy, on_death: Callable[[int], None]) -> None:
        self._work = work
        self._policy = policy
        self._on_death = on_death
        self._processes: dict[int, SpawnProcess] = {}
        self._started: set[int] = set()

    def run(self) -> int:
        received: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: received.append(number))
        while not self._policy.over:
            while received:
                self._policy.signal(received.pop(0), time.monotonic())
            actions = self._policy.actions(time.monotonic())
            for worker in actions.start:
                self._start(worker)
            for process in self._processes.values():
                if actions.terminate:
                    process.terminate()
                if actions.kill:
                    process.kill()
            connection.wait([process.sentinel for process in self._processes.values()], TICK)
            self._bury()
        return self._policy.code

    def _start(self, worker: int) -> None:
        again = worker in self._started
        process = multiprocessing.get_context("spawn").Process(target=_run, args=(self._work, again), daemon=True)
        process.start()
        self._started.add(worker)
        self._processes[worker] = process

    def _bury(self) -> None:
        for worker, process in list(self._processes.items()):
            if process.exitcode is not None:
                del self._processes[worker]
                assert process.pid is not None
                self._on_death(process.pid)
                self._policy.ended(worker, process.exitcode, time.monotonic())


def _run(work: Callable[[bool], int], again: bool) -> None:
    os.setpgid(0, 0)  # Ctrl-C then reaches only the supervisor, which passes it on once
    threading.Thread(target=_follow_parent, daemon=True).start()
    raise SystemExit(work(again))


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
