"""Workers that die again and again: when they are replaced, and when there is an end to it."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from boundarymorph.server.supervisor import LONGEST_PAUSE, RestartPolicy, supervise
from tests.patience import PATIENCE

KILLED = -signal.SIGKILL


def replaced_after(policy: RestartPolicy, now: float, worker: int = 0) -> float:
    """Seconds until a worker that is killed now is started again."""
    policy.ended(worker, KILLED, now)
    pause = 0.0
    while worker not in policy.actions(now + pause).start:
        assert not policy.stopping
        pause += 0.25
    return pause


class TestPauses:
    def test_double_up_to_a_bound(self) -> None:
        policy = RestartPolicy(1, patience=9, restarts=8, window=10_000)
        assert policy.actions(0).start == [0]
        now, pauses = 0.0, []
        for _ in range(7):
            pauses.append(replaced_after(policy, now))
            now += pauses[-1]
        assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE]

    def test_are_of_each_worker_by_itself(self) -> None:
        policy = RestartPolicy(2, patience=9, restarts=2, window=300)
        assert policy.actions(0).start == [0, 1]
        assert replaced_after(policy, 0, worker=0) == 1
        assert replaced_after(policy, 1, worker=0) == 2
        assert replaced_after(policy, 3, worker=1) == 1

    def test_forget_what_is_long_ago(self) -> None:
        policy = RestartPolicy(1, patience=9, restarts=1, window=300)
        policy.actions(0)
        assert replaced_after(policy, 0) == 1
        assert replaced_after(policy, 300) == 1
        assert not policy.stopping


class TestTheEnd:
    @pytest.mark.parametrize("restarts", [0, 1, 5])
    def test_comes_with_one_death_more_than_there_are_restarts(
        self, restarts: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        policy = RestartPolicy(2, patience=9, restarts=restarts, window=300)
        policy.actions(0)
        now = 0.0
        for _ in range(restarts):
            now += replaced_after(policy, now)
        with caplog.at_level(logging.ERROR):
            policy.ended(0, KILLED, now)
        assert policy.stopping and policy.code == 1
        assert f"worker 0 died (-9), {restarts + 1} times in 300 s" in caplog.text
        assert policy.actions(now).terminate and not policy.over  # the other one may finish
        assert not policy.actions(now).terminate
        policy.ended(1, 0, now)
        assert policy.over and policy.code == 1

    def test_does_not_wait_for_ever(self) -> None:
        policy = RestartPolicy(2, patience=9)
        policy.actions(0)
        policy.signal(signal.SIGTERM, 100)
        assert not policy.actions(108.9).kill
        assert policy.actions(109).kill
        assert not policy.actions(110).kill
        assert policy.code == 1

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_after_a_second_signal_is_told_by_the_code(self, number: signal.Signals) -> None:
        policy = RestartPolicy(2, patience=9)
        policy.actions(0)
        for _ in range(2):
            policy.signal(number, 1)
        assert [policy.actions(1).terminate for _ in range(3)] == [True, True, False]  # each is passed on
        for worker in range(2):
            policy.ended(worker, 128 + signal.SIGTERM, 2)
        assert policy.code == 128 + number


def die(again: bool) -> int:
    """What a worker does that the kernel kills for its memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_real_workers_that_are_killed_end_in_an_error(tmp_path: Path) -> None:
    script = (
        "import logging; from tests.server.test_supervisor import die, supervise\n"
        "if __name__ == '__main__':\n"
        "    logging.basicConfig(format='%(message)s')\n"
        "    raise SystemExit(supervise(die, 2, patience=60, restarts=1, window=600))"
    )
    (tmp_path / "main.py").write_text(script)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "main.py")],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert ended.returncode == 1
    first, *_, last = ended.stderr.splitlines()
    assert "died (-9); it is replaced in 1 s" in first
    assert "died (-9), 2 times in 600 s: it is no longer replaced, and the service exits" in ended.stderr
    assert "Traceback" not in last


__all__ = ["supervise"]  # for the script
