"""Asking ahead: where a batched call costs hardly more than a single one, fewer trips for exactly the same picks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection import Selection, SelectionSession
from boundarymorph.selection.bookkeeping import scores_of_asked


class SpeculativeSession:
    """A session asked one document at a time, whose likely next picks travel along.

        while (documents := speculative.ask()).size:
            speculative.tell(documents, score(documents))
        selection = speculative.selection()

    Scores that the session has not asked for yet are held back; they enter when it does ask, or never. So its picks,
    their order and the set are those of a session without speculation, whatever is guessed. Unlike rounds of several
    documents this costs no quality but calls: `scored` of them are made, of which only `session.spent` are believed.
    """

    def __init__(self, session: SelectionSession, width: int) -> None:
        """session: whose asking is left to this object from now on; width: documents a trip. Raises InvalidInput."""
        if width < 1:
            raise InvalidInput(f"a trip of {width} documents; it must be 1 or more")
        self.session = session
        self.width = width
        self.trips = 0
        self.scored = 0
        self._held: dict[int, float] = {}
        self._asked: set[int] = set()

    def ask(self) -> NDArray[np.intp]:
        """Positions to score in one trip: the next pick, then the likeliest ones after it, at most `width` and never
        more than picks are left. None of them was scored before. What was not told is given up."""
        pick = self.session.ask(1)
        extra = min(self.width, self.session.budget - self.session.spent) - 1
        if pick.size and extra > 0:
            likely = self.session.shortlist(1 + extra + len(self._held))
            known = {int(pick[0]), *self._held}
            ahead = [document for document in likely.tolist() if document not in known][:extra]
            pick = np.concatenate([pick, np.array(ahead, dtype=np.intp)])
        self._asked = set(pick.tolist())
        return pick

    def tell(self, documents: Sequence[int] | NDArray[np.intp], scores: Sequence[float] | NDArray[np.float64]) -> None:
        """Give the scores in [0, 1] of some or all documents of the last `ask`; every pick that they decide is made.
        InvalidInput changes nothing."""
        told = scores_of_asked(documents, scores, self._asked)
        if not told:
            return
        self.trips += 1
        self.scored += len(told)
        self._asked -= told.keys()
        self._held |= told
        while (pick := self.session.ask(1)).size and int(pick[0]) in self._held:
            self.session.tell(pick, [self._held.pop(int(pick[0]))])

    def selection(self) -> Selection:
        """As of the session: scores that are only held do not count."""
        return self.session.selection()
