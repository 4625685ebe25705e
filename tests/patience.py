"""Wait for conditions that should soon hold."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds, for a machine that is busy with other work


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for a condition, checking every 20 ms."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.02)


async def until_async(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for a condition that other tasks or threads bring about, checking every millisecond."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
