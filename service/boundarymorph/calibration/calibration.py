"""A calibration: what turns a scorer's scores, with other evidence, into the probability that a person agrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.logistic import log_odds, sigmoid, signals_of
from boundarymorph.errors import InvalidInput
from boundarymorph.selection.pool import Pool

VERSION = 1
Form = Literal["signals", "scale", "none"]
Gain = Literal["relevant", "grade"]


@dataclass(frozen=True, slots=True)
class Trust:
    """A probability as the sigmoid of `slope` times the score's log-odds, plus the weights times the other signals,
    plus `intercept`. slope: 0 or more."""

    slope: float
    intercept: float
    weights: Mapping[str, float] = field(default_factory=dict)

    def log_odds(self, scores: NDArray[np.float64], signals: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """scores: log-odds. signals: of the same documents; those that are missing count as 0."""
        total = self.slope * scores + self.intercept
        for name, weight in self.weights.items():
            if name in signals:
                total = total + weight * signals[name]
        return total


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was learned from judgements for one scorer, one encoder and one way of making pools.

    form: what the gate let through. "signals": sessions are told probabilities from all evidence; "scale": the scores
    keep their order and are only read as probabilities; "none": too little to tell, nothing is changed.
    gain: whether probabilities are of a document being relevant, or its expected grade over the largest one.
    scorer, encoder: names of the models; encoder is None where the words were the vectors. clip: see `clip_of`.
    full, alone: with all evidence, and of the scorer alone. index: whose default it is. report: of the fit.
    """

    name: str
    form: Form
    scorer: str
    encoder: str | None
    clip: float
    full: Trust
    alone: Trust
    gain: Gain = "relevant"
    index: str | None = None
    queries: int = 0
    judgments: int = 0
    created: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def on(self, pool: Pool) -> Calibrated:
        """The calibration on the documents of a pool. One that lacks evidence is only read on the scorer's scale."""
        signals = signals_of(pool)
        missing = sorted(self.full.weights.keys() - signals.keys()) if self.form == "signals" else []
        told = self.form == "signals" and not missing
        trust = self.full if told else self.alone
        offsets = trust.log_odds(np.zeros(len(pool)), signals)
        return Calibrated(self.name, told, self.clip, trust.slope, offsets, tuple(missing))

    def stale(self, scorer: str | None, encoder: str | None) -> str | None:
        """Why it does not apply to these models, whose names are None where they are not known; None if it does."""
        for what, own, present in (("scorer", self.scorer, scorer), ("encoder", self.encoder, encoder)):
            if present is not None and own is not None and own != present:
                return f"it was learned with the {what} {own!r}, and {present!r} is in use; calibrate again"
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Calibration:
        """Raises InvalidInput, saying what is wrong."""
        if values.get("version") != VERSION:
            raise InvalidInput(f"its version is {values.get('version')!r}, and {VERSION} is read here; calibrate again")
        try:
            trusts = {name: _checked(Trust(**values[name])) for name in ("full", "alone")}
            return cls(**{**values, **trusts})
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"it is not a calibration: {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A calibration on a pool of N documents.

    told: whether a session is told probabilities; if not, it is told scores, and they are read as probabilities
    afterwards. offsets: (N,) what is added to `slope` times the log-odds of a score. missing: evidence that the pool
    does not have.
    """

    name: str
    told: bool
    clip: float
    slope: float
    offsets: NDArray[np.float64]
    missing: tuple[str, ...] = ()

    def probability(self, scores: NDArray[np.float64], documents: NDArray[np.intp]) -> NDArray[np.float64]:
        """(n,) how likely n scored documents, by position, are to be found relevant, given their scores in [0, 1]."""
        return sigmoid(self.slope * log_odds(scores, self.clip) + self.offsets[documents])

    def read(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same for scores of any shape, where nothing but the score counts."""
        return sigmoid(self.slope * log_odds(scores, self.clip) + self.offsets[0])

    def reaching(self, probability: float) -> float:
        """The score that is read as this probability, or the end of [0, 1] that is nearest to it."""
        ends = self.read(np.array([0.0, 1.0]))
        if probability <= ends[0]:
            return 0.0
        if probability > ends[1] or self.slope == 0:
            return 1.0
        marks = log_odds(np.array([probability]), 1e-12)
        return float(sigmoid((marks - self.offsets[0]) / self.slope)[0])


def _checked(trust: Trust) -> Trust:
    numbers = [trust.slope, trust.intercept, *trust.weights.values()]
    if not all(isinstance(number, int | float) and np.isfinite(number) for number in numbers) or trust.slope < 0:
        raise ValueError("its coefficients must be finite numbers, and slope 0 or more")
    return trust
