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


def test_the_ideal_holds_no_more_than_there_is() -> None:
    everything = quality(QUESTION, np.arange(5), 5)
    assert everything.ce_ncg == everything.ncg == everything.ncg_graded == 1.0
    assert everything.ncg_collection == pytest.approx(3 / 4)


def test_k_over_the_pool_is_the_pool() -> None:
    assert quality(QUESTION, np.arange(5), 50).ncg == 1.0


def test_undefined_without_labels_or_gains() -> None:
    unjudged = quality(replace(QUESTION, grades=None), np.arange(5), 2)
    assert math.isnan(unjudged.ncg) and math.isnan(unjudged.ncg_graded) and math.isnan(unjudged.ncg_collection)
    assert math.isnan(normalised_gain(np.array([0]), np.zeros(3)))


def test_a_count_of_relevant_documents_of_something_else_is_not_used() -> None:
    found = quality(replace(QUESTION, relevant=1), np.arange(5), 3)
    assert math.isnan(found.ncg_collection) and not math.isnan(found.ncg)
