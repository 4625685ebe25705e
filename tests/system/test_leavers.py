"""What `make soak NAME=leavers` does for an hour, for some seconds."""

from pathlib import Path

from tests.stateful.profile import times
from tests.system.leavers import running


def test_leave_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path, seed=23) as leavers:
        for _ in range(times(1, 10)):
            for _ in range(200):
                leavers.move()
            leavers.all_leave()
            leavers.all_is_free()
            leavers.come_again()
