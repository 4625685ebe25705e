"""Several retrievers over real sockets: whose turn it is, and what becomes of a call when one of them is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.errors import InvalidConfiguration, RetrieverUnavailable
from boundarymorph.remote.peer import BACKOFF
from boundarymorph.retrieval import frame
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.retrieval.retriever import Search
from boundarymorph.server.app import create_retriever_app
from boundarymorph.server.composition import build_gateway
from boundarymorph.settings import RetrieverSettings, ScorerSettings, Settings
from tests.api.service import fake_retrieval, on_socket
from tests.clocks import Clock
from tests.retrieval.test_remote import (
    DOCUMENT,
    RATE_LIMITED,
    UP_TO,
    Behaviour,
    Server,
    answer,
    hang,
    reset,
    standing_in,
)
from tests.retrieval.test_remote import data as data  # fixtures
from tests.retrieval.test_remote import made as made

FOUND = {"a": Document("a", "t")}
BUSY = {"type": "urn:boundarymorph:problem:overloaded", "detail": "later", "status": 429}


def a_try(behaviour: Behaviour) -> float:
    """Seconds: few where it is to be seen that they are over."""
    return 0.5 if behaviour is hang else UP_TO


def encoded_by(name: str | None) -> Behaviour:
    """An answer to what is to be encoded, or to a check."""
    return answer(frame.encode_embeddings(Embeddings(np.ones((1, 1), "f4"), encoder=name)))


async def body() -> AsyncIterator[bytes]:
    yield b"{}"


@asynccontextmanager
async def several(
    *behaviours: Behaviour, clock: Clock, seconds: float = UP_TO
) -> AsyncIterator[tuple[RemoteRetriever, list[Server]]]:
    servers = [Server(behaviour) for behaviour in behaviours]
    async with standing_in(*servers, clock=clock, timeout=seconds) as retriever:
        yield retriever, servers


async def asked_until(retriever: RemoteRetriever, server: Server, path: str) -> None:
    async with asyncio.timeout(UP_TO):
        while not server.asked[path]:
            assert await retriever.documents("i", ["a"]) == FOUND
            await asyncio.sleep(0.005)


@asynccontextmanager
async def two(data: Path) -> AsyncIterator[tuple[RemoteRetriever, AsyncExitStack, AsyncExitStack]]:
    """Two real ones over one directory, each with what stops it."""
    settings = Settings(data_directory=data)
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        urls = [
            await stack.enter_async_context(on_socket(create_retriever_app(settings, build=fake_retrieval)))
            for stack in (first, second)
        ]
        async with asyncio.timeout(UP_TO):
            for url in urls:
                await answering(RemoteRetriever(url))
        retriever = RemoteRetriever(*urls)
        try:
            yield retriever, first, second
        finally:
            await retriever.close()


async def answering(retriever: RemoteRetriever) -> None:
    while True:
        try:
            await retriever.check()
            return await retriever.close()
        except RetrieverUnavailable:
            await asyncio.sleep(0.005)


def faults(retriever: RemoteRetriever) -> list[Exception | None]:
    return [member.fault for member in retriever._balancer.replicas.values()]


async def test_calls_go_on_while_a_retriever_shuts_down(data: Path) -> None:
    async with two(data) as (retriever, first, second):
        expected = (await retriever.retrieve("many", Search("", 100, [1] + 23 * [0]))).pool.ids
        calls = [retriever.retrieve("many", Search("", 100, [1] + 23 * [0])) for _ in range(20)]
        going = asyncio.gather(*calls)
        await first.aclose()
        assert all(found.pool.ids == expected for found in await going)
        for _ in range(5):
            assert (await retriever.retrieve("many", Search("", 100, [1] + 23 * [0]))).pool.ids == expected
        await second.aclose()
        with pytest.raises(RetrieverUnavailable, match="cannot be reached"):
            await retriever.retrieve("many", Search("", 100, [1] + 23 * [0]))


async def test_an_ejected_retriever_is_probed_before_it_is_used_again() -> None:
    clock = Clock()
    async with several(reset, answer(DOCUMENT), clock=clock) as (retriever, (first, _)):
        await asked_until(retriever, first, "/documents")
        before = first.asked["/documents"]
        clock.now += BACKOFF
        await asked_until(retriever, first, "/embed/query")
        await asyncio.gather(*(member.probe for member in retriever._balancer.replicas.values() if member.probe))
        assert first.asked["/documents"] == before
        first.behaviour, first.checked = answer(DOCUMENT), encoded_by(None)
        first.asked.clear()
        clock.now += 2 * BACKOFF
        await asked_until(retriever, first, "/documents")
        assert first.asked["/embed/query"] == first.asked["/readyz"] == 1


async def test_all_must_run_one_encoder() -> None:
    clock = Clock()
    async with several(encoded_by("e/1"), encoded_by("e/2"), clock=clock) as (retriever, stood):
        await retriever.embed_query("q")  # of as many, that of the first that tells is kept
        first = 0 if stood[0].asked["/embed/query"] else 1
        async with asyncio.timeout(UP_TO):
            while faults(retriever)[1 - first] is None:
                assert (await retriever.embed_documents(["t"])).encoder == f"e/{first + 1}"
                await retriever.check()
        assert f"serves e/{2 - first}, but" in str(faults(retriever)[1 - first])
        before = stood[1 - first].asked["/embed/query"]
        stood[first].behaviour = reset
        await retriever.embed_query("q")  # now none of those that answer runs it any more
        assert stood[1 - first].asked["/embed/query"] == before + 1
        stood[first].behaviour = encoded_by(f"e/{2 - first}")
        clock.now += BACKOFF
        async with asyncio.timeout(UP_TO):
            while faults(retriever) != [None, None]:
                assert (await retriever.embed_documents(["t"])).encoder == f"e/{2 - first}"


async def test_the_time_of_a_try() -> None:
    """One of several is not waited for as long as the only one."""
    async with several(hang, hang, clock=Clock()) as (_, stood):
        for urls, seconds in (([stood[0].url], "0.2"), ([server.url for server in stood], "0.05")):
            settings = Settings(
                retriever=RetrieverSettings(url=tuple(urls), timeout_seconds=0.2, attempt_seconds=0.05),
                scorer=ScorerSettings(url=("http://127.0.0.1:1",)),
            )
            gateway = build_gateway(settings)
            with pytest.raises(RetrieverUnavailable, match=f"did not answer within {seconds} s"):
                await gateway.retriever.documents("i", ["a"])
            await gateway.close()


async def test_an_upload_is_not_the_probe_of_an_ejected_retriever() -> None:
    clock = Clock()
    async with several(reset, reset, clock=clock) as (retriever, stood):
        with pytest.raises(RetrieverUnavailable):
            await retriever.documents("i", ["a"])
        clock.now += BACKOFF
        for server in stood:
            server.behaviour = hang
        upload = asyncio.create_task(retriever.forward("POST", "/indexes/i/documents", {"content-length": "2"}, body()))
        async with asyncio.timeout(UP_TO):
            while not sum(server.asked["/indexes/i/documents"] for server in stood):  # noqa: ASYNC110 - behind a socket
                await asyncio.sleep(0.005)
        for server in stood:
            server.behaviour = answer(DOCUMENT)
        assert await asyncio.gather(*(retriever.documents("i", ["a"]) for _ in stood)) == [FOUND, FOUND]
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)


async def test_an_upload_that_breaks_off_tells_why_itself() -> None:
    clock = Clock()
    async with several(answer(b"away", 503), answer(b"away", 503), clock=clock) as (retriever, stood):
        with pytest.raises(RetrieverUnavailable):
            await retriever.documents("i", ["a"])
        clock.now += BACKOFF
        for server in stood:
            server.behaviour = reset
        with pytest.raises(RetrieverUnavailable, match=r"the request to .* failed") as raised:
            await retriever.forward("POST", "/indexes/i/documents", {"content-length": "2"}, body())
        assert "away" not in str(raised.value)
    well = answer(DOCUMENT, more="connection: close")
    async with several(reset, well, clock=clock) as (retriever, (first, _)):
        with pytest.raises(RetrieverUnavailable):  # noqa: PT012 - which is asked first goes by chance
            for _ in range(20):
                passed = await retriever.forward("POST", "/indexes/i/documents", {"content-length": "2"}, body())
                await passed.read()
        for _ in range(10):  # it is left alone for now
            assert await retriever.documents("i", ["a"]) == FOUND
        assert not first.asked["/documents"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_writing_is_not_tried_twice(method: str) -> None:
    async with several(reset, reset, clock=Clock()) as (retriever, stood):
        with pytest.raises(RetrieverUnavailable):
            await retriever.forward(method, "/indexes/i/documents", {}, None)
        assert sum(server.asked["/indexes/i/documents"] for server in stood) == 1


@pytest.mark.parametrize("broken", [reset, hang, answer(b"away", 503), answer({}, 500), answer(RATE_LIMITED, 429)])
async def test_reading_is_tried_elsewhere(broken: Behaviour) -> None:
    async with several(broken, answer(b"[]"), clock=Clock(), seconds=a_try(broken)) as (retriever, (first, _)):
        for _ in range(20):
            passed = await retriever.forward("GET", "/indexes", {}, None)
            assert (passed.status_code, await passed.read()) == (200, b"[]")
        again = 2 if broken is reset else 1  # and left alone then
        assert first.asked["/indexes"] == again


@pytest.mark.parametrize("urls", [[], 2 * ["http://127.0.0.1:1"]])
async def test_no_urls_and_repeated_urls_are_refused(urls: list[str]) -> None:
    with pytest.raises(InvalidConfiguration, match=r"at least one|twice"):
        RemoteRetriever(*urls)
