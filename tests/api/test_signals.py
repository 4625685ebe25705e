"""POST /select with signals of the caller's."""

import httpx
import numpy as np

from tests.api.service import answer, texts
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
