"""One request's selection, without I/O: ask for documents to score, tell their scores, read the selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.acquisition import Acquisition, Choice, MostDoubtful, UpperConfidenceBound
from boundarymorph.selection.belief import Belief
from boundarymorph.selection.capacity import LIKELY, Capacity, DocumentCapacity, LikelyCapacity, capacity_of
from boundarymorph.selection.config import Config, SelectionConfig
from boundarymorph.selection.contest import Contest, choose_round
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.posterior import Believed

LOOK_AHEAD = 16  # rows of likely next picks that are computed in one pass
FEWEST_TO_SETTLE = 15  # scores below which the expected loss was often far off
BEST_FIRST = UpperConfidenceBound(0.0)  # for an order: what is believed best is scored next (docs/evaluation.md)
LOOK_AHEAD_FROM = 100  # known scores: before, a pass over what was computed of them costs too little to be shared


class StopReason(StrEnum):
    """Why a session asks for nothing more."""

    BUDGET = "budget"
    POOL_EXHAUSTED = "pool_exhausted"
    SETTLED = "settled"
    NOTHING_TO_DECIDE = "nothing_to_decide"


@dataclass(frozen=True, slots=True)
class Observation:
    """One call: what was asked in which round, against which rival, at what value of the rule, and the score."""

    document: int
    rival: int | None
    value: float | None
    round: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The chosen set, most relevant first. All arrays have the length of the set.

    documents: positions in the pool; relevance: score or posterior mean, clipped to [0, 1]; std: posterior standard
    deviation, 0 where scored; scored: whether the cross-encoder was asked.
    """

    documents: NDArray[np.intp]
    relevance: NDArray[np.float64]
    std: NDArray[np.float64]
    scored: NDArray[np.bool_]


class SelectionSession:
    """Algorithm 2 of the paper (alg:boundarymorph), turned inside out.

        while (documents := session.ask(n)).size:
            session.tell(documents, scores_of(documents))
        session.selection()

    `ask(1)` is the paper. `ask(n)` names n documents for one round trip by kriging believer: each is chosen as if the
    ones before it had been scored at their posterior mean.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        budget: int,
        k: int | Capacity,
        config: Config | None = None,
        known: Mapping[int, float] | None = None,
        settle: float | None = None,
        order: bool = False,
        min_relevance: float | None = None,
    ) -> None:
        """budget: B >= 0 calls. k: documents to return, or another capacity.

        known: scores of some documents (positions) that cost nothing and are believed from the start.
        settle: stop when no more than this share of the set's relevance is expected to be lost (`expected_loss`),
        once enough scores are known to tell (`informed`).
        order: spend the budget on the order of the set where every document fits into it, instead of not at all, and
        choose nothing where the budget pays for every score (`covered`).
        min_relevance: return, of k documents at most, those that are more likely than not to score at least that, and
        ask where it is in doubt.
        Raises InvalidInput.
        """
        if budget < 0:
            raise InvalidInput(f"the budget is {budget}; it must be 0 or more calls")
        known = known or {}
        _refuse_impossible(np.fromiter(known.values(), dtype=np.float64))
        self.pool = pool
        self.budget = budget
        self.capacity = capacity_of(k=k) if isinstance(k, int) else k
        if min_relevance is not None and not (
            0.0 <= min_relevance <= 1.0 and isinstance(self.capacity, DocumentCapacity)
        ):
            raise InvalidInput(f"min_relevance is {min_relevance}; it is from 0 to 1 and goes with k documents")
        self.history: list[Observation] = []
        self.rounds = 0
        self._config = config or SelectionConfig()
        self._settle = settle
        self._order = order and min_relevance is None
        self._least = min_relevance
        self._asked: dict[int, Choice] = {}
        self._left = np.arange(len(pool))  # positions of what was not given up
        self._unanswered: set[int] = set()
        calls = 0 if self._decided else min(budget, len(pool) - len(known))
        self._posterior = self._config.posterior(pool, calls + len(known))
        self._posterior.observe(list(known), list(known.values()))
        self._believe()

    @property
    def spent(self) -> int:
        """Calls told so far, and those that brought no score."""
        return len(self.history) + len(self._unanswered)

    @property
    def given_up(self) -> int:
        """Documents that were given up."""
        return len(self.pool) - len(self._left)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why `ask` returns nothing, or None while there is something to ask."""
        if self._decided:
            return StopReason.NOTHING_TO_DECIDE
        if self.spent >= self.budget:
            return StopReason.BUDGET
        if not self._unscored.size:
            return StopReason.POOL_EXHAUSTED
        settle = None if self.orders else self._settle
        if settle is not None and self.informed and self.expected_loss() <= settle:
            return StopReason.SETTLED
        return None

    @property
    def covered(self) -> bool:
        """Whether the budget pays for every score that is missing, and all of them are wanted, for the order or the
        set: what is asked first then matters only if the rest is never told."""
        settles = self._settle is not None and not self.orders
        return self._order and not settles and self.budget - self.spent >= len(self._unscored)

    @property
    def informed(self) -> bool:
        """Whether the scores known so far can say what is being missed: there are some, and they differ.

        A scorer that says no to most documents gives equal scores for a while. Nothing would then seem to be lost.
        """
        scores = self.belief.mean[self.belief.scored]
        return len(scores) >= FEWEST_TO_SETTLE and bool(scores.min() < scores.max())

    def expected_loss(self) -> float:
        """What the set is expected to miss, as a share of its expected relevance, by not knowing every score.

        Against the set of somebody who knew them all: what each document may turn out to score is taken on its own,
        without what all of them share, and of all that may come, as much as fits is the best. 0 once everything is
        scored, and where everything fits.
        """
        if self._decided or self.orders or self.belief.scored[self._left].all():
            return 0.0
        if self._doubtful is not None:
            return 1.0 - _expected_f1(self._doubtful.mean[self._left])
        shares, scores = self._posterior.beliefs.outcomes()
        left = slice(None) if len(self._left) == len(self.pool) else self._left
        best = self.capacity.best(shares[:, left], scores[:, left])
        inside = self._set()
        chosen = float((shares[:, inside] * scores[:, inside]).sum())
        return max(0.0, 1.0 - chosen / best) if best > 0 else 0.0

    def ask(self, n: int = 1) -> NDArray[np.intp]:
        """Positions of the next documents to score, at most n and never more than the budget has left.

        What was asked before and not told is given up: a round that failed may be asked anew.
        """
        if n < 1:
            raise InvalidInput(f"a round of {n} documents; it must be 1 or more")
        self._asked.clear()
        if self.stop_reason is not None:
            return np.empty(0, dtype=np.intp)
        unscored = self._unscored
        n = min(n, self.budget - self.spent, len(unscored))
        if self.covered:
            best_first = unscored[np.argsort(-self.belief.mean[unscored], kind="stable")][:n].tolist()
            choices = [Choice(document, None, None) for document in best_first]
        else:
            # What has no score counts in a round as it is believed, and its place in it is another's.
            spare = len(self._unanswered.intersection(self._left.tolist())) if self._unanswered else 0
            choices = choose_round(self._contest, self._posterior, self._rule, n + spare, self._view)
            choices = [choice for choice in choices if choice.document not in self._unanswered][:n]
        self._asked.update((choice.document, choice) for choice in choices)
        if n == 1:
            self._look_ahead(choices[0].document)
        return np.array(list(self._asked), dtype=np.intp)

    def tell(self, documents: Sequence[int] | NDArray[np.intp], scores: Sequence[float] | NDArray[np.float64]) -> None:
        """Give the scores in [0, 1] of some or all documents of the last `ask`. InvalidInput changes nothing."""
        told = scores_of_asked(documents, scores, self._asked.keys())
        if not told:
            return
        self.rounds += 1
        self._posterior.observe(list(told), list(told.values()))
        for document, score in told.items():
            choice = self._asked.pop(document)
            self.history.append(Observation(document, choice.rival, choice.value, self.rounds, score))
        self._believe()

    def leave_unscored(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        """Documents of the last `ask` of which the scorer made nothing: they are believed as before, may be selected,
        and are not asked again. Each was a call. InvalidInput changes nothing."""
        positions = {int(document) for document in documents}
        if not positions <= self._asked.keys():
            raise InvalidInput("only documents that the last ask named can be left unscored")
        self._unanswered |= positions
        for position in positions:
            del self._asked[position]

    def give_up(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        """Leave documents out from now on, such as those that exist no more: they are not asked (again) and not
        selected, and cost nothing. What was told of them before stays evidence. InvalidInput changes nothing."""
        positions = np.asarray(documents, dtype=np.intp)
        if ((positions < 0) | (positions >= len(self.pool))).any():
            raise InvalidInput(f"the pool has {len(self.pool)} documents; give up positions from 0 to one less")
        stay = ~np.isin(self._left, positions)
        if stay.all():
            return
        self.capacity = self.capacity.among(stay, taken=np.zeros_like(stay))
        self._left = self._left[stay]
        for position in positions.tolist():
            self._asked.pop(position, None)

    def selection(self) -> Selection:
        """The best documents that fit, as believed now; valid at any moment."""
        return self._ranked(self._set())

    def ranking(self) -> Selection:
        """All documents that were not given up, as believed now; valid at any moment."""
        return self._ranked(self._left)

    def shortlist(self, n: int) -> NDArray[np.intp]:
        """At most n unscored documents that are likely to be asked soon, likeliest first. Asks nothing."""
        if self.stop_reason is not None:
            return np.empty(0, dtype=np.intp)
        likely = self._rule.shortlist(*self._contest.margins, n)
        return self._left[likely]

    def _set(self) -> NDArray[np.intp]:
        """Positions of the best documents that fit, ascending."""
        left = self._left if self._reaching is None else self._left[self._reaching.mean[self._left] > LIKELY]
        if not left.size:
            return left
        belief = self.belief.of(left)
        inside = self.capacity.margin(belief.mean)[1]
        return left[self.capacity.fill(self._config.worth(belief.mean, inside, belief.scored))]

    def _ranked(self, chosen: NDArray[np.intp]) -> Selection:
        reported = self._posterior.beliefs.reported(self.belief)
        documents = chosen[np.argsort(-reported.mean[chosen], kind="stable")]
        belief = reported.of(documents)
        return Selection(documents, np.clip(belief.mean, 0.0, 1.0), belief.std, belief.scored)

    def _look_ahead(self, document: int) -> None:
        """Have the rows of likely next picks computed with that of this one."""
        pays = np.count_nonzero(self.belief.scored) >= LOOK_AHEAD_FROM and self.budget - self.spent >= 2 * LOOK_AHEAD
        if pays and not self._posterior.ready(document):
            likely = self.shortlist(LOOK_AHEAD).tolist()
            self._posterior.prepare([document, *(other for other in likely if other != document)])

    def _believe(self) -> None:
        """Read the posterior anew."""
        beliefs = self._posterior.beliefs
        self.belief = beliefs.belief()
        self._reaching = None if self._least is None else beliefs.reaching(self._least)

    @property
    def _doubtful(self) -> Belief | None:
        """What is believed of who reaches `min_relevance`, where that and not k is the boundary."""
        if self._reaching is None:
            return None
        likely = np.count_nonzero(self._reaching.mean[self._left] > LIKELY)
        return self._reaching if self.capacity.holds_all(int(likely)) else None

    def _view(self, beliefs: Believed) -> Belief:
        """The belief by which is asked."""
        return beliefs.belief() if self._least is None or self._doubtful is None else beliefs.reaching(self._least)

    @property
    def _contest(self) -> Contest:
        doubtful = self._doubtful
        if doubtful is not None:
            return Contest(doubtful, LikelyCapacity(), self._left)
        return Contest(self.belief, self.capacity, self._left)

    @property
    def _unscored(self) -> NDArray[np.intp]:
        """Positions of what may still be asked: neither scored, nor left unscored, nor given up."""
        unscored = self._left[~self.belief.scored[self._left]]
        return unscored[~np.isin(unscored, list(self._unanswered))] if self._unanswered else unscored

    @property
    def _rule(self) -> Acquisition:
        if self._doubtful is not None:
            return MostDoubtful()
        return BEST_FIRST if self.orders else self._config.acquisition

    @property
    def orders(self) -> bool:
        """Whether calls go to the order, because the set is everything."""
        return self._order and bool(self._left.size) and self.capacity.holds_all(len(self._left))

    @property
    def _decided(self) -> bool:
        if self._least is not None:
            return not self._left.size
        return not self.orders and self.capacity.nothing_to_decide(len(self._left))


def _expected_f1(shares: NDArray[np.float64]) -> float:
    """Of a set of what is more likely than not, by the (N,) probabilities; of an empty set, that it should be."""
    likely = shares > LIKELY
    if not likely.any():
        return float(np.prod(1.0 - shares))
    return float(2.0 * shares[likely].sum() / (np.count_nonzero(likely) + shares.sum()))


def scores_of_asked(
    documents: Sequence[int] | NDArray[np.intp], scores: Sequence[float] | NDArray[np.float64], asked: Set[int]
) -> dict[int, float]:
    """The scores by document, in the order told. Raises InvalidInput unless each is one in [0, 1] of an asked one."""
    values = np.asarray(scores, dtype=np.float64)
    told = [int(document) for document in documents]
    if values.shape != (len(told),):
        raise InvalidInput(f"{len(told)} documents came with scores of shape {values.shape}; give one score each")
    if not set(told) <= asked or len(set(told)) != len(told):
        raise InvalidInput("scores are told once, and only of documents that the last ask named")
    _refuse_impossible(values)
    return dict(zip(told, values.tolist(), strict=True))


def _refuse_impossible(scores: NDArray[np.float64]) -> None:
    """Raises InvalidInput unless all lie in [0, 1]."""
    if not ((scores >= 0) & (scores <= 1)).all():
        raise InvalidInput("a score lies outside [0, 1]; apply a sigmoid to logits first")
