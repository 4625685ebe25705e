"""`answerable` in the answers of POST /select: whether some candidate, scored or not, scores enough."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.settings import Settings
from tests.api.service import answer, filled, texts
from tests.scoring.fakes import score_of

QUERY = "answers"
POOL = texts(60)
SCORES = {document["id"]: score_of(QUERY, document["text"]) for document in POOL}
BEST = max(SCORES.values())
LOW = [document for document in POOL if SCORES[document["id"]] < 0.5]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with filled(Settings(data_directory=tmp_path)) as client:
        yield client


async def select(client: httpx.AsyncClient, **given: Any) -> Any:
    request = {"query": QUERY, "pool": POOL, "budget": 60, "k": 5, "reuse": False, **given}
    return answer(await client.post("/select", json=request))


@pytest.mark.parametrize("relevance", ["people", "scorer"])
async def test_all_scores_tell_it_for_certain(client: httpx.AsyncClient, relevance: str) -> None:
    """By the threshold of the request, or a half; and by scores, also where people find more or less."""
    assert (await select(client, relevance=relevance))["answerable"] == 1.0
    for least, expected in ((BEST, 1.0), (min(1.0, BEST + 1e-6), 0.0)):
        assert (await select(client, relevance=relevance, min_relevance=least))["answerable"] == expected
    assert (await select(client, relevance=relevance, pool=LOW))["answerable"] == 0.0


async def test_before_and_between(client: httpx.AsyncClient) -> None:
    none, few = [(await select(client, pool=LOW, budget=budget))["answerable"] for budget in (0, 10)]
    assert 0.0 < few < none < 1.0
    strict = await select(client, pool=LOW, budget=0, min_relevance=0.9)
    assert 0.0 < strict["answerable"] < none


async def test_what_is_excluded_answers_nothing(client: httpx.AsyncClient) -> None:
    answers = [id for id, score in SCORES.items() if score >= 0.5]
    found = await select(client, exclude_ids=answers)
    assert found["answerable"] == 0.0


async def test_of_several_queries_the_largest(client: httpx.AsyncClient) -> None:
    found = await select(client, query=None, queries=[QUERY, "other"], budget=120)
    assert found["answerable"] == 1.0


async def test_without_candidates_there_is_no_answer(client: httpx.AsyncClient) -> None:
    body = {"query": QUERY, "index": "texts", "filter": {"nothing": "has this"}}
    assert answer(await client.post("/select", json=body))["answerable"] == 0.0


async def test_it_comes_with_each_round(client: httpx.AsyncClient) -> None:
    body = {"query": QUERY, "pool": POOL, "budget": 10, "k": 5, "reuse": False}
    response = await client.post("/select", json=body, headers={"accept": "text/event-stream"})
    told = [orjson.loads(line[6:])["answerable"] for line in response.text.splitlines() if line.startswith("data: ")]
    assert len(told) > 2 and all(0.0 < probability <= 1.0 for probability in told)
