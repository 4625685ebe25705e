"""Test the refusals of the rerank routes, each in the words of its dialect."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.api.rerank.dialects import PATHS, TeiError
from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.errors import DeadlineExceeded, Overloaded, ScorerFailed, ScorerUnavailable
from boundarymorph.settings import Limits, Settings
from tests.fakes.scorer import SeededScorer, failing, late
from tests.fakes.service import faked, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = Limits(pool=5, query_characters=50, text_characters=200, budget=4, body_bytes=10_000, deadline_seconds=10)
QUERY = {"documents": "q", "texts": "q", "passages": {"text": "q"}}
PLACES = {"documents": ("/v1/rerank", "/v2/rerank", "/rerank"), "texts": ("/rerank",), "passages": ("/v1/ranking",)}
EACH = [(field, path) for field, paths in PLACES.items() for path in paths]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    settings = {"budget": 2, "k": 3, "depth": 5, "deadline_seconds": 10}
    async with serving(Settings(data_directory=tmp_path_factory.mktemp("r"), limits=LIMITS, **settings)) as client:  # type: ignore[arg-type]
        yield client


def request(field: str, texts: Sequence[Any], **fields: Any) -> dict[str, Any]:
    """Return a request of the dialect whose documents are in the field `field`."""
    given = [{"text": text} for text in texts] if field == "passages" else list(texts)
    return {"query": QUERY[field], field: given, **fields}


def error_dialect(path: str) -> str:
    """Return the error dialect of a path, named by its field of documents."""
    dialect = PATHS[path][0]
    return "texts" if dialect.error is TeiError else dialect.documents


def refusal_message(response: httpx.Response, field: str, status: int) -> str:
    """Check the status and shape of a refusal in its dialect, and return its message."""
    body = response.json()
    assert response.headers["content-type"] == "application/json"
    assert "Traceback" not in response.text
    match field:
        case "documents":
            status = 400 if status == 422 else status
            assert body.keys() == {"message", "detail", "error", "type"}
            assert body["message"] == body["detail"] == body["error"]["message"]
            assert (body["error"]["code"], body["error"]["param"]) == (status, None)
            assert body["error"]["type"].endswith("Error") and " " not in body["error"]["type"]
            assert body["type"].startswith("urn:boundarymorph:problem:")
            message = body["message"]
        case "texts":
            status = {502: 424, 504: 424}.get(status, status)
            kinds = {400: "Empty", 424: "Backend", 429: "Overloaded", 500: "Backend", 503: "Unhealthy"}
            assert body.keys() == {"error", "error_type"}
            assert body["error_type"] == kinds.get(status, "Validation")
            message = body["error"]
        case _:
            assert body.keys() == {"object", "message", "detail", "type"}
            assert (body["object"], body["detail"]) == ("error", body["message"])
            message = body["message"]
    assert response.status_code == status, response.text
    assert isinstance(message, str)
    return message


@pytest.mark.parametrize(("field", "path"), EACH)
async def test_rerank_refuses_an_empty_list_of_documents(client: httpx.AsyncClient, field: str, path: str) -> None:
    assert "is empty" in refusal_message(
        await client.post(path, json=request(field, [])), field, 400 if field == "texts" else 422
    )


@pytest.mark.parametrize(("field", "path"), EACH)
@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"query": ["q"]}, "query"),
        *(({"query": query}, "query") for query in ("", " ", "\u200b", "\0")),
        ({"top_n": "3.5"}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"budget": -1}, "budget"),
        ({"budget": 2.0}, "budget"),
        ({"budget": "0.2"}, "budget"),
        ({"k": 0}, "k"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"on_failure": "ignore"}, "on_failure"),
    ],
)
async def test_rerank_refuses_invalid_field_values(
    client: httpx.AsyncClient, field: str, path: str, wrong: dict[str, Any], name: str
) -> None:
    if field == "passages" and "query" in wrong:
        wrong = {"query": {"text": wrong["query"]}}
    assert name in refusal_message(await client.post(path, json=request(field, ["a", "b"], **wrong)), field, 422)


@pytest.mark.parametrize(("field", "path"), EACH)
@pytest.mark.parametrize("documents", ["a text", {"text": "a"}, [["a"]], [{"other": "a"}]])
async def test_rerank_refuses_malformed_documents(
    client: httpx.AsyncClient, field: str, path: str, documents: object
) -> None:
    message = refusal_message(await client.post(path, json={"query": QUERY[field], field: documents}), field, 422)
    assert message.startswith(field)


async def test_rerank_refuses_a_document_object_without_text(client: httpx.AsyncClient) -> None:
    for documents, fields in (([{"title": "t"}], {}), ([{"text": "t"}], {"rank_fields": ["title", "body"]})):
        response = await client.post("/v1/rerank", json=request("documents", documents, **fields))
        assert "documents.0" in refusal_message(response, "documents", 422)
    response = await client.post("/v1/ranking", json={"query": {"text": "q"}, "passages": [{"image": "..."}]})
    assert "passages.0.text" in refusal_message(response, "passages", 422)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", ["documents", "texts", "passages"])
async def test_rerank_names_the_path_of_another_dialect(client: httpx.AsyncClient, path: str, field: str) -> None:
    response = await client.post(path, json=request(field, ["a"]))
    if any(dialect.documents == field for dialect in PATHS[path]):
        assert response.is_success
        return
    message = refusal_message(response, error_dialect(path), 422)
    home = {"documents": "/v1/rerank", "texts": "/rerank", "passages": "/v1/ranking"}[field]
    assert f"{field!r} goes to {home}" in message


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"query": "q"}', b'{"query": "\\ud800", "documents": []}']
)
@pytest.mark.parametrize("path", PATHS)
async def test_rerank_refuses_an_incomplete_body(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    assert refusal_message(await client.post(path, content=body), error_dialect(path), 422)


@pytest.mark.parametrize(("field", "path"), EACH)
async def test_rerank_routes_apply_the_limits_of_the_service(client: httpx.AsyncClient, field: str, path: str) -> None:
    for most, over, place in (
        (request(field, ["a"] * 5), request(field, ["a"] * 6), field),
        (request(field, ["a", "a" * 200]), request(field, ["a", "a" * 201]), f"{field}.1"),
        (request(field, ["a"], budget=4), request(field, ["a"], budget=5), "budget"),
    ):
        assert (await client.post(path, json=most)).is_success
        message = refusal_message(await client.post(path, json=over), field, 422)
        assert message.startswith(f"{place}: over this service's limit")
    long = {"text": "q" * 51} if field == "passages" else "q" * 51
    response = await client.post(path, json=request(field, ["a"]) | {"query": long})
    assert response.is_success, response.text  # the query is cut, as texts are
    response = await client.post(path, content=b" " * 10_001)
    assert "10,000 bytes" in refusal_message(response, error_dialect(path), 413)


async def test_rerank_refuses_a_long_text_if_truncation_is_off(client: httpx.AsyncClient) -> None:
    for field, path, refuse, cut in (
        ("texts", "/rerank", {"truncate": False}, {"truncate": True}),
        ("passages", "/v1/ranking", {"truncate": "NONE"}, {"truncate": "END"}),
    ):
        assert "longer than the model reads" in refusal_message(
            await client.post(path, json=request(field, ["a" * 101], **refuse)), field, 422
        )
        assert (await client.post(path, json=request(field, ["a" * 100], **refuse))).is_success
        assert (await client.post(path, json=request(field, ["a" * 101], **cut))).is_success


async def test_cached_score_of_a_cut_text_is_unused_if_truncation_is_off(tmp_path: Path) -> None:
    async with serving(Settings(data_directory=tmp_path), faked(cache=MemoryScoreCache())) as client:
        uncut = request("texts", ["a" * 101, "b"], truncate=False)
        for body in (uncut, uncut, request("texts", ["a" * 101, "b"]), uncut):
            response = await client.post("/rerank", json=body)
            assert response.is_success or "longer than the model reads" in refusal_message(response, "texts", 422)
            assert response.is_success == (body is not uncut)


@pytest.mark.parametrize(
    ("trouble", "status", "again"),
    [
        (ScorerUnavailable("10.0.0.1 is gone"), 503, True),
        (ScorerFailed("10.0.0.1 refuses"), 502, False),
        (Overloaded("10.0.0.1 is full", public="full"), 429, True),
        (ZeroDivisionError("a bug"), 500, False),
        (DeadlineExceeded("too late"), 504, False),
    ],
)
async def test_scorer_failure_has_the_error_form_of_the_dialect(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, trouble: Exception, status: int, again: bool
) -> None:
    monkeypatch.setattr(SeededScorer, "score", failing(trouble) if status != 504 else late)
    deadline = 80 if status == 504 else 60_000
    for field, path in EACH:
        for extra in ({}, {"budget": 1}):
            response = await client.post(path, json=request(field, ["a", "b"], deadline_ms=deadline, **extra))
            assert "10.0.0.1" not in refusal_message(response, field, status)
            assert ("retry-after" in response.headers) == again


async def test_rerank_refuses_missing_and_wrong_keys(tmp_path: Path) -> None:
    secrets = {scope: callers.make_key(scope, [scope]) for scope in (Scope.SELECT, Scope.WRITE)}
    settings = Settings(data_directory=tmp_path, keys=tuple(str(key) for _, key in secrets.values()))
    async with serving(settings) as client:
        for field, path in EACH:
            at_first = error_dialect(path)  # before the body is read
            missing = await client.post(path, json=request(field, ["a"]))
            assert refusal_message(missing, at_first, 401)
            assert missing.headers["www-authenticate"] == "Bearer"
            for scope, status in ((Scope.WRITE, 403), (Scope.SELECT, 200)):
                headers = {"authorization": f"Bearer {secrets[scope][0]}"}
                response = await client.post(path, json=request(field, ["a"]), headers=headers)
                assert response.status_code == status
        assert refusal_message(await client.get("/info"), "texts", 401)


async def test_rerank_answers_503_until_the_service_is_ready(tmp_path: Path) -> None:
    async with serving(Settings(data_directory=tmp_path)) as client:
        client._transport.app.state.lifecycle.ready = False  # type: ignore[attr-defined]
        for field, path in EACH:
            response = await client.post(path, json=request(field, ["a"]))
            assert refusal_message(response, error_dialect(path), 503)
