"""Values that other servers and clients take for granted on the rerank routes, and characters that are none."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from boundarymorph.settings import Settings
from tests.fakes.service import NDJSON, answer, filled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.strangers]

TEXTS = ["the sea", "hills", "a harbour by the sea"]
HALF = b"\\ud83d"  # of a surrogate pair, as an escape of JSON


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    directory: Path = tmp_path_factory.mktemp("lax")
    async with filled(Settings(data_directory=directory)) as client:
        yield client


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
@pytest.mark.parametrize("name", ["top_n", "top_k"])
@pytest.mark.parametrize("value", [2, 2.0, "2"])
async def test_numbers_of_results(client: httpx.AsyncClient, path: str, name: str, value: object) -> None:
    given = {"query": "sea", "documents": TEXTS, name: value}
    assert len(answer(await client.post(path, json=given))["results"]) == 2


@pytest.mark.parametrize("direction", ["Left", "left", "Right"])
async def test_a_direction_of_truncation_where_nothing_is_cut(client: httpx.AsyncClient, direction: str) -> None:
    given = {"query": "sea", "texts": TEXTS, "truncate": True, "truncation_direction": direction}
    assert len((await client.post("/rerank", json=given)).raise_for_status().json()) == 3


async def test_a_text_cannot_be_cut_at_its_beginning(client: httpx.AsyncClient) -> None:
    given = {"query": "sea", "texts": ["a" * 101], "truncate": True, "truncation_direction": "Left"}
    assert (await client.post("/rerank", json=given)).status_code in (413, 422)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", b'{"query": "a sea", "documents": ["cut %s", "b"]}'),
        ("/v1/rerank", b'{"query": "cut %s", "documents": ["a", "b"]}'),
        ("/rerank", b'{"query": "a sea", "texts": ["cut %s", "b"]}'),
        ("/select", b'{"query": "cut %s", "pool": ["a %s", "b"]}'),
        ("/select", b'{"query": "a", "pool": [{"text": "a", "metadata": {"x%s": "\\\\ud83d %s"}}]}'),
    ],
)
async def test_half_a_character_is_replaced(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    answered = await client.post(path, content=body.replace(b"%s", HALF), headers={"content-type": "application/json"})
    assert answered.is_success, answered.text


async def test_half_a_character_in_an_upload(client: httpx.AsyncClient) -> None:
    answer(await client.put("/indexes/halves"))
    line = b'{"id": "h", "text": "cut %s, and \\ud83d\\ude00 whole, and \\\\ud83d no escape"}'.replace(b"%s", HALF)
    for body, headers in ((line, NDJSON), (b"[" + line + b"]", {"content-type": "application/json"})):
        report = answer(await client.post("/indexes/halves/documents", content=body, headers=headers))
        assert report["added"] + report["unchanged"] == 1
        found = answer(await client.get("/indexes/halves/documents/h"))
        assert found["text"] == "cut \ufffd, and 😀 whole, and \\ud83d no escape"


@pytest.mark.parametrize(
    "documents",
    [
        [{"text": "a", "metadata": {"v": 1}}, {"text": "b", "metadata": {"v": 1.0}}],
        [{"text": "a", "metadata": {"v": [1]}}, {"text": "b", "metadata": {"v": [1.0]}}],
        [{"text": "a", "metadata": {"v": 10**30}}, {"text": "b", "metadata": {"v": 10**30}}],
    ],
)
async def test_equal_numbers_are_one_group(client: httpx.AsyncClient, documents: Any) -> None:
    for budget in (0, 2):
        given = {"query": "a", "pool": documents, "distinct": "v", "budget": budget}
        response = await client.post("/select", json=given)
        assert len(answer(response)["documents"]) == 1
    given = {"query": "a", "documents": [document | document["metadata"] for document in documents], "distinct": "v"}
    assert len(answer(await client.post("/v1/rerank", json=given))["results"]) == 1


async def test_keys_with_dots(client: httpx.AsyncClient) -> None:
    answer(await client.put("/indexes/dots"))
    documents = [
        {"id": "a", "text": "a", "metadata": {"source.url": "u", "loc": {"lines.from": 3}}},
        {"id": "b", "text": "b", "metadata": {"source.url": "u", "loc.lines.from": 3}},
        {"id": "c", "text": "c", "metadata": {"source": {"url": "u"}, "loc": {"lines": {"from": 4}}}},
    ]
    answer(await client.post("/indexes/dots/documents", json=documents))
    for filter, expected in (
        ({"source.url": "u"}, "abc"),
        ({"source.url": {"exists": True}}, "abc"),
        ({"loc.lines.from": 3}, "ab"),
        ({"loc.lines.from": {"gt": 3}}, "c"),
        ({"not": {"loc.lines.from": 3}}, "c"),
    ):
        body = answer(await client.post("/select", json={"query": "q", "index": "dots", "filter": filter, "k": 3}))
        assert {document["id"] for document in body["documents"]} == set(expected), filter
    for source in ({"index": "dots"}, {"pool": documents}):
        body = answer(await client.post("/select", json={"query": "q", **source, "distinct": "source.url", "k": 3}))
        assert len(body["documents"]) == 1
