"""Test request bodies that are too slow or too large, and clients that stop reading."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import MethodType
from typing import Any
from unittest.mock import AsyncMock, Mock
from urllib.parse import urlsplit

import httpx
import orjson
import pytest
from pydantic import ValidationError

from boundarymorph.api.bodies import LARGE_ANSWER, decode, hang_up, send_in_pieces
from boundarymorph.errors import LimitExceeded
from boundarymorph.inference.concurrency import Shares
from boundarymorph.settings import Limits, Settings
from tests.fakes.service import answer, application, client_of, listening, problem, ready, texts
from tests.patience import until_async

SECONDS = 30.0  # then a test fails
SELECT = {"query": "q", "pool": texts(3), "budget": 1, "k": 1}
GONE = {"type": "http.disconnect"}
MOST, OF_A_SELECTION = 2**16, 2**14  # the limits of bytes in flight, and of the mathematics of SELECT


@asynccontextmanager
async def connected(url: str, *, receive_buffer: int | None = None) -> AsyncIterator[tuple[Any, Any]]:
    """Yield a reader and a writer connected to a service.

    Args:
        url: The address of the service.
        receive_buffer: The size of the kernel's receive buffer in bytes.
    """
    parts = urlsplit(url)
    door = socket.socket()
    if receive_buffer is not None:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    door.setblocking(False)
    await asyncio.get_running_loop().sock_connect(door, (parts.hostname, parts.port))
    reader, writer = await asyncio.open_connection(sock=door, limit=receive_buffer or 2**16)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head(length: int, accept: str = "*/*") -> bytes:
    return f"POST /select HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\nContent-Length: {length}\r\n\r\n".encode()


class TestSlowBodies:
    async def test_body_that_stops_half_way_is_given_up_and_frees_its_place(self, tmp_path: Path) -> None:
        limits = Limits(requests=1)
        app = application("whole", Settings(data_directory=tmp_path, body_seconds=0.5, limits=limits))
        state = app.state.access
        async with listening(app) as (url, client):
            async with connected(url) as (reader, writer):
                writer.write(head(100) + b" " * 50)
                await until_async(lambda: state.bytes_in_flight.total == 50)
                problem(await client.post("/select", json=SELECT), 429, "overloaded")
                async with asyncio.timeout(SECONDS):
                    refused = await reader.read()
                assert refused.startswith(b"HTTP/1.1 408 ")
                assert b"\r\nconnection: close\r\n" in refused.lower()
                assert (
                    b"urn:boundarymorph:problem:body-too-slow" in refused
                    and b"only 50 bytes of the body arrived within 0.5 s" in refused
                )
            await until_async(lambda: state.requests.total == state.bytes_in_flight.total == 0)
            answer(await client.post("/select", json=SELECT))


class TestPausedUploads:
    @pytest.mark.parametrize("sent", [b"", b'{"id": "a", "text": "a"}\n{'])
    async def test_upload_that_pauses_too_long_is_refused_and_frees_its_place(
        self, tmp_path: Path, sent: bytes
    ) -> None:
        app = application("whole", Settings(data_directory=tmp_path, body_pause_seconds=0.2))
        async with listening(app) as (url, client):
            answer(await client.put("/indexes/texts"))
            refused = await silent_upload(url, sent)
            assert refused.startswith(b"HTTP/1.1 408 ")
            assert f"nothing arrived for 0.2 seconds after {len(sent)} bytes".encode() in refused
            state = app.state.access
            await until_async(lambda: state.requests.total == state.bytes_in_flight.total == 0)


@pytest.mark.strangers
class TestStrictUploads:
    """A strict upload is kept in the temporary folder until all of its lines are checked."""

    limits = Limits(body_bytes=2**20, line_bytes=2**16, bytes_in_flight=2**25)

    @pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
    async def test_strict_upload_over_its_limit_is_refused(self, tmp_path: Path, accept: str) -> None:
        app = application("whole", Settings(data_directory=tmp_path, limits=self.limits))
        headers = {"content-type": "application/x-ndjson", "accept": accept}
        sent = 0

        async def documents() -> AsyncIterator[bytes]:
            nonlocal sent
            while sent < 2**26:
                line = orjson.dumps({"id": str(sent), "text": "text " * 10_000}) + b"\n"
                sent += len(line)
                yield line

        async with client_of(app) as client:
            await ready(client)
            answer(await client.put("/indexes/texts", json={"encoder": "none"}))
            url = "/indexes/texts/documents?strict=true"
            said = problem(await client.post(url, content=documents(), headers=headers), 413, "body-too-large")
            assert "12,582,912 bytes" in said and "nothing was written" in said
            assert sent < 1.5 * 12_582_912
            assert answer(await client.get("/indexes/texts"))["count"] == 0
            assert app.state.access.bytes_in_flight.total == 0


async def silent_upload(url: str, sent: bytes) -> bytes:
    """Return the answer to an upload that stops after `sent`."""
    upload = "POST /indexes/texts/documents HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    async with connected(url) as (reader, writer):
        writer.write(f"{upload}Content-Length: 1000\r\n\r\n".encode() + sent)
        async with asyncio.timeout(SECONDS):
            return bytes(await reader.read())


class TestSlowReaders:
    async def test_client_that_stops_reading_events_is_disconnected(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The client reads none of the half megabyte of events.

        Its turn is free before the deadline.
        """
        pool = [{"id": f"{number:0512}", "text": f"text {number}"} for number in range(1_010)]
        request = {"query": "q", "pool": pool, "budget": 60, "rounds": 60, "k": 1_000, "deadline_ms": 600_000}
        body = orjson.dumps(request)
        app = application("whole", Settings(data_directory=tmp_path, event_seconds=0.2))
        state = app.state.access
        async with listening(app) as (url, client):
            logging.getLogger("uvicorn.error").addHandler(caplog.handler)
            async with connected(url, receive_buffer=4_096) as (reader, writer):
                writer.write(head(len(body), "text/event-stream") + body)
                await until_async(lambda: state.admission.running == 1)
                await until_async(
                    lambda: state.requests.total == state.admission.running == state.bytes_in_flight.total == 0
                )
                async with asyncio.timeout(SECONDS):
                    read = b"".join([part async for part in parts_of(reader)])
            assert read.startswith(b"HTTP/1.1 200 ") and b"event: round" in read
            assert b"event: selection" not in read
            logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
            assert "without completing response" not in caplog.text  # the server has seen the connection end
            answer(await client.post("/select", json=SELECT))


async def parts_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the bytes that arrive until the connection ends or breaks."""
    try:
        while part := await reader.read(2**16):
            yield part
    except ConnectionResetError:
        return


class TestLargeAnswers:
    @pytest.mark.parametrize("pieces", [[0], [1], [LARGE_ANSWER], [LARGE_ANSWER, 1], [LARGE_ANSWER, LARGE_ANSWER]])
    @pytest.mark.parametrize("more", [False, True])
    async def test_large_answer_is_sent_in_pieces_and_only_the_last_ends_it(
        self, pieces: list[int], more: bool
    ) -> None:
        message = {"type": "http.response.body", "body": b"a" * sum(pieces), "more_body": more}
        found = []

        async def send(piece: Any) -> None:
            found.append((len(piece["body"]), piece["more_body"]))

        await send_in_pieces(message, send)
        assert found == [*((length, True) for length in pieces[:-1]), (pieces[-1], more)]

    async def test_hang_up_closes_the_connection_of_a_broken_answer(self) -> None:
        door = Mock(transport=Mock(), receive=AsyncMock(side_effect=[{"type": "http.request"}, GONE]))
        await hang_up(MethodType(lambda self: self.receive(), door))
        door.transport.abort.assert_called_once_with()
        assert door.receive.await_count == 2, "until the server says that the client has gone"


def test_list_longer_than_every_limit_is_refused_before_it_is_read() -> None:
    nine = {str(number): 0 for number in range(9)}
    for value, name in (
        ({"pool": [0] * 9}, "pool"),
        ({"pool": {"documents": [0] * 9}}, "pool.documents"),
        ({"known_scores": nine}, "known_scores"),
        ({"pool": {"features": nine}}, "pool.features"),
    ):
        with pytest.raises(LimitExceeded, match=f"^{name}: over"):
            decode(orjson.dumps(value), Limits(dimension=8, pool=7, known_scores=6))


class TestBytesInFlight:
    def test_settings_leave_each_key_room_for_the_largest_body(self) -> None:
        for share, bytes_in_flight in ((0.75, 4_096), (1.0, 3_072)):
            Limits(body_bytes=3_072, bytes_in_flight=bytes_in_flight, key_share=share)
            with pytest.raises(ValidationError, match=r"leave 3,07\d bytes to a key, under body_bytes"):
                Limits(body_bytes=3_073, bytes_in_flight=bytes_in_flight, key_share=share)

    @pytest.mark.parametrize("declared", [True, False])
    @pytest.mark.parametrize(
        ("role", "method", "path", "wanted"),
        [
            ("whole", "POST", "/select", SELECT),
            ("whole", "PUT", "/indexes/new", {"dimension": 4}),
            ("whole", "POST", "/indexes/texts/documents", texts(2)),
            ("whole", "DELETE", "/indexes/texts/documents", {"ids": ["d0"]}),
            ("retriever", "POST", "/embed/query", {"query": "q"}),
            ("retriever", "POST", "/documents", {"index": "texts", "ids": []}),
            ("scorer", "POST", "/score", {"query": "q", "texts": ["t"]}),
        ],
    )
    async def test_every_route_counts_its_body_in_bytes_in_flight(
        self, tmp_path: Path, role: str, method: str, path: str, wanted: object, declared: bool
    ) -> None:
        app = application(
            role, Settings(data_directory=tmp_path, limits=Limits(body_bytes=4_096, bytes_in_flight=MOST, key_share=1))
        )
        hand: Shares = app.state.access.bytes_in_flight
        body = orjson.dumps(wanted)

        async def in_pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 5):
                yield body[start : start + 5]

        async def send(client: httpx.AsyncClient) -> httpx.Response:
            headers = {"content-type": "application/json"}
            return await client.request(method, path, content=body if declared else in_pieces(), headers=headers)

        async with client_of(app) as client:
            await ready(client)
            if role != "scorer":
                await client.put("/indexes/texts")
            with hand.reserve("others") as others:
                others(MOST - len(body) + 1)
                refused = await send(client)
                assert f"{MOST:,}" in problem(refused, 429, "overloaded")
                assert int(refused.headers["retry-after"]) >= 1
                assert hand.total == MOST - len(body) + 1
            with hand.reserve("others") as others:
                others(MOST - len(body) - (OF_A_SELECTION if path == "/select" else 0))
                accepted = await send(client)
                assert accepted.is_success, accepted.text
            assert hand.total == 0

    async def test_body_with_a_declared_length_is_counted_before_it_is_read(self, tmp_path: Path) -> None:
        app = application("whole", Settings(data_directory=tmp_path))
        hand: Shares = app.state.access.bytes_in_flight
        read = False

        async def body() -> AsyncIterator[bytes]:
            nonlocal read
            read = True
            yield b" " * 100

        async with client_of(app) as client:
            await ready(client)
            with hand.reserve("others") as others:
                others(hand.most - 99)
                refused = await client.post("/select", content=body(), headers={"content-length": "100"})
                problem(refused, 429, "overloaded")
                assert not read
