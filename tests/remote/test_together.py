"""Test tasks that are cancelled once and awaited, however often their caller is cancelled."""

import asyncio

import anyio
import pytest

from boundarymorph.inference.concurrency import end, gather

TURNS = 5  # turns of the event loop that a connection takes to close


class Connection:
    """A connection that stays open if closing it, which takes a few turns, is interrupted."""

    def __init__(self) -> None:
        self.open = True
        self.cancelled = 0

    async def use(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(TURNS):
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
            self.open = False


async def test_together_closes_its_tasks_under_repeated_cancellation() -> None:
    connections = [Connection() for _ in range(3)]
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: gather([connection.use() for connection in connections]))
        await asyncio.sleep(0.01)
        group.cancel_scope.cancel()
    assert not any(connection.open for connection in connections)


async def test_together_ends_the_other_tasks_after_an_error() -> None:
    connection = Connection()

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"):
        await gather([connection.use(), fail()])
    assert not connection.open


async def test_end_awaits_its_tasks_although_it_is_cancelled() -> None:
    connection = Connection()
    task = asyncio.create_task(connection.use())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end([task]))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert not connection.open
