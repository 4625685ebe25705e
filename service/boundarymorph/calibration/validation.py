"""How good predictions about queries that were left out are, and the gate that decides by it what is applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Form
from boundarymorph.calibration.logistic import log_loss

NCG_AT = (5, 10, 15)  # of the gate: what can be seen of a set where about 40 documents are judged
STANDARD_ERRORS = 2.0
BINS = 10


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What n judged documents of a query that was left out, in retrieval order, were predicted to be, in log-odds.

    full, alone: by all evidence, and by the scorer's alone. raw: the scores themselves. targets: what they are.
    """

    full: NDArray[np.float64]
    alone: NDArray[np.float64]
    raw: NDArray[np.float64]
    targets: NDArray[np.float64]

    @property
    def retriever(self) -> NDArray[np.float64]:
        """(n,) a key that orders them as the retriever did."""
        return -np.arange(len(self.targets), dtype=np.float64)

    def loss(self, predicted: NDArray[np.float64]) -> float:
        """Mean log loss of predictions about these documents."""
        return float(log_loss(predicted, self.targets).mean())

    def ncg(self, key: NDArray[np.float64], k: int) -> float:
        """Gain of the k documents of the largest key, over the best that k of them can have; nan without any."""
        best = np.sort(self.targets)[::-1][:k].sum()
        return float(self.targets[np.argsort(-key, kind="stable")[:k]].sum() / best) if best > 0 else float("nan")

    def gain(self) -> float:
        """What the order by all evidence gains over the scorer's, mean of NCG_AT; nan if that cannot be seen."""
        sizes = [k for k in NCG_AT if k < len(self.targets)]
        gains = [self.ncg(self.full, k) - self.ncg(self.raw, k) for k in sizes]
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

    @property
    def gained(self) -> bool:
        """Whether it is a gain of two standard errors."""
        return self.mean > 0 and self.mean >= STANDARD_ERRORS * self.error


def gate(held_out: Sequence[Predictions]) -> Form:
    """What is applied.

    All evidence, if by it log loss or nCG gains two standard errors over the scorer's alone, and the other does not
    fall. Otherwise the scorer's scale, if that gains two standard errors of log loss over scores as they are.
    """
    loss = MeanDifference.of([query.loss(query.alone) - query.loss(query.full) for query in held_out])
    ncg = MeanDifference.of([query.gain() for query in held_out])
    if (loss.gained and ncg.mean >= 0) or (ncg.gained and loss.mean >= 0):
        return "signals"
    scale = MeanDifference.of([query.loss(query.raw) - query.loss(query.alone) for query in held_out])
    return "scale" if scale.gained else "none"


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
