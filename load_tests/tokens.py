"""Study sets with a limit on their tokens, by people.

A document has one token for four characters. A set is chosen by the session's relevance, by the probability that the
service answers with, or in a simple order: the documents of the order that fit one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.shipped import shipped_map
from boundarymorph.selection import BestBoundary, Boundary, Budget, Session, capacity_of
from boundarymorph.selection.boost import BoostedBoundary
from boundarymorph.selection.methods import HUMAN_CONFIG
from boundarymorph_evaluation.problem import EMBEDDED, Question
from load_tests.boosts import DEPTH, head
from load_tests.sessions import first_by_score

Row = dict[str, Any]
ROUNDS, CHARACTERS = 3, 4
CALLS, TOKENS = (0, 25, 50), (1_500, 4_000)
RETRIEVED = "in retrieval order"


def fitting(order: NDArray[np.intp], lengths: NDArray[np.float64], most: int) -> NDArray[np.intp]:
    """Return the documents of an order that fit, without those that do not."""
    chosen, left = [], float(most)
    for document in order.tolist():
        if lengths[document] <= left:
            chosen.append(document)
            left -= lengths[document]
    return np.array(chosen, dtype=np.intp)


def tokens(question: Question, number: int) -> Iterator[Row]:
    """Yield the share of relevant documents that a set has, of the most that could fit."""
    if question.texts is None or question.grades is None or not (question.grades > 0).any():
        return
    pool, scores, relevant = head(question.pool), question.scores[:DEPTH], question.grades[:DEPTH] > 0
    lengths = np.array([max(1.0, len(text) / CHARACTERS) for text in question.texts.documents[:DEPTH]])
    config, retrieved = question.configured(HUMAN_CONFIG), np.arange(len(pool))
    for most, calls in product(TOKENS, CALLS):
        limit = capacity_of(k=None, lengths=lengths, max_tokens=most)
        best = BestBoundary(limit, config)
        boundaries: dict[str, Boundary] = {
            "by the session's relevance": best,
            "by the answer's relevance": BoostedBoundary(best, None, shipped_map(EMBEDDED)),
        }
        sets = {
            RETRIEVED: fitting(retrieved, lengths, most),
            "first B reranked": fitting(first_by_score(scores, calls), lengths, most),
        }
        for method, boundary in boundaries.items():
            session = Session(pool, config.posterior(pool, calls), boundary, Budget(calls))
            while (asked := session.ask_round(ROUNDS)).size:
                session.tell(asked, scores[asked])
            sets[method] = session.selection().documents
        possible = len(fitting(np.flatnonzero(relevant)[np.argsort(lengths[relevant], kind="stable")], lengths, most))
        for method, documents in sets.items():
            found = np.count_nonzero(relevant[documents])
            yield {"tokens": most, "B": calls, "method": method, "found": found / max(1, possible)}
