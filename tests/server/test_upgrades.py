"""Requests that ask for an upgrade, which is not taken, over real sockets."""

import asyncio
from pathlib import Path

import pytest

from tests.access.test_bodies import SECONDS, connected
from tests.server.test_connections import rest, served

BODY = b'{"query":"a","documents":["a","b"]}'
HEAD = b"POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY)
CHUNKS = (b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n" % len(BODY) + BODY + b"\r\n", b"0\r\n\r\n")
LAST = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\r\n"
UPGRADES = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    b"Connection: upgrade\r\nUpgrade: TLS/1.0\r\nUpgrade: foo/2, h2c\r\n",
)


@pytest.mark.strangers
@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize(
    "rest_of_request",
    [(LENGTH + BODY,), (LENGTH, BODY), CHUNKS, (b"".join(CHUNKS),), (b"Expect: 100-continue\r\n" + LENGTH, BODY)],
)
async def test_the_body_is_read(tmp_path: Path, upgrade: bytes, rest_of_request: tuple[bytes, ...]) -> None:
    async with served(tmp_path) as (url, _), connected(url) as (reader, writer):
        first, *others = rest_of_request
        writer.write(HEAD + upgrade + first)
        if b"Expect" in first:
            async with asyncio.timeout(SECONDS):
                await reader.readuntil(b"HTTP/1.1 100 Continue\r\n\r\n")
        for part in others:
            await asyncio.sleep(0.01)  # so that it is a segment of its own
            writer.write(part)
        writer.write(LAST)  # pipelined
        read = await rest(reader)
        assert read.count(b"HTTP/1.1 200 OK") == 2
        assert read.count(b'"relevance_score"') == 2


@pytest.mark.strangers
async def test_a_body_is_no_request(tmp_path: Path) -> None:
    body = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
    async with served(tmp_path) as (url, _), connected(url) as (reader, writer):
        writer.write(HEAD + UPGRADES[0] + b"Content-Length: %d\r\n\r\n" % len(body))
        await asyncio.sleep(0.01)
        writer.write(body + LAST)
        read = await rest(reader)
        assert read.count(b"HTTP/1.1 400 ") == 1 and read.count(b"HTTP/1.1 200 ") == 1


async def test_no_tunnel(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _), connected(url) as (reader, writer):
        writer.write(b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n" + LAST)
        read = await rest(reader)
        assert read.startswith(b"HTTP/1.1 400 ") and read.count(b"HTTP/1.1") == 1
