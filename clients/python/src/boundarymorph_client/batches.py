"""Make many calls with bounded concurrency, whose results come in order.

There is one function for each client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def results(call: Callable[[Item], Result], items: Iterable[Item], concurrency: int) -> Generator[Result, None, None]:
    """Yield the result of a call for each item, in order.

    At most `concurrency` items are ahead of the results. A generator that is closed early makes no further calls, and
    waits for those that are in flight.
    """
    in_flight: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(concurrency) as threads:
        try:
            for item in items:
                in_flight.append(threads.submit(call, item))
                if len(in_flight) == concurrency:
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()
        finally:
            for future in in_flight:
                future.cancel()


async def async_results(
    call: Callable[[Item], Awaitable[Result]], items: Iterable[Item], concurrency: int
) -> AsyncGenerator[Result, None]:
    """Do as `results`, but cancel the calls that are in flight when the generator is closed."""
    in_flight: deque[asyncio.Future[Result]] = deque()
    try:
        for item in items:
            in_flight.append(asyncio.ensure_future(call(item)))
            if len(in_flight) == concurrency:
                yield await in_flight.popleft()
        while in_flight:
            yield await in_flight.popleft()
    finally:
        for future in in_flight:
            future.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)
