"""A worker that hangs, as its supervisor sees it. tests/telemetry/test_workers.py has real ones that die."""

from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any, cast

import pytest

from boundarymorph.server import process


def test_a_worker_that_does_not_answer_in_time_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    now, alive = [0.0], [True]
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now[0]))
    worker = process.Worker.__new__(process.Worker)
    worker.parent_conn, answering = Pipe()
    worker.process = cast(Any, SimpleNamespace(is_alive=lambda: alive[0]))
    for second, answers, lives in (
        (0, False, True),
        (4, True, True),
        (9, False, True),
        (13, False, True),
        (14, False, False),
    ):
        now[0] = second
        assert worker.is_alive(timeout=5) is lives, second
        if answers:
            answering.send(True)
    alive[0], now[0] = False, 15.0
    assert not worker.is_alive(timeout=5)
