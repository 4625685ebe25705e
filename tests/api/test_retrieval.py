"""Test the retriever's routes, and a gateway that forwards to it.

The gateway passes requests for indexes on, and selects as a service in one process does.
"""

import asyncio
import http.client
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from boundarymorph.access import callers
from boundarymorph.api.dependencies import JSON
from boundarymorph.api.lifecycle import Parts
from boundarymorph.inference.concurrency import FairExecutor
from boundarymorph.retrieval.frame import EMBEDDINGS_TYPE, POOL_TYPE, decode_pool
from boundarymorph.settings import Limits, RetrieverSettings, Settings
from tests.fakes.service import (
    NDJSON,
    answer,
    application,
    bearer,
    client_of,
    fill,
    gateway,
    gateway_to,
    listening,
    on_socket,
    problem,
    ready,
)
from tests.patience import PATIENCE

UNIT = [1.0, 0.0, 0.0, 0.0]
OWN = {"index": "own", "query": "", "depth": 1}
LIMITS = Limits(body_bytes=4096, pool=50, query_characters=20, text_characters=30, dimension=8, k=50, budget=50)


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a retriever."""
    app = application("retriever", Settings(data_directory=tmp_path, limits=LIMITS, depth=50))
    async with client_of(app) as client:
        await ready(client)
        await fill(client)
        yield client


@pytest.fixture(name="gateway")
async def gateway_(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a gateway whose retriever is on a real socket."""
    async with gateway(Settings(data_directory=tmp_path / "remote")) as client:
        await fill(client)
        yield client


def _send_raw(url: str, method: str, path: str) -> tuple[int, bytes]:
    """Send a path without normalising it, and return the status and the body."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    with closing(connection):
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()


class TestRetriever:
    async def test_retriever_accepts_a_query_embedding(self, alone: httpx.AsyncClient) -> None:
        body = {"index": "own", "query": "", "depth": 2, "query_embedding": [0, 0, 9, 1]}
        for precision in ({}, {"query_precision": "float32"}):
            found = decode_pool((await alone.post("/retrieve", json=body | precision)).content)
            assert list(found.pool.ids) == ["e2", "e3"]
        refused = await alone.post("/retrieve", json=body | {"query_embedding": [0, 0, 0, 0]})
        problem(refused, 422, "invalid-embeddings")

    @pytest.mark.parametrize(
        ("path", "good", "over"),
        [
            ("/retrieve", {"index": "texts", "query": "q" * 20, "depth": 50}, {"query": "q" * 21}),
            ("/retrieve", {"index": "texts", "query": "q", "depth": 50}, {"depth": 51}),
            ("/retrieve", OWN | {"query_embedding": UNIT}, {"query_embedding": UNIT * 3}),
            ("/documents", {"index": "texts", "ids": ["a"] * 50}, {"ids": ["a"] * 51}),
            ("/characters", {"index": "texts", "ids": ["a"] * 50}, {"ids": ["a"] * 51}),
            ("/embed/query", {"query": "q" * 20}, {"query": "q" * 21}),
            ("/embed/documents", {"texts": ["t" * 30]}, {"texts": ["t" * 31]}),
            ("/embed/documents", {"texts": ["t"] * 50}, {"texts": ["t"] * 51}),
        ],
    )  # fmt: skip
    async def test_retriever_routes_apply_its_limits(
        self, alone: httpx.AsyncClient, path: str, good: dict[str, Any], over: dict[str, Any]
    ) -> None:
        found = await alone.post(path, json=good)
        kind = {"/retrieve": POOL_TYPE, "/documents": JSON, "/characters": JSON}.get(path, EMBEDDINGS_TYPE)
        assert (found.status_code, found.headers["content-type"]) == (200, kind)
        assert next(iter(over)) in problem(await alone.post(path, json=good | over), 422, "limit-exceeded")
        problem(await alone.post(path, content=b" " * 4097), 413, "body-too-large")


AMBIGUOUS = (
    "own/documents/../../texts/documents/d0",
    "own/documents/..%2f..%2Ftexts%2Fdocuments%2Fd0",
    "own/documents/..\\..\\texts",
    "own/documents/%252e%252E%252f%252e%252e/texts",
    "own/documents/%25252e%25252e/texts",
    "own/documents/a/./b",
    "own/documents/a/..;v=1/b",
    "own/documents/%2e%2e",
    "..",
    "%2e%2e",
    "%252e%252e/documents/d0",
    "%252e%252e%252fretrieve/documents",
)


class TestGateway:
    async def test_gateway_passes_index_requests_to_its_retriever(self, gateway: httpx.AsyncClient) -> None:
        created = await gateway.put("/indexes/new", json={"dimension": 2})
        assert (created.status_code, created.json()["dimension"]) == (201, 2)
        assert (await gateway.put("/indexes/new", json={"dimension": 2})).status_code == 200
        problem(await gateway.put("/indexes/new", json={"dimension": 3}), 409, "index-conflict")
        assert [index["name"] for index in answer(await gateway.get("/indexes"))["indexes"]] == ["new", "own", "texts"]
        record = {"id": "a", "text": "t", "embedding": [1, 0]}
        assert answer(await gateway.post("/indexes/new/documents", json=[record, {"id": "b"}]))["skipped"] == 1
        strict = await gateway.post("/indexes/new/documents", params={"strict": True}, json=[record, {"id": "b"}])
        assert problem(strict, 422, "invalid-input").startswith("line 2: text is missing")
        problem(await gateway.post("/indexes/new/documents", content=b"a", headers={"content-type": "text/csv"}),
                415, "unsupported-media-type")  # fmt: skip
        assert answer(await gateway.get("/indexes/new/documents/a"))["text"] == "t"
        problem(await gateway.get("/indexes/new/documents/b"), 404, "unknown-document")
        deleted = await gateway.request("DELETE", "/indexes/new/documents", json={"ids": ["a", "b"]})
        assert answer(deleted) == {"deleted": 1}
        gone = await gateway.delete("/indexes/new")
        assert (gone.status_code, gone.content) == (204, b"")
        problem(await gateway.delete("/indexes/new"), 404, "unknown-index")

    async def test_gateway_handles_document_ids_that_look_like_paths(self, gateway: httpx.AsyncClient) -> None:
        """Deletion removes exactly the named document, even if a proxy reads its path otherwise."""
        for id in ("...", "..a/.b", "a/b", "a//b", "/", "a\n", "ä?#%", "a%2fb", "https://a.b/c?d=e#f", "x" * 512):
            await gateway.post("/indexes/own/documents", json=[{"id": id, "text": "odd", "embedding": [1, 1, 0, 0]}])
            escaped = "".join(f"%{byte:02X}" for byte in id.encode())
            assert answer(await gateway.get(f"/indexes/own/documents/{escaped}"))["id"] == id
            assert answer(await gateway.delete(f"/indexes/own/documents/{escaped}")) == {"deleted": 1}
            assert answer(await gateway.get("/indexes/own"))["count"] == 4

    async def test_gateway_refuses_paths_that_a_proxy_may_rewrite(self, tmp_path: Path) -> None:
        """Behind a proxy that rewrites a path, the check of the key would see another index."""
        retriever = application("retriever", Settings(data_directory=tmp_path))
        reached = list[bytes]()

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            reached.append(scope.get("raw_path", b""))
            await retriever(scope, receive, send)

        async with on_socket(noted) as url:
            front = application("gateway", Settings(retriever=RetrieverSettings(url=url)))
            async with listening(front) as (url, _):
                before = len(reached)
                for method, path in itertools.product(("GET", "DELETE"), AMBIGUOUS):
                    status, answered = await asyncio.to_thread(_send_raw, url, method, f"/indexes/{path}")
                    assert status in (404, 405, 422), (path, answered)
                    assert status != 422 or b"invalid-input" in answered
                assert not [path for path in reached[before:] if path.startswith(b"/indexes")]


CHUNK = bytes(2**16)
MANY = 800  # chunks, 50 MiB
FEW = 500  # chunks that sockets and their readers may hold


@asynccontextmanager
async def gateway_to_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], patch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a gateway whose retriever calls `serve` after the head of a request."""

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await serve(reader, writer)
        await writer.drain()
        writer.close()

    async def unprobed(_: Parts) -> None:
        """Replace the retriever's probe, which the fake server cannot answer."""

    patch.setattr(Parts, "check", unprobed)
    server = await asyncio.start_server(answering, "127.0.0.1", 0)
    async with server:
        behind = RetrieverSettings(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with listening(application("gateway", Settings(retriever=behind))) as (_, client):
            yield client


async def stable_count(count: Callable[[], int]) -> int:
    """Return a count once it has stopped changing."""
    before = -1
    while count() != before:
        before = count()
        await asyncio.sleep(0.3)
    return before


async def test_gateway_passes_an_upload_on_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    read_on, sent, received = asyncio.Event(), 0, 0

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await read_on.wait()
        while (size := int((await reader.readline()).strip(), 16)) > 0:
            received += len(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    async def content() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(MANY):
            sent += 1
            yield CHUNK

    async with gateway_to_server(late, monkeypatch) as client, asyncio.timeout(PATIENCE):
        upload = asyncio.create_task(client.post("/indexes/a/documents", content=content(), headers=NDJSON))
        assert 0 < await stable_count(lambda: sent) < FEW
        read_on.set()
        assert (await upload).json() == {}
    assert received == MANY * len(CHUNK)


async def test_gateway_breaks_off_an_answer_when_its_retriever_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller sees the break, for instance when a retriever restarts, and the log says why."""

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")

    async with gateway_to_server(half, monkeypatch) as client:
        with pytest.raises(httpx.TransportError):
            await client.put("/indexes/a")
    (record,) = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert "the retriever broke off" in record.message and record.exc_info is None


async def test_gateway_passes_the_caller_to_its_retriever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    run = FairExecutor.run

    async def noted(executor: FairExecutor, function: Any, *given: Any, caller: str = "") -> Any:
        told.append(caller)
        return await run(executor, function, *given, caller=caller)

    secret, key = callers.make_key("rag", list(callers.Scope))
    behind = application("retriever", Settings(data_directory=tmp_path))
    async with on_socket(behind) as url, gateway_to(url, Settings(keys=(str(key),))) as client:
        client.headers.update(bearer(secret))
        await ready(client)
        answer(await client.put("/indexes/texts"))
        monkeypatch.setattr(FairExecutor, "run", noted)
        for forged in ({}, {"X-BoundaryMORPH-Caller": "another"}):
            answer(await client.get("/indexes/texts", headers=forged))
    assert told == ["anonymous/rag"] * 2
