"""The selection of one request, without I/O: ask for documents, tell their scores, read the selection."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.acquisition import (
    HEADS,
    Acquisition,
    Choice,
    Contest,
    MostDoubtful,
    MostLikely,
    UpperConfidenceBound,
    choose_round,
    equal,
    growing,
    head,
)
from boundarymorph.selection.belief import Belief, first_of_each
from boundarymorph.selection.bookkeeping import Selection, Session, StopReason, ranked, refuse_impossible
from boundarymorph.selection.capacity import (
    LIKELY,
    Capacity,
    Distinct,
    GroupedCapacity,
    LikelyCapacity,
    capacity_of,
    diverse,
)
from boundarymorph.selection.methods import Config, SelectionConfig
from boundarymorph.selection.outlook import (
    ENOUGH,
    Outlook,
    Recall,
    Search,
    Target,
    answerable_after,
    answerable_before,
    expected_f1,
    gains_of_a_set,
    gains_of_doubt,
    up_to,
    with_caution,
)
from boundarymorph.selection.pool import Evidence, Pool, ranks
from boundarymorph.selection.posterior import Believed
from boundarymorph.selection.trend import TrendPosterior

LOOK_AHEAD = 16  # rows of covariances that are computed in one pass
FEWEST_TO_SETTLE = 15  # known scores, below which the expected loss is often far off
LOOKS_TO_SETTLE = 2  # rounds in a row, as the smallest of many estimates is too small
BEST_FIRST = UpperConfidenceBound(0.0)  # for the order: score the best unscored document next (docs/evaluation.md)
LOOK_AHEAD_FROM = 100  # known scores, below which a pass is too cheap to share


class SelectionSession(Session):
    """Algorithm 2 of the paper (alg:boundarymorph), with the scorer outside.

    `ask(1)` is the paper's algorithm. `ask(n)` chooses a round of n documents by kriging believer: each is chosen
    conditional on the ones before it scoring their posterior mean.
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
        distinct: Distinct | None = None,
        negligible: float = 0.0,
        diversity: float = 0.0,
        reading: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
        enough: float = ENOUGH,
        target: Target | None = None,
        certified: bool = False,
    ) -> None:
        """budget: B >= 0 calls. k: documents to return, or another capacity.

        known: scores by position that cost no call.
        settle: stop when `cautious_loss` is at most this, at the start or after two rounds in a row, provided that
        the known scores suffice to estimate it (`enough_scores`).
        certified: whether `settle` is of a certificate (`promise`), by which a session stops after one such round.
        order: if every document fits into the set, spend the budget on their order. Otherwise such a set costs no call.
        min_relevance: return at most k documents, those with a probability above one half of scoring at least this, and
        ask about those in doubt.
        distinct: a limit on the documents of each group. Documents beyond it are not asked about.
        diversity: from 0 to 1, the weight of having little in common against relevance (`capacity.diverse`).
        negligible: leave out documents with less than this share of the best document's expected relevance.
        reading: an increasing function from [0, 1] to [0, 1] that turns scores into relevance; None for the identity.
        Asking and choosing use scores. The reported relevance, its standard deviation and `expected_loss` use the
        result of `reading`.
        enough: the score of a document that answers the query, by which it is told whether there is one.
        target: find so much of all that reaches `min_relevance`: ask for the most likely, and stop when that much is
        believed to be scored. The selection then has scored documents only.
        Raises InvalidInput.
        """
        if budget < 0:
            raise InvalidInput(f"the budget is {budget}; it must be 0 or more calls")
        known = known or {}
        refuse_impossible(np.fromiter(known.values(), dtype=np.float64))
        super().__init__(pool)
        self.budget = budget
        self.given = len(known)
        self.capacity = capacity_of(k=k) if isinstance(k, int) else k
        self._distinct = distinct
        self._negligible = negligible
        self._diversity = diversity
        if min_relevance is not None and not 0.0 <= min_relevance <= 1.0:
            raise InvalidInput(f"min_relevance is {min_relevance}; it is from 0 to 1")
        self._config = config or SelectionConfig()
        self._settle = settle
        self._certified = certified
        self._order = order and min_relevance is None
        self._least = min_relevance
        self._reading = reading
        self._enough = enough
        self._target = target
        self._different: set[float] = set()  # scores
        # What is decided now may be open again once copies are known (`same_texts`).
        self._posterior = self._config.posterior(pool, min(budget + len(known), len(pool)))
        self._observe(known)
        self._looks = [self._caution()] * LOOKS_TO_SETTLE  # what was believed at each

    @property
    def spent(self) -> int:
        """Calls so far, with those that returned no score."""
        return len(self.history) + len(self._unanswered)

    @property
    def known(self) -> int:
        """Known scores so far. Copies of a text count once."""
        return self.given + len(self.history)

    @property
    def stop_reason(self) -> StopReason | None:
        if self._decided:
            return StopReason.NOTHING_TO_DECIDE
        if self._reached:
            return StopReason.FOUND if self._unscored.size else StopReason.POOL_EXHAUSTED
        if self.spent >= self.budget:
            return StopReason.BUDGET
        if not self._unscored.size:
            return StopReason.POOL_EXHAUSTED
        needed = self._looks[-1 if self._certified else -LOOKS_TO_SETTLE :]
        return StopReason.SETTLED if self._settle is not None and max(needed) <= self._settle else None

    @property
    def budget_covers_pool(self) -> bool:
        """Whether the budget pays for every missing score and every score is wanted. The order of calls then matters
        only if the session is cut short."""
        settles = self._settle is not None and not self.spends_on_order
        return self._order and not settles and self.budget - self.spent >= len(self.open)

    @property
    def enough_scores(self) -> bool:
        """Whether the known scores suffice to estimate the loss: there are enough, and they differ.

        A scorer that rejects most documents gives equal scores for a while, and the estimated loss would be 0.
        """
        return self.known >= FEWEST_TO_SETTLE and len(self._different) > 1

    def ask_round(self, rounds: int | None = None, most: int | None = None, full: int = 1) -> NDArray[np.intp]:
        """As `ask`. If the budget pays for all, one round has them all. Of few rounds of several documents, the first
        is the `head` of the list, unless as many scores are known: choosing is no better while nothing is known.
        full: documents that cost what one costs; rounds are multiples of it, as far as the budget goes."""
        left = self.budget - self.spent
        if self.stop_reason is not None or self.budget_covers_pool:
            return self.ask(max(1, left if most is None else min(left, most)))
        size = (
            growing(self.known, left, self.budget)
            if rounds is None
            else equal(rounds, self.rounds, min(left, len(self.open)), full)
        )
        most = size if most is None else min(size, most)
        if rounds is None or rounds > HEADS or rounds >= self.budget or self.known >= size:
            return self.ask(most)
        return self._name([Choice(document, None, None) for document in head(self.pool, self.open, most).tolist()])

    def tell(self, documents: Sequence[int] | NDArray[np.intp], scores: Sequence[float] | NDArray[np.float64]) -> None:
        super().tell(documents, scores)
        self._looks.append(self._caution())

    @property
    def settles_at(self) -> float:
        """The smallest certified `settle` with which the session would stop now; infinite without one."""
        return self._looks[-1]

    def _caution(self) -> float:
        """The cautious loss; infinite as long as it does not count."""
        if self._settle is None or self.spends_on_order or not self.enough_scores:
            return math.inf
        return self.cautious_loss()

    def expected_loss(self) -> float:
        """The expected loss of the set, as a share of the relevance of the set that all scores would give.

        Documents are taken as independent (`Beliefs.prospects`, `Capacity.best`). It is 0 if all are scored or fit.
        """
        if self._decided or self.spends_on_order or self.scored[self._left].all():
            return 0.0
        if self._target is not None:
            return 1.0 - self.search.recall(self._target).expected
        if self._threshold is not None:
            return 1.0 - expected_f1(self._threshold.mean[self._at_threshold])
        shares, scores = self.outcomes(lost=True)
        best = self._limited.best(shares[:, self._present], scores[:, self._present])
        inside = self._best_of(self._likely)
        chosen = float((shares[:, inside] * scores[:, inside]).sum())
        return max(0.0, 1.0 - chosen / best) if best > 0 else 0.0

    def cautious_loss(self) -> float:
        """The expected loss `with_caution`; the expected loss itself where `min_relevance` is the boundary."""
        loss, left = self.expected_loss(), self._present
        if self._decided or self.spends_on_order or self._threshold is not None:
            return loss
        shares, scores = self.outcomes(lost=True)
        return with_caution(shares[:, left], scores[:, left], self.scored[left], self._limited, loss)

    def real_losses(self, scores: Mapping[int, float], sets: Sequence[NDArray[np.intp]]) -> list[float]:
        """What sets of the capacity lose if these are the scores of all documents but those that were given up or
        cannot be read: shares of the relevance of the best set."""
        last = SelectionSession(self.pool, budget=0, k=self.capacity, config=self._config, known=scores)
        relevance = np.zeros(len(self.pool))
        relevance[list(scores)] = last._reported.mean[list(scores)]
        best = float(np.sort(relevance)[::-1][: max(map(len, sets))].sum())
        return [max(0.0, 1.0 - float(relevance[one].sum()) / best) if best > 0.0 else 0.0 for one in sets]

    def outlook(self) -> Outlook:
        """The expected loss, the expected gain of further calls, the expected recall, and whether there is an
        answer."""
        loss = min(1.0, self.expected_loss())  # it may exceed 1 before the first scores
        return Outlook(loss, up_to(self._gains(loss), loss), self._recall(), self._answerable())

    def _gains(self, loss: float) -> NDArray[np.float64]:
        if loss == 0.0:
            return np.zeros(1)
        if self._target is not None:
            return self.search.gains()
        if self._threshold is not None:
            return gains_of_doubt(self._threshold.mean[self._at_threshold])
        (shares, scores), left = self.outcomes(), self._present
        return gains_of_a_set(shares[:, left], scores[:, left], self.scored[left], self._limited, loss)

    def _recall(self) -> Recall | None:
        """The expected recall of documents that reach `min_relevance`."""
        if self._reaching is None or self._least is None:
            return None
        if self._target is not None:
            return self.search.recall(self._target)
        shares, scores = self._posterior.beliefs.outcomes()
        reaching = (shares * (scores >= self._least)).sum(axis=0)
        reaching[self.scored] = self._reaching.mean[self.scored]
        return Recall.of(reaching[self._left], self._mask(self.selection().documents)[self._left])

    def evidence(self) -> Evidence | None:
        """What the known scores say of the prior of the trend; None for a method without one, or without scores."""
        posterior = self._posterior
        return posterior.evidence if isinstance(posterior, TrendPosterior) and self.scored.any() else None

    def _answerable(self) -> float:
        """The probability that some document scores `enough`. Copies of a text count once."""
        left = self._left if self.texts is None else first_of_each(self._left, self.texts)
        beliefs = self._posterior.beliefs
        belief = self._shared(beliefs.scoring(self._enough)).of(left)
        if self.known:
            return answerable_after(belief)
        return answerable_before(self.pool, belief.mean, beliefs.scoring(ENOUGH).mean[left])

    @property
    def search(self) -> Search:
        """What was found of what reaches `min_relevance`, which the session has."""
        assert self._reaching is not None
        reaching = self._reaching.of(self._left)
        found = np.count_nonzero(reaching.mean[reaching.scored] > LIKELY)
        return Search(int(found), reaching.mean[~reaching.scored], len(self._left))

    @property
    def _reached(self) -> bool:
        """Whether there is a target that is believed to be reached."""
        if self._target is None:
            return False
        return (self.search.recall(self._target).probability or 0.0) >= self._target.probability

    def proposals(self, n: int) -> Selection:
        """At most n documents to read next towards the target, the most likely first, each with its probability to
        reach `min_relevance`. None once the target is reached."""
        assert self._reaching is not None
        likely = self.open if not self._reached else self.open[:0]
        chosen = likely[np.argsort(-self._reaching.mean[likely], kind="stable")[:n]]
        return ranked(chosen, self._reaching)

    def give_up(self, documents: Sequence[int] | NDArray[np.intp]) -> None:
        before = self._left
        super().give_up(documents)
        if len(self._left) < len(before):
            stay = self._mask(self._left)[before]
            self.capacity = self.capacity.among(stay)
            self._find_boundary()

    def selection(self) -> Selection:
        """The best documents that fit, under the present posterior. May be called at any time."""
        documents = self._worthwhile()
        chosen = self._best_of(documents)
        if self._diversity:
            chosen = self._diverse(documents, len(chosen))
        if self._distinct is not None:
            inside, worth = self._mask(chosen)[documents], self._deciding.mean[documents]
            chosen = documents[self._distinct.with_others(inside, worth, self._groups[documents])]
        return self._ranked(chosen)

    def ranking(self) -> Selection:
        """All documents that were not given up, under the present posterior. May be called at any time."""
        return self._ranked(self._left)

    def shortlist(self, n: int) -> NDArray[np.intp]:
        """At most n unscored documents that are likely to be asked soon, most likely first. Changes nothing."""
        if self.stop_reason is not None:
            return np.empty(0, dtype=np.intp)
        contest = self._contest
        return contest.left[self._rule.shortlist(*contest.margins, n)]

    def _best_of(self, documents: NDArray[np.intp]) -> NDArray[np.intp]:
        """Ascending positions of the best of these documents that fit."""
        if not documents.size:
            return documents
        belief = self._deciding.of(documents)
        capacity = self._limited.among(self._mask(documents)[self._left])
        inside = capacity.margin(belief.mean)[1]
        places = ranks(-self.pool.scores[documents]) - 1.0
        return documents[capacity.fill(self._config.worth(belief.mean, places, inside, belief.scored))]

    @property
    def _likely(self) -> NDArray[np.intp]:
        """Positions of documents with a probability above one half of reaching `min_relevance`; of all without one."""
        return self._left if self._reaching is None else self._left[self._reaching.mean[self._left] > LIKELY]

    def _worthwhile(self) -> NDArray[np.intp]:
        """Those of `_likely` that are not negligible and, with a target, scored."""
        documents = self._likely
        if self._target is not None:
            documents = documents[self.scored[documents]]
        if self._negligible:
            means = self._reported.mean[documents]
            documents = documents[means >= self._negligible * means.max(initial=0.0)]
        return documents

    def _diverse(self, documents: NDArray[np.intp], count: int) -> NDArray[np.intp]:
        """Ascending positions of `count` diverse documents among these, from the best of each group."""
        means = self._deciding.mean
        if self._distinct is not None:
            limited = self._distinct.limited(self.capacity, self._groups[documents])
            documents = documents[limited.eligible(means[documents])]
        return np.sort(documents[diverse(self.pool.embeddings[documents], means[documents], count, self._diversity)])

    def _ranked(self, chosen: NDArray[np.intp]) -> Selection:
        if self._reading is None:
            return ranked(chosen, self._reported)
        shares, values = self.outcomes()
        mean = (shares * values).sum(axis=0)
        deviation = np.sqrt((shares * np.square(values - mean)).sum(axis=0))
        return ranked(chosen, Belief(mean, np.where(self.scored, 0.0, deviation), self.scored))

    def outcomes(self, *, lost: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(m, N) probabilities and relevances of each document's outcomes; lost: as the expected loss counts them."""
        beliefs = self._posterior.beliefs
        shares, scores = beliefs.prospects() if lost else beliefs.outcomes()
        if self.texts is not None:
            scores = np.where(self.scored, self._deciding.mean, scores)
        return shares, scores if self._reading is None else self._reading(scores)

    @property
    def _deciding(self) -> Belief:
        return self._shared(self._posterior.beliefs.deciding())

    @property
    def _reported(self) -> Belief:
        return self._shared(self._posterior.beliefs.reported())

    def _choices(self, n: int) -> list[Choice]:
        unscored = self.open
        n = min(n, self.budget - self.spent, len(unscored))
        if self.budget_covers_pool:
            best_first = unscored[np.argsort(-self.belief.mean[unscored], kind="stable")][:n].tolist()
            choices = [Choice(document, None, None) for document in best_first]
        else:
            # Documents that the scorer failed on may be chosen again; others take their places.
            spare = len(self._unanswered.intersection(self._left.tolist())) if self._unanswered else 0
            choices = choose_round(self._contest, self._posterior, self._rule, n + spare, self._view)
            choices = self._askable(choices)[:n]
        if n == 1:
            self._look_ahead(choices[0].document)
        return choices

    def _askable(self, choices: Sequence[Choice]) -> list[Choice]:
        """The choices that can be asked: one of each text, none that the scorer failed on. If there is none, any
        other."""
        places = {choice.document: choice for choice in reversed(choices)}
        named = np.array([choice.document for choice in choices], dtype=np.intp)
        named = named[self._mask(self._unscored)[named]]
        if self.texts is not None:
            named = first_of_each(named, self.texts)
        if named.size:
            return [places[document] for document in named.tolist()]
        open = self.open
        return [Choice(int(open[np.argmax(self.belief.mean[open])]), None, None)]

    def _look_ahead(self, document: int) -> None:
        """Compute the covariances of likely next choices together with those of this one."""
        pays = np.count_nonzero(self.scored) >= LOOK_AHEAD_FROM and self.budget - self.spent >= 2 * LOOK_AHEAD
        if pays and not self._posterior.ready(document):
            likely = self.shortlist(LOOK_AHEAD).tolist()
            self._posterior.prepare([document, *(other for other in likely if other != document)])

    def _observe(self, scores: Mapping[int, float]) -> None:
        self._different.update(scores.values())
        self._posterior.observe(list(scores), list(scores.values()))
        self._mark(list(scores))
        self._refresh()

    def _believed(self) -> Belief:
        return self._posterior.beliefs.belief()

    def _refresh(self) -> None:
        super()._refresh()
        self._reaching = None if self._least is None else self._shared(self._posterior.beliefs.reaching(self._least))
        self._find_boundary()

    def _find_boundary(self) -> None:
        """Set `_threshold`: the belief about reaching `min_relevance` if that is the boundary, else None."""
        fits = self._reaching is not None and self._limited.holds(self._mask(self._likely)[self._left])
        self._threshold = self._reaching if fits else None

    def _view(self, beliefs: Believed, documents: NDArray[np.intp]) -> Belief:
        """The belief about these documents that the acquisition rule sees."""
        least = None if self._threshold is None else self._least
        return self._shared(beliefs.belief() if least is None else beliefs.reaching(least), documents)

    @property
    def _contest(self) -> Contest:
        if self._threshold is not None:
            return Contest(self._threshold, LikelyCapacity(), self._at_threshold)
        return Contest(self.belief, self._limited, self._left)

    @property
    def _at_threshold(self) -> NDArray[np.intp]:
        """Positions of the documents in doubt if `min_relevance` is the boundary: the best of each group, if some of
        these are unscored."""
        limited = self._limited
        if not isinstance(limited, GroupedCapacity):
            return self._left
        best = self._left[limited.eligible(self.belief.mean[self._left])]
        return best if self._mask(best)[self._unscored].any() else self._left

    @property
    def _groups(self) -> NDArray[np.intp]:
        """(N,) numbers of the groups whose documents in the set are limited."""
        groups = None if self._distinct is None else self._distinct.groups
        if groups is None:
            groups = np.arange(len(self.pool)) if self.texts is None else self.texts
        return groups

    @property
    def _limited(self) -> Capacity:
        """The capacity with the limit on groups."""
        if self._distinct is None:
            return self.capacity
        return self._distinct.limited(self.capacity, self._groups[self._left])

    @property
    def _rule(self) -> Acquisition:
        if self._target is not None:
            return MostLikely()
        if self._threshold is not None:
            return MostDoubtful()
        return BEST_FIRST if self.spends_on_order else self._config.acquisition

    @property
    def spends_on_order(self) -> bool:
        """Whether calls are spent on the order, because every document fits."""
        return self._order and bool(self._left.size) and self._limited.holds_all(len(self._left))

    @property
    def _decided(self) -> bool:
        if self._least is not None:
            return not self._left.size
        return not self.spends_on_order and self._limited.nothing_to_decide(len(self._left))
