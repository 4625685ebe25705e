"""`make evaluation-order`: calls spent on the order of a list against reranking the first B, on a folder of tables.

python -m load_tests.evaluation_order TABLES

The first N candidates of each query are ranked with B calls: by a session that orders, in rounds of 5, and by scoring
the first B. Both are compared with scoring all N: nDCG@10 with the cross-encoder's scores as gains (`ce`), nDCG@10 by
human grades (`ndcg`), and the relevant documents among the first 50 (`ncg50`), the last two as shares of what scoring
all gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection import Pool, SelectionSession
from boundarymorph.selection.methods import DEFAULT, METHODS
from load_tests import report, studies
from tests.selection.pools import play

CASES = ((100, 20), (100, 50), (500, 100), (1_000, 200))
BATCH = 5
Floats = NDArray[np.float64]
Ranker = Callable[[Pool, Floats, int], NDArray[np.intp]]


def main() -> None:
    given = studies.parsed(studies.parser(__doc__))
    rows = report.Rows("evaluation-order")
    for table in given.tables:
        for count, budget in CASES:
            if count <= table.depth:
                rows.append({"table": table.name, "N": count, "B": budget, **_row(table, given.every, count, budget)})
    report.write("evaluation-order", rows, {})


def order(pool: Pool, scores: Floats, budget: int) -> NDArray[np.intp]:
    """As `"spend": "order"` does where k is N."""
    session = SelectionSession(pool, budget=budget, k=len(pool), config=METHODS[DEFAULT], order=True)
    return play(session, scores, BATCH).selection().documents


RANKERS: Mapping[str, Ranker] = {"first": lambda pool, scores, budget: studies.by_score(scores, budget), "order": order}


def _row(table: ScoreTable, every: int, count: int, budget: int) -> dict[str, float]:
    measured: dict[str, list[Sequence[float]]] = {name: [] for name in (*RANKERS, "all")}
    for number in range(0, len(table), every):
        question = table.question(number)
        whole, scores = question.pool, question.scores[:count]
        pool = Pool(
            whole.ids[:count],
            whole.embeddings[:count],
            whole.query,
            whole.scores[:count],
            {name: signal[:count] for name, signal in whole.features.items()},
            None if whole.terms is None else whole.terms[:, :count],
        )
        grades = np.zeros(count) if question.grades is None else question.grades[:count]
        for name, ranker in RANKERS.items():
            measured[name].append(_quality(ranker(pool, scores, budget), scores, grades))
        measured["all"].append(_quality(np.argsort(-scores, kind="stable"), scores, grades))
    ce, ndcg, ncg50 = range(3)
    mean = {name: np.mean(values, axis=0) for name, values in measured.items()}
    shares = {f"{what}_{name}": mean[name][at] / mean["all"][at]
              for what, at in (("ndcg", ndcg), ("ncg50", ncg50)) for name in RANKERS}  # fmt: skip
    return {f"ce_{name}": mean[name][ce] for name in RANKERS} | shares


def _quality(ranking: NDArray[np.intp], scores: Floats, grades: Floats) -> tuple[float, float, float]:
    ce, ndcg = (studies.normalised_discounted_gain(ranking[:10], gains) for gains in (scores, 2.0**grades - 1.0))
    return ce, float(np.nan_to_num(ndcg)), float((grades[ranking[:50]] > 0).sum())


if __name__ == "__main__":
    report.run(main)
