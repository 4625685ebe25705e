"""Hold the beliefs and documents of a session at one moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief, share_scores
from boundarymorph.selection.methods import Config
from boundarymorph.selection.pool import Pool, ranks
from boundarymorph.selection.posterior import Beliefs, Posterior

Reading = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # increasing, from [0, 1] to [0, 1]


@dataclass(frozen=True, eq=False)
class State:
    """The beliefs of a session, with the scores of copies, and the documents that are left.

    Attributes:
        pool: The N candidates.
        posterior: The posterior given the scores so far.
        scored: (N,) mask of scored documents and their copies.
        texts: (N,) numbers, equal for documents of the same text; None if copies are unknown.
        left: Ascending positions of the documents that were not given up.
        unscored: The positions among them that may still get a score.
        reading: Maps scores to relevance; None for the identity.
    """

    pool: Pool
    posterior: Posterior
    scored: NDArray[np.bool_]
    texts: NDArray[np.intp] | None
    left: NDArray[np.intp]
    unscored: NDArray[np.intp]
    reading: Reading | None

    @property
    def present(self) -> slice | NDArray[np.intp]:
        """`left` as an index of arrays, which copies nothing if no document was given up."""
        return slice(None) if len(self.left) == len(self.pool) else self.left

    @cached_property
    def beliefs(self) -> Beliefs:
        return self.posterior.beliefs

    @cached_property
    def belief(self) -> Belief:
        return self.competing_belief(self.beliefs.belief())

    @cached_property
    def deciding_belief(self) -> Belief:
        """The belief that chooses the set."""
        return self.competing_belief(self.beliefs.deciding_belief())

    @cached_property
    def reported_belief(self) -> Belief:
        return self.share_scores(self.beliefs.reported_belief())

    def share_scores(self, belief: Belief, documents: NDArray[np.intp] | slice = slice(None)) -> Belief:
        """Return the belief about these documents, with the scores of their copies."""
        return belief if self.texts is None else share_scores(belief, self.texts[documents])

    def competing_belief(self, belief: Belief, documents: NDArray[np.intp] | slice = slice(None)) -> Belief:
        """Return the belief by which these documents compete, from a belief about their scores."""
        return self.share_scores(belief, documents)

    def worth(self, method: Config, documents: NDArray[np.intp], inside: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the (n,) worth to a set, by a method, of these n documents.

        Args:
            method: The method.
            documents: The n positions.
            inside: (n,) mask of the best that fit.
        """
        belief = self.deciding_belief.subset(documents)
        return method.worth(belief.mean, ranks(-self.pool.scores[documents]) - 1.0, inside, belief.scored)

    def values(self, relevance: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return the values of all documents with this (N,) reported relevance.

        None means that documents compete by relevance itself.
        """
        return None

    def mask(self, documents: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return the (N,) mask of these positions."""
        mask = np.zeros(len(self.pool), dtype=np.bool_)
        mask[documents] = True
        return mask

    def outcomes(self, *, lost: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the (m, N) probabilities and relevance of each document's outcomes.

        With `lost`, they are the outcomes for the expected loss.
        """
        shares, scores = self.beliefs.prospects() if lost else self.beliefs.outcomes()
        if self.texts is not None:
            scores = np.where(self.scored, self.share_scores(self.beliefs.deciding_belief()).mean, scores)
        return shares, scores if self.reading is None else self.reading(scores)

    def read(self) -> Belief:
        """Return the belief to report."""
        if self.reading is None:
            return self.reported_belief
        shares, values = self.outcomes()
        mean = (shares * values).sum(axis=0)
        deviation = np.sqrt((shares * np.square(values - mean)).sum(axis=0))
        return Belief(mean, np.where(self.scored, 0.0, deviation), self.scored)
