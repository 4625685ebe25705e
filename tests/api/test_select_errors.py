"""POST /select: what it refuses, and how it says so."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from boundarymorph.settings import Limits, Settings
from tests.api.service import answer, block, filled, problem, serving, texts

pytestmark = pytest.mark.asyncio(loop_scope="module")

TWO = [{"text": "a", "embedding": [1, 0]}, {"text": "b", "embedding": [0, 1]}]
SQUARE = block([[1, 0], [0, 1]])
HUGE = 10**30
DIGITS = int("9" * 4299)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """One for all of these tests: what is refused changes nothing."""
    async with filled(Settings(data_directory=tmp_path_factory.mktemp("refused"))) as client:
        yield client


async def refused(
    client: httpx.AsyncClient, request: dict[str, Any], slug: str = "invalid-input", status: int = 422
) -> str:
    return problem(await client.post("/select", json=request), status, slug)


async def test_an_unknown_index(client: httpx.AsyncClient) -> None:
    assert "'nowhere'" in await refused(client, {"query": "q", "index": "nowhere"}, "unknown-index", 404)


async def test_an_empty_index(client: httpx.AsyncClient) -> None:
    answer(await client.put("/indexes/empty"))
    assert "'empty'" in await refused(client, {"query": "q", "index": "empty"}, "empty-index", 409)


@pytest.mark.parametrize("name", ["", "../texts", "Texts", "a/b", ".hidden", "x" * 65, "a\0", "ü", "a\n"])
async def test_an_impossible_index(client: httpx.AsyncClient, name: str) -> None:
    await refused(client, {"query": "q", "index": name}, "invalid-index-name")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"query": " ", "index": "texts"}, "query: must have a character that is not white space"),
        ({"queries": [" "], "index": "texts"}, "queries.0.query: must have a character that is not white space"),
        ({"query": "q", "index": "Texts!"}, "use 1 to 64 of a-z, 0-9, '.', '_', '-', a letter or digit first"),
        ({"query": "q", "pool": TWO, "features": {}}, "features: unknown field 'features'"),
        ({"query": "q", "pool": TWO, "hybird": True}, "hybird: unknown field 'hybird'; did you mean 'hybrid'?"),
        (
            {"query": "q", "pool": {"documents": [{"text": "a", "titel": "b"}]}},
            "unknown field 'titel'; did you mean 'title'?",
        ),
        (
            {"query": "q", "pool": {"documents": TWO, "features": {"": [1, 2]}}},
            "pool.features..[key]: String should have at least 1 character",
        ),
        ({"query": "q", "index": "texts", "distinct": "a..b"}, "something before and after each dot"),
        ({"query": "q", "index": "texts", "filter": {"a.": 1}}, "something before and after each dot"),
    ],
)
async def test_what_is_allowed_is_said_in_words(client: httpx.AsyncClient, request_: dict[str, Any], said: str) -> None:
    slug = "invalid-index-name" if request_.get("index") == "Texts!" else "invalid-input"
    detail = await refused(client, request_, slug)
    assert said in detail
    assert "pattern" not in detail
    assert "^" not in detail


@pytest.mark.parametrize("source", [{}, {"index": "texts", "pool": TWO}, {"index": None, "pool": None}])
async def test_both_or_neither_source(client: httpx.AsyncClient, source: dict[str, Any]) -> None:
    assert "exactly one" in await refused(client, {"query": "q", **source})


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("query", {"query": "", "index": "texts"}),
        ("query", {"query": " \t\n\u2003", "index": "texts"}),
        ("query", {"index": "texts"}),
        ("query", {"query": None, "index": "texts"}),
        ("query", {"query": ["q"], "index": "texts"}),
        ("budget", {"query": "q", "index": "texts", "budget": -1}),
        ("B", {"query": "q", "index": "texts", "B": -1}),
        ("B", {"query": "q", "index": "texts", "B": 1, "budget": 1}),
        ("budget", {"query": "q", "index": "texts", "budget": 1.5}),
        ("budget", {"query": "q", "index": "texts", "budget": "automatic"}),
        ("budget", {"query": "q", "index": "texts", "budget": "50"}),
        ("budget", {"query": "q", "index": "texts", "budget": True}),
        ("method", {"query": "q", "index": "texts", "method": "best"}),
        ("max_tokens", {"query": "q", "index": "texts", "max_tokens": 0}),
        ("max_tokens", {"query": "q", "index": "texts", "max_tokens": 9, "k": 9}),
        ("pool.documents.0.tokens", {"query": "q", "pool": [{"text": "a", "tokens": 0}]}),
        ("pool.documents.0.tokens", {"query": "q", "pool": [{"text": "a", "tokens": DIGITS}], "max_tokens": 9}),
        ("pool.documents.0.cross_encoder_score", {"query": "q", "pool": [{"text": "a", "cross_encoder_score": 1.1}]}),
        ("k", {"query": "q", "index": "texts", "k": 0}),
        ("k", {"query": "q", "index": "texts", "k": -HUGE}),
        ("k", {"query": "q", "index": "texts", "k": "many"}),
        ("depth", {"query": "q", "index": "texts", "depth": 0}),
        ("N", {"query": "q", "index": "texts", "N": 0}),
        ("depth", {"query": "q", "pool": TWO, "depth": 2}),
        ("rounds", {"query": "q", "index": "texts", "rounds": 0}),
        ("explain", {"query": "q", "index": "texts", "explain": "perhaps"}),
        ("bugdet", {"query": "q", "index": "texts", "bugdet": 5}),
        ("pool.documents.1.texts", {"query": "q", "pool": [{"text": "a"}, {"text": "b", "texts": "c"}]}),
        ("pool.documents.0.text", {"query": "q", "pool": [{}]}),
        ("pool.documents.0.text", {"query": "q", "pool": [{"text": None}]}),
        ("pool.documents.0.id", {"query": "q", "pool": [{"text": "a", "id": ""}]}),
        ("pool.documents.0.id", {"query": "q", "pool": [{"text": "a", "id": "x" * 513}]}),
        ("pool.documents.0.metadata", {"query": "q", "pool": [{"text": "a", "metadata": [1]}]}),
        ("pool.documents.1", {"query": "q", "pool": ["a", 1]}),
        ("pool.documents.1", {"query": "q", "pool": {"documents": ["a", ["b"]]}}),
        ("pool", {"query": "q", "pool": "a"}),
        ("pool.documents", {"query": "q", "pool": []}),
        ("pool.documents", {"query": "q", "pool": {}}),
        ("pool", {"query": "q", "pool": "all of them"}),
        ("pool.embeddings.dtype", {"query": "q", "pool": {"documents": TWO, "embeddings": SQUARE | {"dtype": "int8"}}}),
        ("query_embedding.dtype", {"query": "q", "pool": TWO, "query_embedding": SQUARE | {"dtype": "f4"}}),
        ("query_embedding.1", {"query": "q", "pool": TWO, "query_embedding": [1, "one"]}),
        ("query_embedding", {"query": "q", "pool": TWO, "query_embedding": "1,0"}),
    ],
)
async def test_a_bad_field_is_named(client: httpx.AsyncClient, field: str, request_: dict[str, Any]) -> None:
    response = await client.post("/select", json=request_)
    detail = problem(response, 422, "invalid-input")
    assert field in detail
    assert response.json()["errors"][0]["message"] in detail


async def test_duplicate_ids(client: httpx.AsyncClient) -> None:
    for pool in ([{"text": "a", "id": "x"}] * 2, [{"text": "a", "id": "1"}, {"text": "b"}]):
        await refused(client, {"query": "q", "pool": pool}, "duplicate-ids")


async def test_scores_of_some(client: httpx.AsyncClient) -> None:
    assert "1 of 2" in await refused(client, {"query": "q", "pool": [{"text": "a", "score": 1}, {"text": "b"}]})
    assert "1 of 2 have a bm25" in await refused(
        client, {"query": "q", "pool": [{"text": "a", "bm25": 1}, {"text": "b"}]}
    )


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_scores_that_are_not_finite(client: httpx.AsyncClient, number: str) -> None:
    content = f'{{"query": "q", "pool": [{{"text": "a", "score": {number}}}]}}'
    problem(await client.post("/select", content=content), 422, "invalid-input")


@pytest.mark.parametrize(
    "embedding", ["[NaN, 1]", "[Infinity, 1]", "[1e999, 1]", "[1e300, 1e300]", "[1e39, 1]", "[0, 0]", "[1e-60, 0]"]
)
async def test_embeddings_without_a_direction(client: httpx.AsyncClient, embedding: str) -> None:
    bad = f'{{"query": "q", "query_embedding": [1, 0], "pool": [{{"text": "a", "embedding": {embedding}}}]}}'
    assert "'0'" in problem(await client.post("/select", content=bad), 422, "invalid-embeddings")


@pytest.mark.parametrize("embedding", ["[NaN, 1]", "[Infinity, 1]", "[1e999, 1]", "[1e300, 1e300]", "[0, 0]", "[]"])
@pytest.mark.parametrize("source", ['"index": "own"', '"pool": [{"text": "a", "embedding": [1, 0]}]'])
async def test_query_embeddings_without_a_direction(client: httpx.AsyncClient, source: str, embedding: str) -> None:
    bad = f'{{"query": "q", "query_embedding": {embedding}, {source}}}'
    problem(await client.post("/select", content=bad), 422, "invalid-embeddings")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("row", [[np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0]])
async def test_blocks_without_a_direction(client: httpx.AsyncClient, dtype: str, row: list[float]) -> None:
    pool = {"documents": texts(2), "embeddings": block(np.array([[1, 0], row]), dtype)}
    detail = await refused(client, {"query": "q", "query_embedding": [1, 0], "pool": pool}, "invalid-embeddings")
    assert "'d1'" in detail
    await refused(client, {"query": "q", "query_embedding": block(row, dtype), "pool": TWO}, "invalid-embeddings")


@pytest.mark.parametrize(
    ("embeddings", "slug"),
    [
        (block([[1, 0]]), "invalid-embeddings"),
        (block([[1, 0], [0, 1], [1, 1]]), "invalid-embeddings"),
        (block([1, 0, 0, 1]), "invalid-embeddings"),
        (block([[1, 0, 0], [0, 1, 0]]), "invalid-embeddings"),
        (block([[1, 0], [0, 1]], shape=[2, 3]), "invalid-embeddings"),
        (block([[1, 0], [0, 1]], shape=[2, 1]), "invalid-embeddings"),
        (SQUARE | {"dtype": "float16"}, "invalid-embeddings"),
        (SQUARE | {"data": SQUARE["data"][:-2]}, "invalid-embeddings"),
        (SQUARE | {"data": SQUARE["data"] + "\n"}, "invalid-embeddings"),
        (SQUARE | {"data": "é" + SQUARE["data"][1:]}, "invalid-embeddings"),
        (SQUARE | {"data": "-_" + SQUARE["data"][2:]}, "invalid-embeddings"),
        (SQUARE | {"data": ""}, "invalid-embeddings"),
        (SQUARE | {"shape": [2, 0], "data": ""}, "invalid-input"),
        (SQUARE | {"shape": [HUGE, 0], "data": ""}, "invalid-input"),
        (SQUARE | {"shape": [0]}, "invalid-input"),
        (SQUARE | {"shape": []}, "invalid-input"),
        (SQUARE | {"shape": [2, 1, 2]}, "invalid-input"),
        (SQUARE | {"shape": [-2, -2]}, "invalid-input"),
        (SQUARE | {"shape": [2.5, 2]}, "invalid-input"),
        (SQUARE | {"shape": [2, HUGE]}, "limit-exceeded"),
        (SQUARE | {"shape": [HUGE, 2]}, "limit-exceeded"),
        (SQUARE | {"shape": [2**62, 4]}, "limit-exceeded"),
        (SQUARE | {"shape": [DIGITS, 8192]}, "limit-exceeded"),
        (SQUARE | {"shape": [20_000, 8_192]}, "invalid-embeddings"),
    ],
)
async def test_wrong_blocks(client: httpx.AsyncClient, embeddings: dict[str, Any], slug: str) -> None:
    pool = {"documents": texts(2), "embeddings": embeddings}
    await refused(client, {"query": "q", "query_embedding": [1, 0], "pool": pool}, slug)


async def test_embeddings_of_different_dimensions(client: httpx.AsyncClient) -> None:
    three, two, none = ({"text": "a", "embedding": [1, 0, 0]}, TWO[0], {"text": "c"})
    for pool in ([two, three], [two, none], [two, {"text": "d", "embedding": []}]):
        assert "dimensions" in await refused(
            client, {"query": "q", "query_embedding": [1, 0], "pool": pool}, "invalid-embeddings"
        )
    # The query's, in turn, against the documents' and the index's; the encoder's has 32 dimensions.
    for request in (
        {"pool": TWO},
        {"pool": TWO, "query_embedding": [1, 0, 0]},
        {"pool": [none], "query_embedding": [1, 0]},
        {"index": "own", "query_embedding": [1, 0]},
        {"index": "texts", "query_embedding": block([1, 0])},
    ):
        assert "dimensions" in await refused(client, {"query": "q", **request}, "invalid-embeddings")
    shape = {"pool": TWO, "query_embedding": block([[1, 0]])}
    assert "[d]" in await refused(client, {"query": "q", **shape}, "invalid-embeddings")


async def test_embeddings_both_ways(client: httpx.AsyncClient) -> None:
    pool = {"documents": [TWO[0], {"text": "b"}], "embeddings": SQUARE}
    assert "not both" in await refused(client, {"query": "q", "pool": pool}, "invalid-embeddings")


async def test_tokens_for_not_even_one_document(client: httpx.AsyncClient) -> None:
    pool = [{"text": "a", "tokens": 30}, {"text": "b", "tokens": 20}]
    assert "shortest document has 20" in await refused(client, {"query": "q", "pool": pool, "max_tokens": 19})


async def test_own_vectors_take_no_text(client: httpx.AsyncClient) -> None:
    assert "query_embedding" in await refused(client, {"query": "q", "index": "own"})


class TestLimits:
    @pytest_asyncio.fixture(loop_scope="module")
    async def narrow(self, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
        limits = Limits(
            query_characters=5,
            text_characters=8,
            pool=6,
            budget=3,
            k=4,
            max_tokens=99,
            known_scores=1,
            rounds=2,
            dimension=3,
        )
        settings = Settings(data_directory=tmp_path, budget=0, k=1, depth=6, rounds=1, limits=limits)
        async with serving(settings) as client:
            yield client

    @pytest.mark.parametrize(
        ("field", "request_"),
        [
            ("query", {"query": "123456"}),
            ("budget", {"budget": 4}),
            ("budget", {"B": HUGE}),
            ("k", {"k": 5}),
            ("k", {"k": DIGITS}),
            ("max_tokens", {"max_tokens": 100}),
            ("known_scores", {"pool": [{"text": t, "cross_encoder_score": 0.5} for t in "ab"]}),
            ("rounds", {"rounds": 3}),
            ("query_embedding", {"query_embedding": [1, 0, 0, 0]}),
            ("query_embedding.shape", {"query_embedding": block([1, 0, 0, 0])}),
            ("pool", {"pool": texts(7)}),
            ("pool.documents.1.text", {"pool": [{"text": "a"}, {"text": "12345", "title": "1234"}]}),
            ("embedding", {"pool": [{"text": "a", "embedding": [1, 0, 0, 0]}]}),
            ("pool.embeddings.shape", {"pool": {"documents": texts(1), "embeddings": block([[1, 0, 0, 0]])}}),
            ("depth", {"pool": None, "index": "texts", "depth": 7}),
            ("depth", {"pool": None, "index": "texts", "N": HUGE}),
        ],
    )
    async def test_each_limit_is_named_where_it_is_exceeded(
        self, narrow: httpx.AsyncClient, field: str, request_: dict[str, Any]
    ) -> None:
        detail = await refused(narrow, {"query": "q", "pool": TWO, **request_}, "limit-exceeded")
        assert detail.startswith(f"{field}:") and "limit" in detail


class TestBodies:
    @pytest_asyncio.fixture(loop_scope="module")
    async def narrow(self, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
        async with serving(Settings(data_directory=tmp_path, limits=Limits(body_bytes=1024))) as client:
            answer(await client.put("/indexes/texts"))
            yield client

    async def test_at_the_limit(self, narrow: httpx.AsyncClient) -> None:
        content = b'{"query": "q", "pool": [{"text": "a"}]}'.ljust(1024)
        answer(await narrow.post("/select", content=content))
        problem(await narrow.post("/select", content=content + b" "), 413, "body-too-large")

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/select"),
            ("PUT", "/indexes/x"),
            ("DELETE", "/indexes/texts/documents"),
            ("POST", "/indexes/texts/documents"),
        ],
    )
    async def test_declared_and_chunked(self, narrow: httpx.AsyncClient, method: str, path: str) -> None:
        read = 0

        async def chunks() -> AsyncIterator[bytes]:
            nonlocal read
            while True:
                read += 512
                yield b" " * 512

        headers = {"content-type": "application/json"}
        problem(await narrow.request(method, path, content=chunks(), headers=headers), 413, "body-too-large")
        assert read == 3 * 512
        declared = headers | {"content-length": "1025"}
        problem(await narrow.request(method, path, content=chunks(), headers=declared), 413, "body-too-large")
        assert read <= 4 * 512

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"null",
            b"[]",
            b'"query"',
            b"\xff\xfe{\x00}\x00",
            b"\xef\xbb\xbf{}",
            '{"query": "é", "index": "own"}'.encode("latin-1"),
            b'{"query": "q", "index": "own"} and more',
            b'{"query": "q", "index": "own",}',
            b'{"query": "\\ud800", "index": "own"}',
            b'{"query": "q", "index": "own", "\\udfff": 1}',
            b'{"query": "q", "pool": [{"text": "\xed\xa0\x80"}]}',
            b'{"query": "q", "k": 1' + b"0" * 5000 + b', "index": "own"}',
            b"[" * 100_000,
            b'{"query": "q", "pool": [{"text": "a", "metadata": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}]}",
        ],
    )
    async def test_malformed(self, client: httpx.AsyncClient, body: bytes) -> None:
        problem(await client.post("/select", content=body), 422, "invalid-input")

    async def test_a_problem_does_not_echo_a_megabyte(self, client: httpx.AsyncClient) -> None:
        response = await client.post("/select", json={"query": "q", "index": "texts", "x" * 1_000_000: 1})
        problem(response, 422, "invalid-input")
        assert len(response.content) < 10_000
        response = await client.post("/select", json={"query": "q", "index": "x" * 1_000_000})
        problem(response, 422, "invalid-index-name")
        assert len(response.content) < 10_000

    async def test_what_is_no_json_number_comes_back_as_null(self, client: httpx.AsyncClient) -> None:
        for number in ("NaN", "Infinity", "1e999"):
            content = (
                f'{{"query": "q", "return_documents": true, "pool": [{{"text": "a", "metadata": {{"x": {number}}}}}]}}'
            )
            assert answer(await client.post("/select", content=content))["documents"][0]["metadata"] == {"x": None}

    async def test_deep_but_not_too_deep(self, client: httpx.AsyncClient) -> None:
        metadata = '{"a":' * 150 + "1" + "}" * 150
        content = f'{{"query": "q", "return_documents": true, "pool": [{{"text": "a", "metadata": {metadata}}}]}}'
        answer(await client.post("/select", content=content))


@pytest.mark.parametrize(
    ("method", "path", "status", "slug"),
    [
        ("GET", "/select", 405, "method-not-allowed"),
        ("OPTIONS", "/select", 405, "method-not-allowed"),
        ("BREW", "/select", 405, "method-not-allowed"),
        ("POST", "/readyz", 405, "method-not-allowed"),
        ("PATCH", "/indexes/texts", 405, "method-not-allowed"),
        ("POST", "/selct", 404, "not-found"),
        ("GET", "/no%3Fwhere%20%C3%BC", 404, "not-found"),
        ("GET", "/%ED%A0%80", 404, "not-found"),
    ],
)
async def test_routes_that_are_none(client: httpx.AsyncClient, method: str, path: str, status: int, slug: str) -> None:
    response = await client.request(method, path)
    if "%ED" in path:
        assert response.status_code == status and response.json()["instance"].isascii()
    else:
        problem(response, status, slug)
    assert (status == 405) == ("allow" in response.headers)


@pytest.mark.parametrize(("path", "status"), [("/livez", 200), ("/metrics", 200), ("/select", 405), ("/selct", 404)])
async def test_head_has_no_body_and_no_failure(client: httpx.AsyncClient, path: str, status: int) -> None:
    response = await client.head(path)
    assert (response.status_code, response.content) == (status, b"")
