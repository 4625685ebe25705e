"""The default method where the texts of a pool bring no embeddings: vectors of their words, by three orders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from boundarymorph.evaluation.methods.method import Contestant
from boundarymorph.evaluation.methods.morph import Morph
from boundarymorph.evaluation.problem import Question, Ranking, SelectionProblem
from boundarymorph.retrieval.fusion import scores_by_rank
from boundarymorph.selection import Pool
from boundarymorph.selection.methods import DEFAULT, METHODS

Order: TypeAlias = Literal["scores", "ranked", "bm25"]
ROUND = 5  # as the service has it where a request does not say


@dataclass(frozen=True)
class Lexical:
    """order: what is known of a retriever's ranking: its scores, the order alone, or nothing, where BM25 ranks."""

    order: Order

    uses_budget: ClassVar[bool] = True
    uses_k: ClassVar[bool] = True
    requires: ClassVar[frozenset[str]] = frozenset({"bm25", "texts"})

    def rank(self, problem: SelectionProblem) -> Ranking:
        question = problem.question
        pool = self._pool(question)
        place = {id: position for position, id in enumerate(question.pool.ids)}
        original = np.array([place[id] for id in pool.ids])
        reordered = SelectionProblem(Question(question.id, pool, question.scores[original]), problem.budget, problem.k)
        ranking = Morph(METHODS[DEFAULT], ROUND).rank(reordered)
        problem.score(original[reordered.calls])
        problem.seconds |= reordered.seconds
        return original[ranking]

    def _pool(self, question: Question) -> Pool:
        """As `retrieval.candidates` makes it."""
        given, vectors = question.pool, question.lexical_vectors
        scores, features = given.scores, dict(given.features)
        if self.order == "ranked":
            scores = scores_by_rank(len(given))
        elif self.order == "bm25":
            scores = features["bm25"]
            features["similarity"] = (vectors.documents @ vectors.query).astype(np.float64)
        return Pool.of(given.ids, vectors.documents, vectors.query, scores, features, given.terms)


def _contestant(order: Order, title: str, about: str) -> Contestant:
    about = f"rounds of {ROUND} and vectors of the words, with {about}"
    return Contestant(f"lexical-{order}", f"{DEFAULT}, lexical vectors, {title}", (Lexical(order),), about, ours=True)


CONTESTANTS = (
    _contestant("scores", "scores", "the retriever's scores"),
    _contestant("ranked", "order alone", "the retriever's order and no scores"),
    _contestant("bm25", "BM25's order", "nothing of a retriever"),
)
