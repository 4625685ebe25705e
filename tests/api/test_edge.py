"""Test the behaviour that all routes share.

This covers methods, types, Accept, paths, secrets, the caller of work, and unexpected errors.
"""

import gzip
import inspect
import io
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from starlette.routing import Match

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.api import bodies
from boundarymorph.api.dependencies import prefers_media_type
from boundarymorph.inference.concurrency import FairExecutor
from boundarymorph.server.app import create_app
from boundarymorph.settings import Settings
from boundarymorph.telemetry import tracing
from tests.agents import rpc
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import answer, client_of, fake_service, on_socket, problem, ready, serving, texts
from tests.retrieval.fakes import SeededEncoder

SECRET, KEY = callers.make_key("rag", list(Scope))
BODY: dict[str, Any] = {"query": "q", "pool": texts(3)}


class TestMethods:
    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/livez", 200),
            ("/indexes", 200),
            ("/indexes/texts", 200),
            ("/indexes/texts/documents/d0", 200),
            ("/indexes/none", 404),
            ("/select", 405),
        ],
    )
    async def test_head_request_is_answered_like_get_without_a_body(
        self, client: httpx.AsyncClient, path: str, status: int
    ) -> None:
        client.headers["Accept-Encoding"] = "identity"  # a compressed stream has no length
        get, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (status, b"")
        assert (get.status_code, bool(get.content)) == (status, True)
        assert head.headers["content-type"] == get.headers["content-type"]
        assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.strangers
@pytest.mark.parametrize("path", ["/select", "/v2/rerank", "/mcp", "/indexes/texts/documents", "/nowhere"])
@pytest.mark.parametrize("encoding", ["X-Gzip", "identity, gzip"])
async def test_compressed_body_is_refused_with_its_encoding_named(
    client: httpx.AsyncClient, path: str, encoding: str
) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    refused = await client.post(path, content=gzip.compress(b'{"query": "q"}'), headers=headers)
    assert f"{encoding.lower()!r}" in problem(refused, 415, "unsupported-media-type")
    assert refused.headers["accept-encoding"] == "identity"
    plain = await client.post(path, json={}, headers={"content-encoding": "identity"})
    assert "encoding" not in plain.text


class TestUnknownNames:
    async def test_upload_warns_of_unknown_fields_or_refuses_if_strict(self, client: httpx.AsyncClient) -> None:
        documents = [{"id": 1, "text": "a", "titel": "A"}, {"id": 2, "text": "b"}, {"id": 3, "text": "c", "titel": "C"}]
        path = "/indexes/texts/documents"
        for content, kind in (
            (orjson.dumps(documents), "application/json"),
            (b"\n".join(map(orjson.dumps, documents)), "application/x-ndjson"),
        ):
            headers = {"content-type": kind}
            strict = await client.post(f"{path}?strict=true", content=content, headers=headers)
            assert "line 1: unknown field 'titel'" in problem(strict, 422, "invalid-input")
            report = answer(await client.post(path, content=content, headers=headers))
            assert (report["added"] + report["unchanged"], report["unknown_fields"]) == (3, {"titel": 2})


STREAM = "text/event-stream"


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ("", False),
        ("*/*", False),
        (STREAM, True),
        (f"application/json, {STREAM};q=0.5", False),
        (f"application/json;q=0.1, {STREAM};q=0.5", True),
        (f"{STREAM};q=0, application/json", False),
        (f"{STREAM};q=0", False),
        (f"{STREAM}, application/json", False),
        (f"{STREAM}, */*;q=0.1", True),
        ("text/*, application/json;q=0.9", True),
    ],
)
def test_event_stream_is_preferred_by_accept_qualities(accept: str, streams: bool) -> None:
    request = Request({"type": "http", "headers": [(b"accept", accept.encode())]})
    assert prefers_media_type(request, STREAM) == streams


@pytest.fixture
def listing_callers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the callers that list indexes."""
    told: list[str] = []
    run = FairExecutor.run

    async def noted(executor: FairExecutor, function: Any, *given: Any, caller: str = "") -> Any:
        if function.__name__ == "list":
            told.append(caller)
        return await run(executor, function, *given, caller=caller)

    monkeypatch.setattr(FairExecutor, "run", noted)
    return told


async def ask(client: httpx.AsyncClient, **headers: str) -> None:
    answer(await client.get("/indexes", headers=headers))


@pytest.mark.parametrize(
    ("address", "caller"), [("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("testclient", "testclient")]
)
async def test_caller_without_a_key_is_its_network_address(
    tmp_path: Path, listing_callers: list[str], address: str, caller: str
) -> None:
    app = create_app(Settings(data_directory=tmp_path), build=fake_service)
    async with client_of(app) as client:
        await ready(client)
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as from_there:
            await ask(from_there)
            called = await rpc.call(from_there, "list_indexes")
            assert called["structuredContent"]["indexes"] == []
    assert listing_callers == [caller, caller], "a tool calls on behalf of its caller"


async def test_threads_scorer_and_encoder_receive_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work without a caller would not take part in fair scheduling."""
    told: dict[str, set[str]] = {}

    def noting(kind: type, name: str) -> None:
        method = getattr(kind, name)

        async def noted(*given: Any, **options: Any) -> Any:
            bound = inspect.signature(method).bind(*given, **options)
            bound.apply_defaults()
            told.setdefault(name, set()).add(bound.arguments["caller"])
            return await method(*given, **options)

        monkeypatch.setattr(kind, name, noted)

    async with serving(Settings(data_directory=tmp_path)) as client:
        for kind, name in (
            (FairExecutor, "run"),
            (SeededScorer, "score"),
            (SeededEncoder, "encode_query"),
            (SeededEncoder, "encode_documents"),
        ):
            noting(kind, name)
        long, item = "x" * bodies.LARGE, "/indexes/i/documents/a"
        grouped = {"query": "bus", "index": "i", "k": 1, "distinct": {"by": "kind"}, "return_documents": True}
        for method, path, body in (
            ("PUT", "/indexes/i", {}),
            ("POST", "/indexes/i/documents", [{"id": "a", "text": "tram"}, {"id": "b", "text": long}]),
            ("PUT", "/indexes/i/description", {"description": "of trams"}),
            ("PATCH", "/indexes/i/artifacts", {"distinct": None}),
            *(("GET", path, None) for path in ("/indexes", "/indexes/i", "/indexes/i/stats", "/indexes/i/artifacts")),
            *(("GET", path, None) for path in ("/indexes/i/documents", item)),
            ("POST", "/select", grouped),
            ("POST", "/select", {"query": "q", "index": "i", "max_tokens": 50}),
            ("POST", "/select", BODY | {"vectors": "encoder", "return_documents": True}),
            ("POST", "/v1/rerank", {"query": "q", "documents": ["a", long], "return_documents": True}),
            ("DELETE", "/indexes/i/documents", {"ids": ["b"]}),
            ("DELETE", item, None),
            ("DELETE", "/indexes/i", None),
        ):
            answered = await client.request(method, path, json=body)
            assert answered.is_success, answered.text
    assert told == {name: {"127.0.0.1"} for name in ("run", "score", "encode_query", "encode_documents")}


async def test_caller_behind_a_local_proxy_is_the_forwarded_address(tmp_path: Path, listing_callers: list[str]) -> None:
    app = create_app(Settings(data_directory=tmp_path), build=fake_service)
    async with on_socket(app) as url, httpx.AsyncClient(base_url=url) as client:
        await ready(client)
        await ask(client)
        await ask(client, **{"X-Forwarded-For": "203.0.113.9, 192.0.2.7"})
    assert listing_callers == ["127.0.0.1", "192.0.2.7"], "what a client itself puts before it counts for nothing"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Return the log lines as written, with the ids of their requests."""
    lines, logger = io.StringIO(), logging.getLogger("boundarymorph.api.problems")
    handler = logging.StreamHandler(lines)
    handler.setFormatter(tracing.Lines())
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    """Return an application with a route that raises, and one that raises during its answer."""
    app = create_app(Settings(data_directory=tmp_path), build=fake_service)

    async def raising() -> None:
        raise KeyError("a private matter")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        raise KeyError("a private matter")

    async def breaking() -> StreamingResponse:
        return StreamingResponse(pieces())

    app.add_api_route("/raises", raising)
    app.add_api_route("/breaks", breaking)
    return app


async def test_unexpected_error_is_a_problem_with_the_usual_headers(app: FastAPI, log: io.StringIO) -> None:
    async with client_of(app) as client:
        response = await client.get("/raises", headers={"x-request-id": "r1"})
        assert "private" not in problem(response, 500, "internal-error")
        assert response.headers["x-request-id"] == "r1"
        assert response.headers["server-timing"].startswith("total;")
        assert response.headers["x-content-type-options"] == "nosniff"
        exposed = (await client.get("/metrics")).text
    assert 'count{method="GET",route="/raises",status="500"} 1.0' in exposed
    assert "unexpected error [r1]" in log.getvalue()
    assert "KeyError: 'a private matter'" in log.getvalue()


async def test_unexpected_error_in_a_stream_breaks_the_answer(app: FastAPI, log: io.StringIO) -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with pytest.raises(KeyError):
            await client.get("/breaks", headers={"x-request-id": "r2"})
    assert "unexpected error [r2]" in log.getvalue()


async def test_refused_method_compares_few_routes(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller without a key may send long paths."""
    counted, matches = Counter[str](), APIRoute.matches

    def count(route: APIRoute, scope: Any) -> tuple[Match, Any]:
        counted[scope["path"]] += 1
        return matches(route, scope)

    monkeypatch.setattr(APIRoute, "matches", count)
    problem(await client.get("/select"), 405, "method-not-allowed")
    problem(await client.get("/nothing/here"), 404, "not-found")
    assert counted["/select"] < 3 * counted["/nothing/here"]
