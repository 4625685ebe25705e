"""A scorer of its own thread and port, which misbehaves as a test tells it."""

import asyncio
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from tests.scoring.remote.servers import Behaviour, Ours, Reply, Server, Wire


@contextmanager
def running(wire: Wire | None = None) -> Iterator[Server]:
    """wire: what it speaks, as our own scorer if it is not said."""
    server, loop = Server(wire or Ours()), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.kill(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def compressed(reply: Reply) -> Reply:
    """The right body after 16 million spaces, which take 16,000 bytes."""
    body = gzip.compress(bytes(b" " * 2**24) + orjson.dumps(reply.body))
    return Reply(body, headers={"content-encoding": "gzip"})


def cut_off(server: Server) -> Behaviour:
    """Half of the body that was announced, and then the end of the connection."""

    async def behaviour(reply: Reply) -> Reply:
        announced = reply.encoded().partition(b"\r\n\r\n")[2]
        asyncio.get_running_loop().call_later(0.05, server.drop_idle)
        half = announced[: len(announced) // 2]
        return Reply(half, headers={"content-length": str(len(announced))})

    return behaviour
