import math
from dataclasses import replace

import numpy as np
import pytest

from boundarymorph.evaluation.metrics import normalised_gain, quality
from tests.evaluation.tables import on_a_circle

SCORES = [0.1, 0.8, 0.6, 0.0, 0.5]
QUESTION = replace(on_a_circle([0, 10, 20, 30, 40], SCORES), grades=np.array([3.0, 0.0, 1.0, 2.0, 0.0]), relevant=4)


def test_against_hand_numbers() -> None:
    found = quality(QUESTION, np.array([0, 1, 2, 3, 4]), 3)
    assert found.ce_ncg == pytest.approx((0.1 + 0.8 + 0.6) / (0.8 + 0.6 + 0.5))
    assert found.ncg == pytest.approx(2 / 3)
    assert found.ncg_graded == pytest.approx((3 + 1) / (3 + 2 + 1))
    assert found.ncg_collection == pytest.approx(2 / 3)
    assert found.ndcg_10 == pytest.approx((3 + 1 / 2) / (3 + 2 / math.log2(3) + 1 / 2))


def test_the_order_of_the_first_ten() -> None:
    question = replace(on_a_circle(range(12), [0.5] * 12), grades=np.array([0.0] * 10 + [1.0, 2.0]))
    assert quality(question, np.arange(12), 12).ndcg_10 == 0.0
    assert quality(question, np.arange(12)[::-1], 12).ndcg_10 == 1.0
    assert quality(question, np.arange(12)[::-1], 1).ndcg_10 == pytest.approx(2 / (2 + 1 / math.log2(3)))
    assert math.isnan(quality(replace(question, grades=np.zeros(12)), np.arange(12), 5).ndcg_10)


def test_the_ideal_holds_no_more_than_there_is() -> None:
    everything = quality(QUESTION, np.arange(5), 5)
    assert everything.ce_ncg == everything.ncg == everything.ncg_graded == 1.0
    assert everything.ncg_collection == pytest.approx(3 / 4)


def test_k_over_the_pool_is_the_pool() -> None:
    assert quality(QUESTION, np.arange(5), 50).ncg == 1.0


def test_undefined_without_labels_or_gains() -> None:
    unjudged = quality(replace(QUESTION, grades=None), np.arange(5), 2)
    assert all(map(math.isnan, (unjudged.ncg, unjudged.ncg_graded, unjudged.ncg_collection, unjudged.ndcg_10)))
    assert math.isnan(normalised_gain(np.array([0]), np.zeros(3)))


def test_a_count_of_relevant_documents_of_something_else_is_not_used() -> None:
    found = quality(replace(QUESTION, relevant=1), np.arange(5), 3)
    assert math.isnan(found.ncg_collection) and not math.isnan(found.ncg)
