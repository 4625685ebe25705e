"""One way to test both clients: the one that blocks is called in a thread, and so has the methods of the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from typing import Any, TypeVar, cast

from boundarymorph_client import AsyncClient, BoundaryMorphError, Client, Round, Selection

Connect = Callable[..., AsyncClient]
Step = TypeVar("Step")


class Flavour(StrEnum):
    ASYNC = "async"
    SYNC = "sync"


class InThread:
    """A `Client` with the methods of an `AsyncClient`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(getattr(self._client, name), *arguments, **options)

        return call

    def stream(self, query: str, **options: Any) -> AsyncIterator[Round | Selection]:
        return self._each(self._client.stream(query, **options))

    def select_batch(self, requests: Any, **options: Any) -> AsyncIterator[Selection | BoundaryMorphError]:
        return self._each(self._client.select_batch(requests, **options))

    async def _each(self, steps: Generator[Step, None, None]) -> AsyncIterator[Step]:
        try:
            while (step := await asyncio.to_thread(next, steps, None)) is not None:
                yield step
        finally:
            await asyncio.to_thread(steps.close)


@asynccontextmanager
async def connecting(flavour: Flavour) -> AsyncIterator[Connect]:
    """What makes clients, with the arguments of `Client`, which are closed in the end."""
    async with AsyncExitStack() as stack:

        def connect(url: str | None = None, **options: Any) -> AsyncClient:
            made = AsyncClient(url, **options) if flavour is Flavour.ASYNC else InThread(Client(url, **options))
            stack.push_async_callback(made.close)
            return cast(AsyncClient, made)

        yield connect
