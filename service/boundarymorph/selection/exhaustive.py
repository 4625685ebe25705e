"""A session whose budget covers its pool: every document is scored, and there is nothing to weigh on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.session import Observation, Selection, StopReason, scores_of_asked


class ExhaustiveSession:
    """Asks for all documents in their order, and ranks them by their scores. It reads no vectors: see `Pool.listed`."""

    covered: ClassVar[bool] = True  # as of `SelectionSession`

    def __init__(self, pool: Pool, known: dict[int, float] | None = None) -> None:
        """known: scores of some documents (positions) that cost nothing."""
        self.pool = pool
        self.history: list[Observation] = []
        self.rounds = 0
        self._scores = np.full(len(pool), np.nan)
        self._left = np.ones(len(pool), dtype=np.bool_)
        self._unanswered = np.zeros(len(pool), dtype=np.bool_)
        self._asked: set[int] = set()
        for document, score in (known or {}).items():
            self._scores[document] = score

    @property
    def given_up(self) -> int:
        """Documents that were given up."""
        return int(np.count_nonzero(~self._left))

    @property
    def stop_reason(self) -> StopReason | None:
        """Why `ask` returns nothing, or None while there is something to ask."""
        return None if self._unscored.size else StopReason.POOL_EXHAUSTED

    @property
    def belief(self) -> Belief:
        """The scores; nothing is believed of the others."""
        scored = ~np.isnan(self._scores)
        return Belief(np.nan_to_num(self._scores), np.where(scored, 0.0, 1.0), scored)

    def expected_loss(self) -> float:
        """0 once everything is scored, 1 before."""
        return float(bool(self._unscored.size))

    def ask(self, n: int) -> NDArray[np.intp]:
        """Positions of the next n documents, or of all that are not scored."""
        if n < 1:
            raise InvalidInput(f"a round of {n} documents; it must be 1 or more")
        positions = self._unscored[:n]
        self._asked = set(positions.tolist())
        return positions

    def tell(self, documents: Sequence[int] | NDArray[np.intp], scores: Sequence[float] | NDArray[np.float64]) -> None:
        """Give the scores in [0, 1] of some or all documents of the last `ask`. InvalidInput changes nothing."""
        told = scores_of_asked(documents, scores, self._asked)
        self.rounds += bool(told)
        for document, score in told.items():
            self._scores[document] = score
            self.history.append(Observation(document, None, None, self.rounds, score))
        self._asked -= told.keys()

    def leave_unscored(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        """Documents of which the scorer made nothing: they come last, and are not asked again."""
        self._unanswered[np.asarray(documents, dtype=np.intp)] = True

    def give_up(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        """Leave documents out from now on."""
        self._left[np.asarray(documents, dtype=np.intp)] = False

    def ranking(self) -> Selection:
        """The scored documents, most relevant first, equal scores in the order of the pool; then those that were left
        unscored."""
        there = np.flatnonzero(self._left & (self._unanswered | ~np.isnan(self._scores)))
        documents = there[np.argsort(-np.nan_to_num(self._scores[there], nan=-1.0), kind="stable")]
        belief = self.belief
        return Selection(documents, belief.mean[documents], belief.std[documents], belief.scored[documents])

    selection = ranking

    @property
    def _unscored(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._left & np.isnan(self._scores) & ~self._unanswered)
