"""Reading an index as a whole: pages of documents, and what a sample says."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.settings import Settings
from tests.api.service import NDJSON, answer, fill, filled, gateway

IDS = ["a", "b", "B", "ä", "a/b", "🙂", "a\nb", " ", "10", "9"]


@pytest.fixture(params=["whole", "gateway"])
async def service(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    if request.param == "whole":
        async with filled(Settings(data_directory=tmp_path)) as client:
            yield client
        return
    async with gateway(Settings(data_directory=tmp_path / "remote")) as client:
        await fill(client)
        yield client


async def listed(client: httpx.AsyncClient, limit: int) -> list[dict[str, Any]]:
    """All documents, page by page."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        parameters = {"limit": limit} | ({"after": after} if after else {})
        page = answer(await client.get("/indexes/new/documents", params=parameters))
        assert len(page["documents"]) <= limit
        found += page["documents"]
        after = page["next"]
    return found


async def test_pages_have_every_document_once(service: httpx.AsyncClient) -> None:
    answer(await service.put("/indexes/new"))
    assert await listed(service, 3) == []
    draw, model = random.Random(8), dict[str, dict[str, Any]]()
    for step in range(30):
        ids = draw.sample(IDS, draw.randint(1, 4))
        if draw.random() < 0.6:
            documents = [{"id": id, "text": f"text {step}", "title": None, "metadata": {"step": step}} for id in ids]
            answer(await service.post("/indexes/new/documents", json=documents))
            model |= {document["id"]: document for document in documents}  # type: ignore[misc]
        else:
            answer(await service.request("DELETE", "/indexes/new/documents", json={"ids": ids}))
            model = {id: document for id, document in model.items() if id not in ids}
        expected = [model[id] for id in sorted(model, key=lambda id: id.encode())]
        assert await listed(service, draw.randint(1, len(IDS) + 1)) == expected, step


async def test_limits_of_a_page(service: httpx.AsyncClient) -> None:
    first = answer(await service.get("/indexes/texts/documents"))
    assert len(first["documents"]) == 40 and first["next"] is None
    assert answer(await service.get("/indexes/texts/documents?limit=40"))["next"] is None
    assert answer(await service.get("/indexes/texts/documents?limit=39"))["next"] == first["documents"][38]["id"]
    assert answer(await service.get("/indexes/texts/documents?limit=1000"))["documents"] == first["documents"]


async def test_statistics(service: httpx.AsyncClient) -> None:
    answer(await service.put("/indexes/new"))
    empty = answer(await service.get("/indexes/new/stats"))
    assert (empty["count"], empty["sampled"], empty["characters_mean"], empty["fields"]) == (0, 0, 0, {})
    lines = "\n".join(
        f'{{"id": "d{n:04}", "text": "{"x" * (n % 5)}", "title": "t", "metadata": {{"year": {2000 + n % 7}{extra}}}}}'
        for n in range(1_003)
        for extra in (', "tags": ["a"]' if n < 10 else "",)
    )
    answer(await service.post("/indexes/new/documents", content=lines.encode(), headers=NDJSON))
    found = answer(await service.get("/indexes/new/stats"))
    assert (found["name"], found["count"], found["sampled"]) == ("new", 1_003, 1_000)
    assert (found["characters_mean"], found["characters_most"]) == (3.0, 5)
    assert found["fields"]["year"] == {"documents": 1_000, "values": 7, "examples": [2000, 2001, 2002, 2003, 2004]}
    assert found["fields"]["tags"] == {"documents": 10, "values": 1, "examples": [["a"]]}
    assert list(found["fields"]) == ["year", "tags"], "the most frequent first"
