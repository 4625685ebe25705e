"""`answerable` in the answers of POST /select: whether some candidate, scored or not, scores enough."""

from typing import Any

import httpx
import pytest

from tests.api.service import select, streamed, texts
from tests.scoring.fakes import score_of

QUERY = "answers"
POOL = texts(60)
SCORES = {document["id"]: score_of(QUERY, document["text"]) for document in POOL}
BEST = max(SCORES.values())
LOW = [document for document in POOL if SCORES[document["id"]] < 0.5]


async def answerable(client: httpx.AsyncClient, **given: Any) -> Any:
    return (await select(client, **{"query": QUERY, "pool": POOL, "budget": 60, "k": 5, "reuse": False, **given}))[
        "answerable"
    ]


@pytest.mark.parametrize("relevance", ["people", "scorer"])
async def test_all_scores_tell_it_for_certain(client: httpx.AsyncClient, relevance: str) -> None:
    """By the threshold of the request, or a half; and by scores, also where people find more or less."""
    assert await answerable(client, relevance=relevance) == 1.0
    for least, expected in ((BEST, 1.0), (min(1.0, BEST + 1e-6), 0.0)):
        assert await answerable(client, relevance=relevance, min_relevance=least) == expected
    assert await answerable(client, relevance=relevance, pool=LOW) == 0.0


async def test_before_and_between(client: httpx.AsyncClient) -> None:
    none, few = [await answerable(client, pool=LOW, budget=budget) for budget in (0, 10)]
    assert 0.0 < few < none < 1.0
    assert 0.0 < await answerable(client, pool=LOW, budget=0, min_relevance=0.9) < none


async def test_what_is_excluded_answers_nothing(client: httpx.AsyncClient) -> None:
    answers = [id for id, score in SCORES.items() if score >= 0.5]
    assert await answerable(client, exclude_ids=answers) == 0.0


async def test_of_several_queries_the_largest(client: httpx.AsyncClient) -> None:
    assert await answerable(client, query=None, queries=[QUERY, "other"], budget=120) == 1.0


async def test_without_candidates_there_is_no_answer(client: httpx.AsyncClient) -> None:
    assert await answerable(client, pool=None, index="texts", filter={"nothing": "has this"}) == 0.0


async def test_it_comes_with_each_round(client: httpx.AsyncClient) -> None:
    told = [
        event["answerable"] for event in await streamed(client, query=QUERY, pool=POOL, budget=10, k=5, reuse=False)
    ]
    assert len(told) > 2 and all(0.0 < probability <= 1.0 for probability in told)
