"""Learning a calibration from judged queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Calibration, Gain, Trust
from boundarymorph.calibration.judgments import JudgedQuery
from boundarymorph.calibration.logistic import SIMILARITY, WORDS, clip_of, fit, log_odds
from boundarymorph.calibration.validation import Predictions, gate, report_of
from boundarymorph.errors import InvalidInput
from boundarymorph.selection.pool import BY_WORDS
from boundarymorph.selection.trend import READ_BY_WITNESSES

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
        self.prior = self._prior()
        self._queries = queries
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
        shares = {SIMILARITY: 1.0 - BY_WORDS if WORDS in self.names else 1.0, WORDS: BY_WORDS}
        for place, name in enumerate(self.names, start=1):
            unit = deviations[place] if name == WORDS else 1.0  # a similarity is in standard deviations
            if unit > 0:
                prior[place] = READ_BY_WITNESSES * shares.get(name, 0.0) * deviations[0] / unit
        return prior

    def _of(self, among: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        evidence = np.concatenate([self.evidence[number] for number in among])
        return evidence, np.concatenate([self._targets[number] for number in among])


def _check(queries: Sequence[JudgedQuery]) -> None:
    if len(queries) < FEWEST_QUERIES:
        raise InvalidInput(
            f"there are judgements of {len(queries)} queries that can be used; calibrating takes {FEWEST_QUERIES} or "
            "more, and ten are a good number"
        )
    grades = np.concatenate([query.grades for query in queries])
    if not ((grades >= 0) & np.isfinite(grades)).all():
        raise InvalidInput("grades are numbers of 0 or more")
    if (grades > 0).all() or not (grades > 0).any():
        which = "all" if (grades > 0).all() else "none"
        raise InvalidInput(
            f"{which} of the {len(grades)} judged documents are relevant; judge relevant ones and others (--suggest)"
        )
