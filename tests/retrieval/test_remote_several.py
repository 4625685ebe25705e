"""Several retrievers over real sockets: whose turn it is, and what becomes of a call when one of them is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from boundarymorph.errors import RetrieverUnavailable
from boundarymorph.remote.balancer import BACKOFF
from boundarymorph.retrieval import frame
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.server.composition import build_gateway
from boundarymorph.settings import RetrieverSettings, ScorerSettings, Settings
from tests.clocks import Clock
from tests.retrieval.test_remote import (
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


@asynccontextmanager
async def several(
    *behaviours: Behaviour, clock: Clock, seconds: float = UP_TO
) -> AsyncIterator[tuple[RemoteRetriever, list[Server]]]:
    servers = [Server(behaviour) for behaviour in behaviours]
    async with standing_in(*servers, clock=clock, timeout=seconds) as retriever:
        yield retriever, servers


def faults(retriever: RemoteRetriever) -> list[Exception | None]:
    return [member.fault for member in retriever._balancer.replicas.values()]


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
