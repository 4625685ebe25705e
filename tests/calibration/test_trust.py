"""Test how judgements measure the trust in a scorer."""

import re
from collections.abc import Sequence

import numpy as np
import pytest

from boundarymorph.calibration.learning import JudgedQuery, learn
from boundarymorph.calibration.trust import CHOICES, FEWEST, Choice, MeasuredTrust, OrderShares, pairs_in_order
from boundarymorph.selection.pool import Trust


def queries_of(count: int, *, seed: int = 0, scorer: float = 0.8, **choices: float) -> list[OrderShares]:
    """Return queries with these average shares of pairs in order; the default is 0.8."""
    noise = np.random.default_rng(seed).normal(scale=0.02, size=(count, 6))
    return [
        OrderShares(
            0.8 + drawn[0],
            scorer + drawn[1],
            {choice: choices.get(choice, 0.8) + drawn[2 + at] for at, choice in enumerate(CHOICES)},
        )
        for drawn in noise
    ]


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("queries", "declared", "chosen", "advice"),
    [
        pytest.param(
            queries_of(10, scorer=0.7, none=0.8, weak=0.74, normal=0.72, strong=0.7),
            "weak",
            "none",
            "your scorer ranks 9 points worse than your retriever here .*: selections will make no calls",
            id="a scorer that ranks ten points worse leads to no calls",
        ),
        pytest.param(
            queries_of(10, scorer=0.9, none=0.8, weak=0.86, normal=0.85, strong=0.84),
            "weak",
            None,
            "your scorer ranks .* points better than your retriever here .*; the trust in it stays weak",
            id="one that ranks ten points better keeps its calls",
        ),
        pytest.param(
            queries_of(10, scorer=0.9, none=0.8, weak=0.8, normal=0.84, strong=0.9),
            "normal",
            "strong",
            "the trust in it is now strong, not normal",
            id="a strong scorer that was not known",
        ),
        pytest.param(
            queries_of(10, none=0.801), "weak", None, "stays weak, and about .* more judged quer", id="nothing is sure"
        ),
        pytest.param(queries_of(4, none=0.99), "weak", None, "judge 1 more", id="too few queries"),
        pytest.param([], "strong", None, "0 queries .* judge 5 more .* stays strong", id="no query"),
    ],
)
def test_measured_trust_overrides_the_declared_only_for_a_sure_gain(
    queries: Sequence[OrderShares], declared: Trust, chosen: Choice | None, advice: str
) -> None:
    measured = MeasuredTrust.measure(queries, declared)
    assert measured.chosen == chosen
    assert re.search(advice, measured.advice(declared))
    if len(queries) >= FEWEST:
        behind, low, high = measured.behind
        assert low < behind < high
        assert behind == pytest.approx(measured.pairs["retriever"] - measured.pairs["scorer"])


def test_measured_gain_is_estimated_on_held_out_queries() -> None:
    """A choice that only one query supports has no gain."""
    queries = queries_of(6)
    queries[0] = OrderShares(0.8, 0.8, {**queries[0].choices, "none": 1.0})
    sure = MeasuredTrust.measure(queries_of(20, none=0.9, weak=0.8), "weak")
    assert sure.chosen == "none" and sure.gain[1] > 5
    assert MeasuredTrust.measure(queries, "weak").gain[0] < 2


def test_pairs_in_order_equals_the_area_under_the_roc_curve() -> None:
    random = np.random.default_rng(0)
    key, relevant = random.integers(0, 5, 30).astype(np.float64), random.random(30) < 0.4
    pairs = [(a, b) for a in key[relevant] for b in key[~relevant]]
    assert pairs_in_order(key, relevant) == pytest.approx(np.mean([(a > b) + (a == b) / 2 for a, b in pairs]))


def test_learn_fits_the_map_to_the_chosen_trust() -> None:
    random, queries = np.random.default_rng(0), []
    for _ in range(10):
        relevant = random.random(40) < 0.4
        noise = random.normal(size=40)
        sound, harmed = (1 / (1 + np.exp(-signal)) for signal in (2 * relevant - 1 + noise, noise))
        relevance = {choice: sound if choice == "none" else harmed for choice in CHOICES}
        queries.append(JudgedQuery(harmed, relevance, relevant.astype(np.float64)))
    made = learn(queries, scorer="scorer", encoder=None, declared="weak")
    assert made.trust == "none" and "make no calls" in made.report["advice"]
    assert made.maps["human"].slope > 0.5 and "scorer" not in made.maps
    assert made.report["trust"]["pairs"]["none"] > made.report["trust"]["pairs"]["weak"]
