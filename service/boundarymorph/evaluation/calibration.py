"""Does an answer mean what it says, and are small sets as good as large ones? The default as it is served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.evaluation.metrics import normalised_discounted_gain, normalised_gain
from boundarymorph.evaluation.options import Row, Watch
from boundarymorph.evaluation.problem import Question
from boundarymorph.evaluation.tables import Table
from boundarymorph.selection import Pool, Selection, SelectionSession
from boundarymorph.selection.methods import DEFAULT, METHODS
from boundarymorph.selection.rounds import growing

BUDGETS = (10, 25, 50)
CALIBRATED_KS, SMALL_KS = (10, 50, 100), (5, 10, 20)
LEAST, AT_MOST = (0.3, 0.5, 0.8), 200  # min_relevance, and k with it
HEAD = 10  # documents whose order counts in nDCG
BINS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def calibration(table: Table, every: int, watch: Watch) -> list[Row]:
    """Of the unscored documents of each set: how many, what was expected of them, what they score, and how many lie
    within one and two standard deviations; by bins of what was expected; and the expected loss beside the real one."""
    found: list[Row] = []
    for row, question, budget in _settings(table, every, watch):
        for k in (k for k in CALIBRATED_KS if k < len(question.pool)):
            session = _played(question.pool, question.scores, budget, k)
            chosen = session.selection()
            free = ~chosen.scored
            expected, real = chosen.relevance[free], question.scores[chosen.documents][free]
            off = np.abs(expected - real)
            bins = np.clip(np.searchsorted(BINS, expected, side="right") - 1, 0, len(BINS) - 2)
            setting = {"query": row, "budget": budget, "k": k, "unscored": int(free.sum())}
            found.append(
                {
                    **setting,
                    "expected": float(expected.sum()),
                    "real": float(real.sum()),
                    "within_1": int((off <= chosen.std[free]).sum()),
                    "within_2": int((off <= 2 * chosen.std[free]).sum()),
                    "bins": [
                        (int((bins == at).sum()), float(expected[bins == at].sum()), float(real[bins == at].sum()))
                        for at in range(len(BINS) - 1)
                    ],
                    "expected_loss": session.expected_loss(),
                    "real_loss": 1.0 - normalised_gain(chosen.documents, question.scores),
                }
            )
    return found


def small(table: Table, every: int, watch: Watch) -> list[Row]:
    """Sets of k up to B, where reranking the first B is the alternative: CE-nCG@k and nDCG@10, by the scorer and by
    people, of the default in its own rounds with and without BM25, and of the first B."""
    found: list[Row] = []
    for row, question, budget in _settings(table, every, watch):
        first = np.concatenate([np.argsort(-question.scores[:budget], kind="stable"), np.arange(budget, budget + 20)])
        pools = {"default": question.pool, "default, no BM25": replace(question.pool, features={})}
        for k in (k for k in SMALL_KS if k < len(question.pool)):
            ranked = {how: _selected(pool, question.scores, budget, k).documents for how, pool in pools.items()}
            for how, documents in {"first B": first[:k], **ranked}.items():
                found.append(
                    {
                        "query": row,
                        "budget": budget,
                        "k": k,
                        "how": how,
                        "ce_ncg": normalised_gain(documents, question.scores),
                        "ce_ndcg": _ndcg(documents, question.scores),
                        "ndcg": float("nan") if question.grades is None else _ndcg(documents, question.grades),
                    }
                )
    return found


def threshold(table: Table, every: int, watch: Watch) -> list[Row]:
    """F1 of "everything that scores at least so much" against all scores: of `min_relevance`, of reranking the first B,
    and of the default's set thresholded. To find nothing where there is nothing is right."""
    found: list[Row] = []
    for row, question, budget in _settings(table, every, watch):
        pool, scores = question.pool, question.scores
        default = _played(pool, scores, budget, AT_MOST).selection()
        for least in LEAST:
            right = np.flatnonzero(scores >= least)
            sets = {
                "first B": np.flatnonzero(scores[:budget] >= least),
                "default": default.documents[default.relevance >= least],
                "min_relevance": _played(pool, scores, budget, AT_MOST, least).selection().documents,
            }
            for how, chosen in sets.items():
                total = len(chosen) + len(right)
                f1 = 2.0 * np.isin(chosen, right).sum() / total if total else 1.0
                setting = {"query": row, "budget": budget, "least": least, "how": how, "right": len(right)}
                found.append({**setting, "returned": len(chosen), "f1": float(f1)})
    return found


def _settings(table: Table, every: int, watch: Watch) -> Iterator[tuple[int, Question, int]]:
    for row in range(0, len(table), every):
        for budget in BUDGETS:
            yield row, table.question(row), budget
        watch()


def _played(
    pool: Pool, scores: NDArray[np.float64], budget: int, k: int, least: float | None = None
) -> SelectionSession:
    """A session to its end, in rounds as the service makes them."""
    session = SelectionSession(pool, budget=budget, k=k, config=METHODS[DEFAULT], min_relevance=least)
    while (left := budget - session.spent) and (asked := session.ask(growing(session.spent, left, budget))).size:
        session.tell(asked, scores[asked])
    return session


def _selected(pool: Pool, scores: NDArray[np.float64], budget: int, k: int) -> Selection:
    return _played(pool, scores, budget, k).selection()


def _ndcg(documents: NDArray[np.intp], gains: NDArray[np.float64]) -> float:
    """Of the first ten; nan for sets of fewer."""
    return normalised_discounted_gain(documents[:HEAD], gains) if len(documents) >= HEAD else float("nan")
