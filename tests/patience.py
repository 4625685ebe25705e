"""How long tests wait for what should take a moment."""

import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds, for a machine that is busy with other work


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for a condition, looking every 20 ms."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.02)
