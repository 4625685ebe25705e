"""Test some fields of `POST /select` and their effect on the answer."""

from typing import Any

import httpx
import numpy as np
import pytest

from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.api.select_task import FEW_CALLS, source_of
from boundarymorph.retrieval.candidates import IndexSource
from boundarymorph.settings import Settings
from tests.fakes.scorer import score_of
from tests.fakes.service import select, texts

QUERY, COUNT = "signals", 120
POOL = texts(COUNT)
SCORES = {document["id"]: score_of(QUERY, document["text"]) for document in POOL}
FEW = POOL[:60]
BEST = max(SCORES[document["id"]] for document in FEW)
LOW = [document for document in FEW if SCORES[document["id"]] < 0.5]


async def answerable(client: httpx.AsyncClient, **given: Any) -> Any:
    return (await select(client, **{"query": QUERY, "pool": FEW, "budget": 60, "k": 5, "reuse": False, **given}))[
        "answerable"
    ]


@pytest.mark.parametrize("relevance", ["human", "scorer"])
async def test_answerable_is_0_or_1_when_every_document_is_scored(client: httpx.AsyncClient, relevance: str) -> None:
    """The threshold is the request's or 0.5; it applies to scores even if relevance is human."""
    assert await answerable(client, relevance=relevance) == 1.0
    for least, expected in ((BEST, 1.0), (min(1.0, BEST + 1e-6), 0.0)):
        assert await answerable(client, relevance=relevance, min_relevance=least) == expected
    assert await answerable(client, relevance=relevance, pool=LOW) == 0.0


async def test_answerable_is_between_0_and_1_without_all_scores(client: httpx.AsyncClient) -> None:
    none, few = [await answerable(client, pool=LOW, budget=budget) for budget in (0, 10)]
    assert 0.0 < few < none < 1.0
    assert 0.0 < await answerable(client, pool=LOW, budget=0, min_relevance=0.9) < none


def gathered(body: dict[str, object]) -> float:
    """Return the sum of the true scores of a selection."""
    chosen = body["documents"]
    assert isinstance(chosen, list)
    return float(sum(SCORES[document["id"]] for document in chosen))


async def test_select_learns_a_feature_that_scores_follow(client: httpx.AsyncClient) -> None:
    """A feature may have any increasing scale and lack half of its values.

    A useless feature has no effect.
    """
    clicks = np.exp(20 * np.array([*SCORES.values()])).tolist()
    halved = [value if number % 2 else None for number, value in enumerate(clicks)]
    noise = np.random.default_rng(0).normal(size=COUNT).tolist()
    request = {"query": QUERY, "k": 20, "budget": 25}
    found = {
        name: gathered(await select(client, **request, pool={"documents": POOL, **given}))
        for name, given in {
            "none": {},
            "clicks": {"features": {"clicks": clicks}},
            "halved": {"features": {"clicks": halved}},
            "both": {"features": {"clicks": clicks, "noise": noise}},
        }.items()
    }
    best = np.sort([*SCORES.values()])[-20:].sum()
    assert found["clicks"] > 0.97 * best
    assert found["both"] > 0.97 * best
    assert found["none"] < found["halved"] < found["clicks"]


@pytest.mark.parametrize(
    ("asked", "enough"),
    [
        ({"budget": FEW_CALLS}, True),
        ({"budget": FEW_CALLS + 1}, False),
        ({"budget": "auto"}, False),
        ({"budget": 20, "method": "boundarymorph"}, False),
        ({"budget": 20, "diversity": 0.5}, False),
        ({"budget": 20, "query": None, "queries": ["tram", "bus"]}, False),  # cosines compare whole vectors
    ],
)
def test_index_source_reads_reduced_vectors_for_few_calls(asked: dict[str, Any], enough: bool) -> None:
    request = SelectRequest.model_validate({"query": "tram", "index": "notes", "k": 10} | asked)
    source = source_of(request, "tram", Settings(), None)
    assert isinstance(source, IndexSource)
    assert source.search.directions is enough
