"""Keep the state that every session has, and define the session that scores everything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.acquisition import Choice
from boundarymorph.selection.belief import Belief, first_of_each, share_scores
from boundarymorph.selection.outlook import ENOUGH, Outlook
from boundarymorph.selection.pool import Pool


class StopReason(StrEnum):
    """Why a session asks for nothing more."""

    BUDGET = "budget"
    POOL_EXHAUSTED = "pool_exhausted"
    SETTLED = "settled"
    FOUND = "found"
    NOTHING_TO_DECIDE = "nothing_to_decide"


@dataclass(frozen=True, slots=True)
class Observation:
    """One call.

    Attributes:
        document: The position of the document.
        counterpart: The other document of the contested pair, if any.
        value: The optimum of the acquisition rule, if it applied.
        round: The number of the round, from 1.
        score: The score, in [0, 1].
    """

    document: int
    counterpart: int | None
    value: float | None
    round: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The chosen set, most relevant first, or by value if there are boosts.

    All arrays have the length of the set.

    Attributes:
        documents: Positions in the pool.
        relevance: The score or posterior mean, clipped to [0, 1].
        std: The posterior standard deviation, 0 where scored.
        scored: Whether the cross-encoder scored the document.
        value: The relevance times the boosts, by which the set is ordered; None without boosts.
    """

    documents: NDArray[np.intp]
    relevance: NDArray[np.float64]
    std: NDArray[np.float64]
    scored: NDArray[np.bool_]
    value: NDArray[np.float64] | None = None

    def subset(self, places: NDArray[np.intp]) -> Selection:
        """Return the documents at these places of the set, in the order of the places."""
        value = None if self.value is None else self.value[places]
        return Selection(self.documents[places], self.relevance[places], self.std[places], self.scored[places], value)


class BaseSession(ABC):
    """A session over a pool; subclasses choose the documents to ask for and hold the belief.

    Example:
        while (documents := session.ask(n)).size:
            session.tell(documents, scores_of(documents))
        session.selection()
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.texts: NDArray[np.intp] | None = None
        self.scored = np.zeros(len(pool), dtype=np.bool_)  # scored documents and their copies
        self.history: list[Observation] = []
        self.rounds = 0
        self._asked: dict[int, Choice] = {}
        self._left = np.arange(len(pool))  # positions that were not given up
        self._unanswered: set[int] = set()

    @property
    def given_up(self) -> int:
        """The number of documents that were given up."""
        return len(self.pool) - len(self._left)

    @property
    @abstractmethod
    def belief(self) -> Belief:
        """The belief about the scores of all documents, with the scores of copies."""

    @property
    @abstractmethod
    def stop_reason(self) -> StopReason | None:
        """Why `ask` returns nothing; None while there is something to ask."""

    def ask(self, n: int = 1) -> NDArray[np.intp]:
        """Return at most n positions of documents to score next, within the remaining budget.

        It replaces the last `ask`, so a round that failed can be asked again.
        """
        if n < 1:
            raise InvalidInput(f"a round of {n} documents; it must be 1 or more")
        return self._name(self._choices(n) if self.stop_reason is None else [])

    @property
    @abstractmethod
    def budget_covers_pool(self) -> bool:
        """Whether the budget pays for every missing score and every score is wanted.

        The order of calls then matters only if the session is cut short.
        """

    @abstractmethod
    def selection(self) -> Selection:
        """Return the best documents that fit, under the present posterior, at any time."""

    @abstractmethod
    def ranking(self) -> Selection:
        """Return all documents that were not given up, under the present posterior, at any time."""

    @abstractmethod
    def outlook(self, enough: float = ENOUGH) -> Outlook:
        """Return the loss, gains of further calls, recall, and chance of an answer, all expected.

        Args:
            enough: The least score of a document that answers the query.
        """

    def proposals(self, n: int) -> Selection:
        """Return at most n documents to read next, the most likely first.

        Their relevance is their probability of being relevant. The selection is empty once the target is reached.
        """
        return rank(self.open_documents[:0], self.belief)

    @abstractmethod
    def ask_round(self, rounds: int | None = None, most: int | None = None, full: int = 1) -> NDArray[np.intp]:
        """Return the documents of the next round, as `ask` does.

        Args:
            rounds: The number of rounds in all; None for rounds that grow.
            most: The most documents to return.
            full: The number of documents that cost as much as one.
        """

    def shortlist(self, n: int) -> NDArray[np.intp]:
        """Return at most n unscored documents that are likely to be asked soon, likeliest first.

        This changes nothing.
        """
        return self.open_documents[:n]

    def _name(self, choices: Sequence[Choice]) -> NDArray[np.intp]:
        """Make these the documents that are asked for."""
        self._asked = {choice.document: choice for choice in choices}
        return self.asked

    def tell(self, documents: Sequence[int] | NDArray[np.intp], scores: Sequence[float] | NDArray[np.float64]) -> None:
        """Pass the scores in [0, 1] of some or all documents of the last `ask`.

        Raises:
            InvalidInput: If a score is outside [0, 1] or its document was not asked; nothing changes then.
        """
        given = scores_of_asked(documents, scores, self._asked.keys())
        if not given:
            return
        self.rounds += 1
        for document, score in given.items():
            choice = self._asked.pop(document)
            self.history.append(Observation(document, choice.counterpart, choice.value, self.rounds, score))
        self._observe(given)

    def leave_unscored(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        """Mark documents of the last `ask` on which the scorer failed.

        Each counts as a call. They are not asked again and may still be selected.

        Raises:
            InvalidInput: If a document was not asked; nothing changes then.
        """
        positions = {int(document) for document in documents}
        if not positions <= self._asked.keys():
            raise InvalidInput("only documents that the last ask named can be left unscored")
        self._unanswered |= positions
        for position in positions:
            del self._asked[position]
        self._refresh()

    def give_up(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        """Leave documents out from now on, such as deleted ones.

        They are neither asked nor selected, and cost nothing. Their scores remain evidence.

        Raises:
            InvalidInput: If a position is not in the pool; nothing changes then.
        """
        positions = np.asarray(documents, dtype=np.intp)
        if ((positions < 0) | (positions >= len(self.pool))).any():
            raise InvalidInput(f"the pool has {len(self.pool)} documents; give up positions from 0 to one less")
        if not positions.size:
            return
        self._left = np.setdiff1d(self._left, positions)
        for position in positions.tolist():
            self._asked.pop(position, None)
        self._refresh()

    def same_texts(self, texts: NDArray[np.intp]) -> None:
        """Declare copies, which share one score, so that at most one of them is asked.

        Pending copies are dropped from the last `ask`.

        Args:
            texts: (N,) numbers from 0 to N - 1, equal for documents of the same text.
        """
        self.texts = texts
        self._mark(np.flatnonzero(self.scored))
        self._refresh()
        asked = first_of_each(self.asked, texts)
        asked = asked[~self.scored[asked]].tolist()
        self._asked = {document: choice for document, choice in self._asked.items() if document in asked}

    @property
    def asked(self) -> NDArray[np.intp]:
        """Positions that were asked and have no score yet."""
        return np.array(list(self._asked), dtype=np.intp)

    @abstractmethod
    def _choices(self, n: int) -> list[Choice]:
        """Return at most n documents to score next; at least one can be asked."""

    def _mark(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        """Mark these documents, and others with the same texts, as scored."""
        self.scored[documents] = True
        if self.texts is not None:
            self.scored = np.isin(self.texts, self.texts[self.scored])

    @abstractmethod
    def _observe(self, scores: Mapping[int, float]) -> None:
        """Condition on scores, by document."""

    @abstractmethod
    def _refresh(self) -> None:
        """Recompute the values that follow from scores, texts, and the documents that are left."""

    @property
    def _unscored(self) -> NDArray[np.intp]:
        """Positions that may still get a score: not scored, not left unscored, not given up."""
        unscored = self._left[~self.scored[self._left]]
        return unscored[~self._hopeless(unscored)] if self._unanswered else unscored

    @property
    def open_documents(self) -> NDArray[np.intp]:
        """Positions that may still be asked: the first of each text in `_unscored`."""
        return self._unscored if self.texts is None else first_of_each(self._unscored, self.texts)

    def _hopeless(self, documents: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return the mask of these documents on whose text the scorer failed."""
        unanswered = np.array(list(self._unanswered), dtype=np.intp)
        if self.texts is None:
            return np.isin(documents, unanswered)
        return np.isin(self.texts[documents], self.texts[unanswered])


def rank(documents: NDArray[np.intp], belief: Belief, values: NDArray[np.float64] | None = None) -> Selection:
    """Return the selection of these ascending positions, by (N,) values or else by relevance."""
    by = belief.mean if values is None else values
    documents = documents[np.argsort(-by[documents], kind="stable")]
    belief, value = belief.subset(documents), None if values is None else values[documents]
    return Selection(documents, np.clip(belief.mean, 0.0, 1.0), belief.std, belief.scored, value)


def scores_of_asked(
    documents: Sequence[int] | NDArray[np.intp], scores: Sequence[float] | NDArray[np.float64], asked: Set[int]
) -> dict[int, float]:
    """Return the scores by document, in the given order.

    Raises:
        InvalidInput: For a score outside [0, 1], and for a document that was not asked.
    """
    values = np.asarray(scores, dtype=np.float64)
    positions = [int(document) for document in documents]
    if values.shape != (len(positions),):
        raise InvalidInput(f"{len(positions)} documents came with scores of shape {values.shape}; give one score each")
    if not set(positions) <= asked or len(set(positions)) != len(positions):
        raise InvalidInput("scores are given once, and only for documents that the last ask named")
    refuse_impossible(values)
    return dict(zip(positions, values.tolist(), strict=True))


def refuse_impossible(scores: NDArray[np.float64]) -> None:
    """Check that all scores lie in [0, 1].

    Raises:
        InvalidInput: If one of them does not.
    """
    if not ((scores >= 0) & (scores <= 1)).all():
        raise InvalidInput("a score lies outside [0, 1]; apply a sigmoid to logits first")


UNKNOWN = -1.0  # the relevance of unscored documents, so that they come last


class ExhaustiveSession(BaseSession):
    """A session that asks for all documents in their order, and ranks them by their scores.

    It reads no vectors: see `Pool.from_ids`.
    """

    def __init__(
        self, pool: Pool, known: Mapping[int, float] | None = None, boosts: NDArray[np.float64] | None = None
    ) -> None:
        """Start a session.

        Args:
            pool: The N candidates.
            known: Scores by position that cost nothing.
            boosts: (N,) boosts, as in `boost.BoostedBoundary`.
        """
        super().__init__(pool)
        self._boosts = boosts
        self._scores: dict[int, float] = {}
        self._observe(known or {})

    @property
    def stop_reason(self) -> StopReason | None:
        return None if self._unscored.size else StopReason.POOL_EXHAUSTED

    budget_covers_pool = True

    @property
    def belief(self) -> Belief:
        documents, values = np.array(list(self._scores), dtype=np.intp), np.array(list(self._scores.values()))
        count = len(self.pool)
        belief = Belief.from_observations(np.full(count, UNKNOWN), np.ones(count), documents, values)
        return belief if self.texts is None else share_scores(belief, self.texts)

    def outlook(self, enough: float = ENOUGH) -> Outlook:
        """Return a loss of 0 once everything is scored, and of 1 before."""
        return Outlook(float(bool(self._unscored.size)), {})

    def ranking(self) -> Selection:
        """Return scored documents by score or value, then unscored ones.

        Ties go by the order of the pool.
        """
        belief, boosts = self.belief, self._boosts
        return rank(np.setdiff1d(self._left, self._unscored), belief, None if boosts is None else boosts * belief.mean)

    selection = ranking

    def ask_round(self, rounds: int | None = None, most: int | None = None, full: int = 1) -> NDArray[np.intp]:
        """Return all documents that are left, in one round."""
        return self.ask(len(self.pool) if most is None else most)

    def _choices(self, n: int) -> list[Choice]:
        return [Choice(document, None, None) for document in self.open_documents[:n].tolist()]

    def _observe(self, scores: Mapping[int, float]) -> None:
        self._scores |= scores
        self._mark(list(scores))

    def _refresh(self) -> None:
        pass
