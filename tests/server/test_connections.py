"""Test connections that send no request, are too many, do not read, or ask for an upgrade."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.retrieval.build import OF_INDEX, OF_PROCESS, most_open
from boundarymorph.server.app import create_app
from boundarymorph.server.protocol import ROOM, most_connections
from boundarymorph.settings import Limits, Settings
from tests.access.test_bodies import SECONDS, SELECT, connected, head
from tests.fakes.service import answer, fake_service, on_socket, ready
from tests.metrics import counted
from tests.patience import until_async

HALF = b"POST /select HTTP/1.1\r\nHost: a\r\nX-A: "


@asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    app = create_app(Settings(data_directory=folder, **settings), build=fake_service)
    async with on_socket(app) as url, httpx.AsyncClient(base_url=url, timeout=SECONDS) as client:
        await ready(client)
        yield url, client


async def rest(reader: Any) -> bytes:
    """Return the bytes that arrive until the service closes the connection."""
    async with asyncio.timeout(SECONDS):
        read: bytes = await reader.read()
    return read


@pytest.mark.parametrize("sent", [b"", HALF, b"\r\n\r\n", b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" + HALF])
async def test_unfinished_request_head_is_closed_after_head_seconds(tmp_path: Path, sent: bytes) -> None:
    async with (
        served(tmp_path, head_seconds=0.2, keep_alive_seconds=0.2) as (url, _),
        connected(url) as (reader, writer),
    ):
        writer.write(sent)
        read = await rest(reader)
        assert read.startswith(b"HTTP/1.1 200 ") if b"livez" in sent else read == b""


async def test_request_head_over_head_bytes_is_refused(tmp_path: Path) -> None:
    """The request line and headers count as received.

    The server does not wait for the end of a head over the limit.
    """

    def request(size: int) -> bytes:
        head = b"GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-a: %s\r\n\r\n"
        return head % (b"a" * (size - len(head % b"")))

    async with served(tmp_path, limits=Limits(head_bytes=1_024)) as (url, _):
        for sent, status in ((request(1_024), 200), (request(1_025), 431), (HALF + b"a" * 1_024, 431)):
            async with connected(url) as (reader, writer):
                writer.write(sent)
                read = await rest(reader)
                assert read.startswith(f"HTTP/1.1 {status} ".encode())
                assert status == 200 or b"urn:boundarymorph:problem:headers-too-large" in read


async def test_body_of_a_refused_request_does_not_count_as_head(tmp_path: Path) -> None:
    async with served(tmp_path, limits=Limits(head_bytes=1_024)) as (url, _), connected(url) as (reader, writer):
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n")
        await reader.readuntil(b"HTTP/1.1 404 ")
        writer.write(bytes(100_000) + b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            await reader.readuntil(b"HTTP/1.1 200 ")


async def test_probes_are_answered_while_all_connections_are_busy(tmp_path: Path) -> None:
    limits = Limits(connections=3)
    async with served(tmp_path, limits=limits) as (url, client), AsyncExitStack() as held:
        await client.aclose()
        working = [await held.enter_async_context(connected(url)) for _ in range(3)]
        for _, writer in working:
            writer.write(head(100))  # without its body
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as other:
            while (refused := await other.post("/select", json=SELECT)).status_code == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until the three have arrived
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            assert refused.headers["connection"] == "close"
            assert refused.json()["type"] == "urn:boundarymorph:problem:too-many-connections"
            for path in ("/livez", "/readyz", "/metrics"):
                assert (await other.get(path)).is_success
            for _, writer in working:
                writer.write(b" " * 100)
            for reader, _ in working:
                async with asyncio.timeout(SECONDS):
                    await reader.readuntil(b"HTTP/1.1 422 ")
            answer(await other.post("/select", json=SELECT))


async def test_longest_idle_connection_is_closed_for_a_new_one(tmp_path: Path) -> None:
    async with served(tmp_path, limits=Limits(connections=2)) as (url, client), AsyncExitStack() as held:
        await client.aclose()
        idle = []
        for _ in range(2 + ROOM):
            idle.append(await held.enter_async_context(connected(url)))
            idle[-1][1].write(HALF)
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as newest:
            answer(await newest.post("/select", json=SELECT))
        assert await rest(idle[0][0]) == b""
        idle[1][1].write(b"b\r\nContent-Length: 0\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            await idle[1][0].readuntil(b"HTTP/1.1 422 ")


def hung_up() -> float:
    return counted("boundarymorph_connections_closed_total", reason="not_reading")


async def test_unread_answer_is_given_up_after_event_seconds(tmp_path: Path) -> None:
    """The service does not keep an answer of several megabytes for ever."""
    pool = [{"id": f"{number}", "text": "text " * 50_000} for number in range(20)]
    body = orjson.dumps({"query": "q", "pool": pool, "budget": 0, "k": 20, "return_documents": True})
    before = hung_up()
    async with served(tmp_path, event_seconds=0.2) as (url, client):
        async with connected(url, receive_buffer=4_096) as (reader, writer):
            writer.write(head(len(body)) + body)
            await writer.drain()
            await until_async(lambda: hung_up() > before)
            received = 0
            with suppress(ConnectionError):
                while part := await reader.read(2**16):
                    received += len(part)
            assert received < len(body)  # its texts alone are as long
        answer(await client.post("/select", json=SELECT))


@pytest.mark.strangers
@pytest.mark.parametrize("most", [128, 256, 1_024, 65_536])
def test_connection_and_index_limits_fit_the_descriptors(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    indexes = most_open(32)
    assert 1 <= indexes <= 32
    assert most_connections(None) + ROOM + OF_PROCESS + indexes * OF_INDEX <= most


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
async def test_body_of_an_upgrade_request_is_read(
    tmp_path: Path, upgrade: bytes, rest_of_request: tuple[bytes, ...]
) -> None:
    async with served(tmp_path) as (url, _), connected(url) as (reader, writer):
        first, *others = rest_of_request
        writer.write(HEAD + upgrade + first)
        if b"Expect" in first:
            async with asyncio.timeout(SECONDS):
                await reader.readuntil(b"HTTP/1.1 100 Continue\r\n\r\n")
        for part in others:
            await asyncio.sleep(0.01)  # so that it is a separate segment
            writer.write(part)
        writer.write(LAST)  # pipelined
        read = await rest(reader)
        assert read.count(b"HTTP/1.1 200 OK") == 2
        assert read.count(b'"relevance_score"') == 2


@pytest.mark.strangers
async def test_body_of_an_upgrade_request_is_not_taken_for_a_request(tmp_path: Path) -> None:
    body = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
    async with served(tmp_path) as (url, _), connected(url) as (reader, writer):
        writer.write(HEAD + UPGRADES[0] + b"Content-Length: %d\r\n\r\n" % len(body))
        await asyncio.sleep(0.01)
        writer.write(body + LAST)
        read = await rest(reader)
        assert read.count(b"HTTP/1.1 400 ") == 1 and read.count(b"HTTP/1.1 200 ") == 1
