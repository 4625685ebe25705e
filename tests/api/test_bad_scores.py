"""Test scores that are rounded out of [0, 1], far outside it, missing, or too few."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.scoring.scorer import Scores
from boundarymorph.settings import Settings
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import faked, problem, select, serving

pytestmark = pytest.mark.strangers

TEXTS = [f"Text {number} of music." for number in range(4)]
ROUTES: dict[str, dict[str, Any]] = {
    "/select": {"query": "music", "pool": TEXTS, "budget": 4, "k": 4},
    "/v1/rerank": {"model": "m", "query": "music", "documents": TEXTS},
    "/v2/rerank": {"model": "m", "query": "music", "documents": TEXTS},
    "/rerank": {"query": "music", "texts": TEXTS},
}


class Faulty(SeededScorer):
    """A scorer whose scores are altered by `change`."""

    def __init__(self, change: Callable[[np.ndarray[Any, Any]], object]) -> None:
        super().__init__()
        self.change = change

    async def score(self, query: str, texts: Any, **options: Any) -> Scores:
        values = (await super().score(query, texts, **options)).values
        return Scores(np.asarray(self.change(values), dtype=np.float64), model=self.name)


def first(score: float) -> Callable[[np.ndarray[Any, Any]], object]:
    """Return a function that replaces the first score."""
    return lambda values: [score, *values[1:]]


@pytest.fixture
def of_scorer(tmp_path: Path) -> Callable[[Faulty], Any]:
    def made(scorer: Faulty) -> Any:
        return serving(Settings(data_directory=tmp_path), faked(scorer, cache=MemoryScoreCache()))

    return made


@pytest.mark.parametrize("wrong", [1.01, -0.5, math.inf, math.nan])
async def test_one_unusable_score_leaves_the_others_in_use(
    of_scorer: Callable[[Faulty], Any], wrong: float, caplog: pytest.LogCaptureFixture
) -> None:
    scorer = Faulty(first(wrong))
    async with of_scorer(scorer) as client:
        body = await select(client, **ROUTES["/select"])
        assert sum(document["source"] == "cross_encoder" for document in body["documents"]) == 3
        assert "1 document got no score of the scorer" in str(body["warnings"])
        assert math.isnan(wrong) or f"outside [0, 1], such as {wrong!r}, for 1 of" in caplog.text
        scorer.change = lambda values: values
        again = await select(client, **ROUTES["/select"])
        assert again["usage"]["reused_scores"] == 3 and scorer.rounds[-1] == scorer.rounds[0][:1]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda values: 5.0 * np.ones(len(values)), id="all outside"),
        pytest.param(lambda values: values[1:], id="too few"),
        pytest.param(lambda values: [*values, 0.5], id="too many"),
        pytest.param(lambda values: values[:, np.newaxis], id="another shape"),
    ],
)
async def test_unusable_answer_counts_as_a_failure_of_the_scorer(
    of_scorer: Callable[[Faulty], Any], change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with of_scorer(Faulty(change)) as client:
        problem(await client.post("/select", json=ROUTES["/select"] | {"on_failure": "error"}), 502, "scorer-failed")
        assert "seeded gave scores" in caplog.text
        degraded = await select(client, **ROUTES["/select"] | {"on_failure": "degrade"})
        assert (degraded["status"], degraded["stop_reason"]) == ("retrieval_only", "scorer_failed")
        # TEI's status for errors of its backend is 424.
        for route, status in (("/v1/rerank", 502), ("/v2/rerank", 502), ("/rerank", 424)):
            assert (await client.post(route, json=ROUTES[route])).status_code == status


@pytest.mark.parametrize("score", [1.0000001, -1e-7])
async def test_given_score_slightly_out_of_range_is_clipped(of_scorer: Callable[[Faulty], Any], score: float) -> None:
    async with of_scorer(Faulty(lambda values: values)) as client:
        pool = [{"id": "a", "text": "one", "cross_encoder_score": score}, {"id": "b", "text": "two"}]
        for more in ({"pool": pool}, {"pool": ["one", "two"], "known_scores": {"0": score}}):
            body = await select(client, query="music", budget=0, k=2, relevance="scorer", **more)
            scored = [document for document in body["documents"] if document["source"] == "cross_encoder"]
            assert [document["relevance"] for document in scored] == [round(score)]
