"""POST /select with signals of the caller's."""

import httpx
import numpy as np
import pytest

from tests.api.service import answer, problem, texts
from tests.scoring.fakes import score_of

QUERY, COUNT = "signals", 120
POOL = texts(COUNT)
SCORES = np.array([score_of(QUERY, document["text"]) for document in POOL])


def gathered(body: dict[str, object]) -> float:
    """The true scores of a set, summed."""
    chosen = body["documents"]
    assert isinstance(chosen, list)
    return float(sum(SCORES[int(document["id"].removeprefix("d"))] for document in chosen))


async def test_a_signal_that_the_scores_follow_is_learned(client: httpx.AsyncClient) -> None:
    """On any increasing scale, and where half of the documents lack it for these; a useless one is left alone."""
    clicks = np.exp(20 * SCORES).tolist()
    halved = [value if number % 2 else None for number, value in enumerate(clicks)]
    noise = np.random.default_rng(0).normal(size=COUNT).tolist()
    request = {"query": QUERY, "k": 20, "budget": 25}
    found = {
        name: gathered(answer(await client.post("/select", json={**request, "pool": {"documents": POOL, **given}})))
        for name, given in {
            "none": {},
            "clicks": {"features": {"clicks": clicks}},
            "halved": {"features": {"clicks": halved}},
            "both": {"features": {"clicks": clicks, "noise": noise}},
        }.items()
    }
    best = np.sort(SCORES)[-20:].sum()
    assert found["clicks"] > 0.97 * best
    assert found["both"] > 0.97 * best
    assert found["none"] < found["halved"] < found["clicks"]


async def test_the_papers_method_has_no_use_for_them(client: httpx.AsyncClient) -> None:
    request = {"query": QUERY, "k": 20, "budget": 25, "method": "boundarymorph", "explain": True}
    bodies = [
        answer(await client.post("/select", json={**request, "pool": {"documents": POOL, **given}}))
        for given in ({}, {"features": {"clicks": SCORES.tolist()}})
    ]
    assert bodies[0]["documents"] == bodies[1]["documents"]


@pytest.mark.parametrize(
    ("features", "slug", "said"),
    [
        ({"clicks": [1.0] * (COUNT - 1)}, "invalid-input", "119 values for 120 documents"),
        ({"bm25": [1.0] * COUNT}, "invalid-input", "the name is taken"),
        ({"similarity": [1.0] * COUNT}, "invalid-input", "the name is taken"),
        ({"": [1.0] * COUNT}, "invalid-input", "features"),
        ({"n" * 65: [1.0] * COUNT}, "invalid-input", "features"),
        ({"clicks": ["many"] * COUNT}, "invalid-input", "clicks"),
        ({f"s{number}": [1.0] * COUNT for number in range(17)}, "limit-exceeded", "limit of 16 signals"),
    ],
)
async def test_a_malformed_signal_is_refused(client: httpx.AsyncClient, features: object, slug: str, said: str) -> None:
    request = {"query": QUERY, "pool": {"documents": POOL, "features": features}, "k": 5, "budget": 5}
    assert said in problem(await client.post("/select", json=request), 422, slug)


async def test_numbers_beyond_all_bounds(client: httpx.AsyncClient) -> None:
    numbers = ",".join(["1e999"] + ["1"] * (COUNT - 1))
    pool = ",".join(f'{{"text": "{document["text"]}"}}' for document in POOL)
    body = f'{{"query": "q", "k": 5, "pool": {{"documents": [{pool}], "features": {{"clicks": [{numbers}]}}}}}}'
    assert "clicks" in problem(await client.post("/select", content=body), 422, "invalid-input")


async def test_as_many_as_there_may_be(client: httpx.AsyncClient) -> None:
    features = {f"s{number}": [float(number * place % 7) for place in range(COUNT)] for number in range(16)}
    request = {"query": QUERY, "pool": {"documents": POOL, "features": features}, "k": 5, "budget": 5}
    assert len(answer(await client.post("/select", json=request))["documents"]) == 5
