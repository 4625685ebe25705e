"""Represent a query as an experiment: its pool, the true scores, and an oracle for them.

The oracle counts each score as one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.retrieval.lexical_vectors import LexicalVectors, lexical_vectors
from boundarymorph.retrieval.ranking import fuse
from boundarymorph.retrieval.words import PoolWords
from boundarymorph.scoring.rerankers import trust_of
from boundarymorph.selection import Pool, TrendConfig
from boundarymorph.selection.methods import Config
from boundarymorph.selection.pool import SIGNAL_WEIGHTS, Trust
from boundarymorph_evaluation.neighbours import Neighbourhood

Ranking = NDArray[np.intp]
EMBEDDED = "cross-encoder/ms-marco-MiniLM-L-12-v2"  # the scorer of tables that do not name one


class Unscored(Exception):
    """A method asked for scores of documents (`ids`) that are not known yet."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(f"{len(ids)} documents have no score yet")
        self.ids = ids


class BudgetExceeded(BoundaryMorphError):
    """A method asked for more scores than its budget: a mistake in the method, not in its data."""


@dataclass(frozen=True, slots=True)
class QuestionTexts:
    """The texts of a question, which only scorers of text need.

    Attributes:
        query: The information need.
        documents: N texts in pool order.
    """

    query: str
    documents: Sequence[str]


@dataclass(frozen=True, eq=False)
class Question:
    """A query with all that is known about it.

    Attributes:
        id: The id of the query.
        pool: The candidates.
        scores: (N,) the scorer's answers in [0, 1]; NaN for a score that is not known yet.
        grades: (N,) human grades, 0 for not relevant, if any.
        relevant: Number of relevant documents in the whole collection, if known.
        texts: The texts, if available.
        scorer: The name of the scorer.
        judged: (N,) whether a person judged the document; None if all are judged.
        trust: The trust in the scorer; None for the trust declared for its name.
    """

    id: str
    pool: Pool
    scores: NDArray[np.float64]
    grades: NDArray[np.float64] | None = None
    relevant: int | None = None
    texts: QuestionTexts | None = None
    scorer: str = EMBEDDED
    judged: NDArray[np.bool_] | None = None
    trust: Trust | None = None

    @cached_property
    def signal_weight(self) -> float:
        """The weight of the signals beside this scorer, as in the service."""
        return SIGNAL_WEIGHTS[trust_of(self.scorer, self.trust)]

    def configured(self, config: Config) -> Config:
        """Return a configuration as the service has it for this pool and scorer."""
        return replace(config, signal_weight=self.signal_weight) if isinstance(config, TrendConfig) else config

    @cached_property
    def neighbourhood(self) -> Neighbourhood:
        return Neighbourhood(self.pool)

    @cached_property
    def fused(self) -> tuple[Question, NDArray[np.intp]]:
        """The question with its pool in the order of similarity and BM25 together, and that order."""
        order, scores = fused_order(self.pool)
        return Question(self.id, reorder(self.pool, order, scores), self.scores[order]), order

    @cached_property
    def lexical_vectors(self) -> LexicalVectors:
        """The vectors of the words of the texts, in pool order."""
        assert self.texts is not None
        return lexical_vectors(PoolWords.from_texts(self.texts.documents), self.texts.query)


@dataclass(eq=False)
class SelectionProblem:
    """The parts of a question that a method sees: the pool, B, k, and counted scores.

    Attributes:
        question: The question.
        budget: B.
        k: k.
        calls: Positions in the order in which they were scored.
    """

    question: Question = field(repr=False)
    budget: int
    k: int
    calls: list[int] = field(default_factory=list)

    @property
    def pool(self) -> Pool:
        return self.question.pool

    @property
    def neighbourhood(self) -> Neighbourhood:
        return self.question.neighbourhood

    @property
    def left(self) -> int:
        """Remaining calls; no more than unscored documents."""
        return min(self.budget, len(self.pool)) - len(self.calls)

    @cached_property
    def scored(self) -> NDArray[np.bool_]:
        """(N,) mask of the documents scored so far."""
        return np.zeros(len(self.pool), dtype=np.bool_)

    def score(self, documents: Sequence[int] | NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the scores of these positions, one call each.

        A document that was scored before costs no further call.

        Raises:
            BudgetExceeded: If the budget is too small; no score is returned.
            Unscored: If a score is not known yet; no score is returned.
        """
        asked = [int(document) for document in documents]
        fresh = [document for document in dict.fromkeys(asked) if not self.scored[document]]
        if len(self.calls) + len(fresh) > self.budget:
            raise BudgetExceeded(f"{len(fresh)} more calls after {len(self.calls)} of {self.budget}")
        if unscored := [document for document in fresh if np.isnan(self.question.scores[document])]:
            raise Unscored([self.pool.ids[document] for document in unscored])
        self.calls += fresh
        self.scored[fresh] = True
        return self.question.scores[asked]

    def banded_ranking(self) -> Ranking:
        """Return scored documents by their score, then the rest in retrieval order.

        This ranks every method that does not rank unscored documents itself (paper app. D.2, "Ranking convention").
        Equal scores go by retrieval rank.
        """
        band = np.sort(np.array(self.calls, dtype=np.intp))
        band = band[np.argsort(-self.question.scores[band], kind="stable")]
        return np.concatenate([band, np.flatnonzero(~self.scored)])


def fused_order(pool: Pool) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return positions by the reciprocal ranks of similarity and BM25 together, and scores."""
    words = pool.features["bm25"]
    by_words = [pool.ids[position] for position in np.argsort(-words, kind="stable") if words[position] > 0]
    ranked = fuse([pool.ids, by_words])
    positions = {id: position for position, id in enumerate(pool.ids)}
    return np.array([positions[id] for id in ranked.ids], dtype=np.intp), ranked.scores


def reorder(pool: Pool, order: NDArray[np.intp], scores: NDArray[np.float64]) -> Pool:
    """Return the pool in another order, with its scores, and similarity as a feature."""
    features = {name: signal[order] for name, signal in {**pool.features, "similarity": pool.scores}.items()}
    terms = None if pool.terms is None else pool.terms[:, order]
    ids = [pool.ids[position] for position in order]
    return Pool(ids, pool.embeddings[order], pool.query, scores, features, terms)
