"""Give each process and, in asyncio, each event loop connections of its own."""

from __future__ import annotations

import asyncio
import os
import ssl
from functools import cache

import httpx


class Pools:
    """The httpx clients of a `Client`, one for each process.

    A fork must not use the connections of its parent.
    """

    def __init__(self, given: httpx.Client | None) -> None:
        """Use a given httpx client everywhere, and never close it; without one, make them here."""
        self.given = given
        self._clients: dict[int, httpx.Client] = {}

    def current(self) -> httpx.Client:
        """Return the httpx client of this process."""
        if self.given is not None:
            return self.given
        process = os.getpid()
        client = self._clients.get(process)
        return client if client is not None else self._clients.setdefault(process, httpx.Client(verify=_trust()))

    def close(self) -> None:
        """Close the connections of this process. A later call makes new ones."""
        if (client := self._clients.pop(os.getpid(), None)) is not None:
            client.close()


class AsyncPools:
    """The httpx clients of an `AsyncClient`, one for each event loop of a process."""

    def __init__(self, given: httpx.AsyncClient | None) -> None:
        """Use a given httpx client everywhere, and never close it; without one, make them here."""
        self.given = given
        self._clients: dict[tuple[int, asyncio.AbstractEventLoop], httpx.AsyncClient] = {}

    def current(self) -> httpx.AsyncClient:
        """Return the httpx client of the running event loop."""
        if self.given is not None:
            return self.given
        place = os.getpid(), asyncio.get_running_loop()
        client = self._clients.get(place)
        if client is None:
            for other in [known for known in self._clients if known[1].is_closed()]:
                self._clients.pop(other, None)
            client = self._clients[place] = httpx.AsyncClient(verify=_trust())
        return client

    async def aclose(self) -> None:
        """Close the connections of the running event loop. A later call makes new ones."""
        if (client := self._clients.pop((os.getpid(), asyncio.get_running_loop()), None)) is not None:
            await client.aclose()


@cache
def _trust() -> ssl.SSLContext:
    """Load the trusted certificates, once: loading is slow."""
    return httpx.create_ssl_context()
