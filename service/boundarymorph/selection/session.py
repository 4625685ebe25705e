"""Run the selection of one request, without I/O: ask for documents, tell their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.acquisition import HEADS, Choice, choose_round, equal_round_size, growing_round_size, head
from boundarymorph.selection.belief import Belief, first_of_each
from boundarymorph.selection.bookkeeping import BaseSession, Selection, StopReason, rank, refuse_impossible
from boundarymorph.selection.boundary import BestBoundary, Boundary
from boundarymorph.selection.capacity import DocumentCapacity
from boundarymorph.selection.methods import METHODS, PAPER, Config
from boundarymorph.selection.outlook import ENOUGH, Outlook, answerable_after, answerable_before, gains_by_calls
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.posterior import Posterior
from boundarymorph.selection.state import Reading, State
from boundarymorph.selection.stop import Budget

LOOK_AHEAD = 16  # rows of covariances that are computed in one pass
LOOK_AHEAD_FROM = 100  # with fewer known scores a pass is too cheap to share
FEWEST_TO_STOP = 15  # with fewer known scores the expected loss is often far off


class Session(BaseSession):
    """Algorithm 2 of the paper (alg:boundarymorph), with the scorer outside.

    `ask(1)` is the paper's algorithm. `ask(n)` chooses a round of n documents by kriging believer: each is chosen as if
    the ones before it had scored their posterior mean.
    """

    def __init__(
        self,
        pool: Pool,
        posterior: Posterior,
        boundary: Boundary,
        stop: Budget,
        *,
        known: Mapping[int, float] | None = None,
        reading: Reading | None = None,
    ) -> None:
        """Start a session.

        Args:
            pool: The N candidates.
            posterior: A posterior over the pool, without scores, with space for all scores that may come.
            boundary: The definition of the set.
            stop: The rule that ends the calls.
            known: Scores by position that cost no call.
            reading: Maps scores to relevance. Asking and choosing use scores. The reported relevance, its standard
                deviation and the expected loss use relevance.

        Raises:
            InvalidInput: If a known score lies outside [0, 1].
        """
        known = known or {}
        refuse_impossible(np.fromiter(known.values(), dtype=np.float64))
        super().__init__(pool)
        self._posterior, self._boundary, self._stop, self._reading = posterior, boundary, stop, reading
        self._given = len(known)
        self._different: set[float] = set()  # the different scores so far
        self._observe(known)
        self._looks = [self._look()]

    @classmethod
    def create(
        cls,
        pool: Pool,
        *,
        budget: int,
        k: int,
        method: Config = METHODS[PAPER],
        known: Mapping[int, float] | None = None,
    ) -> Session:
        """Return a session for the best k documents with a fixed budget, by default the paper's."""
        posterior = method.posterior(pool, min(budget + len(known or ()), len(pool)))
        return cls(pool, posterior, BestBoundary(DocumentCapacity(k), method), Budget(budget), known=known)

    @property
    def budget(self) -> int:
        return self._stop.calls

    @property
    def spent(self) -> int:
        """The number of calls so far, with those that returned no score."""
        return len(self.history) + len(self._unanswered)

    @property
    def observation_count(self) -> int:
        """The number of known scores. Copies of a text count once."""
        return self._given + len(self.history)

    @property
    def stop_reason(self) -> StopReason | None:
        return self._stop.reason(self._division, self.spent, len(self._unscored), self._looks)

    @property
    def budget_covers_pool(self) -> bool:
        wanted = self._division.wants_all and self._stop.spends_all(self._division)
        return wanted and self.budget - self.spent >= len(self.open_documents)

    @property
    def enough_scores(self) -> bool:
        """Whether the known scores are enough, and differ enough, to estimate the loss.

        A scorer that rejects most documents gives equal scores for a while, and the estimated loss would be 0.
        """
        return self.observation_count >= FEWEST_TO_STOP and len(self._different) > 1

    def ask_round(self, rounds: int | None = None, most: int | None = None, full: int = 1) -> NDArray[np.intp]:
        """Return the documents of the next round, as `ask` does.

        If the budget pays for all documents, one round has them all. If there are few rounds of several documents, the
        first is the `head` of the list, unless the session knows as many scores: choosing is no better without scores.

        Args:
            rounds: The number of rounds in all; None for rounds that grow.
            most: The most documents to return.
            full: The number of documents that cost as much as one. The size of a round is a multiple of it, within the
                budget.
        """
        left = self.budget - self.spent
        if self.stop_reason is not None or self.budget_covers_pool:
            return self.ask(max(1, left if most is None else min(left, most)))
        size = (
            growing_round_size(self.observation_count, left, self.budget)
            if rounds is None
            else equal_round_size(rounds, self.rounds, min(left, len(self.open_documents)), full)
        )
        most = size if most is None else min(size, most)
        if rounds is None or rounds > HEADS or rounds >= self.budget or self.observation_count >= size:
            return self._name(self._choices(most))
        first = head(self.pool, self.open_documents, most).tolist()
        return self._name([Choice(document, None, None) for document in first])

    def tell(self, documents: Sequence[int] | NDArray[np.intp], scores: Sequence[float] | NDArray[np.float64]) -> None:
        super().tell(documents, scores)
        self._looks.append(self._look())

    def expected_loss(self) -> float:
        """Return the expected loss of the set, a share of the best set's relevance.

        The best set is the one that all scores would give. The loss is 0 if all documents are scored or fit.
        """
        return self._division.loss()

    def cautious_loss(self) -> float:
        """Return the expected loss plus three of its standard deviations."""
        return self._division.cautious_loss()

    def outlook(self, enough: float = ENOUGH) -> Outlook:
        loss = min(1.0, self.expected_loss())  # it may exceed 1 before the first scores
        gains = self._division.gains(loss) if loss else np.zeros(1)
        return Outlook(loss, gains_by_calls(gains, loss), self._division.recall(), self._answerable(enough))

    def proposals(self, n: int) -> Selection:
        likely = self.open_documents[:0] if self.stop_reason is StopReason.FOUND else self.open_documents
        belief = self._division.competition.belief
        return rank(likely[np.argsort(-belief.mean[likely], kind="stable")[:n]], belief)

    def selection(self) -> Selection:
        return self._ranked(self._division.chosen())

    def ranking(self) -> Selection:
        return self._ranked(self._left)

    def _ranked(self, documents: NDArray[np.intp]) -> Selection:
        belief = self.state.read()
        return rank(documents, belief, self._division.values(belief.mean))

    def shortlist(self, n: int) -> NDArray[np.intp]:
        if self.stop_reason is not None:
            return np.empty(0, dtype=np.intp)
        competition = self._division.competition
        return competition.left[self._division.rule.shortlist(*competition.margins, n)]

    def _choices(self, n: int) -> list[Choice]:
        unscored = self.open_documents
        n = min(n, self.budget - self.spent, len(unscored))
        if self.budget_covers_pool:
            mean = self._division.competition.belief.mean
            best_first = unscored[np.argsort(-mean[unscored], kind="stable")][:n]
            choices = [Choice(document, None, None) for document in best_first.tolist()]
        else:
            # Documents on which the scorer failed may be chosen again; others take their places.
            spare = len(self._unanswered.intersection(self._left.tolist())) if self._unanswered else 0
            division = self._division
            choices = choose_round(division.competition, self._posterior, division.rule, n + spare, division.view)
            choices = self._askable(choices)[:n]
        if n == 1:
            self._look_ahead(choices[0].document)
        return choices

    def _askable(self, choices: Sequence[Choice]) -> list[Choice]:
        """Return one choice of each text, without texts on which the scorer failed.

        If no choice is left, return any other document.
        """
        places = {choice.document: choice for choice in reversed(choices)}
        named = np.array([choice.document for choice in choices], dtype=np.intp)
        named = named[self.state.mask(self.state.unscored)[named]]
        if self.texts is not None:
            named = first_of_each(named, self.texts)
        if named.size:
            return [places[document] for document in named.tolist()]
        others = self.open_documents
        return [Choice(int(others[np.argmax(self.belief.mean[others])]), None, None)]

    def _look_ahead(self, document: int) -> None:
        """Compute the covariance of likely next choices together with this document's."""
        pays = np.count_nonzero(self.scored) >= LOOK_AHEAD_FROM and self.budget - self.spent >= 2 * LOOK_AHEAD
        if pays and not self._posterior.is_ready(document):
            likely = self.shortlist(LOOK_AHEAD).tolist()
            self._posterior.prepare([document, *(other for other in likely if other != document)])

    def _look(self) -> float:
        return self._stop.look(self._division, enough_scores=self.enough_scores)

    def _answerable(self, enough: float) -> float:
        """Return the probability that some document scores `enough`; copies count once."""
        left = self._left if self.texts is None else first_of_each(self._left, self.texts)
        beliefs = self._posterior.beliefs
        belief = self.state.share_scores(beliefs.scorer_belief(enough)).subset(left)
        if self.observation_count:
            return answerable_after(belief)
        return answerable_before(self.pool, belief.mean, beliefs.scorer_belief(ENOUGH).mean[left])

    def _observe(self, scores: Mapping[int, float]) -> None:
        self._different.update(scores.values())
        self._posterior.observe(list(scores), list(scores.values()))
        self._mark(list(scores))
        self._refresh()

    def _refresh(self) -> None:
        self.state = State(
            self.pool, self._posterior, self.scored, self.texts, self._left, self._unscored, self._reading
        )
        self._division = self._boundary.division(self.state)

    @property
    def belief(self) -> Belief:
        return self.state.belief
