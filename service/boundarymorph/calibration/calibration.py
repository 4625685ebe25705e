"""Relevance as a probability: log-odds, logistic regression, and calibrations that map scores to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.pool import COMPLETE, Pool, signals, standardised

SIMILARITY, WORDS = "similarity", "bm25"
INTERCEPT_RIDGE = 0.01
QUERY_RIDGE = 1.0  # of the levels that queries may have of their own


def signals_of(pool: Pool) -> dict[str, NDArray[np.float64]]:
    """(N,) each: the standardised similarity or retrieval score, log(1 + BM25) and, by their ranks, other features of
    the pool, whichever it has. A pool with equal scores has no similarity."""
    found = {}
    similarity = standardised(pool.features.get(SIMILARITY, pool.scores))
    if similarity.any():
        found[SIMILARITY] = similarity
    if WORDS in pool.features:
        found[WORDS] = np.log1p(np.maximum(pool.features[WORDS], 0.0))
    others = sorted(pool.features.keys() - set(COMPLETE))
    return {**found, **dict(zip(others, signals(pool), strict=True))}


def log_odds(scores: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """Of scores in [0, 1], which are held between `clip` and 1 - `clip`."""
    held = np.clip(scores, clip, 1.0 - clip)
    return np.log(held) - np.log1p(-held)


def clip_of(scores: NDArray[np.float64]) -> float:
    """How close to 0 or 1 a score is taken at its word: half the smallest distance from an end that was seen, between
    1e-7 and 1/4, so that the levels of a coarse scorer are about evenly spaced."""
    distances = np.minimum(scores, 1.0 - scores)
    seen = distances[distances > 0]
    return float(np.clip(seen.min() / 2 if seen.size else 0.25, 1e-7, 0.25))


def sigmoid(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of log-odds of any size."""
    return np.exp(-np.logaddexp(0.0, -log_odds))


def log_loss(log_odds: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) the loss of each prediction, in nats. targets: (n,) in [0, 1]."""
    losses: NDArray[np.float64] = np.logaddexp(0.0, log_odds) - targets * log_odds
    return losses


def fit(
    columns: NDArray[np.float64],
    targets: NDArray[np.float64],
    ridges: NDArray[np.float64],
    *,
    towards: float = 0.0,
    queries: NDArray[np.intp] | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Return the (p,) coefficients and the intercept that minimise the log loss of n targets in [0, 1] plus
    ridges * coefficients^2 / 2. The first coefficient, that of the scorer, is never negative.

    columns: (n, p). towards: what the ridge draws the first coefficient to. queries: (n,) numbers of the targets'
    queries, from 0: each then has a level of its own, so that slopes compare documents of one query only.
    """
    from scipy.optimize import minimize

    parts = columns.shape[1]
    levels = 0 if queries is None else int(queries.max()) + 1
    centre = np.zeros(parts)
    centre[0] = towards

    def objective(free: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        slopes, intercept, own = free[:parts], free[parts], free[parts + 1 :]
        log_odds = columns @ slopes + intercept + (0.0 if queries is None else own[queries])
        errors = sigmoid(log_odds) - targets
        off = slopes - centre
        value = log_loss(log_odds, targets).sum() + (ridges @ off**2 + INTERCEPT_RIDGE * intercept**2) / 2
        gradient = np.concatenate([columns.T @ errors + ridges * off, [errors.sum() + INTERCEPT_RIDGE * intercept]])
        if queries is not None:
            value += QUERY_RIDGE * (own @ own) / 2
            gradient = np.concatenate([gradient, np.bincount(queries, errors, levels) + QUERY_RIDGE * own])
        return float(value), gradient

    bounds = [(0.0, None), *[(None, None)] * (parts + levels)]
    found = minimize(objective, np.zeros(parts + 1 + levels), jac=True, method="L-BFGS-B", bounds=bounds).x
    return found[:parts], float(found[parts])


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
        near = max(trust.weights.get(SIMILARITY, 0.0), 0.0) if told else 0.0
        return Calibrated(self.name, told, self.clip, trust.slope, offsets, near, tuple(missing))

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
            if not 0 < values["clip"] < 0.5:
                raise ValueError("its clip must be between 0 and 1/2")
            return cls(**{**values, **trusts})
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"it is not a calibration: {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A calibration on a pool of N documents.

    told: whether a session is told probabilities; if not, it is told scores, and they are read as probabilities
    afterwards. offsets: (N,) what is added to `slope` times the log-odds of a score. near: the weight of the
    similarity in what is told. missing: evidence that the pool does not have.
    """

    name: str
    told: bool
    clip: float
    slope: float
    offsets: NDArray[np.float64]
    near: float = 0.0
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
