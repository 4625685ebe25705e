"""Test POST /select with `distinct`, which limits documents per group, and `max_tokens`."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.settings import Settings
from tests.fakes.scorer import score_of
from tests.fakes.service import NDJSON, answer, artifacts, filled, problem

QUERY, COUNT = "distinct", 60
POOL: list[dict[str, Any]] = [
    {
        "id": f"c{number}",
        "text": f"chunk {number if number % 4 else 0}",  # every fourth chunk is a copy of the first
        "metadata": {"page": {"url": f"p{number // 6}"}} if number < 54 else {},
        "tokens": 5 + number % 7,
    }
    for number in range(COUNT)
]
SCORES = {chunk["id"]: score_of(QUERY, chunk["text"]) for chunk in POOL}
PAGES = {chunk["id"]: chunk["metadata"].get("page", {}).get("url", chunk["id"]) for chunk in POOL}
TEXTS = {chunk["id"]: chunk["text"] for chunk in POOL}
BEST = sorted(SCORES, key=lambda id: -SCORES[id])


def literal_best_scores(groups: dict[str, str], k: int, at_most: int) -> list[float]:
    """Return the scores of the best set, computed by definition."""
    taken = Counter[str]()
    chosen: list[float] = []
    for id in BEST:
        if taken[groups[id]] < at_most and len(chosen) < k:
            taken[groups[id]] += 1
            chosen.append(SCORES[id])
    return chosen


@pytest.fixture(params=["pool", "index"])
async def source(client: httpx.AsyncClient, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the chunks as a pool of the request, or in a real index."""
    if request.param == "pool":
        return {"pool": POOL}
    answer(await client.put("/indexes/chunks"))
    lines = b"\n".join(orjson.dumps({key: chunk[key] for key in ("id", "text", "metadata")}) for chunk in POOL)
    answer(await client.post("/indexes/chunks/documents", content=lines, headers=NDJSON))
    return {"index": "chunks"}


async def select(client: httpx.AsyncClient, **request: Any) -> dict[str, Any]:
    return answer(await client.post("/select", json={"query": QUERY, "budget": 100, **request}))


async def test_copies_of_a_text_cost_one_call(client: httpx.AsyncClient, source: dict[str, Any]) -> None:
    body = await select(client, **source, k=COUNT)
    assert body["usage"]["cross_encoder_calls"] == len(set(TEXTS.values())) == 46
    found = {document["id"]: document["cross_encoder_score"] for document in body["documents"]}
    assert found == SCORES


@pytest.mark.parametrize("budget", [12, 100])
@pytest.mark.parametrize(
    ("distinct", "groups", "at_most"),
    [
        (True, TEXTS, 1),
        ({"at_most": 3}, TEXTS, 3),
        ("page.url", PAGES, 1),
        ({"by": "page.url", "at_most": 2}, PAGES, 2),
    ],
)
async def test_distinct_bounds_the_documents_of_each_group(
    client: httpx.AsyncClient, source: dict[str, Any], distinct: Any, groups: dict[str, str], at_most: int, budget: int
) -> None:
    body = await select(client, **source, k=10, distinct=distinct, budget=budget)
    documents = body["documents"]
    counts = Counter(groups[document["id"]] for document in documents)
    assert len(documents) == 10 and max(counts.values()) <= at_most
    if budget == 100:
        assert [document["relevance"] for document in documents] == literal_best_scores(groups, 10, at_most)
        assert body["expected_loss"] == 0
    for document in documents:
        page = PAGES[document["id"]] if PAGES[document["id"]] != document["id"] else None
        assert document["group"] == (page if groups is PAGES else None)


PASSAGES: list[dict[str, Any]] = [
    {"id": f"a{number}", "text": f"passage {number}", "metadata": {"document": f"file {number // 5}"}}
    for number in range(30)
]


@pytest.fixture
async def passages(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a service whose index "passages" is distinct by document by default."""
    settings = Settings(data_directory=tmp_path)
    async with filled(settings) as client:
        answer(await client.put("/indexes/passages"))
        answer(await client.post("/indexes/passages/documents", json=PASSAGES))
        artifacts(settings, "passages").change(distinct="document")
        yield client


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 6),
        ({"distinct": False}, 30),
        ({"distinct": {"by": "document", "at_most": 2}}, 12),
        ({"queries": ["a", "b"], "query": None}, 6),
        ({"queries": ["a", "b"], "query": None, "distinct": False}, 30),
    ],
)
async def test_distinct_defaults_to_the_setting_of_the_index(
    passages: httpx.AsyncClient, given: dict[str, Any], count: int
) -> None:
    """A value in the request overrides the setting."""
    body = answer(await passages.post("/select", json={"query": QUERY, "index": "passages", "k": 30, **given}))
    assert len(body["documents"]) == count
    if count == 6:
        assert {document["group"] for document in body["documents"]} == {f"file {number}" for number in range(6)}
    assert answer(await passages.get("/indexes/passages"))["distinct"] == "document"
    assert answer(await passages.get("/indexes/texts"))["distinct"] is None


@pytest.mark.strangers
@pytest.mark.parametrize(("budget", "k"), [(0, 5), (7, 2)])
async def test_distinct_bounds_groups_across_several_queries(passages: httpx.AsyncClient, budget: int, k: int) -> None:
    """With few candidates, the queries find different passages of a file."""
    asked = {"queries": ["a", "b", "c"], "index": "passages", "budget": budget, "depth": 4, "k": k}
    body = answer(await passages.post("/select", json={**asked, "return_documents": True}))
    groups = [document["group"] for document in body["documents"]]
    assert groups == [document["metadata"]["document"] for document in body["documents"]]
    assert len(set(groups)) == len(groups) == k


@pytest.mark.strangers
@pytest.mark.parametrize("budget", [0, 30])
async def test_objective_ignores_the_distinct_default_of_the_index(passages: httpx.AsyncClient, budget: int) -> None:
    """The limit of the index applies only to selections of the best k documents."""
    known = {document["id"]: 1.0 for document in PASSAGES[:20]}
    asked = {"query": QUERY, "index": "passages", "objective": {"find": 0.9}, "budget": budget}
    body = answer(await passages.post("/select", json={**asked, "known_scores": known}))
    assert known.keys() <= {document["id"] for document in body["documents"]}
    said = problem(await passages.post("/select", json={**asked, "distinct": "document"}), 422, "invalid-input")
    assert "returns all that is found; leave out 'distinct'" in said


async def test_documents_with_null_have_no_group(client: httpx.AsyncClient) -> None:
    asked = {"query": QUERY, "budget": 0, "distinct": "page"}
    pool = [{"text": f"t{number}", "metadata": {"page": None}} for number in range(3)]
    assert len(answer(await client.post("/select", json=asked | {"pool": pool, "k": 3}))["documents"]) == 3
    listed = asked | {"documents": [{"text": f"t{number}", "page": None} for number in range(3)]}
    assert len(answer(await client.post("/v1/rerank", json=listed))["results"]) == 3
