"""Study boosts in the value of the set, against sorting a set that was chosen without them.

The truth is the set of the k documents with the largest score times boost, as if all were scored. Documents get one of
three kinds of boosts, drawn by the number of the question.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection import BestBoundary, Boundary, Budget, DocumentCapacity, Pool, Session
from boundarymorph.selection.boost import BoostedBoundary
from boundarymorph.selection.methods import DEFAULT, METHODS
from boundarymorph_evaluation.problem import Question

Row = dict[str, Any]
DEPTH, K, ROUNDS = 400, 20, 3
AFTER = "boosted afterwards"
CONFIG = METHODS[DEFAULT]


def drawn(random: np.random.Generator, count: int) -> dict[str, NDArray[np.float64]]:
    """Return (count,) boosts of each kind."""
    return {
        "lognormal": np.exp(random.normal(0.0, 0.5, count)),
        "three for a tenth": np.where(random.random(count) < 0.1, 3.0, 1.0),
        "a tenth for a third": np.where(random.random(count) < 1 / 3, 0.1, 1.0),
    }


def head(pool: Pool) -> Pool:
    """Return the first candidates alone."""
    features = {name: of[:DEPTH] for name, of in pool.features.items()}
    terms = None if pool.terms is None else pool.terms[:, :DEPTH]
    return Pool(pool.ids[:DEPTH], pool.embeddings[:DEPTH], pool.query, pool.scores[:DEPTH], features, terms)


def believed(
    pool: Pool, scores: NDArray[np.float64], calls: int, boosts: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return (N,) the relevance of all candidates after a session.

    The session is by relevance or, with boosts, by values.
    """
    best = BestBoundary(DocumentCapacity(K), CONFIG)
    boundary: Boundary = best if boosts is None else BoostedBoundary(best, boosts)
    session = Session(pool, CONFIG.posterior(pool, calls), boundary, Budget(calls))
    while (asked := session.ask_round(ROUNDS)).size:
        session.tell(asked, scores[asked])
    ranking, relevance = session.ranking(), np.zeros(len(pool))
    relevance[ranking.documents] = ranking.relevance
    return relevance


def boosts(question: Question, number: int) -> Iterator[Row]:
    """Yield the share of the boosted set that is found with a call for every fifth candidate."""
    pool = head(question.pool)
    count, scores = len(pool), question.scores[:DEPTH]
    without = believed(pool, scores, count // 5, None)
    for kind, given in drawn(np.random.default_rng(number), count).items():
        truth = np.argsort(-scores * given, kind="stable")[:K]
        for method, relevance in (("boosted", believed(pool, scores, count // 5, given)), (AFTER, without)):
            found = np.argsort(-relevance * given, kind="stable")[:K]
            yield {"boosts": kind, "method": method, "found": len(np.intersect1d(found, truth)) / K}
