"""Test the example for Dify over sockets, with the bytes that Dify sends."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.server.app import create_app
from boundarymorph.settings import Limits, Settings
from tests.fakes.service import answer, fake_service, listening, on_socket

EXAMPLE = Path(__file__).parents[2] / "clients" / "examples" / "dify"
pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET, KEY = callers.make_key("dify", list(Scope), ["books"])
OTHER, OTHERS = callers.make_key("other", [Scope.WRITE])
YEARS = list(range(1990, 2010))
BOOKS: list[dict[str, Any]] = [
    {
        "id": f"b{year}",
        "text": f"a story of {year}",
        "metadata": {"year": year, "language": ("en", "de")[year % 2], "tags": ["old"] if year < 2000 else []},
    }
    for year in YEARS
]
BOOKS[0] |= {"title": "The first"}
BOOKS[1]["metadata"] |= {"shelf": None, "printed": "1991-05-01"}
BOOKS[2]["metadata"] |= {"shelf": "7", "printed": "1992-05-01"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a service with the index "books"."""
    settings = Settings(
        data_directory=tmp_path_factory.mktemp("dify"), keys=(str(KEY), str(OTHERS)), limits=Limits(k=50), k=7
    )
    async with listening(create_app(settings, build=fake_service)) as (_, client):
        client.headers["authorization"] = f"Bearer {SECRET}"
        answer(await client.put("/indexes/books"))
        assert answer(await client.post("/indexes/books/documents", json=BOOKS))["added"] == len(BOOKS)
        yield client


@pytest.fixture(scope="module")
def example() -> Any:
    """Return the module of the example."""
    sys.path.insert(0, str(EXAMPLE))
    import dify

    yield dify
    sys.path.remove(str(EXAMPLE))
    del sys.modules["dify"]


@pytest_asyncio.fixture(loop_scope="module")
async def dify(
    client: httpx.AsyncClient, example: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the example, which calls the service."""
    monkeypatch.setenv("BOUNDARYMORPH_URL", str(client.base_url))
    async with on_socket(example.app) as url, httpx.AsyncClient(base_url=url, timeout=60) as dify:
        yield dify


async def post(dify: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    """Send a request as Dify does, with its order of fields and its headers."""
    setting = {"top_k": fields.pop("top_k", 4), "score_threshold": fields.pop("score_threshold", 0.0)}
    sent = {"retrieval_setting": setting, "query": "a story", "knowledge_id": "books", **fields}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET}"}
    return await dify.post("/retrieval", content=json.dumps(sent).encode(), headers=headers)


async def years(dify: httpx.AsyncClient, *conditions: dict[str, Any], **condition: Any) -> set[int]:
    """Return the years of the books that meet conditions."""
    sent = {"logical_operator": "and", **condition, "conditions": list(conditions)}
    records = answer(await post(dify, top_k=50, metadata_condition=sent))["records"]
    return {record["metadata"]["year"] for record in records}


def compares(operator: str, value: Any = None, name: str | list[str] = "year") -> dict[str, Any]:
    return {"name": name, "comparison_operator": operator, "value": value}


async def test_dify_retrieval_returns_a_selection_from_the_index(
    client: httpx.AsyncClient, dify: httpx.AsyncClient
) -> None:
    asked = {"query": "a story", "index": "books", "k": 4, "return_documents": True}
    chosen = answer(await client.post("/select", json=asked))["documents"]
    assert len(chosen) == 4
    assert answer(await post(dify)) == {
        "records": [
            {
                "content": document["text"],
                "score": document["relevance"],
                "title": document["title"] or document["id"],
                "metadata": document["metadata"],
            }
            for document in chosen
        ]
    }
    everything = answer(await post(dify, top_k=50))["records"]
    assert {"The first", "b1991"} < {record["title"] for record in everything}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (compares("is", "de", "language"), {year for year in YEARS if year % 2}),
        (compares("is not", "de", ["language"]), {year for year in YEARS if year % 2 == 0}),
        (compares("is", "1990"), set()),
        (compares("=", "1990"), {1990}),
        (compares("≠", "1990"), set(YEARS[1:])),
        (compares(">", "2007"), {2008, 2009}),
        (compares("before", 1991), {1990}),
        (compares("<=", 1992), {1990, 1991, 1992}),
        (compares("start with", "199", "printed"), {1991, 1992}),
        (compares("in", "7, 8", "shelf"), {1992}),
        (compares("in", 1990), {1990}),
        (compares("not in", [1990, 1991]), set(YEARS[2:])),
        (compares("empty", None, "shelf"), set(YEARS) - {1992}),
        (compares("not empty", None, "shelf"), {1992}),
        (compares("is", "old", ["language", "tags"]), set(YEARS[:10])),
    ],
)
async def test_dify_conditions_become_filters(
    dify: httpx.AsyncClient, condition: dict[str, Any], expected: set[int]
) -> None:
    assert await years(dify, condition) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metadata_condition": {"conditions": [compares("contains", "e")]}}, "cannot be compared by 'contains'"),
        ({"metadata_condition": {"conditions": [compares("is")]}}, "'is' needs a value"),
        ({"metadata_condition": {"logical_operator": "xor"}}, "metadata_condition.logical_operator"),
        ({"top_k": 51}, "k: over this service's limit of 50 documents"),
        ({"score_threshold": 1.1}, "retrieval_setting.score_threshold"),
    ],
)
async def test_dify_route_refuses_impossible_requests(
    dify: httpx.AsyncClient, fields: dict[str, Any], message: str
) -> None:
    refused = await post(dify, **fields)
    assert refused.status_code == refused.json()["error_code"] == 422
    assert message in refused.json()["error_msg"]


async def test_dify_route_uses_error_codes_of_dify(dify: httpx.AsyncClient) -> None:
    sent = {"knowledge_id": "books", "query": "a story"}
    for header, code in (
        ("", 1001),
        (SECRET, 1001),
        (f"Basic {SECRET}", 1001),
        ("Bearer bm_wrong", 1002),
        (f"Bearer {OTHER}", 1002),
    ):
        refused = await dify.post("/retrieval", json=sent, headers={"authorization": header})
        assert (refused.status_code, refused.json()["error_code"]) == (403, code), header
        assert refused.json()["error_msg"]
    told = [await post(dify, knowledge_id=name) for name in ("absent", "secret")]
    assert {(response.status_code, response.json()["error_code"]) for response in told} == {(404, 2001)}
