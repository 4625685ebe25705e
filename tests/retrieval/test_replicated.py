"""Several retrievers over real sockets: whose turn it is, and what becomes of a call when one of them is away."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.api.app import create_retriever_app
from boundarymorph.errors import InvalidConfiguration, Overloaded, RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.remote.replicas import BACKOFF
from boundarymorph.retrieval import frame
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.retrieval.replicated import ReplicatedRetriever
from boundarymorph.settings import Settings
from tests.api.service import fake_retrieval, on_socket
from tests.contract.retriever import RetrieverContract
from tests.retrieval.test_remote import DOCUMENT, UP_TO, Behaviour, answer, hang, reset
from tests.retrieval.test_remote import data as data  # a fixture

FOUND = {"a": Document("a", "t")}
BUSY = {"type": "urn:boundarymorph:problem:overloaded", "detail": "later", "status": 429}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """A stand-in that does the same with every request, each on a connection of its own, until that is changed.

    checked: what it does with the questions of a check; None for the same.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.checked: Behaviour | None = None
        self.asked: Counter[str] = Counter()
        self.url = ""

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r")[0] or 0))
            path = head.split()[1]
            self.asked[path] += 1
            of_check = self.checked if path in ("/embed/query", "/readyz") else None
            doing = asyncio.ensure_future((of_check or self.behaviour)(writer))
            leaving = asyncio.ensure_future(reader.read(1))
            await asyncio.wait([doing, leaving], return_when=asyncio.FIRST_COMPLETED)
            doing.cancel()
            leaving.cancel()
            await asyncio.gather(doing, leaving, return_exceptions=True)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def several(*behaviours: Behaviour, clock: Clock) -> AsyncIterator[tuple[ReplicatedRetriever, list[Server]]]:
    stood = [Server(behaviour) for behaviour in behaviours]
    async with AsyncExitStack() as stack:
        for server in stood:
            listening = await asyncio.start_server(server.connection, "127.0.0.1", 0)
            stack.push_async_callback(listening.wait_closed)
            stack.callback(listening.close)
            server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        retriever = ReplicatedRetriever([RemoteRetriever(server.url, timeout=0.2) for server in stood], clock=clock)
        try:
            yield retriever, stood
        finally:
            await retriever.close()


async def asked_until(retriever: ReplicatedRetriever, server: Server, path: str) -> None:
    async with asyncio.timeout(UP_TO):
        while not server.asked[path]:
            assert await retriever.documents("i", ["a"]) == FOUND
            await asyncio.sleep(0.005)


@asynccontextmanager
async def two(data: Path) -> AsyncIterator[tuple[ReplicatedRetriever, AsyncExitStack, AsyncExitStack]]:
    """Two real ones over one directory, each with what stops it."""
    settings = Settings(data_directory=data)
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        urls = [
            await stack.enter_async_context(on_socket(create_retriever_app(settings, build=fake_retrieval)))
            for stack in (first, second)
        ]
        remotes = [RemoteRetriever(url) for url in urls]
        async with asyncio.timeout(UP_TO):
            for remote in remotes:
                while True:
                    try:
                        await remote.check()
                        break
                    except RetrieverUnavailable:
                        await asyncio.sleep(0.005)
        retriever = ReplicatedRetriever(remotes)
        try:
            yield retriever, first, second
        finally:
            await retriever.close()


class TestReplicatedRetriever(RetrieverContract):
    """Everything that a Retriever does."""

    @pytest.fixture
    async def retriever(self, data: Path) -> AsyncIterator[ReplicatedRetriever]:
        async with two(data) as (retriever, *_):
            yield retriever


async def test_one_goes_and_nobody_notices(data: Path) -> None:
    async with two(data) as (retriever, first, second):
        expected = (await retriever.retrieve("many", "", 100, [1] + 23 * [0])).pool.ids
        calls = [retriever.retrieve("many", "", 100, [1] + 23 * [0]) for _ in range(20)]
        going = asyncio.gather(*calls)
        await first.aclose()
        assert all(found.pool.ids == expected for found in await going)
        for _ in range(5):
            assert (await retriever.retrieve("many", "", 100, [1] + 23 * [0])).pool.ids == expected
        await second.aclose()
        with pytest.raises(RetrieverUnavailable, match="cannot be reached"):
            await retriever.retrieve("many", "", 100, [1] + 23 * [0])


async def test_the_one_with_the_fewest_under_way() -> None:
    async with several(answer(DOCUMENT), answer(DOCUMENT), clock=Clock()) as (retriever, (first, second)):
        await asyncio.gather(*(retriever.documents("i", ["a"]) for _ in range(20)))
        assert first.asked["/documents"] == second.asked["/documents"] == 10


@pytest.mark.parametrize("broken", [reset, hang, answer(b"nonsense"), answer(b"away", 503), answer(BUSY, 429)])
async def test_another_one_answers(broken: Behaviour) -> None:
    async with several(broken, answer(DOCUMENT), clock=Clock()) as (retriever, (first, second)):
        await asked_until(retriever, first, "/documents")
        again = first.asked["/documents"]
        for _ in range(5):  # it is left alone for now
            assert await retriever.documents("i", ["a"]) == FOUND
        assert first.asked["/documents"] == again
        assert second.asked["/documents"] >= 6


async def test_one_that_comes_back_is_looked_at_first() -> None:
    clock = Clock()
    async with several(reset, answer(DOCUMENT), clock=clock) as (retriever, (first, _)):
        await asked_until(retriever, first, "/documents")
        before = first.asked["/documents"]
        clock.now += BACKOFF
        await asked_until(retriever, first, "/embed/query")
        await asyncio.gather(*retriever._checks.values())
        assert first.asked["/documents"] == before
        first.behaviour, first.checked = (
            answer(DOCUMENT),
            answer(frame.encode_embeddings(Embeddings(np.ones((1, 1), "f4")))),
        )
        first.asked.clear()
        clock.now += 2 * BACKOFF
        await asked_until(retriever, first, "/documents")
        assert first.asked["/embed/query"] == first.asked["/readyz"] == 1


async def test_none_is_left() -> None:
    clock = Clock()
    async with several(reset, answer(b"away", 503), clock=clock) as (retriever, stood):
        for server in stood:  # each said why
            with pytest.raises(RetrieverUnavailable, match=server.url):
                await retriever.documents("i", ["a"])
        asked = [server.asked["/documents"] for server in stood]
        with pytest.raises(RetrieverUnavailable):
            await retriever.documents("i", ["a"])
        assert [server.asked["/documents"] for server in stood] == asked
        for server in stood:
            server.behaviour = answer(DOCUMENT)
        clock.now += BACKOFF
        assert await retriever.documents("i", ["a"]) == FOUND
    async with several(answer(BUSY, 429), reset, clock=clock) as (retriever, _):
        with pytest.raises(Overloaded, match="later"):
            await retriever.documents("i", ["a"])
    async with several(answer(b"[]"), answer(b"[]"), clock=clock) as (retriever, _):
        with pytest.raises(RetrieverFailed, match="cannot be used"):
            await retriever.documents("i", ["a"])


async def test_what_a_retriever_refuses_is_not_asked_elsewhere() -> None:
    unknown = {"type": "urn:boundarymorph:problem:unknown-index", "detail": "no such index", "status": 404}
    async with several(*2 * [answer(unknown, 404)], clock=Clock()) as (retriever, stood):
        for _ in range(2):
            with pytest.raises(UnknownIndex):
                await retriever.documents("i", ["a"])
        assert sum(server.asked["/documents"] for server in stood) == 2


async def test_callers_who_wait_in_vain_tell_that_one_hangs() -> None:
    async with several(hang, hang, clock=Clock()) as (retriever, stood):
        for _ in range(6):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await retriever.documents("i", ["a"])
        with pytest.raises(RetrieverUnavailable, match="keeps its callers waiting"):
            await retriever.documents("i", ["a"])
        assert sum(server.asked["/documents"] for server in stood) == 6


async def test_writing_is_not_tried_twice() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{}"

    async with several(reset, reset, clock=Clock()) as (retriever, stood):
        with pytest.raises(RetrieverUnavailable):
            await retriever.forward("POST", b"/indexes/i/documents", {"content-length": "2"}, body())
        assert sum(server.asked["/indexes/i/documents"] for server in stood) == 1
    async with several(reset, answer(b"[]"), clock=Clock()) as (retriever, (first, _)):
        for _ in range(20):
            response = await retriever.forward("GET", b"/indexes", {}, None)
            assert await response.aread() == b"[]"
            await response.aclose()
            if first.asked["/indexes"]:
                break
        else:
            pytest.fail("the broken one was never asked")


@pytest.mark.parametrize("urls", [[], 2 * ["http://127.0.0.1:1"]])
async def test_none_or_one_twice(urls: list[str]) -> None:
    with pytest.raises(InvalidConfiguration, match=r"retriever\.url"):
        ReplicatedRetriever([RemoteRetriever(url) for url in urls])
