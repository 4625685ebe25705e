"""The state that every session keeps, and the session that scores everything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.acquisition import Choice
from boundarymorph.selection.belief import Belief, first_of_each, shared
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
    """One call: the document and its rival, the value of the rule, the round, and the score."""

    document: int
    rival: int | None
    value: float | None
    round: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The chosen set, most relevant first. All arrays have the length of the set.

    documents: positions in the pool; relevance: score or posterior mean, clipped to [0, 1]; std: posterior standard
    deviation, 0 where scored; scored: whether the cross-encoder was asked; value: relevance times the boosts, by which
    the set is then ordered, None without boosts.
    """

    documents: NDArray[np.intp]
    relevance: NDArray[np.float64]
    std: NDArray[np.float64]
    scored: NDArray[np.bool_]
    value: NDArray[np.float64] | None = None

    def at(self, places: NDArray[np.intp]) -> Selection:
        """Return the documents at these places of the set, in their order."""
        value = None if self.value is None else self.value[places]
        return Selection(self.documents[places], self.relevance[places], self.std[places], self.scored[places], value)


class BaseSession(ABC):
    """A session over a pool. Subclasses choose the documents to ask for, and hold the belief.

    while (documents := session.ask(n)).size:
        session.tell(documents, scores_of(documents))
    session.selection()
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.texts: NDArray[np.intp] | None = None
        self.scored = np.zeros(len(pool), dtype=np.bool_)  # with the copies of what was scored
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
        """About the scores of all documents, with the scores of copies."""

    @property
    @abstractmethod
    def stop_reason(self) -> StopReason | None:
        """Why `ask` returns nothing, or None while there is something to ask."""

    def ask(self, n: int = 1) -> NDArray[np.intp]:
        """Positions of the next documents to score, at most n and never more than the budget has left.

        Forgets the last `ask`, so a round that failed can be asked again.
        """
        if n < 1:
            raise InvalidInput(f"a round of {n} documents; it must be 1 or more")
        return self._name(self._choices(n) if self.stop_reason is None else [])

    @property
    @abstractmethod
    def budget_covers_pool(self) -> bool:
        """Whether the budget pays for every missing score and every score is wanted. The order of calls then matters
        only if the session is cut short."""

    @abstractmethod
    def selection(self) -> Selection:
        """The best documents that fit, under the present posterior. May be called at any time."""

    @abstractmethod
    def ranking(self) -> Selection:
        """All documents that were not given up, under the present posterior. May be called at any time."""

    @abstractmethod
    def outlook(self, enough: float = ENOUGH) -> Outlook:
        """The expected loss, the expected gain of further calls, the expected recall, and whether there is an answer.
        enough: the score of a document that answers the query."""

    def proposals(self, n: int) -> Selection:
        """Return at most n documents to read next, the most likely first, each with its probability of relevance. The
        selection is empty once the target is reached."""
        return ranked(self.open[:0], self.belief)

    @abstractmethod
    def ask_round(self, rounds: int | None = None, most: int | None = None, full: int = 1) -> NDArray[np.intp]:
        """As `ask`, for the next of `rounds` in all, or the next of rounds that grow; at most `most` documents. full:
        documents that cost what one costs."""

    def shortlist(self, n: int) -> NDArray[np.intp]:
        """At most n unscored documents that are likely to be asked soon, most likely first. Changes nothing."""
        return self.open[:n]

    def _name(self, choices: Sequence[Choice]) -> NDArray[np.intp]:
        """Make these the documents that are asked for."""
        self._asked = {choice.document: choice for choice in choices}
        return self.asked

    def tell(self, documents: Sequence[int] | NDArray[np.intp], scores: Sequence[float] | NDArray[np.float64]) -> None:
        """Give the scores in [0, 1] of some or all documents of the last `ask`. InvalidInput changes nothing."""
        given = scores_of_asked(documents, scores, self._asked.keys())
        if not given:
            return
        self.rounds += 1
        for document, score in given.items():
            choice = self._asked.pop(document)
            self.history.append(Observation(document, choice.rival, choice.value, self.rounds, score))
        self._observe(given)

    def leave_unscored(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        """Mark documents of the last `ask` that the scorer failed on. Each counts as a call. They are not asked again
        and may still be selected. InvalidInput changes nothing."""
        positions = {int(document) for document in documents}
        if not positions <= self._asked.keys():
            raise InvalidInput("only documents that the last ask named can be left unscored")
        self._unanswered |= positions
        for position in positions:
            del self._asked[position]
        self._refresh()

    def give_up(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        """Leave documents out from now on, such as deleted ones. They are neither asked nor selected, and cost nothing.
        Their scores remain evidence. InvalidInput changes nothing."""
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
        """Declare copies. texts: (N,) numbers from 0 to N - 1, equal for documents of the same text. They share one
        score, and at most one of them is asked. Pending copies are dropped from the last `ask`."""
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
        """At most n documents to score next. At least one can be asked."""

    def _mark(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        """Mark these documents, and those of the same texts, as scored."""
        self.scored[documents] = True
        if self.texts is not None:
            self.scored = np.isin(self.texts, self.texts[self.scored])

    @abstractmethod
    def _observe(self, scores: Mapping[int, float]) -> None:
        """Condition on these scores, by document."""

    @abstractmethod
    def _refresh(self) -> None:
        """Make anew what follows from scores, texts and documents that are left."""

    @property
    def _unscored(self) -> NDArray[np.intp]:
        """Positions that may still get a score: not scored, not left unscored, not given up."""
        unscored = self._left[~self.scored[self._left]]
        return unscored[~self._hopeless(unscored)] if self._unanswered else unscored

    @property
    def open(self) -> NDArray[np.intp]:
        """Positions that may still be asked: the first of each text in `_unscored`."""
        return self._unscored if self.texts is None else first_of_each(self._unscored, self.texts)

    def _hopeless(self, documents: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Mask of these documents: whether the scorer failed on their text."""
        unanswered = np.array(list(self._unanswered), dtype=np.intp)
        if self.texts is None:
            return np.isin(documents, unanswered)
        return np.isin(self.texts[documents], self.texts[unanswered])


def ranked(documents: NDArray[np.intp], belief: Belief, values: NDArray[np.float64] | None = None) -> Selection:
    """The selection of these ascending positions, by (N,) values or, without any, by relevance."""
    by = belief.mean if values is None else values
    documents = documents[np.argsort(-by[documents], kind="stable")]
    belief, value = belief.of(documents), None if values is None else values[documents]
    return Selection(documents, np.clip(belief.mean, 0.0, 1.0), belief.std, belief.scored, value)


def scores_of_asked(
    documents: Sequence[int] | NDArray[np.intp], scores: Sequence[float] | NDArray[np.float64], asked: Set[int]
) -> dict[int, float]:
    """Scores by document, in the given order. Raises InvalidInput for one outside of [0, 1], or of a document that was
    not asked."""
    values = np.asarray(scores, dtype=np.float64)
    positions = [int(document) for document in documents]
    if values.shape != (len(positions),):
        raise InvalidInput(f"{len(positions)} documents came with scores of shape {values.shape}; give one score each")
    if not set(positions) <= asked or len(set(positions)) != len(positions):
        raise InvalidInput("scores are given once, and only for documents that the last ask named")
    refuse_impossible(values)
    return dict(zip(positions, values.tolist(), strict=True))


def refuse_impossible(scores: NDArray[np.float64]) -> None:
    """Raises InvalidInput unless all lie in [0, 1]."""
    if not ((scores >= 0) & (scores <= 1)).all():
        raise InvalidInput("a score lies outside [0, 1]; apply a sigmoid to logits first")


UNKNOWN = -1.0  # relevance of unscored documents, which puts them last


class ExhaustiveSession(BaseSession):
    """Asks for all documents in their order, and ranks them by their scores. It reads no vectors: see `Pool.listed`."""

    def __init__(
        self, pool: Pool, known: Mapping[int, float] | None = None, boosts: NDArray[np.float64] | None = None
    ) -> None:
        """known: scores of some documents (positions) that cost nothing; boosts: (N,), as of `boost.Boosted`."""
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
        belief = Belief.given(np.full(count, UNKNOWN), np.ones(count), documents, values)
        return belief if self.texts is None else shared(belief, self.texts)

    def outlook(self, enough: float = ENOUGH) -> Outlook:
        """The loss is 0 once everything is scored, and 1 before."""
        return Outlook(float(bool(self._unscored.size)), {})

    def ranking(self) -> Selection:
        """Scored documents by score, or by value, ties in the order of the pool; then unscored ones."""
        belief, boosts = self.belief, self._boosts
        return ranked(
            np.setdiff1d(self._left, self._unscored), belief, None if boosts is None else boosts * belief.mean
        )

    selection = ranking

    def ask_round(self, rounds: int | None = None, most: int | None = None, full: int = 1) -> NDArray[np.intp]:
        """All that is left, in one round."""
        return self.ask(len(self.pool) if most is None else most)

    def _choices(self, n: int) -> list[Choice]:
        return [Choice(document, None, None) for document in self.open[:n].tolist()]

    def _observe(self, scores: Mapping[int, float]) -> None:
        self._scores |= scores
        self._mark(list(scores))

    def _refresh(self) -> None:
        pass
