import numpy as np
import pytest

from boundarymorph.evaluation.problem import BudgetExceeded
from tests.evaluation.tables import on_a_circle, problem

QUESTION = on_a_circle([0, 10, 20, 30], [0.1, 0.9, 0.4, 0.9])


def test_counts_calls_and_sells_a_document_once() -> None:
    one = problem(QUESTION, budget=3)
    assert one.score([1, 0]).tolist() == [0.9, 0.1]
    assert one.score([1]).tolist() == [0.9]
    assert one.calls == [1, 0]
    assert one.left == 1


def test_refuses_more_than_the_budget_and_then_tells_nothing() -> None:
    one = problem(QUESTION, budget=2)
    one.score([0])
    with pytest.raises(BudgetExceeded):
        one.score([1, 2])
    assert one.calls == [0]


def test_a_budget_over_the_pool_leaves_no_more_calls_than_documents() -> None:
    assert problem(QUESTION, budget=9).left == 4


def test_banded_puts_scored_documents_first_and_breaks_ties_by_rank() -> None:
    one = problem(QUESTION, budget=3)
    one.score([3, 2, 1])
    assert one.banded().tolist() == [1, 3, 2, 0]
    assert problem(QUESTION, budget=3).banded().tolist() == np.arange(4).tolist()
