"""Test that callers without a key cannot take much memory or time, over real sockets."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from boundarymorph.server.protocol import StrictParser
from tests.access.test_bodies import connected
from tests.server.test_connections import rest, served

pytestmark = pytest.mark.strangers
PROBE = b"GET /livez HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v1/rerank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"query":"a","documents":["a","b"]}'
IN_SOCKETS = 16 * 2**20  # bytes that the kernel may hold between two sockets of this machine


async def accepted(writer: Any, data: bytes, most: int) -> int:
    """Return the bytes of a flood that the service reads until it stops or disconnects."""
    taken = 0
    while taken < most and not writer.transport.is_closing():
        writer.write(data)
        taken += len(data)
        try:
            async with asyncio.timeout(0.5):
                await writer.drain()
        except (TimeoutError, ConnectionError):
            break
    return taken


@pytest.mark.parametrize("request_", [PROBE + b"\r\n", POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY])
async def test_pipelined_requests_are_left_in_the_socket(tmp_path: Path, request_: bytes) -> None:
    async with served(tmp_path) as (url, client), connected(url, receive_buffer=4_096) as (_, writer):
        assert await accepted(writer, request_ * 5_000, 4 * IN_SOCKETS) < IN_SOCKETS
        assert (await client.get("/livez")).is_success


FLOODS = {
    "trailers": (CHUNKED + b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY), b"a:b\r\n" * 10_000),
    "a trailer's value": (CHUNKED + b"%x\r\n%s\r\n0\r\nX-A: " % (len(BODY), BODY), b"a" * 50_000),
    "a trailer's folds": (CHUNKED + b"%x\r\n%s\r\n0\r\nX-A: b\r\n" % (len(BODY), BODY), b" c\r\n" * 10_000),
    "a chunk's extension": (CHUNKED + b"1;", b"a" * 50_000),
    "chunks of a byte": (CHUNKED, b"1\r\n \r\n" * 10_000),
    "a head": (PROBE, b"a:b\r\n" * 10_000),
    "a request line": (b"GET /", b"a" * 50_000),
    "blank lines": (b"", b"\r\n" * 25_000),
}


@pytest.mark.parametrize(("first", "then"), FLOODS.values(), ids=FLOODS)
async def test_endless_part_of_a_request_closes_the_connection(tmp_path: Path, first: bytes, then: bytes) -> None:
    async with served(tmp_path) as (url, client), connected(url) as (_, writer):
        writer.write(first)
        assert await accepted(writer, then, IN_SOCKETS) < IN_SOCKETS
        assert writer.transport.is_closing() or (await client.get("/livez")).is_success


MALFORMED = {
    "both lengths": POST + b"Content-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two hosts": b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "a null in a header": PROBE + b"X-A: b\0c\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a target that is no path": b"GET livez HTTP/1.1\r\nHost: a\r\n\r\n",
    "a negative chunk": CHUNKED + b"-1\r\n",
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_request_is_answered_by_one_problem(tmp_path: Path, sent: bytes) -> None:
    async with served(tmp_path) as (url, _), connected(url) as (reader, writer):
        writer.write(sent + PROBE + b"\r\n")
        read = await rest(reader)
        assert read.startswith(b"HTTP/1.1 400 ") and read.count(b"HTTP/1.1 ") == 1
        assert b"application/problem+json" in read and b"urn:boundarymorph:problem:malformed-http" in read


async def test_blank_lines_between_requests_are_ignored(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _), connected(url) as (reader, writer):
        request = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY + b"\r\n"
        writer.write(b"\r\n" + request + b"\r\n\n" + PROBE + b"Connection: close\r\n\r\n")
        assert (await rest(reader)).count(b"HTTP/1.1 200 ") == 2


def events(parser: StrictParser) -> list[str]:
    """Return the names of the events in the bytes that a parser received."""
    names = [""]
    while names[-1] not in ("PAUSED", "NEED_DATA"):
        event: Any = parser.next_event()
        names.append(getattr(event, "__name__", type(event).__name__))
    return names[1:]


def seconds_of_work(data: bytes) -> float:
    """Return the CPU time for parsing the bytes of one connection, the smaller of two runs."""

    def once() -> float:
        parser, begin = StrictParser(2**22), time.process_time()
        parser.receive_data(data)
        events(parser)
        return time.process_time() - begin

    return min(once() for _ in range(2))


REPEATED = {
    "lines": (PROBE, b"a:b\r\n", b"\r\n"),
    "folds": (PROBE + b"a:b\r\n", b" c\r\n", b"\r\n"),
    "blanks": (PROBE + b"a:b", b"  \t ", b"c\r\n\r\n"),
    "lengths": (POST + b"Content-Length: 1", b", 1", b"\r\n\r\n"),
    "chunks": (CHUNKED, b"10\r\n" + bytes(16) + b"\r\n", b"0\r\n\r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"a:b\r\n", b"\r\n"),
    "blank lines": (b"", b"\r\n\n", PROBE + b"\r\n"),
}


@pytest.mark.parametrize(("first", "repeated", "last"), REPEATED.values(), ids=REPEATED)
def test_parser_work_is_linear_in_the_bytes_received(first: bytes, repeated: bytes, last: bytes) -> None:
    small, large = (seconds_of_work(first + repeated * times + last) for times in (5_000, 20_000))
    assert large < 8 * small + 0.05
