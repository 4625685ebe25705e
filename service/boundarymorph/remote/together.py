"""Coroutines as tasks that are cancelled once and awaited to their end.

Closing a connection takes a few turns of the event loop. A second cancellation in one of them leaves it open, and in
its pool, for good. anyio's cancel scopes cancel at every turn, and a time limit may pass just when the caller leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait for their end. If this is cancelled meanwhile, so it is when they have ended."""
    for task in tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as again:
            cancelled = again
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks it as seen
    if cancelled is not None:
        raise cancelled


async def owned(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work, which is cancelled once however often its caller is. Whoever is cancelled as the
    result arrives does not get it: this is for results that need not be released."""
    return (await together([work]))[0]


async def together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order, or raise the first error after the others have been cancelled and have ended."""
    if not coroutines:
        return []
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return [task.result() for task in tasks]
    finally:
        await end(tasks)
