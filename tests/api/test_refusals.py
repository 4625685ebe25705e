"""Test the refusals of POST /select and of the index routes, and their messages."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import pytest_asyncio

from boundarymorph.settings import Limits, Settings
from tests.fakes.service import NDJSON, answer, block, filled, problem, texts

pytestmark = pytest.mark.asyncio(loop_scope="module")

GONE = object()  # the value of a field that a request omits
TWO = [{"text": "a", "embedding": [1, 0]}, {"text": "b", "embedding": [0, 1]}]
THREE = {"text": "a", "embedding": [1, 0, 0]}
SQUARE = block([[1, 0], [0, 1]])
HUGE, DIGITS = 10**30, int("9" * 4299)
STATUS = {
    **dict.fromkeys(["invalid-input", "invalid-embeddings", "invalid-index-name", "limit-exceeded"], 422),
    **dict.fromkeys(["empty-index", "index-conflict"], 409),
    "duplicate-ids": 422,
    "unknown-index": 404,
    "not-found": 404,
}
NOT_BLANK = "must have a character that is not white space"
DOTS = "something before and after each dot"


def pool(**document: Any) -> dict[str, Any]:
    """Return a pool of one document as fields of a request."""
    return {"pool": [{"text": "a", **document}]}


def pooled(embeddings: dict[str, Any]) -> dict[str, Any]:
    """Return a pool of two documents with their vectors in one block, as fields of a request."""
    return {"pool": {"documents": texts(2), "embeddings": embeddings}, "query_embedding": [1, 0]}


def signals(features: dict[str, Any]) -> dict[str, Any]:
    return {"pool": {"documents": texts(2), "features": features}}


def decay(**fields: Any) -> dict[str, Any]:
    return {"field": "x", "origin": 0, "scale": 1, **fields}


def several(**more: Any) -> dict[str, Any]:
    return {"query": GONE, "queries": ["one", "two"], "pool": TWO, "k": 2, "budget": 2, **more}


def finding(objective: Any = None, **more: Any) -> dict[str, Any]:
    return {"pool": TWO, "query_embedding": [1, 0], "objective": objective or {"find": 0.9, "in": 0.8}, **more}


# POST /select: a part of the refusal, and fields to add to, or remove from, a request for the index "texts".
SELECT: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "unknown-index": [("'nowhere'", {"index": "nowhere"})],
    "empty-index": [("'empty'", {"index": "empty"})],
    "invalid-index-name": [("use 1 to 64 of a-z, 0-9, '.', '_', '-', a letter or digit first", {"index": "Texts!"})],
    "duplicate-ids": [
        ("", {"pool": [{"text": "a", "id": "x"}] * 2}),
        ("", {"pool": [{"text": "a", "id": 1}, {"text": "b"}]}),
    ],
    "invalid-input": [
        ("(and 1 more)", {"k": 0, "rounds": 0}),
        ("exactly one", {"index": GONE}),
        ("exactly one", {"index": "texts", "pool": TWO}),
        ("'queries'", {"query": GONE}),
        (f"query: {NOT_BLANK}", {"query": " \t\n\u2003"}),
        *(("query: must have something to read", {"query": query}) for query in ("\u200b", "\0", "\ufeff")),
        *(("query: ", {"query": query}) for query in ("", 5)),
        *(("queries", several(queries=["q", query])) for query in ("", " ", "\u200b")),
        ("hybird: unknown field 'hybird'; did you mean 'hybrid'?", {"hybird": True}),
        ("documents: unknown field 'documents'; did you mean 'pool'?", {"documents": ["a"]}),
        ("top_n: unknown field 'top_n'; did you mean 'k'?", {"top_n": 3}),
        ("method", {"method": "best"}),
        *(("budget", {"budget": budget}) for budget in (-1, 1.5, "50", True)),
        ("B", {"B": 1, "budget": 1}),
        *(("k", {"k": k}) for k in (0, -HUGE, "5", 5.0)),
        ("depth", {"depth": 0}),
        ("depth", {"pool": TWO, "depth": 2}),
        ("rounds", {"rounds": 0}),
        *(("deadline_ms", {"deadline_ms": value}) for value in (0, -1, "60")),
        ("on_failure", {"on_failure": "shrug"}),
        *(("calibration", {"calibration": name}) for name in ("mine", "", 3)),
        *(("min_relevance", {"min_relevance": value}) for value in (1.1, -0.1, "high")),
        ("relevance", {"relevance": "judge"}),
        ("'trend'", {"relevance": "human", "method": "boundarymorph"}),
        ("max_tokens", {"max_tokens": 9, "k": 9}),
        ("shortest document has 20", {"pool": [{"text": "a", "tokens": n} for n in (30, 20)], "max_tokens": 19}),
        (DOTS, {"distinct": "a..b"}),
        ("goes with 'explain': \"pool\"", {"explain": True, "explain_depth": 3}),
        ("k_counts", {"distinct": {"by": "page", "k_counts": "groups"}, "max_tokens": 100}),
        ("an index has passages of its own, made by index build", {"passages": True}),
        ("leave out the embeddings", {"index": GONE, "pool": TWO, "passages": True}),
        (
            "does not go with 'passages'",
            {"index": GONE, **pool(), "distinct": {"by": "page", "k_counts": "groups"}, "passages": True},
        ),
        ("'passages' goes with 'query'", {**several(), "index": GONE, "passages": True}),
        ("leave out 'passages'", finding(index=GONE, pool=[{"text": "a"}], query_embedding=GONE, passages=True)),
        *(("diversity", {"diversity": value}) for value in (1.1, -0.1)),
        ("diversity", {"diversity": 0.5, "max_tokens": 100}),
        *((said, {"boost": [boost]}) for said, boost in (
            ("give a 'weight'", {"filter": {}}),
            ("'gauss' and 'linear' are two rules", {"gauss": decay(), "linear": decay()}),
            *(("boost.0.weight", {"weight": weight}) for weight in (0.0009, 1_001, -1, "2")),
            ("boost.0.filter.a.", {"weight": 2, "filter": {"a.": 1}}),
            ("boost.0.gauss.date: unknown field 'date'", {"gauss": decay(date={})}),
            (DOTS, {"gauss": decay(field="a..b")}),
            *(("boost.0.exp.decay", {"exp": decay(decay=share)}) for share in (0, 1)),
            *(("'scale' is above 0", {"exp": decay(**bad)}) for bad in ({"scale": 0}, {"offset": -1})),
            ("boost.0.linear.scale: give a number", {"linear": decay(scale="30d")}),
            ('a duration such as "30d"', {"linear": decay(origin="now", scale=30)}),
            ('a duration such as "30d"', {"linear": decay(origin="2026-01-31", scale="30 days")}),
            ('a date such as "2026-01-31"', {"linear": decay(origin="yesterday", scale="30d")}),
            ("boost.0.field_value_factor.factor", {"field_value_factor": {"field": "x", "factor": 0}}),
            ("boost.0.field_value_factor.modifier", {"field_value_factor": {"field": "x", "modifier": "cube"}}),
        )),
        *(("boost", {"boost": boost}) for boost in ([], [{"weight": 2}] * 17, {"weight": 2})),
        ("pool.documents.0.weight", pool(weight=0)),
        (DOTS, {"filter": {"a.": 1}}),
        *(("filter", {"filter": bad}) for bad in ({"year": {"near": 3}}, {"and": 3}, 7)),
        ("query_embedding", {"index": "own"}),  # its vectors come from its users
        ("with each of several queries alone", several(pool=GONE, index="own")),
        ("ask each query alone", several(pool=GONE, index="own", query_embedding=[1, 0, 0, 0])),
        ("no vectors", {"index": "words", "hybrid": True}),
        ("no lexical part", {"index": "plain", "hybrid": True}),
        ("of its own", {"vectors": "lexical"}),
        ("of its own", {"ranked": True}),
        ("vectors", {**pool(), "vectors": "dense"}),
        ("leave out the embeddings", {**pool(embedding=[1.0]), "vectors": "lexical"}),
        ("leave out the embeddings", {**pool(), "query_embedding": [1.0], "vectors": "lexical"}),
        ("query_embedding.dtype", {"pool": TWO, "query_embedding": SQUARE | {"dtype": "f4"}}),
        ("pool.embeddings.dtype", pooled(SQUARE | {"dtype": "int8"})),
        ("pool.documents: the list is empty; give at least one", {"pool": []}),
        ("queries: the list is empty; give at least one", several(queries=[])),
        ("pool.documents.1", {"pool": ["a", 1]}),
        ("pool.documents.1.texts", {"pool": [{"text": "a"}, {"text": "b", "texts": "c"}]}),
        ("unknown field 'titel'; did you mean 'title'?", {"pool": {"documents": [{"text": "a", "titel": "b"}]}}),
        ("pool.documents.0.text", pool(text=None)),
        *(("pool.documents.0.id", pool(id=id)) for id in ("", "x" * 513, True, 2**64, -(2**63) - 1)),
        ("pool.documents.0.score", pool(score=True)),
        ("pool.documents.0.tokens", {**pool(tokens=DIGITS), "max_tokens": 9}),
        ("pool.documents.0.cross_encoder_score", pool(cross_encoder_score=1.1)),
        ("1 of 2 have a bm25", {"pool": [{"text": "a", "bm25": 1}, {"text": "b"}]}),
        ("features: unknown field 'features'", {"pool": TWO, "features": {}}),
        ("pool.features..[key]: String should have at least 1 character", signals({"": [1.0, 2.0]})),
        ("1 values for 2 documents", signals({"clicks": [1.0]})),
        *(("the name is taken", signals({name: [1.0, 2.0]})) for name in ("bm25", "similarity")),
        (f"queries.0.query: {NOT_BLANK}", several(queries=[" "])),
        ("queries", several(queries=["the same", "the same"])),
        *(("queries", several(**{name: value})) for name, value in (
            ("query", "one"), ("min_relevance", 0.5), ("distinct", True), ("diversity", 0.5), ("budget", "auto"),
            ("explain", "pool"), ("query_embedding", [1.0, 0.0]),
        )),
        ("queries", several(max_tokens=100, k=GONE)),
        *((field, several(**pool(**{field: 0.5}))) for field in ("bm25", "cross_encoder_score")),
        *(("objective.find", finding({"find": find})) for find in (0, 1.01)),
        *(("objective.in", finding({"find": 0.9, "in": share})) for share in (1, 0)),
        ("objective.find", finding({"in": 0.9})),
        *((f"leave out '{name}'", finding(**{name: value})) for name, value in (
            ("k", 5), ("max_tokens", 5), ("distinct", True), ("diversity", 0.5), ("calibration", True),
        )),
        ("no 'objective'", finding(relevance="human")),
        *(("known_scores", finding(known_scores={"0": value})) for value in (1.5, True)),
        ("'objective' goes with 'query'", finding(query=GONE, query_embedding=None, queries=["a", "b"])),
        ("unknown field 'lose_at_most'", finding({"find": 0.9, "lose_at_most": 0.1})),
        *(("", pooled(SQUARE | {"shape": shape, "data": ""})) for shape in ([2, 0], [HUGE, 0])),
        *(("", pooled(SQUARE | {"shape": shape})) for shape in ([0], [], [2, 1, 2], [-2, -2], [2.5, 2])),
    ],
    "limit-exceeded": [
        ("limit of 16 signals", signals({f"s{number}": [1.0, 2.0] for number in range(17)})),
        ("query", several(queries=["x" * 10_001])),
        *(("", pooled(SQUARE | {"shape": shape})) for shape in ([2, HUGE], [HUGE, 2], [2**62, 4], [DIGITS, 8192])),
    ],
    "invalid-embeddings": [
        ("pool.embeddings.dtype", pooled({name: SQUARE[name] for name in ("data", "shape")})),
        *(("", pooled(block(rows))) for rows in (
            [[1, 0]], [[1, 0], [0, 1], [1, 1]], [1, 0, 0, 1], [[1, 0, 0], [0, 1, 0]],
        )),
        *(("", pooled(SQUARE | {"shape": shape})) for shape in ([2, 3], [2, 1], [20_000, 8_192])),
        ("", pooled(SQUARE | {"dtype": "float16"})),
        *(("", pooled(SQUARE | {"data": data})) for data in (
            SQUARE["data"][:-2], SQUARE["data"] + "\n", "é" + SQUARE["data"][1:], "-_" + SQUARE["data"][2:], "",
        )),
        *(("'d1'", pooled(block(np.array([[1, 0], row]), dtype)))
          for dtype in ("float16", "float32") for row in ([np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0])),
        *(("", {"pool": TWO, "query_embedding": block(row)}) for row in ([np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0])),
        ("[d]", {"pool": TWO, "query_embedding": block([[1, 0]])}),
        ("not both", {"pool": {"documents": [TWO[0], {"text": "b"}], "embeddings": SQUARE}}),
        # Wrong dimensions: of documents, and of a query for a pool and for an index. The encoder's is 32.
        *(("dimensions", {"pool": [TWO[0], other], "query_embedding": [1, 0]})
          for other in (THREE, {"text": "c"}, {"text": "d", "embedding": []})),
        ("dimensions", {"pool": TWO}),
        ("dimensions", {"pool": TWO, "query_embedding": [1, 0, 0]}),
        ("dimensions", {**pool(), "query_embedding": [1, 0]}),
        ("the index takes queries of 4 dimensions, not 2", {"index": "own", "query_embedding": [1, 0]}),
        ("dimensions", {"query_embedding": block([1, 0])}),
    ],
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """Yield one client for all of these tests, since refused requests change nothing."""
    async with filled(Settings(data_directory=tmp_path_factory.mktemp("refused"))) as client:
        for name, made in (("empty", {}), ("words", {"encoder": "none"}), ("plain", {"lexical": False})):
            answer(await client.put(f"/indexes/{name}", json=made))
        for name in ("words", "plain"):
            answer(await client.post(f"/indexes/{name}/documents", json=texts(2)))
        yield client


def rows(table: dict[str, list[tuple[Any, ...]]]) -> list[Any]:
    return [
        pytest.param(slug, *row, id=f"{slug}-{place}") for slug, of in table.items() for place, row in enumerate(of)
    ]


@pytest.mark.parametrize(("slug", "said", "fields"), rows(SELECT))
async def test_select_refuses_invalid_fields(
    client: httpx.AsyncClient, slug: str, said: str, fields: dict[str, Any]
) -> None:
    asked = {"query": "q"} | ({} if "pool" in fields else {"index": "texts"}) | fields
    response = await client.post("/select", json={name: value for name, value in asked.items() if value is not GONE})
    detail = problem(response, STATUS[slug], slug)
    assert said in detail and not any(jargon in detail for jargon in ("pattern", "^", "(and 0 more)"))
    assert all(error["message"] in detail for error in response.json().get("errors", ())[:1])


BODIES: dict[str, list[str | bytes]] = {
    "invalid-embeddings": [
        *(f'{{"query": "q", "query_embedding": [1, 0], "pool": [{{"text": "a", "embedding": [{row}]}}]}}'
          for row in ("NaN, 1", "1e999, 1", "1e300, 1e300", "1e39, 1", "0, 0", "1e-60, 0")),
        *(f'{{"query": "q", "query_embedding": [{row}], {source}}}'
          for row in ("NaN, 1", "1e300, 1e300", "0, 0", "")
          for source in ('"index": "own"', '"pool": [{"text": "a", "embedding": [1, 0]}]')),
    ],
    "invalid-input": [
        *(f'{{"query": "q", "pool": [{{"text": "a", "score": {number}}}]}}'
          for number in ("NaN", "Infinity", "1e999", "-Infinity")),
        '{"query": "q", "pool": {"documents": ["a", "b"], "features": {"clicks": [1e999, 1]}}}',
        *(b"", b"{", b"null", b"[]", b'"query"', b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}"),
        '{"query": "é", "index": "own"}'.encode("latin-1"),
        b'{"query": "q", "index": "own"} and more',
        b'{"query": "\\ud800", "index": "own"}',
        b'{"query": "q", "index": "own", "\\udfff": 1}',
        b'{"query": "q", "pool": [{"text": "\xed\xa0\x80"}]}',
        b'{"query": "q", "k": 1' + b"0" * 5000 + b', "index": "own"}',
        b"[" * 100_000,
        b'{"query": "q", "pool": [{"text": "a", "metadata": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}]}",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("slug", "body"), rows({slug: [(body,) for body in of] for slug, of in BODIES.items()}))
async def test_select_refuses_invalid_bodies(client: httpx.AsyncClient, slug: str, body: str | bytes) -> None:
    problem(await client.post("/select", content=body), 422, slug)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["min_relevance", "deadline_ms", "budget"])
async def test_nonfinite_number_is_refused(client: httpx.AsyncClient, field: str, number: str) -> None:
    for path, documents in (("/select", "pool"), ("/v1/rerank", "documents")):
        body = f'{{"query": "q", "{documents}": ["a"], "{field}": {number}}}'
        assert f"{field}: must be a finite number, not " in (await client.post(path, content=body)).text


# Other routes: a part of the refusal, the route and the body.
UPLOAD, SOME = "POST /indexes/own/documents", "DELETE /indexes/own/documents"
EVERY: list[dict[str, Any]] = [  # filters that match every document
    {}, {"and": [{}]}, {"or": [{"n": 1}, {}]}, {"not": {"not": {}}}, {"not": {"n": {"in": []}}}, {"n": {"nin": []}},
]  # fmt: skip
NEW: list[Any] = [  # indexes that cannot be made
    {"encoder": "another"}, {"encoder": "none", "dimension": 4}, {"encoder": "none", "kind": "ivf"}, [],
    {"encoder": "none", "lexical": False}, {"kind": "words"}, {"encoder": "seeded", "dimension": 32},
    {"dimension": 0}, {"dimensions": 4},
]  # fmt: skip
ROUTES: dict[str, list[tuple[str, str, Any]]] = {
    "invalid-input": [
        *(("", "PUT /indexes/new", body) for body in NEW),
        ("use one of flat, ivf", "PUT /indexes/new", {"kind": "hnsw"}),
        ("unit length", "PUT /indexes/new", {"metric": "inner_product"}),
        ("", "PUT /indexes/texts/description", {"description": "x" * 2_001}),
        *(("'stirct'", f"{route}?stirct=true", None) for route in (
            "POST /select", UPLOAD, "GET /indexes", "GET /indexes/texts/documents/d0", "DELETE /indexes/texts",
        )),
        *(("", f"GET /indexes/texts/documents?{wrong}", None) for wrong in ("limit=0", "limit=1001", "offset=3")),
        *(("", UPLOAD, body)
          for body in (b"", b"{}", b"null", b"[", b"[NaN]", b'["\\ud800"]', b"[" * 100_000, b"\xff")),
        *(("", SOME, body) for body in (
            b"", b"{}", b'{"ids": "d0"}', b'{"ids": [true]}', b'{"filter": []}', b'{"ids": [], "filter": {}}',
            b'{"ids": null, "filter": null}',
        )),
        ("filter.n", SOME, {"filter": {"n": {"over": 1}}}),
        *(("delete the index", SOME, {"filter": every}) for every in EVERY),
    ],
    "limit-exceeded": [("", "PUT /indexes/new", {"dimension": dimension}) for dimension in (8_193, HUGE)],
    "index-conflict": [
        ("with its users' own vectors of 4 dimensions", "PUT /indexes/own", {"dimension": 3}),
        ("with the encoder 'seeded", "PUT /indexes/own", {}),
        ("", "PUT /indexes/texts", {"dimension": 32}),
        ("", "PUT /indexes/words", {}),
        ("", "PUT /indexes/texts", {"kind": "ivf"}),
    ],
    "unknown-index": [
        ("", route.replace("I", "/indexes/none"), body) for route, body in (
            ("GET I", None), ("DELETE I", None), ("GET I/documents", None), ("GET I/stats", None),
            ("POST I/documents", []), ("GET I/documents/x", None), ("DELETE I/documents/x", None),
            ("DELETE I/documents", {"ids": ["x"]}), ("PUT I/description", {"description": "x"}),
        )
    ],
    "invalid-index-name": [
        ("", route.replace("I", f"/indexes/{quote(name)}"), None)
        for name in ("New", ".new", "-", "ü", "a b", "x" * 65, "a\0", "a\n")
        for route in ("PUT I", "POST I/documents")
    ],
    "not-found": [("", "POST /selct", None), ("", "GET /no%3Fwhere%20%C3%BC", None)],
}  # fmt: skip


@pytest.mark.parametrize(("slug", "said", "route", "body"), rows(ROUTES))
async def test_index_routes_refuse_invalid_requests(
    client: httpx.AsyncClient, slug: str, said: str, route: str, body: Any
) -> None:
    method, _, path = route.partition(" ")
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    response = await client.request(method, path, content=content, headers={"content-type": "application/json"})
    detail = problem(response, STATUS[slug], slug)
    assert said in detail and "None" not in detail
    listed = answer(await client.get("/indexes"))["indexes"]
    assert {index["name"]: index["count"] for index in listed} == {
        "empty": 0, "own": 4, "plain": 2, "texts": 40, "words": 2,
    }  # fmt: skip


@pytest.mark.parametrize("media_type", ["text/plain", "text/csv", "multipart/form-data; boundary=x", "", "a"])
async def test_upload_of_another_media_type_is_refused(client: httpx.AsyncClient, media_type: str) -> None:
    response = await client.post("/indexes/own/documents", content=b"{}", headers={"content-type": media_type})
    problem(response, 415, "unsupported-media-type")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a service that accepts only small bodies."""
    settings = Settings(data_directory=tmp_path_factory.mktemp("narrow"), limits=Limits(body_bytes=8192))
    async with filled(settings) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/select"),
        ("PUT", "/indexes/x"),
        ("DELETE", "/indexes/own/documents"),
        ("POST", "/indexes/own/documents"),
    ],
)
async def test_large_body_is_refused_before_it_is_read(narrow: httpx.AsyncClient, method: str, path: str) -> None:
    read = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 4096
            yield b" " * 4096

    headers = {"content-type": "application/json"}
    problem(await narrow.request(method, path, content=pieces(), headers=headers), 413, "body-too-large")
    assert read == 3 * 4096
    declared = headers | {"content-length": "8193"}
    problem(await narrow.request(method, path, content=pieces(), headers=declared), 413, "body-too-large")
    assert read <= 4 * 4096


async def test_problem_stays_short_for_a_long_invalid_value(client: httpx.AsyncClient) -> None:
    for more, slug in (({"x" * 1_000_000: 1}, "invalid-input"), ({"index": "x" * 1_000_000}, "invalid-index-name")):
        response = await client.post("/select", json={"query": "q", "index": "texts", **more})
        problem(response, 422, slug)
        assert len(response.content) < 10_000


async def test_stream_refused_before_its_start_is_a_problem(client: httpx.AsyncClient) -> None:
    headers = {"accept": "text/event-stream"}
    problem(await client.post("/select", json={"query": "q"}, headers=headers), 422, "invalid-input")
    nowhere = {"query": "q", "index": "none"}
    problem(await client.post("/select", json=nowhere, headers=headers), 404, "unknown-index")
    problem(await client.post("/indexes/own/documents", content=b"\nbad", headers=NDJSON), 422, "invalid-input")
