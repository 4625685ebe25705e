"""Define boundaries: which documents compete for the set, belong to it, and may be missed.

A boundary describes the wanted set and never changes. Which rule asks next depends on the scores so far, so a boundary
divides each state of a session anew. A `Division` has the competition, the rule, the expected loss, and the chosen
documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.acquisition import Acquisition, Competition, MostDoubtful, MostLikely, UpperConfidenceBound
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.capacity import LIKELY, Capacity, LikelyCapacity, Limit
from boundarymorph.selection.methods import Config
from boundarymorph.selection.outlook import (
    Recall,
    Search,
    cautious_loss_of_a_set,
    expected_f1,
    gains_of_a_set,
    gains_of_doubt,
)
from boundarymorph.selection.posterior import BeliefSource
from boundarymorph.selection.state import State

BEST_FIRST = UpperConfidenceBound(0.0)  # for the order, score the best unscored document next (docs/results.md)
Finish: TypeAlias = Callable[
    [Capacity, NDArray[np.bool_], NDArray[np.floating], NDArray[np.intp], NDArray[np.float64]], NDArray[np.bool_]
]


class Boundary(Protocol):
    """A wish for a set."""

    def division(self, state: State) -> Division:
        """Return the division of a state by this boundary."""


def keep_chosen(
    capacity: Capacity,
    chosen: NDArray[np.bool_],
    vectors: NDArray[np.floating],
    documents: NDArray[np.intp],
    relevance: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return the chosen documents unchanged."""
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class BestBoundary:
    """The best documents that fit.

    Attributes:
        limit: The limit on the set.
        method: The method whose acquisition rule asks, and whose worth chooses.
        negligible: Documents with less than this share of the best document's expected relevance are left out.
        finish: Maps the (n,) mask of the chosen among n documents to the mask of the returned ones. Its arguments are
            the capacity, that mask, the (N, d) vectors of the pool, the n positions and their (n,) relevance.
    """

    limit: Limit
    method: Config
    negligible: float = 0.0
    finish: Finish = keep_chosen

    def division(self, state: State) -> Division:
        return Division(self, state)


@dataclass(frozen=True, slots=True)
class OrderBoundary:
    """The best documents, and their order: if all of them fit, calls are spent on the order."""

    within: BestBoundary

    def division(self, state: State) -> Division:
        division = SetAndOrderDivision(self.within, state)
        fit = state.left.size and division.capacity.holds_all(len(state.left))
        return OrderDivision(self.within, state) if fit else division


@dataclass(frozen=True, slots=True)
class ThresholdBoundary:
    """The best documents, without those that are unlikely to score at least `least`.

    A document is likely if it reaches `least` with a probability above one half. If more likely documents exist than
    fit, the boundary is the one of `within`. Otherwise, calls are spent on the documents in doubt.

    Attributes:
        least: The least score, from 0 to 1; infinity if no score suffices.

    Raises:
        InvalidInput: If `least` is another number.
    """

    within: BestBoundary
    least: float

    def __post_init__(self) -> None:
        if not (0.0 <= self.least <= 1.0 or self.least == math.inf):
            raise InvalidInput(f"min_relevance is {self.least}; it is from 0 to 1")

    def division(self, state: State) -> Division:
        above = ThresholdDivision(self.within, state, self.least)
        fit = above.capacity.holds(state.mask(above.candidates)[state.left])
        return DoubtDivision(self.within, state, self.least, above.reaching) if fit else above


@dataclass(frozen=True, slots=True)
class SearchBoundary:
    """A share of all documents that score at least `least`.

    Calls are spent on the most likely documents. The set has scored documents only.

    Attributes:
        within: The limit, method, and finish of the set.
        least: The least score of a document to find.
        share: The share to find, above 0 and at most 1.
    """

    within: BestBoundary
    least: float
    share: float

    def division(self, state: State) -> Division:
        return SearchDivision(self.within, state, self.least, self.share)


class Division:
    """A state of a session, divided into the best documents that fit and all others."""

    spends_on_order: ClassVar[bool] = False  # whether calls are spent on the order, because every document fits
    wants_all: ClassVar[bool] = False  # whether every score is useful
    found: float = 0.0  # the probability that the target is reached

    def __init__(self, boundary: BestBoundary, state: State) -> None:
        self._boundary, self._state = boundary, state
        texts = np.arange(len(state.pool)) if state.texts is None else state.texts
        self.capacity = boundary.limit.capacity_for(state.mask(state.left), texts)  # for the documents that are left

    @property
    def decided(self) -> bool:
        """Whether no score can change the set."""
        return self.capacity.nothing_to_decide(len(self._state.left))

    @property
    def rule(self) -> Acquisition:
        return self._boundary.method.acquisition

    @cached_property
    def competition(self) -> Competition:
        """The documents that compete, as the rule sees them."""
        return Competition(self._state.belief, self.capacity, self._state.left)

    def view(self, beliefs: BeliefSource, documents: NDArray[np.intp]) -> Belief:
        """Return the belief about these documents that the rule sees."""
        return self._state.competing_belief(beliefs.belief(), documents)

    def values(self, relevance: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return the values of `State.values`."""
        return self._state.values(relevance)

    @property
    def candidates(self) -> NDArray[np.intp]:
        """Ascending positions of the documents that may be in the set."""
        return self._state.left

    def loss(self) -> float:
        """Return the expected loss of the set, a share of the best set's relevance.

        The best set is the one that all scores would give.
        """
        nothing_open = self.decided or self._state.scored[self._state.left].all()
        return 0.0 if nothing_open else self._loss()

    def _loss(self) -> float:
        """Return the expected loss, taking documents as independent.

        See `Beliefs.prospects` and `Capacity.best`.
        """
        shares, scores = self._state.outcomes(lost=True)
        best = self.capacity.best(shares[:, self._state.present], scores[:, self._state.present])
        inside = self._inside(self.candidates)
        chosen = float((shares[:, inside] * scores[:, inside]).sum())
        return max(0.0, 1.0 - chosen / best) if best > 0 else 0.0

    def cautious_loss(self) -> float:
        """Return the expected loss plus three of its standard deviations.

        It is the expected loss itself at boundaries other than a full set's.
        """
        loss, left = self.loss(), self._state.present
        if self.decided:
            return loss
        shares, scores = self._state.outcomes(lost=True)
        return cautious_loss_of_a_set(shares[:, left], scores[:, left], self._state.scored[left], self.capacity, loss)

    def gains(self, loss: float) -> NDArray[np.float64]:
        """Return the expected gains of 1, 2, ... further calls."""
        (shares, scores), left = self._state.outcomes(), self._state.present
        return gains_of_a_set(shares[:, left], scores[:, left], self._state.scored[left], self.capacity, loss)

    def recall(self) -> Recall | None:
        """Return the expected recall of documents that reach a threshold; None without a threshold."""
        return None

    def chosen(self) -> NDArray[np.intp]:
        """Return the ascending positions of the documents to return."""
        means = np.maximum(self._state.reported_belief.mean[self.candidates], 0.0)
        documents: NDArray[np.intp] = self.candidates[means >= self._boundary.negligible * means.max(initial=0.0)]
        if not documents.size:
            return documents
        inside = self._state.mask(self._inside(documents))[documents]
        relevance = self._state.deciding_belief.mean[documents]
        capacity = self._capacity_of(documents)
        inside = self._boundary.finish(capacity, inside, self._state.pool.embeddings, documents, relevance)
        return documents[capacity.with_others(inside, relevance)]

    def _capacity_of(self, documents: NDArray[np.intp]) -> Capacity:
        return self.capacity.subset(self._state.mask(documents)[self._state.left])

    def _inside(self, documents: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the ascending positions of the best of these documents that fit."""
        if not documents.size:
            return documents
        capacity = self._capacity_of(documents)
        inside = capacity.margin(self._state.deciding_belief.mean[documents])[1]
        return documents[capacity.fill(self._state.worth(self._boundary.method, documents, inside))]


class SetAndOrderDivision(Division):
    """A division in which every score is useful for the order."""

    wants_all = True


class OrderDivision(SetAndOrderDivision):
    """A division in which all documents fit, and calls are spent on their order."""

    spends_on_order = True
    decided = False
    rule = BEST_FIRST

    def _loss(self) -> float:
        return 0.0

    def cautious_loss(self) -> float:
        return 0.0


class ThresholdDivision(Division):
    """A division by a threshold that more documents are likely to reach than fit."""

    def __init__(self, boundary: BestBoundary, state: State, least: float, reaching: Belief | None = None) -> None:
        super().__init__(boundary, state)
        self._least = least
        self.reaching = state.share_scores(state.beliefs.reaching_belief(least)) if reaching is None else reaching

    @property
    def decided(self) -> bool:
        return not self._state.left.size

    @property
    def candidates(self) -> NDArray[np.intp]:
        return self._state.left[self.reaching.mean[self._state.left] > LIKELY]

    def recall(self) -> Recall | None:
        state = self._state
        shares, scores = state.beliefs.outcomes()
        reaching = (shares * (scores >= self._least)).sum(axis=0)
        reaching[state.scored] = self.reaching.mean[state.scored]
        return Recall.estimate(reaching[state.left], state.mask(self.chosen())[state.left])


class DoubtDivision(ThresholdDivision):
    """A division in which all likely documents fit, so that the threshold is the boundary."""

    rule: ClassVar[Acquisition] = MostDoubtful()

    @cached_property
    def competition(self) -> Competition:
        return Competition(self.reaching, LikelyCapacity(), self._competing)

    def view(self, beliefs: BeliefSource, documents: NDArray[np.intp]) -> Belief:
        return self._state.share_scores(beliefs.reaching_belief(self._least), documents)

    def _loss(self) -> float:
        return 1.0 - expected_f1(self.reaching.mean[self._competing])

    def cautious_loss(self) -> float:
        return self.loss()

    def gains(self, loss: float) -> NDArray[np.float64]:
        return gains_of_doubt(self.reaching.mean[self._competing])

    @property
    def _competing(self) -> NDArray[np.intp]:
        """Positions of the documents in doubt.

        These are the best documents of each group, if some of those are unscored, else all that are left.
        """
        left = self._state.left
        if not self.capacity.by_groups:
            return left
        best = left[self.capacity.eligible(self._state.belief.mean[left])]
        return best if self._state.mask(best)[self._state.unscored].any() else left


class SearchDivision(DoubtDivision):
    """A search for all documents that reach a threshold, the most likely first."""

    rule = MostLikely()

    def __init__(self, boundary: BestBoundary, state: State, least: float, share: float) -> None:
        super().__init__(boundary, state, least)
        reaching = self.reaching.subset(state.left)
        found = np.count_nonzero(reaching.mean[reaching.scored] > LIKELY)
        self._search = Search(int(found), reaching.mean[~reaching.scored], len(state.left))
        self._recall = self._search.recall(share)
        self.found = self._recall.probability or 0.0

    @property
    def candidates(self) -> NDArray[np.intp]:
        likely = super().candidates
        return likely[self._state.scored[likely]]

    def _loss(self) -> float:
        return 1.0 - self._recall.expected

    def gains(self, loss: float) -> NDArray[np.float64]:
        return self._search.gains()

    def recall(self) -> Recall | None:
        return self._recall
