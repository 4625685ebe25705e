"""What is learned from judgements, and the gate, in worlds whose truth is known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import logit
from scipy.stats import ttest_1samp

from boundarymorph.calibration.calibration import Form, fit, log_loss, sigmoid
from boundarymorph.calibration.judgments import JudgedQuery, worth_judging
from boundarymorph.calibration.learning import (
    MeanDifference,
    Predictions,
    _advice,
    _standing,
    calibration_error,
    gate,
    learn,
)
from boundarymorph.errors import InvalidInput
from tests.calibration.worlds import World

MODELS: dict[str, Any] = {"scorer": "made-up", "encoder": None}


def test_a_weak_scorer_is_trusted_as_far_as_it_deserves() -> None:
    found = learn("weak", World(0.15, 1.5).judged(20), **MODELS)
    assert found.form == "signals"
    assert found.full.slope == pytest.approx(0.15, abs=0.08)
    assert found.full.weights["similarity"] == pytest.approx(1.5, abs=0.4)
    assert abs(found.full.weights["bm25"]) < 0.4
    assert found.full.intercept == pytest.approx(-2.0, abs=0.5)
    trust = found.report["trust"]
    assert trust["similarity"] > trust["scorer"] > 0
    assert sum(trust.values()) == pytest.approx(1.0)
    assert "worse than your retriever" in found.report["advice"]


def test_a_good_scorer_keeps_its_order() -> None:
    found = [learn("good", World(0.8, 0.0, seed=seed).judged(), **MODELS) for seed in range(5)]
    assert sum(one.form == "signals" for one in found) <= 1  # two standard errors let one in forty through
    assert all(one.alone.slope == pytest.approx(0.8, abs=0.25) for one in found)


def test_probabilities_are_right_on_queries_that_were_not_used() -> None:
    for world in (World(0.15, 1.5), World(0.8, 0.0)):
        found = learn("any", world.judged(), **MODELS)
        predicted, real, raw = [], [], []
        for _ in range(30):
            pool, scores, grades = world.query()
            predicted.append(found.on(pool).probability(scores, np.arange(len(pool))))
            real.append(grades)
            raw.append(scores)
        after = calibration_error(np.concatenate(predicted), np.concatenate(real))
        assert after < 0.05 < calibration_error(np.concatenate(raw), np.concatenate(real))


def test_a_scorer_that_knows_nothing_or_says_the_opposite_is_never_turned_around() -> None:
    found = learn("opposite", World(-0.8, 1.0).judged(), **MODELS)
    assert found.full.slope == found.alone.slope == 0.0
    assert found.form == "signals"  # the retriever alone is better
    bare = [JudgedQuery(query.scores, {}, query.grades) for query in World(-0.8, 1.0).judged()]
    without = learn("opposite", bare, **MODELS)
    assert without.form == "none"
    assert "answers stay as they are" in without.report["advice"]


def test_the_fewer_judgements_the_nearer_to_what_witnesses_add_without_any() -> None:
    shares = []
    for added in (0.25, 2.0):
        queries = [replace(query, by_witnesses=added) for query in World(0.5, 0.5).judged(3)]
        trust = learn("few", queries, **MODELS).report["trust"]
        shares.append((trust["similarity"] + trust["bm25"]) / trust["scorer"])
    assert shares[1] > 2 * shares[0]


def test_grades_as_gains() -> None:
    queries = [
        JudgedQuery(query.scores, query.signals, query.grades * (1 + (query.scores > 0.5) * 2))
        for query in World(0.8, 0.0).judged()
    ]
    relevant, graded = (learn("g", queries, gain=gain, **MODELS) for gain in ("relevant", "grade"))
    assert set(np.unique(np.concatenate([query.grades for query in queries]))) == {0.0, 1.0, 3.0}
    low, high = np.array([0.2]), np.array([0.95])
    pool, *_ = World(0.8, 0.0).query()
    ratio = [found.on(pool).read(low) / found.on(pool).read(high) for found in (graded, relevant)]
    assert ratio[0] < ratio[1]  # a grade of 1 is worth a third


def test_the_fit_is_where_the_gradient_vanishes() -> None:
    random = np.random.default_rng(1)
    columns, ridges = random.normal(size=(400, 3)), np.array([0.1, 10.0, 10.0])
    targets = (random.random(400) < sigmoid(columns @ [1.0, -0.5, 0.0] - 1)).astype(np.float64)
    slopes, intercept = fit(columns, targets, ridges)

    def loss(slopes: np.ndarray, intercept: float) -> float:
        penalty = (ridges @ slopes**2 + 0.01 * intercept**2) / 2
        return float(log_loss(columns @ slopes + intercept, targets).sum() + penalty)

    best = loss(slopes, intercept)
    for direction in np.eye(4):
        for step in (-0.02, 0.02):
            assert loss(slopes + step * direction[:3], intercept + step * direction[3]) > best


def test_levels_of_queries_do_not_pass_for_evidence() -> None:
    """A query with more relevant documents also has larger scores: within a query they say nothing."""
    random = np.random.default_rng(2)
    of = np.repeat(np.arange(10), 40)
    level = np.repeat(np.linspace(-3, 3, 10), 40)
    columns = (level + random.normal(size=400))[:, None]
    targets = (random.random(400) < sigmoid(level)).astype(np.float64)
    (pooled,), _ = fit(columns, targets, np.array([0.1]))
    (within,), _ = fit(columns, targets, np.array([0.1]), queries=of)
    assert pooled > 0.5
    assert within < 0.6 * pooled


def test_the_gate() -> None:
    def predictions(full: float, alone: float, raw: float) -> list[Predictions]:
        """Of eight queries: the log-odds of ten relevant documents among twenty, the negative ones of the others."""
        sign = np.tile([1.0, -1.0], 10)
        jitter = [1 + 0.01 * number for number in range(8)]
        return [Predictions(full * j * sign, alone * j * sign, raw * j * sign, sign.clip(0)) for j in jitter]

    assert gate(predictions(2.0, 1.0, 1.0)) == "signals"
    assert gate(predictions(1.0, 1.0, 0.1)) == "scale"
    assert gate(predictions(1.0, 1.0, 1.0)) == "none"
    assert gate(predictions(1.0, 2.0, 2.0)) == "none"
    # Log loss gains, but the order is turned around, as by a signal of no use in finding the best.
    turned = [Predictions(query.full, query.alone, query.raw, query.targets) for query in predictions(-0.01, -2.0, 1.0)]
    assert gate(turned) != "signals"


def test_few_judgements_begin_where_there_are_none() -> None:
    """Of three queries with five judged documents each, the weights are nearly those of relevance to people."""
    few = [
        JudgedQuery(query.scores[:5], {name: values[:5] for name, values in query.signals.items()}, query.grades[:5])
        for query in World(0.8, 0.3, level=-0.5, seed=4).judged(3)
    ]
    found = learn("few", few, **MODELS).full
    within = np.concatenate([logit(query.scores) - logit(query.scores).mean() for query in few])
    words = np.concatenate([query.signals["bm25"] - query.signals["bm25"].mean() for query in few])
    assert found.slope > 0
    assert found.weights["similarity"] / found.slope == pytest.approx(0.25 * 0.75 * within.std(), rel=0.5)
    assert found.weights["bm25"] / found.slope == pytest.approx(0.25 * 0.25 * within.std() / words.std(), rel=0.5)


def test_what_judgements_must_improve_on_is_relevance_without_them() -> None:
    sign = np.tile([1.0, -1.0], 10)
    right, wrong, targets = 2.0 * sign, -2.0 * sign, sign.clip(0)
    assert Predictions(right, right, wrong, targets).gain() > 0
    assert Predictions(right, right, wrong, targets, right).gain() == 0
    assert Predictions(right, right, right, targets, wrong).gain() > 0


def test_a_gain_is_beyond_chance_by_a_one_sample_t_test() -> None:
    rng = np.random.default_rng(3)
    seen = set()
    for count in (2, 3, 5, 10, 30):
        for mean in np.linspace(0.1, 3.0, 30):
            values = mean + rng.normal(size=count)
            beyond = ttest_1samp(values, 0.0, alternative="greater").pvalue <= 0.025
            assert MeanDifference.of(values.tolist()).gained() == beyond
            seen.add((count, bool(beyond)))
    assert len(seen) == 10
    assert not MeanDifference.of([1.0]).gained()
    assert MeanDifference.of([3.0, 1.0, float("nan")]) == MeanDifference(2.0, 1.0, 2)


def test_as_many_more_queries_as_the_test_would_take() -> None:
    found = MeanDifference.of([3.0, 1.0, 2.0, -1.0])
    more = next(more for more in range(40) if found.gained(more))
    assert more == 6  # 1.25 is beyond t(9) 1.708 / sqrt(10) = 1.222, and not beyond t(8) 1.708 / 3 = 1.313
    assert not found.gained()


def test_what_is_worth_judging() -> None:
    by_scorer = np.arange(200)[::-1]
    chosen = worth_judging(by_scorer, 200, seed=0)
    assert len(chosen) == len(set(chosen.tolist())) == 40
    assert worth_judging(np.arange(200), 200, seed=0)[:30].tolist() == list(range(30))  # where both heads are the same
    assert set(range(15)) | set(range(185, 200)) <= set(chosen.tolist())
    assert chosen.tolist() != worth_judging(by_scorer, 200, seed=1).tolist()
    assert worth_judging(by_scorer, 200, seed=0, count=8).size == 8
    assert worth_judging(np.arange(5), 5, seed=0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda queries: queries[:2], "2 queries that"),
        (lambda queries: queries[:1], "1 query that"),
        (lambda queries: [JudgedQuery(q.scores, q.signals, np.zeros(len(q))) for q in queries], "none of the 400"),
        (lambda queries: [JudgedQuery(q.scores, q.signals, np.ones(len(q))) for q in queries], "all of the 400"),
        (lambda queries: [JudgedQuery(q.scores, q.signals, q.grades - 1) for q in queries], "0 or more"),
    ],
)
def test_too_few_judgements(change, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match=message):
        learn("few", change(World(0.8, 0.0).judged()), **MODELS)


@pytest.mark.strangers
@pytest.mark.parametrize("form", ["none", "scale"])
@pytest.mark.parametrize("more", [None, 1, 88])
@pytest.mark.parametrize(
    ("rows", "conclusion"),
    [
        (
            [(5, 0.489, 0.600, 0.578), (10, 0.504, 0.589, 0.579)],
            "this scorer ranks 8.5 to 11.1 points worse than the retriever here: use another scorer, or a budget of 0",
        ),
        ([(5, 0.5, 0.6, 0.6)], "this scorer ranks 10.0 points worse than the retriever here: use another scorer, or a"),
        ([(5, 0.455, 0.685, 0.725)], "this scorer ranks 23.0 points worse than the retriever here: use another scorer"),
        ([(5, 0.5, 0.6, 0.6), (10, 0.6, 0.5, 0.6)], None),
        ([(5, 0.595, 0.6, 0.6)], None),
        ([(5, 0.7, 0.6, 0.7)], None),
        ([], None),
    ],
)
def test_a_scorer_that_ranks_worse_than_the_retriever_is_named(
    rows: list[tuple[int, float, float, float]], conclusion: str | None, form: Form, more: int | None
) -> None:
    ncg = [{"k": k, "scorer": scorer, "retriever": retriever, "calibrated": c} for k, scorer, retriever, c in rows]
    advice = _advice(ncg, form, more)
    assert ("this scorer ranks" in advice) == (conclusion is not None)
    assert conclusion is None or conclusion in advice
    assert ("budget of 0" in advice) == (conclusion is not None and rows[0][3] <= rows[0][2])
    queries = {None: "", 1: "about 1 more judged query may", 88: "about 88 more judged queries may"}[more]
    assert queries in advice and ("more judged" in advice) == (more is not None)


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [(5, 0.770, 0.750, 0.844), (10, 0.775, 0.779, 0.853)],
            "the scorer is better than your retriever at k = 5 and worse than your retriever at k = 10; "
            "calibrated together they beat both by 7.4 points",
        ),
        (
            [(5, 0.6, 0.8, 0.83), (10, 0.6, 0.7, 0.71)],
            "the scorer is worse than your retriever; calibrated together they beat both by 1.0 to 3.0 points",
        ),
        (
            [(5, 0.9, 0.8, 0.95), (10, 0.9, 0.8, 0.85)],
            "the scorer is better than your retriever; calibrated together they beat both at k = 5 by 5.0 points",
        ),
        (
            [(5, 0.80004, 0.80001, 0.7)],
            "the scorer is as good as your retriever; calibrated together they do not beat the better of the two",
        ),
        ([], "calibrated probabilities are better than the scorer's"),
    ],
)
def test_it_agrees_with_every_row(rows: list[tuple[int, float, float, float]], said: str) -> None:
    ncg = [{"k": k, "scorer": scorer, "retriever": retriever, "calibrated": c} for k, scorer, retriever, c in rows]
    assert _standing(ncg) == said
