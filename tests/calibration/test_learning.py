"""Test that simulated judgements teach the true map, and that the report is right."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from boundarymorph.calibration.calibration import sigmoid
from boundarymorph.calibration.judgments import worth_judging
from boundarymorph.calibration.learning import JudgedQuery, calibration_error, clip_of, fit, learn, log_loss
from boundarymorph.calibration.trust import CHOICES
from boundarymorph.errors import InvalidInput

MODELS: dict[str, Any] = {"scorer": "made-up", "encoder": None}


class World:
    """A world in which log-odds of relevance depend linearly on the expected log-odds.

    The line has a `level` and a `slope`. The log-odds of a score are the expected log-odds plus noise.
    """

    def __init__(self, slope: float, level: float = -1.0, noise: float = 0.5, seed: int = 0) -> None:
        self.slope, self.level, self.noise = slope, level, noise
        self.random = np.random.default_rng(seed)

    def query(self, size: int = 40) -> JudgedQuery:
        people = 2.0 * self.random.normal(size=size)
        truth = sigmoid(self.level + self.slope * people)
        scores = sigmoid(people + self.noise * self.random.normal(size=size))
        grades = (self.random.random(size) < truth).astype(np.float64)
        return JudgedQuery(scores, dict.fromkeys(CHOICES, sigmoid(people)), grades)

    def judged(self, queries: int = 10) -> Sequence[JudgedQuery]:
        return [self.query() for _ in range(queries)]


def test_learn_recovers_the_maps_of_simulated_judgements() -> None:
    found = learn(World(0.5).judged(40), **MODELS)
    assert found.maps["human"].slope == pytest.approx(0.5, abs=0.08)
    assert found.maps["human"].intercept == pytest.approx(-1.0, abs=0.15)
    assert 0 < found.maps["scorer"].slope < found.maps["human"].slope  # as scores are noisier
    assert (found.queries, found.judgments) == (40, 1_600)


@pytest.mark.parametrize("kind", ["human", "scorer"])
def test_learned_map_is_calibrated_on_held_out_queries(kind: Any) -> None:
    world = World(0.5, seed=3)
    learned = learn(world.judged(), **MODELS).maps[kind]
    others = world.judged(60)
    relevance = np.concatenate([query.relevance["weak"] if kind == "human" else query.scores for query in others])
    targets = np.concatenate([query.targets for query in others])
    assert calibration_error(learned(relevance), targets) < 0.05 < calibration_error(relevance, targets)


def test_learn_leaves_relevance_that_is_already_a_probability() -> None:
    found = [learn(World(1.0, 0.0, seed=seed).judged(), **MODELS) for seed in range(20)]
    assert sum("human" in one.maps for one in found) < 15
    for one in found:
        if "human" in one.maps:
            assert one.maps["human"](np.array([0.2, 0.5, 0.8])) == pytest.approx([0.2, 0.5, 0.8], abs=0.1)
        elif not one.maps:
            assert "These judgements do not show" in one.report["advice"]


def test_learn_makes_no_decreasing_map() -> None:
    found = learn(World(-0.8).judged(), **MODELS)
    assert not found.maps


def test_calibration_report_measures_held_out_queries() -> None:
    queries = World(0.5).judged(10)
    report = learn(queries, **MODELS).report
    for kind in ("human", "scorer"):
        assert report[kind]["log_loss_after"] < report[kind]["log_loss_before"]
        assert report[kind]["error_after"] < report[kind]["error_before"]
        assert sum(count for count, _, _ in report[kind]["reliability_after"]) == 400
    # A map that was fitted to all queries would predict each of them better than one that was fitted to the others.
    learned = learn(queries, **MODELS).maps["human"]
    own = [
        learned.slope * np.log(query.relevance["weak"] / (1 - query.relevance["weak"])) + learned.intercept
        for query in queries
    ]
    fitted = np.mean([log_loss(one, query.targets).mean() for one, query in zip(own, queries, strict=True)])
    assert fitted < report["human"]["log_loss_after"] < fitted + 0.02


def test_clip_of_depends_on_the_levels_of_the_scorer() -> None:
    assert clip_of(np.array([0.0, 1 / 3, 2 / 3, 1.0])) == pytest.approx(1 / 6)
    assert clip_of(np.array([0.0, 1.0])) == 0.25
    assert clip_of(np.array([1e-12, 0.5])) == 1e-7


def test_fit_minimizes_the_penalized_log_loss() -> None:
    random = np.random.default_rng(1)
    values = random.normal(size=400)
    targets = (random.random(400) < sigmoid(values - 1)).astype(np.float64)
    slope, intercept = fit(values, targets)

    def loss(slope: float, intercept: float) -> float:
        return float(log_loss(values * slope + intercept, targets).sum() + (0.1 * slope**2 + 0.01 * intercept**2) / 2)

    for step in (-0.02, 0.02):
        assert loss(slope + step, intercept) > loss(slope, intercept) < loss(slope, intercept + step)


def test_worth_judging_takes_heads_and_a_seeded_sample() -> None:
    by_scorer = np.arange(200)[::-1]
    chosen = worth_judging(by_scorer, 200, seed=0)
    assert len(chosen) == len(set(chosen.tolist())) == 40
    heads_agree = worth_judging(np.arange(200), 200, seed=0)
    assert heads_agree[:30].tolist() == list(range(30))
    assert set(range(15)) | set(range(185, 200)) <= set(chosen.tolist())
    assert chosen.tolist() != worth_judging(by_scorer, 200, seed=1).tolist()
    assert worth_judging(by_scorer, 200, seed=0, count=8).size == 8
    assert worth_judging(np.arange(5), 5, seed=0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda queries: queries[:2], "2 queries that"),
        (lambda queries: queries[:1], "1 query that"),
        (lambda queries: [JudgedQuery(q.scores, q.relevance, np.zeros(len(q))) for q in queries], "none of the 400"),
        (lambda queries: [JudgedQuery(q.scores, q.relevance, np.ones(len(q))) for q in queries], "all of the 400"),
    ],
)
def test_learn_refuses_too_few_judgements(
    change: Callable[[Sequence[JudgedQuery]], Sequence[JudgedQuery]], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        learn(change(World(0.8).judged()), **MODELS)
