"""A session whose budget covers its pool: every document is scored, in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from boundarymorph.selection.acquisition import Choice
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.bookkeeping import Selection, Session, StopReason, ranked
from boundarymorph.selection.outlook import Outlook
from boundarymorph.selection.pool import Pool

UNKNOWN = -1.0  # relevance of unscored documents, which puts them last


class ExhaustiveSession(Session):
    """Asks for all documents in their order, and ranks them by their scores. It reads no vectors: see `Pool.listed`."""

    covered: ClassVar[bool] = True  # see `SelectionSession.covered`

    def __init__(self, pool: Pool, known: Mapping[int, float] | None = None) -> None:
        """known: scores of some documents (positions) that cost nothing."""
        super().__init__(pool)
        self._scores: dict[int, float] = {}
        self._observe(known or {})

    @property
    def stop_reason(self) -> StopReason | None:
        return None if self._unscored.size else StopReason.POOL_EXHAUSTED

    def outlook(self) -> Outlook:
        """The loss is 0 once everything is scored, and 1 before."""
        return Outlook(float(bool(self._unscored.size)), {})

    def ranking(self) -> Selection:
        """Scored documents by score, ties in the order of the pool; then unscored ones."""
        return ranked(np.setdiff1d(self._left, self._unscored), self.belief)

    selection = ranking

    def _choices(self, n: int) -> list[Choice]:
        return [Choice(document, None, None) for document in self.open[:n].tolist()]

    def _observe(self, scores: Mapping[int, float]) -> None:
        self._scores |= scores
        self._refresh()

    def _refresh(self) -> None:
        documents, values = np.array(list(self._scores), dtype=np.intp), np.array(list(self._scores.values()))
        count = len(self.pool)
        self.belief = self._shared(Belief.given(np.full(count, UNKNOWN), np.ones(count), documents, values))
