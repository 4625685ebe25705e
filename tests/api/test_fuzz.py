"""Whatever a caller sends, it is answered or refused in order: never a 5xx, always JSON, always a problem of ours."""

import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.stateful.profile import times

TEXT = st.text(st.characters(exclude_categories=()), max_size=12)  # lone surrogates among them
NUMBERS = st.integers() | st.floats() | st.integers(2**63, 2**80) | st.sampled_from([0, 1, 2, -1, 1e308, 1e39, 1e-320])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
VECTOR = st.lists(NUMBERS, max_size=5) | st.lists(st.floats(-2, 2), min_size=4, max_size=4)
BLOCK = st.fixed_dictionaries(
    {"data": st.sampled_from(["", "AAAA", "ADwAAAA8AAA=", "ADwAPAA8ADwAPAA8ADw=", "*"]) | TEXT},
    optional={"shape": st.lists(st.integers(-1, 4) | NUMBERS, max_size=3), "dtype": st.sampled_from(["float16", "f4"])},
)


def mostly(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Of the right kind three times in four."""
    return st.integers(0, 3).flatmap(lambda die: JSON if die == 0 else strategy)


DOCUMENT = st.fixed_dictionaries(
    {"text": mostly(TEXT)},
    optional={
        "id": mostly(TEXT),
        "title": mostly(TEXT),
        "embedding": mostly(VECTOR),
        "score": mostly(NUMBERS),
        "metadata": mostly(st.dictionaries(TEXT, JSON, max_size=3)),
    },
)
DOCUMENTS = st.lists(mostly(DOCUMENT), max_size=5)
POOL = DOCUMENTS | st.fixed_dictionaries({"documents": mostly(DOCUMENTS)}, optional={"embeddings": mostly(BLOCK)})
COUNT = mostly(st.integers(-1, 6))
REQUEST = st.fixed_dictionaries(
    {"query": mostly(TEXT)},
    optional={
        "pool": mostly(POOL),
        "index": mostly(st.sampled_from(["texts", "own", "nowhere", "", "../texts"])),
        "budget": COUNT,
        "B": COUNT,
        "k": COUNT,
        "depth": COUNT,
        "rounds": COUNT,
        "query_embedding": mostly(VECTOR | BLOCK),
        "return_documents": mostly(st.booleans()),
        "explain": mostly(st.booleans()),
    },
)
RECORD = st.fixed_dictionaries({"id": mostly(TEXT | NUMBERS), "text": mostly(TEXT)}, optional={"embedding": VECTOR})

many = settings(
    max_examples=times(40, 2_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def sane(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if not response.is_success:
        assert response.headers["content-type"] == "application/problem+json"
        body = response.json()
        assert body["type"].startswith("urn:boundarymorph:problem:")
        assert body["status"] == response.status_code
        assert body["detail"]


@many
@given(request=mostly(REQUEST))
async def test_select(client: httpx.AsyncClient, request: Any) -> None:
    response = await client.post("/select", content=json.dumps(request))
    sane(response)
    if response.is_success:
        body = response.json()
        assert len(body["documents"]) == min(body["k"], body["pool_size"])
        assert all(0 <= document["relevance"] <= 1 for document in body["documents"])


@many
@given(body=st.binary(max_size=60))
async def test_bytes_to_select(client: httpx.AsyncClient, body: bytes) -> None:
    sane(await client.post("/select", content=body))


@many
@given(records=st.lists(mostly(RECORD), max_size=4), array=st.booleans(), index=st.sampled_from(["texts", "own"]))
async def test_uploads(client: httpx.AsyncClient, records: list[Any], array: bool, index: str) -> None:
    lines = json.dumps(records) if array else "\n".join(map(json.dumps, records))
    headers = {"content-type": "application/json" if array else "application/x-ndjson"}
    sane(await client.post(f"/indexes/{index}/documents", content=lines, headers=headers))


@many
@given(body=mostly(st.fixed_dictionaries({}, optional={"encoder": mostly(TEXT), "dimension": COUNT, "ids": JSON})))
async def test_other_bodies(client: httpx.AsyncClient, body: Any) -> None:
    content = json.dumps(body)
    sane(await client.put("/indexes/own", content=content))
    sane(await client.request("DELETE", "/indexes/own/documents", content=content))
