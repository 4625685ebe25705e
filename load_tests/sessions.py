"""Run sessions of studies, with known scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection import Config, Pool, Session
from boundarymorph.selection.methods import DEFAULT, METHODS
from boundarymorph_evaluation.problem import Question

Scores = NDArray[np.float64]


def first_by_score(scores: Scores, budget: int) -> NDArray[np.intp]:
    """Return all positions: the first `budget` of them by score, then the others unchanged."""
    return np.concatenate([np.argsort(-scores[:budget], kind="stable"), np.arange(budget, len(scores))])


def played(
    pool: Pool,
    scores: Scores,
    k: int,
    at: Sequence[int],
    config: Config | None = None,
    size: int | None = 1,
    rounds: int | None = None,
) -> Iterator[tuple[int, Session]]:
    """Run a session, and yield it after each number of calls in `at`.

    Rounds have `size` calls; without a size, there are `rounds` rounds, or growing ones. Rounds without a size depend
    on the budget, so each budget has its own session.
    """
    for budgets in [at] if size else [(budget,) for budget in at]:
        session = Session.create(pool, budget=max(budgets), k=k, method=config or METHODS[DEFAULT])
        for budget in budgets:
            while (left := budget - session.spent) > 0:
                asked = session.ask(min(size, left)) if size else session.ask_round(rounds, left)
                if not asked.size:
                    break
                session.tell(asked, scores[asked])
            yield budget, session


def chosen(pool: Pool, scores: Scores, k: int, budget: int, **options: Any) -> NDArray[np.intp]:
    """Return the set of a session without rounds of a size."""
    ((_, session),) = played(pool, scores, k, (budget,), size=None, **options)
    return session.selection().documents


def only(question: Question, kept: NDArray[np.intp]) -> Question:
    """Return the question with only the documents at these ascending positions."""
    pool, grades = question.pool, question.grades
    smaller = replace(
        pool,
        ids=[pool.ids[place] for place in kept],
        embeddings=pool.embeddings[kept],
        scores=pool.scores[kept],
        features={name: values[kept] for name, values in pool.features.items()},
        terms=None if pool.terms is None else pool.terms[:, kept],
    )
    return Question(question.id, smaller, question.scores[kept], None if grades is None else grades[kept])
