"""Test that bytes on an idle connection are not taken for the next answer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from boundarymorph.remote.peer import ConnectionPool
from tests.patience import PATIENCE


@asynccontextmanager
async def pool_to(answer: Callable[..., Coroutine[Any, Any, None]]) -> AsyncIterator[ConnectionPool]:
    """Yield a pool of one connection to a server that writes raw bytes."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, asyncio.timeout(PATIENCE):
        pool = ConnectionPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 1)
        yield pool
        await pool.close()


@pytest.mark.strangers
async def test_unsolicited_answer_is_not_taken_for_the_next_answer() -> None:
    got, sent, asked = asyncio.Event(), asyncio.Event(), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                asked += 1
                _write(writer, b"answer %d" % asked)
                if asked == 1:
                    await got.wait()
                    _write(writer, b"another one")
                    sent.set()
        writer.close()

    async with pool_to(answer) as pool:
        assert await (await pool.request("GET", "/", None, {})).read() == b"answer 1"
        got.set()
        await sent.wait()
        await asyncio.sleep(0.1)  # until the answer has arrived
        assert await (await pool.request("GET", "/", None, {})).read() == b"answer 2"
        assert pool.opened == 2


def _write(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
