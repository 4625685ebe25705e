"""What every route has in common at the edge: methods, types, what Accept says, paths, and secrets."""

import gzip
import logging
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from fastapi import Request

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.api.dependencies import prefers
from boundarymorph.settings import Settings
from tests.api.service import (
    answer,
    application,
    gateway,
    listening,
    problem,
    serving,
    texts,
)

SECRET, KEY = callers.make_key("rag", list(Scope))
BODY: dict[str, Any] = {"query": "q", "pool": texts(3)}


class TestMethods:
    @pytest.mark.parametrize(
        ("path", "allowed"),
        [
            ("/select", "POST"),
            ("/indexes", "GET, HEAD"),
            ("/indexes/texts", "DELETE, GET, HEAD, PUT"),
            ("/indexes/texts/documents", "DELETE, GET, HEAD, POST"),
            ("/indexes/texts/documents/d0", "DELETE, GET, HEAD"),
            ("/livez", "GET, HEAD"),
        ],
    )
    async def test_all_of_a_path_are_named(self, client: httpx.AsyncClient, path: str, allowed: str) -> None:
        for method in ("PATCH", "OPTIONS", "BREW"):
            refused = await client.request(method, path)
            problem(refused, 405, "method-not-allowed")
            assert refused.headers["allow"] == allowed

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/livez", 200),
            ("/readyz", 200),
            ("/metrics", 200),
            ("/openapi.json", 200),
            ("/indexes", 200),
            ("/indexes/texts", 200),
            ("/indexes/texts/documents/d0", 200),
            ("/indexes/none", 404),
            ("/select", 405),
        ],
    )
    async def test_head_is_answered_as_get_without_the_body(
        self, client: httpx.AsyncClient, path: str, status: int
    ) -> None:
        get, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (status, b"")
        assert (get.status_code, bool(get.content)) == (status, True)
        assert head.headers["content-type"] == get.headers["content-type"]
        if path != "/metrics":  # which has counted the first of them
            assert head.headers["content-length"] == get.headers["content-length"]

    async def test_head_on_a_socket_leaves_the_connection_in_order(self, tmp_path: Path) -> None:
        app = application("whole", Settings(data_directory=tmp_path))
        one = httpx.Limits(max_connections=1)
        async with listening(app) as (url, _), httpx.AsyncClient(base_url=url, limits=one) as client:
            for _ in range(3):
                assert (await client.head("/livez")).status_code == 200
                assert answer(await client.get("/livez"))["status"] == "ok"
            counted = (await client.get("/metrics")).text
            assert 'http_request_duration_seconds_count{method="HEAD",route="/livez",status="200"} ' in counted


@pytest.mark.parametrize("path", ["/select", "/v2/rerank", "/indexes/texts/documents"])
async def test_a_compressed_body_is_refused_by_that_name(client: httpx.AsyncClient, path: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    refused = await client.post(path, content=gzip.compress(b'{"query": "q"}'), headers=headers)
    assert refused.status_code in (400, 422)
    assert "'gzip'" in refused.text
    plain = await client.post(path, json={}, headers={"content-encoding": "identity"})
    assert "encoding" not in plain.text


class TestUnknownNames:
    async def test_of_the_query_at_a_gateway_too(self, tmp_path: Path) -> None:
        async with gateway(Settings(data_directory=tmp_path)) as client:
            answer(await client.put("/indexes/texts"))
            path = "/indexes/texts/documents"
            problem(await client.post(f"{path}?stirct=1", json=texts(1)), 422, "invalid-input")
            problem(await client.get("/indexes?strict=true"), 422, "invalid-input")
            assert answer(await client.post(f"{path}?strict=true", json=texts(1)))["added"] == 1

    async def test_of_uploaded_documents_are_told(self, client: httpx.AsyncClient) -> None:
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

    async def test_of_uploads_at_most_a_hundred(self, client: httpx.AsyncClient) -> None:
        documents = [{"id": n, "text": "a", f"field {n} {'x' * 200}": n} for n in range(101)]
        unknown = answer(await client.post("/indexes/texts/documents", json=documents))["unknown_fields"]
        assert len(unknown) == 100
        assert max(map(len, unknown)) == 100


class TestIds:
    async def test_may_be_integers_everywhere(self, client: httpx.AsyncClient) -> None:
        pool = [{"id": 7, "text": "a"}, {"id": "8", "text": "b"}, {"id": -(2**63), "text": "c"}]
        found = answer(await client.post("/select", json=BODY | {"pool": pool, "k": 3}))
        assert {document["id"] for document in found["documents"]} == {"7", "8", str(-(2**63))}
        answer(await client.post("/indexes/texts/documents", json=[{"id": 7, "text": "a"}]))
        removed = await client.request("DELETE", "/indexes/texts/documents", json={"ids": [7, "7", "d0"]})
        assert answer(removed)["deleted"] == 2


class TestSecrets:
    async def test_are_in_no_log_and_no_answer(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        wrong = f"{SECRET}x"
        settings = Settings(data_directory=tmp_path, keys=(str(KEY),))
        with caplog.at_level(logging.DEBUG):
            async with serving(settings) as client:
                for secret, path in (
                    (SECRET, "/indexes"),
                    (SECRET, "/nowhere"),
                    (wrong, "/indexes"),
                    (SECRET, "/select"),
                ):
                    response = await client.post(path, headers={"authorization": f"Bearer {secret}"}, content=b"{")
                    assert SECRET not in response.text and SECRET not in str(response.headers)
        assert SECRET not in caplog.text
        assert KEY.sha256 not in caplog.text


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
def test_qualities(accept: str, streams: bool) -> None:
    request = Request({"type": "http", "headers": [(b"accept", accept.encode())]})
    assert prefers(request, STREAM) == streams


@pytest.mark.strangers
async def test_paths_that_are_nearly_right(tmp_path: Path) -> None:
    body = {"query": "a", "documents": ["a", "b"]}
    async with serving(Settings(data_directory=tmp_path)) as client:
        assert len(answer(await client.post("/v1/rerank/", json=body))["results"]) == 2
        assert (await client.get("/health")).status_code == 200
        refused = await client.post("/v2/v2/rerank", json=body)
        assert refused.status_code == 404 and "/v2/rerank" in refused.text
        assert "message" in refused.json()
