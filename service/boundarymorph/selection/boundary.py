"""Boundaries: which documents compete for the set, which are in it, and what it is expected to miss.

A boundary is a wish and never changes. Which rule asks next depends on the scores so far, so a boundary divides each
state of a session anew: a `Division` has the contest, the rule, the expected loss and the chosen documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.acquisition import Acquisition, Contest, MostDoubtful, MostLikely, UpperConfidenceBound
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.capacity import LIKELY, Capacity, LikelyCapacity, Limit
from boundarymorph.selection.methods import Config
from boundarymorph.selection.outlook import Recall, Search, expected_f1, gains_of_a_set, gains_of_doubt, with_caution
from boundarymorph.selection.posterior import Believed
from boundarymorph.selection.state import State

BEST_FIRST = UpperConfidenceBound(0.0)  # for the order: score the best unscored document next (docs/results.md)
Finish: TypeAlias = Callable[
    [Capacity, NDArray[np.bool_], NDArray[np.floating], NDArray[np.intp], NDArray[np.float64]], NDArray[np.bool_]
]


class Boundary(Protocol):
    """A wish for a set."""

    def division(self, state: State) -> Division:
        """What it means for the documents as they are known now."""


def as_chosen(
    capacity: Capacity,
    chosen: NDArray[np.bool_],
    vectors: NDArray[np.floating],
    documents: NDArray[np.intp],
    relevance: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Leave the chosen documents as they are."""
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The best documents that fit.

    Attributes:
        limit: How many documents fit.
        method: Its acquisition rule asks, and its worth chooses.
        negligible: Documents with less than this share of the best document's expected relevance are left out.
        finish: Turns the (n,) mask of the chosen among n documents into that of the returned ones, given the capacity,
            the (N, d) vectors of the pool, the n positions and their (n,) relevance.
    """

    limit: Limit
    method: Config
    negligible: float = 0.0
    finish: Finish = as_chosen

    def division(self, state: State) -> Division:
        return Division(self, state)


@dataclass(frozen=True, slots=True)
class Ordered:
    """The best documents, and their order: if all of them fit, calls go to it."""

    within: Best

    def division(self, state: State) -> Division:
        of_set = WholeOrder(self.within, state)
        fit = state.left.size and of_set.capacity.holds_all(len(state.left))
        return OfOrder(self.within, state) if fit else of_set


@dataclass(frozen=True, slots=True)
class Threshold:
    """Of the best documents those that are more likely than not to score at least `least`. If more of them are likely
    than fit, the boundary is that of the best; else calls go to the documents in doubt. Raises InvalidInput."""

    within: Best
    least: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.least <= 1.0:
            raise InvalidInput(f"min_relevance is {self.least}; it is from 0 to 1")

    def division(self, state: State) -> Division:
        above = Above(self.within, state, self.least)
        fit = above.capacity.holds(state.mask(above.candidates)[state.left])
        return InDoubt(self.within, state, self.least, above.reaching) if fit else above


@dataclass(frozen=True, slots=True)
class Find:
    """This share, above 0 and up to 1, of all documents that score at least `least`. Calls go to the most likely. The
    set has scored documents only."""

    within: Best
    least: float
    share: float

    def division(self, state: State) -> Division:
        return Searched(self.within, state, self.least, self.share)


class Division:
    """A state of a session, divided into the best documents that fit and all others."""

    of_order: ClassVar[bool] = False  # whether calls are spent on the order, because every document fits
    wants_all: ClassVar[bool] = False  # whether every score is of use
    found: float = 0.0  # the probability that the target is reached

    def __init__(self, boundary: Best, state: State) -> None:
        self._boundary, self._state = boundary, state
        texts = np.arange(len(state.pool)) if state.texts is None else state.texts
        self.capacity = boundary.limit.at(state.mask(state.left), texts)  # of the documents that are left

    @property
    def decided(self) -> bool:
        """Whether no score can change the set."""
        return self.capacity.nothing_to_decide(len(self._state.left))

    @property
    def rule(self) -> Acquisition:
        return self._boundary.method.acquisition

    @cached_property
    def contest(self) -> Contest:
        """What competes, as the rule sees it."""
        return Contest(self._state.belief, self.capacity, self._state.left)

    def view(self, beliefs: Believed, documents: NDArray[np.intp]) -> Belief:
        """The belief about these documents that the rule sees."""
        return self._state.valued(beliefs.belief(), documents)

    def values(self, relevance: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """As `State.values`."""
        return self._state.values(relevance)

    @property
    def candidates(self) -> NDArray[np.intp]:
        """Ascending positions of the documents that may be in the set."""
        return self._state.left

    def loss(self) -> float:
        """The expected loss of the set, as a share of the relevance of the set that all scores would give."""
        nothing_open = self.decided or self._state.scored[self._state.left].all()
        return 0.0 if nothing_open else self._loss()

    def _loss(self) -> float:
        """Documents are taken as independent (`Beliefs.prospects`, `Capacity.best`)."""
        shares, scores = self._state.outcomes(lost=True)
        best = self.capacity.best(shares[:, self._state.present], scores[:, self._state.present])
        inside = self._inside(self.candidates)
        chosen = float((shares[:, inside] * scores[:, inside]).sum())
        return max(0.0, 1.0 - chosen / best) if best > 0 else 0.0

    def cautious_loss(self) -> float:
        """The expected loss `with_caution`; the expected loss itself where the boundary is not that of a full set."""
        loss, left = self.loss(), self._state.present
        if self.decided:
            return loss
        shares, scores = self._state.outcomes(lost=True)
        return with_caution(shares[:, left], scores[:, left], self._state.scored[left], self.capacity, loss)

    def gains(self, loss: float) -> NDArray[np.float64]:
        """The expected gains of 1, 2, ... further calls."""
        (shares, scores), left = self._state.outcomes(), self._state.present
        return gains_of_a_set(shares[:, left], scores[:, left], self._state.scored[left], self.capacity, loss)

    def recall(self) -> Recall | None:
        """The expected recall of documents that reach a threshold, if there is one."""
        return None

    def chosen(self) -> NDArray[np.intp]:
        """Ascending positions of the documents to return."""
        means = np.maximum(self._state.reported.mean[self.candidates], 0.0)
        documents: NDArray[np.intp] = self.candidates[means >= self._boundary.negligible * means.max(initial=0.0)]
        if not documents.size:
            return documents
        inside, relevance = self._state.mask(self._inside(documents))[documents], self._state.deciding.mean[documents]
        capacity = self._among(documents)
        inside = self._boundary.finish(capacity, inside, self._state.pool.embeddings, documents, relevance)
        return documents[capacity.with_others(inside, relevance)]

    def _among(self, documents: NDArray[np.intp]) -> Capacity:
        return self.capacity.among(self._state.mask(documents)[self._state.left])

    def _inside(self, documents: NDArray[np.intp]) -> NDArray[np.intp]:
        """Ascending positions of the best of these documents that fit."""
        if not documents.size:
            return documents
        capacity = self._among(documents)
        inside = capacity.margin(self._state.deciding.mean[documents])[1]
        return documents[capacity.fill(self._state.worth(self._boundary.method, documents, inside))]


class WholeOrder(Division):
    """As `Division`, where every score is of use for the order."""

    wants_all = True


class OfOrder(WholeOrder):
    """All documents fit, and calls are spent on their order."""

    of_order = True
    decided = False
    rule = BEST_FIRST

    def _loss(self) -> float:
        return 0.0

    def cautious_loss(self) -> float:
        return 0.0


class Above(Division):
    """As `Division`, of the documents that are likely to reach a threshold, of which more are likely than fit."""

    def __init__(self, boundary: Best, state: State, least: float, reaching: Belief | None = None) -> None:
        super().__init__(boundary, state)
        self._least = least
        self.reaching = state.shared(state.beliefs.reaching(least)) if reaching is None else reaching

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
        return Recall.of(reaching[state.left], state.mask(self.chosen())[state.left])


class InDoubt(Above):
    """All likely documents fit: the threshold is the boundary."""

    rule: ClassVar[Acquisition] = MostDoubtful()

    @cached_property
    def contest(self) -> Contest:
        return Contest(self.reaching, LikelyCapacity(), self._competing)

    def view(self, beliefs: Believed, documents: NDArray[np.intp]) -> Belief:
        return self._state.shared(beliefs.reaching(self._least), documents)

    def _loss(self) -> float:
        return 1.0 - expected_f1(self.reaching.mean[self._competing])

    def cautious_loss(self) -> float:
        return self.loss()

    def gains(self, loss: float) -> NDArray[np.float64]:
        return gains_of_doubt(self.reaching.mean[self._competing])

    @property
    def _competing(self) -> NDArray[np.intp]:
        """Positions of the documents in doubt: the best of each group, if some of these are unscored."""
        left = self._state.left
        if not self.capacity.by_groups:
            return left
        best = left[self.capacity.eligible(self._state.belief.mean[left])]
        return best if self._state.mask(best)[self._state.unscored].any() else left


class Searched(InDoubt):
    """A search for all documents that reach a threshold, the most likely first."""

    rule = MostLikely()

    def __init__(self, boundary: Best, state: State, least: float, share: float) -> None:
        super().__init__(boundary, state, least)
        reaching = self.reaching.of(state.left)
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
