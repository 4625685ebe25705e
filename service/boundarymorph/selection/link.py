"""The scale on which scores are believed: scores in, log-odds inside, scores out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FLOOR, CEILING = 1e-7, 0.25
NOTHING = 1e-9  # so that documents believed worthless keep their order
NODES = np.linspace(-4.0, 4.0, 15)  # evenly spaced, as a score turns from 0 to 1 between two of wider ones
NODE_WEIGHTS = np.exp(-np.square(NODES) / 2) / np.exp(-np.square(NODES) / 2).sum()


@dataclass(frozen=True, slots=True)
class Scale:
    """Log-odds log(p / (1 - p)) of scores held between `clip` and 1 - `clip`.

    low, high: `clip` where scores were held at 0 or at 1, else 0. There the way back stretches: what was held at `clip`
    is worth nothing again, and half a step further everything is as it is.
    """

    clip: float = FLOOR
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def of(cls, scores: Collection[float]) -> Scale:
        """How close to 0 or 1 a score is taken at its word: half the smallest distance from an end that was seen.

        So an exact 0 or 1 of a coarse scorer sits half a step away from its neighbours, while a continuous scorer is
        hardly touched. Between 1e-7 and 0.25.
        """
        distances = [distance for score in scores for distance in (score, 1.0 - score) if distance > 0]
        clip = min(max(min(distances, default=0.0) / 2, FLOOR), CEILING)
        low = clip if min(scores, default=0.5) < clip else 0.0
        high = clip if max(scores, default=0.5) > 1.0 - clip else 0.0
        return cls(clip, low, high)

    def log_odds(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        held = np.clip(scores, self.clip, 1.0 - self.clip)
        return np.log(held) - np.log1p(-held)

    def scores(self, log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
        probabilities = np.tanh(0.5 * log_odds)
        probabilities += 1.0
        probabilities *= 0.5
        if not (self.low or self.high):
            return probabilities
        stretched = np.maximum(2.0 * (probabilities - self.low), NOTHING * probabilities)
        scores: NDArray[np.float64] = np.minimum(probabilities, stretched)
        return np.minimum(np.maximum(scores, 2.0 * (probabilities + self.high) - 1.0), 1.0)

    def outcomes(
        self, means: NDArray[np.float64], variances: NDArray[np.float64]
    ) -> Iterator[tuple[float, NDArray[np.float64]]]:
        """Shares and scores of the 15 outcomes that stand for normal log-odds; expectations are within 0.003 up to a
        deviation of 6."""
        deviations = np.sqrt(variances)
        for node, share in zip(NODES.tolist(), NODE_WEIGHTS.tolist(), strict=True):
            yield share, self.scores(means + node * deviations)
