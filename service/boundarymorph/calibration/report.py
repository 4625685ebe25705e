"""What a calibration did on queries that were left out, in figures and in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Form, Trust
from boundarymorph.calibration.logistic import sigmoid
from boundarymorph.calibration.validation import MeanDifference, Predictions, calibration_error, reliability

REPORTED_AT = (5, 10, 50)
MOST_WORTHWHILE = 10  # times the judged queries: more than that will not be judged
Key = Callable[[Predictions], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class NcgByOrder:
    """nCG@k of judged documents by three orders, and what the calibrated one gains over the scorer's: in the mean, and
    within two standard errors of it."""

    k: int
    scorer: float
    retriever: float
    calibrated: float
    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of queries that were left out. Before: scores as they are; after: what is applied, or would be.

    reliability: (documents, mean prediction, share of relevant ones) by tenths. trust: shares of what decides, by
    signal. more_queries: how many more may bring the evidence, None if that is decided or beyond reach.
    """

    ncg: Sequence[NcgByOrder]
    log_loss_before: float
    log_loss_after: float
    error_before: float
    error_after: float
    reliability_before: Sequence[tuple[int, float, float]]
    reliability_after: Sequence[tuple[int, float, float]]
    trust: Mapping[str, float]
    more_queries: int | None
    advice: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def report_of(
    held_out: Sequence[Predictions], full: Trust, evidence: Sequence[NDArray[np.float64]], form: Form
) -> Report:
    """Report predictions about queries that were left out. full: learned from all of them; evidence: (n, p) of each,
    the scorer's first; form: what is applied."""

    def after(query: Predictions) -> NDArray[np.float64]:
        return query.full if form == "signals" else query.alone

    targets = np.concatenate([query.targets for query in held_out])
    predicted_before = sigmoid(np.concatenate([query.raw for query in held_out]))
    predicted_after = sigmoid(np.concatenate([after(query) for query in held_out]))
    qualities = [quality for k in REPORTED_AT if (quality := _quality(held_out, k)) is not None]
    more = _more_queries(MeanDifference.of([query.gain() for query in held_out])) if form != "signals" else None
    return Report(
        ncg=qualities,
        log_loss_before=float(np.mean([query.loss(query.raw) for query in held_out])),
        log_loss_after=float(np.mean([query.loss(after(query)) for query in held_out])),
        error_before=calibration_error(predicted_before, targets),
        error_after=calibration_error(predicted_after, targets),
        reliability_before=reliability(predicted_before, targets),
        reliability_after=reliability(predicted_after, targets),
        trust=_trusted(full, evidence),
        more_queries=more,
        advice=_advice(qualities, form, more),
    )


def _quality(held_out: Sequence[Predictions], k: int) -> NcgByOrder | None:
    """None where no query has more than k judged documents, some of them relevant."""
    seen = [query for query in held_out if len(query.targets) > k and query.targets.any()]
    if not seen:
        return None
    keys: Sequence[Key] = (lambda query: query.raw, lambda query: query.retriever, lambda query: query.full)
    scorer, retriever, calibrated = (np.array([query.ncg(key(query), k) for query in seen]) for key in keys)
    gain = MeanDifference.of((calibrated - scorer).tolist())
    reach = 2 * gain.error if np.isfinite(gain.error) else 1.0
    return NcgByOrder(
        k,
        float(scorer.mean()),
        float(retriever.mean()),
        float(calibrated.mean()),
        gain.mean,
        gain.mean - reach,
        gain.mean + reach,
    )


def _trusted(full: Trust, evidence: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    """How much of what decides comes from each signal: its weight times how far it varies over judged documents."""
    weights = {"scorer": full.slope, **full.weights}
    parts = np.abs(list(weights.values())) * np.concatenate(evidence).std(axis=0)
    shares = parts / parts.sum() if parts.any() else parts
    return dict(zip(weights, shares.tolist(), strict=True))


def _more_queries(gain: MeanDifference) -> int | None:
    """How many more queries would make this gain one of two standard errors, if it stays; None if it never will."""
    if gain.mean <= 0 or not np.isfinite(gain.error) or gain.gained:
        return None
    more = ceil(gain.count * ((2 * gain.error / gain.mean) ** 2 - 1))
    return more if more <= MOST_WORTHWHILE * gain.count else None


def _advice(qualities: Sequence[NcgByOrder], form: Form, more: int | None) -> str:
    if form == "signals":
        return f"{_standing(qualities)}; use the calibration"
    judged_more = "" if more is None else f"; about {more} more judged queries may show that other evidence helps"
    if form == "scale":
        return (
            "other evidence does not improve on the scorer's order, which stays; its scores are now read as "
            f"probabilities{judged_more}"
        )
    return f"not enough to tell; nothing changed{judged_more}"


def _standing(qualities: Sequence[NcgByOrder]) -> str:
    if not qualities:
        return "calibrated probabilities are better than the scorer's"
    scorer, retriever, calibrated = (
        100 * float(np.mean([getattr(quality, name) for quality in qualities]))
        for name in ("scorer", "retriever", "calibrated")
    )
    compared = "worse" if scorer < retriever else "better"
    gain = calibrated - max(scorer, retriever)
    together = f"they beat both by {gain:.1f} points" if gain > 0.05 else "they are as good as the better of the two"
    return f"the scorer is {compared} than your retriever here; calibrated together {together}"
