"""Test a query as an experiment: its calls, its neighbours, and the value of a set."""

import math
from dataclasses import replace

import numpy as np
import pytest

from boundarymorph_evaluation.metrics import normalised_gain, quality
from boundarymorph_evaluation.neighbours import ALPHA, Neighbourhood
from boundarymorph_evaluation.problem import BudgetExceeded
from tests.evaluation.tables import on_a_circle, problem
from tests.selection.pools import clustered

QUESTION = on_a_circle([0, 10, 20, 30], [0.1, 0.9, 0.4, 0.9])


def test_problem_counts_calls_and_refuses_more_than_the_budget() -> None:
    one = problem(QUESTION, budget=3)
    assert one.score([1, 0]).tolist() == [0.9, 0.1]
    assert one.score([1]).tolist() == [0.9]
    assert one.calls == [1, 0] and one.left == 1
    with pytest.raises(BudgetExceeded):
        one.score([2, 3])
    assert one.calls == [1, 0]
    assert problem(QUESTION, budget=9).left == 4


def test_banded_puts_scored_documents_first_and_breaks_ties_by_rank() -> None:
    one = problem(QUESTION, budget=3)
    one.score([3, 2, 1])
    assert one.banded_ranking().tolist() == [1, 3, 2, 0]
    assert problem(QUESTION, budget=3).banded_ranking().tolist() == np.arange(4).tolist()


def test_nearest_finds_the_highest_of_all_cosines() -> None:
    pool, _ = clustered(120, 8, seed=3)
    positions, cosines = Neighbourhood(pool).nearest(7)
    products = pool.embeddings @ pool.embeddings.T
    np.fill_diagonal(products, -np.inf)
    assert np.array_equal(positions, np.argsort(-products, axis=1)[:, :7])
    assert np.allclose(cosines, -np.sort(-products, axis=1)[:, :7], atol=1e-6)


def _literal_prune(document: int, candidates: list[int], distance: np.ndarray, degree: int) -> list[int]:
    kept: list[int] = []
    waiting = sorted(candidates, key=lambda other: (distance[document, other], other))
    while waiting and len(kept) < degree:
        kept.append(waiting.pop(0))
        waiting = [other for other in waiting if ALPHA * distance[kept[-1], other] > distance[document, other]]
    return kept


def test_graph_equals_a_literal_construction() -> None:
    pool, _ = clustered(60, 6, seed=1)
    distance = 1 - pool.embeddings @ pool.embeddings.T
    forward = [_literal_prune(one, [other for other in range(60) if other != one], distance, 5) for one in range(60)]
    both = [set(forward[one]) | {other for other in range(60) if one in forward[other]} for one in range(60)]
    expected = [_literal_prune(one, list(both[one]), distance, 5) for one in range(60)]
    found = [[int(other) for other in row if other >= 0] for row in Neighbourhood(pool).graph(5)]
    assert found == expected


SCORES = [0.1, 0.8, 0.6, 0.0, 0.5]
GRADED = replace(on_a_circle([0, 10, 20, 30, 40], SCORES), grades=np.array([3.0, 0.0, 1.0, 2.0, 0.0]), relevant=4)


def test_quality_measures_equal_hand_computed_values() -> None:
    found = quality(GRADED, np.array([0, 1, 2, 3, 4]), 3)
    assert found.ce_ncg == pytest.approx((0.1 + 0.8 + 0.6) / (0.8 + 0.6 + 0.5))
    assert found.ncg == pytest.approx(2 / 3)
    assert found.ncg_graded == pytest.approx((3 + 1) / (3 + 2 + 1))
    assert found.ncg_collection == pytest.approx(2 / 3)
    assert found.ndcg_10 == pytest.approx((3 + 1 / 2) / (3 + 2 / math.log2(3) + 1 / 2))


def test_ndcg_10_depends_on_the_order_of_the_first_ten() -> None:
    question = replace(on_a_circle(range(12), [0.5] * 12), grades=np.array([0.0] * 10 + [1.0, 2.0]))
    assert quality(question, np.arange(12), 12).ndcg_10 == 0.0
    assert quality(question, np.arange(12)[::-1], 12).ndcg_10 == 1.0
    assert quality(question, np.arange(12)[::-1], 1).ndcg_10 == pytest.approx(2 / (2 + 1 / math.log2(3)))
    assert math.isnan(quality(replace(question, grades=np.zeros(12)), np.arange(12), 5).ndcg_10)


def test_ideal_gain_counts_only_existing_documents() -> None:
    everything = quality(GRADED, np.arange(5), 5)
    assert everything.ce_ncg == everything.ncg == everything.ncg_graded == 1.0
    assert everything.ncg_collection == pytest.approx(3 / 4)
    assert quality(GRADED, np.arange(5), 50).ncg == 1.0
    fewer = quality(replace(GRADED, relevant=1), np.arange(5), 3)  # another count
    assert math.isnan(fewer.ncg_collection) and not math.isnan(fewer.ncg)


def test_quality_is_nan_without_labels_or_gains() -> None:
    unjudged = quality(replace(GRADED, grades=None), np.arange(5), 2)
    assert all(map(math.isnan, (unjudged.ncg, unjudged.ncg_graded, unjudged.ncg_collection, unjudged.ndcg_10)))
    assert math.isnan(normalised_gain(np.array([0]), np.zeros(3)))
