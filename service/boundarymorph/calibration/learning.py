"""Learning a calibration from judgements, and validating it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import (
    SIMILARITY,
    WORDS,
    Calibration,
    Form,
    Gain,
    Trust,
    clip_of,
    fit,
    log_loss,
    log_odds,
    sigmoid,
)
from boundarymorph.calibration.judgments import JudgedQuery
from boundarymorph.errors import InvalidInput
from boundarymorph.reading import counted
from boundarymorph.selection.pool import BY_WORDS

NCG_AT = (5, 10, 15)  # of the gate: what can be seen of a set where about 40 documents are judged
CHANCE = 0.025  # of a gain by chance
BINS = 10
NOTABLE = 1.0  # points of nCG, below which nothing follows from a difference


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What n judged documents of a query that was left out, in retrieval order, were predicted to be, in log-odds.

    full, alone: by all evidence, and by the scorer's alone. raw: the scores themselves. targets: what they are. prior:
    by what relevance to people is without judgements, None for the scores themselves.
    """

    full: NDArray[np.float64]
    alone: NDArray[np.float64]
    raw: NDArray[np.float64]
    targets: NDArray[np.float64]
    prior: NDArray[np.float64] | None = None

    def loss(self, predicted: NDArray[np.float64]) -> float:
        """Mean log loss of predictions about these documents."""
        return float(log_loss(predicted, self.targets).mean())

    def ncg(self, key: NDArray[np.float64], k: int) -> float:
        """Gain of the k documents of the largest key, over the best that k of them can have; nan without any."""
        best = np.sort(self.targets)[::-1][:k].sum()
        return float(self.targets[np.argsort(-key, kind="stable")[:k]].sum() / best) if best > 0 else float("nan")

    def gain(self) -> float:
        """What the order by all evidence gains over that without judgements, mean of NCG_AT; nan if that cannot be
        seen."""
        sizes = [k for k in NCG_AT if k < len(self.targets)]
        before = self.raw if self.prior is None else self.prior
        gains = [self.ncg(self.full, k) - self.ncg(before, k) for k in sizes]
        return float(np.mean(gains)) if gains else float("nan")


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """The mean of a difference over `count` queries, and its standard error."""

    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> MeanDifference:
        known = np.array([difference for difference in differences if np.isfinite(difference)])
        if len(known) < 2:
            return cls(0.0, float("inf"), len(known))
        return cls(float(known.mean()), float(known.std(ddof=1) / np.sqrt(len(known))), len(known))

    def gained(self, more: int = 0) -> bool:
        """Return whether it is a gain beyond `CHANCE`, by Student's t, so that of few queries it must be larger; or
        would be with so many more queries, if mean and deviation stay."""
        from scipy.special import stdtrit

        count = self.count + more
        error = self.error * np.sqrt(self.count / count) if count else np.inf
        return bool(self.mean > 0 and self.mean >= stdtrit(max(count - 1, 1), 1.0 - CHANCE) * error)


def gate(held_out: Sequence[Predictions]) -> Form:
    """What is applied.

    All evidence, if by it log loss gains beyond chance over the scorer's alone, or nCG over the order without
    judgements, and the other does not fall. Otherwise the scorer's scale, if that gains log loss beyond chance over
    scores as they are.
    """
    loss = MeanDifference.of([query.loss(query.alone) - query.loss(query.full) for query in held_out])
    ncg = MeanDifference.of([query.gain() for query in held_out])
    if (loss.gained() and ncg.mean >= 0) or (ncg.gained() and loss.mean >= 0):
        return "signals"
    scale = MeanDifference.of([query.loss(query.raw) - query.loss(query.alone) for query in held_out])
    return "scale" if scale.gained() else "none"


def reliability(predicted: NDArray[np.float64], targets: NDArray[np.float64]) -> list[tuple[int, float, float]]:
    """(documents, mean prediction, mean of what they are) of each tenth of [0, 1] into which predictions fall."""
    tenth = np.minimum((predicted * BINS).astype(int), BINS - 1)
    return [
        (int(np.count_nonzero(here)), float(predicted[here].mean()), float(targets[here].mean()))
        for here in (tenth == number for number in range(BINS))
        if here.any()
    ]


def calibration_error(predicted: NDArray[np.float64], targets: NDArray[np.float64]) -> float:
    """The expected calibration error: how far predictions are off in the tenths of [0, 1], weighted by documents."""
    bins = reliability(predicted, targets)
    return sum(count * abs(expected - real) for count, expected, real in bins) / max(len(targets), 1)


REPORTED_AT = (5, 10, 50)
MOST_WORTHWHILE = 10  # times the judged queries: more than that will not be judged


def report_of(
    held_out: Sequence[Predictions], full: Trust, evidence: Sequence[NDArray[np.float64]], form: Form
) -> dict[str, Any]:
    """Report predictions about queries that were left out, as JSON.

    full: learned from all of them; evidence: (n, p) of each, the scorer's first; form: what is applied.

    In the report, before is scores as they are, and after what is applied, or would be. ncg: rows as of `_ncg`. error:
    the expected calibration error.
    reliability: (documents, mean prediction, share of relevant ones) by tenths. trust: shares of what decides, by
    signal. more_queries: how many more may bring the evidence, None if that is decided or beyond reach.
    """
    ncg = [row for k in REPORTED_AT if (row := _ncg(held_out, k)) is not None]
    more, gain = None, MeanDifference.of([query.gain() for query in held_out])
    if form != "signals" and gain.mean > 0 and np.isfinite(gain.error) and not gain.gained():
        more = next((more for more in range(1, MOST_WORTHWHILE * gain.count + 1) if gain.gained(more)), None)
    report: dict[str, Any] = {"ncg": ncg, "trust": _trusted(full, evidence), "more_queries": more}
    targets = np.concatenate([query.targets for query in held_out])
    for when, predictions in (
        ("before", [query.raw for query in held_out]),
        ("after", [query.full if form == "signals" else query.alone for query in held_out]),
    ):
        predicted = sigmoid(np.concatenate(predictions))
        losses = [query.loss(own) for query, own in zip(held_out, predictions, strict=True)]
        report |= {
            f"log_loss_{when}": float(np.mean(losses)),
            f"error_{when}": calibration_error(predicted, targets),
            f"reliability_{when}": reliability(predicted, targets),
        }
    return {**report, "advice": _advice(ncg, form, more)}


def _ncg(held_out: Sequence[Predictions], k: int) -> dict[str, float] | None:
    """nCG@k of judged documents by three orders, and what the calibrated one gains over the scorer's: in the mean, and
    within two standard errors of it. None where no query has more than k judged documents, some of them relevant."""
    seen = [query for query in held_out if len(query.targets) > k and query.targets.any()]
    if not seen:
        return None
    found = {
        "scorer": np.array([query.ncg(query.raw, k) for query in seen]),
        "retriever": np.array([query.ncg(-np.arange(len(query.targets), dtype=np.float64), k) for query in seen]),
        "calibrated": np.array([query.ncg(query.full, k) for query in seen]),
    }
    gain = MeanDifference.of((found["calibrated"] - found["scorer"]).tolist())
    reach = 2 * gain.error if np.isfinite(gain.error) else 1.0
    means = {name: float(values.mean()) for name, values in found.items()}
    return {"k": k, **means, "gain": gain.mean, "low": gain.mean - reach, "high": gain.mean + reach}


def _trusted(full: Trust, evidence: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    """How much of what decides comes from each signal: its weight times how far it varies over judged documents."""
    weights = {"scorer": full.slope, **full.weights}
    parts = np.abs(list(weights.values())) * np.concatenate(evidence).std(axis=0)
    shares = parts / parts.sum() if parts.any() else parts
    return dict(zip(weights, shares.tolist(), strict=True))


def _advice(ncg: Sequence[Mapping[str, float]], form: Form, more: int | None) -> str:
    if form == "signals":
        return f"{_standing(ncg)}; use the calibration"
    said = "not enough to tell; answers stay as they are"
    if form == "scale":
        said = (
            "the judgements do not improve on the order without them, which stays; relevance is now read as a "
            "probability"
        )
    if more is not None:
        queries = counted(more, "more judged query", "more judged queries")
        said += f"; about {queries} may change that"
    return f"{said}{_of_a_weak_scorer(ncg)}"


def _of_a_weak_scorer(ncg: Sequence[Mapping[str, float]]) -> str:
    """Say what follows where the scorer ranks worse than the retriever at every k, as the table shows it."""
    behind = [round(100 * row["retriever"], 1) - round(100 * row["scorer"], 1) for row in ncg]
    if min(behind, default=0.0) < NOTABLE:
        return ""
    helps = any(row["calibrated"] > row["retriever"] for row in ncg)
    instead = "use another scorer" if helps else "use another scorer, or a budget of 0"
    return f"; this scorer ranks {_points(behind)} points worse than the retriever here: {instead}"


def _points(differences: Sequence[float]) -> str:
    low, high = (f"{bound(differences):.1f}" for bound in (min, max))
    return high if low == high else f"{low} to {high}"


def _standing(ncg: Sequence[Mapping[str, float]]) -> str:
    """Say how the three orders compare, from the figures as the table shows them."""
    if not ncg:
        return "calibrated probabilities are better than the scorer's"
    shown = [{name: round(100 * row[name], 1) for name in ("scorer", "retriever", "calibrated")} for row in ncg]
    ahead = [row["scorer"] - row["retriever"] for row in shown]
    gains = [row["calibrated"] - max(row["scorer"], row["retriever"]) for row in shown]
    places = [int(row["k"]) for row in ncg]
    better, worse = _at(places, [each > 0 for each in ahead]), _at(places, [each < 0 for each in ahead])
    sides = [f"{word} than your retriever{at}" for word, at in (("better", better), ("worse", worse)) if at is not None]
    scorer = "the scorer is " + (" and ".join(sides) or "as good as your retriever")
    beaten = _at(places, [gain > 0 for gain in gains])
    if beaten is None:
        return f"{scorer}; calibrated together they do not beat the better of the two"
    points = _points([gain for gain in gains if gain > 0])
    return f"{scorer}; calibrated together they beat both{beaten} by {points} points"


def _at(places: Sequence[int], holds: Sequence[bool]) -> str | None:
    """Name the places where something holds: nothing to name if everywhere, None if nowhere."""
    if not any(holds):
        return None
    return "" if all(holds) else " at k = " + ", ".join(str(k) for k, here in zip(places, holds, strict=True) if here)


SCORER_RIDGE, SIGNAL_RIDGE, SCALE_RIDGE = 0.1, 10.0, 0.1
FOLDS = 20
FEWEST_QUERIES = 3


def learn(
    name: str,
    queries: Sequence[JudgedQuery],
    *,
    scorer: str,
    encoder: str | None,
    gain: Gain = "relevant",
    index: str | None = None,
    created: str = "",
) -> Calibration:
    """Learn from judged queries, and let `validation.gate` decide what is applied by leaving queries out.

    Raises InvalidInput if there are too few judgements to learn from.
    """
    queries = [query for query in queries if len(query)]
    _check(queries)
    learner = _Learner(queries, gain)
    everything = range(len(queries))
    full, alone = learner.full(everything), learner.alone(everything)
    held_out = list(learner.held_out())
    form = gate(held_out)
    if form == "signals" and not learner.names:
        form = "scale"
    if form == "scale" and not alone.slope:
        form = "none"  # all scores would be read as one probability
    return Calibration(
        name=name,
        form=form,
        scorer=scorer,
        encoder=encoder,
        clip=learner.clip,
        full=full,
        alone=alone,
        gain=gain,
        index=index,
        queries=len(queries),
        judgments=sum(map(len, queries)),
        created=created,
        report=report_of(held_out, full, learner.evidence, form),
    )


class _Learner:
    """Fits on some of the queries, by number. evidence: (n, p) of each, the log-odds of the scores first. prior: (p,)
    the share of each in relevance to people without judgements (`selection.trend`), that of the scorer being 1. A fit
    begins there, and the more judgements there are, the further it goes."""

    def __init__(self, queries: Sequence[JudgedQuery], gain: Gain) -> None:
        largest = max(float(query.grades.max()) for query in queries)
        self.clip = clip_of(np.concatenate([query.scores for query in queries]))
        self.names = tuple(sorted(set.intersection(*(set(query.signals) for query in queries))))
        self.evidence = [
            np.column_stack([log_odds(query.scores, self.clip), *(query.signals[name] for name in self.names)])
            for query in queries
        ]
        self._queries = queries
        self.prior = self._prior()
        self._targets = [query.targets(gain, largest) for query in queries]

    def full(self, among: Sequence[int]) -> Trust:
        """Slopes compare the documents of one query; then a scale and a level are found for all queries together."""
        evidence, targets = self._of(among)
        from_prior = np.column_stack([evidence @ self.prior, evidence[:, 1:]])
        of = np.repeat(np.arange(len(among)), [len(self._targets[number]) for number in among])
        ridges = np.array([SCORER_RIDGE, *[SIGNAL_RIDGE] * len(self.names)])
        slopes, _ = fit(from_prior, targets, ridges, queries=of)
        slopes = np.concatenate([[0.0], slopes[1:]]) + slopes[0] * self.prior
        (scale,), level = fit((evidence @ slopes)[:, None], targets, np.array([SCALE_RIDGE]), towards=1.0)
        slopes = slopes * scale
        return Trust(float(slopes[0]), level, dict(zip(self.names, slopes[1:].tolist(), strict=True)))

    def alone(self, among: Sequence[int]) -> Trust:
        """By the scores."""
        evidence, targets = self._of(among)
        (slope,), level = fit(evidence[:, :1], targets, np.array([SCORER_RIDGE]))
        return Trust(float(slope), level)

    def held_out(self) -> Iterator[Predictions]:
        """Predictions about each query by fits on the others, one query or, of many, a twentieth left out at a time."""
        count = len(self._queries)
        folds = min(count, FOLDS)
        for fold in range(folds):
            among = [number for number in range(count) if number % folds != fold]
            full, alone = self.full(among), self.alone(among)
            for number in range(fold, count, folds):
                scores, signals = self.evidence[number][:, 0], self._queries[number].signals
                yield Predictions(
                    full.log_odds(scores, signals),
                    alone.log_odds(scores, {}),
                    scores,
                    self._targets[number],
                    self.evidence[number] @ self.prior,
                )

    def _prior(self) -> NDArray[np.float64]:
        """By how far scores and words differ among the judged documents of a query."""
        within = np.concatenate([columns - columns.mean(axis=0) for columns in self.evidence])
        deviations = within.std(axis=0)
        prior = np.zeros(1 + len(self.names))
        prior[0] = 1.0
        added = fmean(query.by_witnesses for query in self._queries)
        shares = {SIMILARITY: 1.0 - BY_WORDS if WORDS in self.names else 1.0, WORDS: BY_WORDS}
        for place, name in enumerate(self.names, start=1):
            unit = deviations[place] if name == WORDS else 1.0  # a similarity is in standard deviations
            if unit > 0:
                prior[place] = added * shares.get(name, 0.0) * deviations[0] / unit
        return prior

    def _of(self, among: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        evidence = np.concatenate([self.evidence[number] for number in among])
        return evidence, np.concatenate([self._targets[number] for number in among])


def _check(queries: Sequence[JudgedQuery]) -> None:
    if len(queries) < FEWEST_QUERIES:
        raise InvalidInput(
            f"there are judgements of {counted(len(queries), 'query', 'queries')} that can be used; calibrating takes "
            f"{FEWEST_QUERIES} or more, and ten are a good number"
        )
    grades = np.concatenate([query.grades for query in queries])
    if not ((grades >= 0) & np.isfinite(grades)).all():
        raise InvalidInput("grades are numbers of 0 or more")
    if (grades > 0).all() or not (grades > 0).any():
        which = "all" if (grades > 0).all() else "none"
        raise InvalidInput(
            f"{which} of the {len(grades)} judged documents are relevant; judge relevant ones and others (--suggest)"
        )
