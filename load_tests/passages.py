"""Study long documents, ranked by their best passages with a twentieth of the calls.

The passages of a table are joined to documents of eight: at random, or each with its nearest neighbours, so that all
passages of a document have one topic. A document is as relevant to people as its most relevant passage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection import BestBoundary, Budget, GroupLimit, Pool, Session
from boundarymorph.selection.capacity import DocumentCapacity
from boundarymorph.selection.groups import best_of_each
from boundarymorph.selection.methods import HUMAN_CONFIG
from boundarymorph_evaluation.metrics import discounted_gain
from boundarymorph_evaluation.problem import Question

Row = dict[str, Any]
Joined = NDArray[np.intp]
EACH, K, ROUNDS, SHARE = 8, 10, 3, 20
EVERY = "every passage scored"


def at_random(pool: Pool, random: np.random.Generator) -> Joined:
    """Return (documents, EACH) positions of passages.

    Passages that do not fill a document are left out.
    """
    return random.permutation(len(pool))[: len(pool) // EACH * EACH].reshape(-1, EACH)


def by_topic(pool: Pool, random: np.random.Generator) -> Joined:
    """Return positions as `at_random` does; a document has a random passage and its neighbours.

    They are its nearest of the remaining passages, in random order.
    """
    similarities, free = pool.embeddings @ pool.embeddings.T, np.ones(len(pool), dtype=np.bool_)
    documents = list[NDArray[np.intp]]()
    for passage in random.permutation(len(pool)).tolist():
        if free[passage] and len(documents) < len(pool) // EACH:
            near = np.where(free, similarities[passage], -np.inf)
            near[passage] = np.inf
            documents.append(random.permutation(np.argsort(-near, kind="stable")[:EACH]))
            free[documents[-1]] = False
    return np.array(documents)


def selected(question: Question, kept: NDArray[np.intp], document: NDArray[np.intp], calls: int) -> NDArray[np.intp]:
    """Return the passages of a set of K documents, best first, as the service chooses them.

    Among passages, it has a limit of one for each document. `document` has (N,) the document of each passage.
    """
    config, limit = question.configured(HUMAN_CONFIG), GroupLimit(DocumentCapacity(K), document)
    pool = question.pool
    session = Session(pool, config.posterior(pool, calls), BestBoundary(limit, config), Budget(calls))
    session.give_up(np.setdiff1d(np.arange(len(pool)), kept))
    while (asked := session.ask_round(ROUNDS)).size:
        session.tell(asked, question.scores[asked])
    return session.selection().documents


def passages(question: Question, number: int) -> Iterator[Row]:
    """Yield nDCG@10 by people with documents that are joined in either way."""
    if question.grades is None or not (question.grades > 0).any():
        return
    for how, join in (("at random", at_random), ("by topic", by_topic)):
        joined = join(question.pool, np.random.default_rng(number))
        kept = np.sort(joined.ravel())
        document = np.full(len(question.pool), len(joined))
        document[joined] = np.arange(len(joined))[:, None]
        scores, calls = question.scores, len(kept) // SHARE
        read = np.where(np.arange(len(kept)) < calls, 1.0 + scores[kept], -kept / len(question.pool))
        places = {
            "retriever": kept,
            "cut at the first passage": joined[np.argsort(-scores[joined[:, 0]], kind="stable"), 0],
            EVERY: kept[np.argsort(-scores[kept], kind="stable")],
            "a twentieth, the first ones": kept[np.argsort(-read, kind="stable")],
            "a twentieth, ours": selected(question, kept, document, calls),
        }
        grades = question.grades[joined].max(axis=1)
        best = discounted_gain(np.sort(grades)[::-1])
        for method, ranked in places.items():
            first = ranked[best_of_each(-np.arange(len(ranked), dtype=np.float64), document[ranked], 1)]
            found = discounted_gain(grades[document[first]]) / best
            yield {"joined": how, "method": method, "ndcg_10": found}
