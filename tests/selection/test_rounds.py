"""Test sessions with a number of rounds."""

from dataclasses import replace

import numpy as np
import pytest

from boundarymorph.selection import ExhaustiveSession, SelectionConfig, Session, TrendConfig
from boundarymorph.selection.acquisition import HEADS
from tests.selection.pools import clustered
from tests.sessions import session_of

POOL, SCORES = clustered(60, 6, 1, np.float32)


def rounds_of(session: Session, rounds: int | None, most: int | None = None) -> list[list[int]]:
    found = []
    while (asked := session.ask_round(rounds, most)).size:
        found.append(asked.tolist())
        session.tell(asked, SCORES[asked])
    return found


def of_pool(budget: int, **options: object) -> Session:
    return session_of(POOL, budget=budget, k=8, **{"config": TrendConfig(), **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "rounds", "sizes"),
    [(20, 1, [20]), (20, 2, [10, 10]), (20, 3, [7, 7, 6]), (20, 6, [4, 4, 3, 3, 3, 3]), (2, 3, [1, 1]), (0, 2, [])],
)
def test_rounds_have_equal_sizes(budget: int, rounds: int, sizes: list[int]) -> None:
    assert [len(asked) for asked in rounds_of(of_pool(budget), rounds)] == sizes


@pytest.mark.parametrize("rounds", range(1, HEADS + 1))
def test_few_rounds_begin_with_the_head_of_the_list(rounds: int) -> None:
    first, *others = rounds_of(of_pool(12), rounds)
    assert first == list(range(12 // rounds))
    assert others == [] or others[0] != list(range(12 // rounds, 24 // rounds))


def test_first_round_has_a_third_of_documents_with_the_best_bm25() -> None:
    words = np.zeros(60)
    words[[1, 30, 50, 40]] = 9.0, 1.0, 3.0, 2.0
    pool = replace(POOL, features={**POOL.features, "bm25": words})
    session = session_of(pool, budget=12, k=8, config=TrendConfig())
    assert session.ask_round(2).tolist() == [0, 1, 2, 3, 50, 40]
    assert session.ask_round(1).tolist() == [*range(8), 50, 40, 30, 8]
    session.give_up(np.array([1, 50]))
    assert session.ask_round(2).tolist() == [0, 2, 3, 4, 40, 30]


def test_first_round_skips_copies_and_given_up_documents() -> None:
    session = of_pool(4)
    session.give_up(np.array([0, 2]))
    session.same_texts(np.array([*range(4), 3, *range(5, 60)], dtype=np.intp))
    assert session.ask_round(2).tolist() == [1, 3]
    assert session.ask_round(1).tolist() == [1, 3, 5, 6]


@pytest.mark.parametrize("config", [TrendConfig(), SelectionConfig()])
@pytest.mark.parametrize("budget", [1, 2, 3, 9])
def test_as_many_rounds_as_calls_ask_single_documents(config: TrendConfig | SelectionConfig, budget: int) -> None:
    session, alone = of_pool(budget, config=config), of_pool(budget, config=config)
    one_by_one: list[list[int]] = []
    while (asked := alone.ask()).size:
        one_by_one.append(asked.tolist())
        alone.tell(asked, SCORES[asked])
    assert rounds_of(session, budget + 1) == one_by_one


def test_known_scores_replace_the_first_round_on_the_head() -> None:
    head = {place: float(SCORES[place]) for place in range(10)}
    known, chosen = of_pool(10, known=head), of_pool(10, known=head)
    assert rounds_of(known, 1) == [chosen.ask(10).tolist()]
    fewer = dict(list(head.items())[:9])
    assert rounds_of(of_pool(10, known=fewer), 1) == [list(range(9, 19))]


def test_bound_on_round_size_makes_more_rounds() -> None:
    assert [len(asked) for asked in rounds_of(of_pool(10), 2, most=4)] == [4, 4, 2]


@pytest.mark.parametrize("rounds", [None, 1, 3, 100])
def test_budget_for_the_whole_pool_is_spent_in_one_round(rounds: int | None) -> None:
    assert [len(asked) for asked in rounds_of(of_pool(60, order=True), rounds)] == [60]
    assert len(ExhaustiveSession(POOL).ask_round(rounds)) == 60
