"""Several queries, one set, one budget: calls go to the pairs of query and document that may change the set most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.acquisition import cutoff
from boundarymorph.selection.bookkeeping import Selection, StopReason
from boundarymorph.selection.capacity import DocumentCapacity
from boundarymorph.selection.outlook import Outlook, up_to
from boundarymorph.selection.rounds import FIRST
from boundarymorph.selection.session import SelectionSession

ABSENT = -1
WORTHLESS = -1.0  # less than the worth of any pair that can be asked


@dataclass(frozen=True, slots=True, eq=False)
class JointSelection:
    """selection: the set, positions counted over the documents of all queries. leading: (k,) the query that each
    document answers best; relevance: (Q, k) to each query, NaN for one that did not find the document."""

    selection: Selection
    leading: NDArray[np.intp]
    relevance: NDArray[np.float64]


class JointSession:
    """Sessions of Q queries, told by the caller. The relevance of a document is its relevance to the query that it
    answers best.

    A document's relevance to a query counts times the query's weight. While a query has few scores, its own session
    asks. Later all pairs of a query and a document compete: each is worth the change of the set that its score is
    expected to make, everything else as now expected.
    """

    def __init__(
        self,
        sessions: Sequence[SelectionSession],
        ids: Sequence[str],
        *,
        budget: int,
        k: int,
        weights: Sequence[float] | None = None,
        order: bool = False,
    ) -> None:
        """ids: D, of all documents of the sessions' pools. budget: calls for all sessions together. weights: (Q,) up to
        1. order: if every document fits into the set, spend the budget on their order. Otherwise such a set costs no
        call."""
        self.sessions = sessions
        self.budget = budget
        self.rounds = 0
        self._k, self._order = k, order
        self._weights = np.ones(len(sessions)) if weights is None else np.asarray(weights, dtype=np.float64)
        row = {id: place for place, id in enumerate(ids)}
        self.places = [np.array([row[id] for id in session.pool.ids], dtype=np.intp) for session in sessions]
        self._at = np.full((len(sessions), len(row)), ABSENT)  # positions in the pools
        for at, places in zip(self._at, self.places, strict=True):
            at[places] = np.arange(len(places))

    @property
    def spent(self) -> int:
        """Calls so far."""
        return sum(session.spent for session in self.sessions)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why `ask` returns nothing, or None while there is something to ask."""
        if self._k >= len(self._there) and not self._order:
            return StopReason.NOTHING_TO_DECIDE
        if self.spent >= self.budget:
            return StopReason.BUDGET
        return None if any(session.open.size for session in self.sessions) else StopReason.POOL_EXHAUSTED

    def ask(self, n: int) -> list[NDArray[np.intp]]:
        """Positions of the next documents to score in the pool of each session, at most n, or as many as all sessions
        need to begin; never more than the budget has left. Tell the sessions before the next `ask`."""
        left = self.budget - self.spent
        asked = [np.empty(0, dtype=np.intp) for _ in self.sessions]
        if self.stop_reason is not None:
            return asked
        if any(not session.known and session.open.size for session in self.sessions):
            each = min(FIRST, max(1, left // len(self.sessions)))
            for number in np.argsort(-self._weights, kind="stable").tolist():
                asked[number] = self.sessions[number].ask(min(each, left)) if left else asked[number]
                left -= len(asked[number])
            if any(documents.size for documents in asked):
                return asked
        worth = self._worth()
        queries, documents = np.unravel_index(np.argsort(-worth, axis=None, kind="stable")[: min(n, left)], worth.shape)
        there = worth[queries, documents] > WORTHLESS
        for number, session in enumerate(self.sessions):
            chosen = documents[there & (queries == number)]
            asked[number] = session.ask_for(self._at[number, chosen], worth[number, chosen])
        return asked

    def selection(self) -> JointSelection:
        """The k best documents, as believed now."""
        relevance, deviations, scored = self._believed()
        there = self._there
        weighted = relevance * self._weights[:, None]
        best = weighted.max(axis=0)
        chosen = there[np.argsort(-best[there], kind="stable")[: self._k]]
        leading = weighted[:, chosen].argmax(axis=0)
        return JointSelection(
            Selection(
                chosen, best[chosen], deviations[leading, chosen] * self._weights[leading], scored[leading, chosen]
            ),
            leading,
            np.where(self._at != ABSENT, relevance, np.nan)[:, chosen],
        )

    def outlook(self) -> Outlook:
        """As `SelectionSession.outlook`, by the outcomes of each document for the query that it answers best."""
        if self._k >= len(self._there) or not any(session.open.size for session in self.sessions):
            return Outlook(0.0, {})
        there, weighted = self._there, self._believed()[0] * self._weights[:, None]
        best, leading = weighted.max(axis=0), weighted.argmax(axis=0)
        outcomes = [session.outcomes() for session in self.sessions]
        shares = np.zeros((max(len(of[0]) for of in outcomes), len(best)))
        values = shares.copy()
        for number, (places, (shares_of, values_of)) in enumerate(zip(self.places, outcomes, strict=True)):
            led = leading[places] == number
            shares[: len(shares_of), places[led]] = shares_of[:, led]
            values[: len(values_of), places[led]] = values_of[:, led] * self._weights[number]
        possible = DocumentCapacity(self._k).best(shares[:, there], values[:, there])
        chosen = float(np.sort(best[there])[-self._k :].sum())
        loss = min(1.0, max(0.0, 1.0 - chosen / possible)) if possible > 0 else 0.0
        worth = np.maximum(self._worth(), 0.0)
        gains = np.cumsum(-np.sort(-worth, axis=None)) / possible if possible > 0 else np.zeros(1)
        return Outlook(loss, up_to(gains, loss))

    @property
    def _there(self) -> NDArray[np.intp]:
        """Positions of the documents that no session gave up."""
        there = np.ones(self._at.shape[1], dtype=np.bool_)
        for places, session in zip(self.places, self.sessions, strict=True):
            there[places] &= np.isin(np.arange(len(places)), session.left)
        return np.flatnonzero(there)

    def _believed(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """(Q, D) relevance, its standard deviation and whether it was scored; 0 where a query did not find the
        document."""
        shape = self._at.shape
        relevance, deviations, scored = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.bool_)
        for number, (places, session) in enumerate(zip(self.places, self.sessions, strict=True)):
            ranking = session.ranking()
            at = places[ranking.documents]
            relevance[number, at], deviations[number, at] = ranking.relevance, ranking.std
            scored[number, at] = ranking.scored
        return relevance, deviations, scored

    def _worth(self) -> NDArray[np.float64]:
        """(Q, D) what each pair's score is expected to change about the set's relevance; where every document fits, its
        expected relevance; WORTHLESS for a pair that cannot be asked."""
        weighted = self._believed()[0] * self._weights[:, None]
        there = self._there
        best = weighted.max(axis=0)
        inside, orders = np.zeros(len(best), dtype=np.bool_), self._k >= len(there)
        inside[there[np.argsort(-best[there], kind="stable")[: self._k]]] = True
        cut = 0.0 if orders else cutoff(best[there], inside[there])
        worth = np.full(weighted.shape, WORTHLESS)
        for number, (places, session) in enumerate(zip(self.places, self.sessions, strict=True)):
            open = np.intersect1d(session.open, np.flatnonzero(np.isin(places, there)))
            at = places[open]
            if orders:
                worth[number, at] = weighted[number, at]
                continue
            shares, values = (part[:, open] for part in session.outcomes())
            others = np.delete(weighted[:, at], number, axis=0).max(axis=0, initial=0.0)
            above = np.maximum(values * self._weights[number], others) - cut
            worth[number, at] = (shares * np.maximum(np.where(inside[at], -above, above), 0.0)).sum(axis=0)
        return worth
