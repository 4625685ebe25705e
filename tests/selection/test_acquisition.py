"""Test which document is asked for next, and how many at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from boundarymorph.selection import Acquisition, Belief, BoundaryGap, Exploration, UpperConfidenceBound, ValueAtCutoff
from boundarymorph.selection.acquisition import HEAD_LOOKS, _first_looks, expected_excess, growing_round_size
from boundarymorph.selection.capacity import top_k
from tests.stateful.profile import times

COARSE = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])  # many ties
FINE = st.floats(-1, 2, width=32)


@st.composite
def beliefs(draw: st.DrawFn) -> tuple[Belief, int]:
    n = draw(st.integers(2, 24))
    mean = draw(arrays(np.float64, n, elements=draw(st.sampled_from([COARSE, FINE]))))
    std = draw(arrays(np.float64, n, elements=st.sampled_from([1e-6, 0.1, 0.2, 0.5, 1.0])))
    scored = draw(arrays(np.bool_, n).filter(lambda mask: not mask.all()))
    std[scored] = 0.0
    return Belief(mean, std, scored), draw(st.integers(1, n - 1))


@settings(max_examples=times(100, 6_000), deadline=None)
@given(beliefs())
def test_boundary_gap_equals_brute_force(case: tuple[Belief, int]) -> None:
    belief, k = case
    incumbents = top_k(belief.mean, k)
    choice = BoundaryGap().choose(belief, incumbents, 0)
    ratios = {
        (j, i): (belief.mean[j] - belief.mean[i]) / (belief.std[j] + belief.std[i])
        for j in np.flatnonzero(incumbents).tolist()
        for i in np.flatnonzero(~incumbents).tolist()
        if not (belief.scored[j] and belief.scored[i])
    }
    least = min(ratios.values())
    assert choice.value == pytest.approx(least, rel=1e-12, abs=1e-12)
    assert not belief.scored[choice.document]
    assert choice.counterpart is not None
    assert belief.std[choice.document] >= belief.std[choice.counterpart]
    pair = (
        (choice.document, choice.counterpart) if incumbents[choice.document] else (choice.counterpart, choice.document)
    )
    assert ratios[pair] == pytest.approx(least, rel=1e-12, abs=1e-12)
    if least == 0:  # exact ties: the first incumbent, then the first challenger
        assert pair == min(p for p, ratio in ratios.items() if ratio == 0)
    if belief.std[pair[0]] == belief.std[pair[1]]:
        assert choice.document == pair[0]


@settings(max_examples=40)
@given(arrays(np.float64, st.integers(1, 30), elements=st.one_of(COARSE, FINE)), st.integers(1, 40))
def test_top_k_is_the_head_of_a_stable_sort(mean: np.ndarray, k: int) -> None:
    expected = np.sort(np.argsort(-mean, kind="stable")[:k])
    np.testing.assert_array_equal(np.flatnonzero(top_k(mean, k)), expected)


def test_upper_confidence_bound_weighs_doubt_less_with_each_step() -> None:
    belief = Belief(np.array([0.9, 0.5, 0.6]), np.array([0.0, 1.0, 0.2]), np.array([True, False, False]))
    incumbents = np.array([True, False, False])
    rule = UpperConfidenceBound(beta0=1.0)
    assert rule.choose(belief, incumbents, 0).document == 1
    assert rule.choose(belief, incumbents, 99).document == 2  # beta 0.1: 0.5 + 0.1 against 0.6 + 0.02
    assert UpperConfidenceBound(0.0).choose(belief, incumbents, 0).document == 2


@settings(max_examples=40)
@given(st.floats(0, 30), st.floats(1e-3, 1e3))
def test_expected_excess_equals_the_integral(z: float, std: float) -> None:
    exact = std * (norm.pdf(z) - z * norm.sf(z))
    found = expected_excess(np.array([z * std]), np.array([std]))[0]
    assert found == pytest.approx(exact, rel=1e-4)


def test_value_at_cutoff_prefers_doubtful_documents_near_the_cutoff() -> None:
    belief = Belief(np.array([1.0, 0.6, 0.4, 0.0]), np.array([0.1, 0.1, 0.1, 5.0]), np.zeros(4, dtype=np.bool_))
    incumbents = np.array([True, True, False, False])
    assert ValueAtCutoff().choose(belief, incumbents, 0).document == 3
    belief.std[3] = 0.1
    assert ValueAtCutoff().choose(belief, incumbents, 0).document == 1  # as close as document 2, and earlier
    belief.scored[1], belief.std[1] = True, 0.0
    assert ValueAtCutoff().choose(belief, incumbents, 0).document == 2


def test_explore_asks_around_k_then_the_head_until_scores_differ() -> None:
    n, k = 100, 10
    belief = Belief(np.full(n, 0.2), np.full(n, 0.3), np.zeros(n, dtype=np.bool_))
    incumbents = top_k(belief.mean, k)
    rule = Exploration()
    asked = []
    for step in range(12):
        asked.append(rule.choose(belief, incumbents, step).document)
        belief.scored[asked[-1]], belief.std[asked[-1]] = True, 0.0
    assert asked == [0, 10, 5, 20, 40, 1, 2, 3, 4, 6, 7, 8]
    belief.mean[3] = 0.9
    assert rule.choose(belief, incumbents, 5) == BoundaryGap().choose(belief, incumbents, 5)
    assert rule.choose(belief, incumbents, 6) == ValueAtCutoff().choose(belief, incumbents, 6)


@pytest.mark.parametrize("rule", [BoundaryGap(), UpperConfidenceBound(), ValueAtCutoff(), Exploration()])
def test_shortlist_has_unscored_documents_and_mostly_the_choice(rule: Acquisition) -> None:
    rng = np.random.default_rng(0)
    belief = Belief(rng.uniform(size=50), rng.uniform(0.1, 0.2, size=50), rng.uniform(size=50) < 0.2)
    belief.std[belief.scored] = 0
    incumbents = top_k(belief.mean, 10)
    shortlist = rule.shortlist(belief, incumbents, 8)
    assert len(shortlist) == 8 and not belief.scored[shortlist].any()
    assert rule.choose(belief, incumbents, int(np.count_nonzero(belief.scored))).document in shortlist
    everything = rule.shortlist(belief, incumbents, 100)
    assert sorted(everything) == np.flatnonzero(~belief.scored).tolist()
    assert everything[:8] == shortlist, "likeliest first"


@pytest.mark.parametrize(("count", "k"), [(1, 1), (2, 1), (3, 5), (7, 2), (100, 10), (1_000, 80)])
def test_first_looks_visit_every_document_once(count: int, k: int) -> None:
    scored = np.zeros(count, dtype=np.bool_)
    looks = list(_first_looks(scored, k))
    assert sorted(looks) == list(range(count))
    scored[looks[::3]] = True
    assert list(_first_looks(scored, k)) == [look for look in looks if not scored[look]]
    gaps = np.diff(sorted({0, count, *looks[: 5 + HEAD_LOOKS + 15]}))
    assert gaps.max() <= max(1, -(-count // 16)), "half, quarters, eighths and sixteenths come first"


@pytest.mark.parametrize(
    ("scores", "alike"),
    [
        ([0.001, 0.002, 0.003, 0.001, 0.002], True),
        ([0.001, 0.002, 0.003, 0.001], False),  # too few
        ([0.001, 0.002, 0.003, 0.001, 0.006], False),  # one stands out
        ([0.02, 0.04, 0.06, 0.03, 0.04], False),  # no longer small
        ([0.0, 0.002, 0.003, 0.001, 0.002], False),  # the lowest score is not small enough
        ([0.001, 0.002] * 9 + [0.001], True),
        ([0.001, 0.002] * 10, False),  # this many scores may be informative
    ],
)
def test_explore_searches_the_whole_ranking_while_scores_are_similar(scores: list[float], alike: bool) -> None:
    n, k = 200, 10
    mean, std = np.full(n, 0.2), np.full(n, 0.3)
    scored = np.arange(n) < len(scores)
    mean[scored], std[scored] = scores, 0.0
    belief = Belief(mean, std, scored)
    incumbents = top_k(mean, k)
    choice = Exploration().choose(belief, incumbents, len(scores))
    assert (choice.value is None) is alike
    if alike:
        looks = Exploration().shortlist(belief, incumbents, 8)
        assert looks[0] == choice.document and [look for look in looks if look > 4 * k][:3] == [100, 50, 150]


def rounds(budget: int, known: int = 0) -> list[int]:
    sizes: list[int] = []
    while (left := budget - sum(sizes)) > 0:
        sizes.append(growing_round_size(known + sum(sizes), left, budget))
    return sizes


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (0, []),
        (1, [1]),
        (3, [2, 1]),
        (10, [2, 2, 2, 2, 2]),
        (25, [2, 2, 2, 3, 4, 5, 4, 3]),
        (50, [2, 2, 2, 3, 4, 5, 6, 7, 7, 6, 6]),
    ],
)
def test_growing_rounds_start_small(budget: int, expected: list[int]) -> None:
    assert rounds(budget) == expected


def test_growing_rounds_are_few_and_of_bounded_size() -> None:
    for budget in range(1, 300):
        sizes = rounds(budget)
        assert sum(sizes) == budget and min(sizes) >= 1
        assert max(sizes) <= 2 + (budget / 2) ** 0.5
        assert len(sizes) <= 1 + 1.7 * budget**0.5
    assert rounds(50, known=25)[0] == 7 > rounds(50)[0]
