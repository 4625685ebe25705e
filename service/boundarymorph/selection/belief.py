"""Means and standard deviations of all documents at one moment of a session."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """mean, std: (N,) float64; a scored document has its score and std 0. scored: (N,) mask."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    scored: NDArray[np.bool_]

    def of(self, documents: NDArray[np.intp]) -> Belief:
        """The belief about a subset."""
        return Belief(self.mean[documents], self.std[documents], self.scored[documents])

    @classmethod
    def of_shares(cls, shares: NDArray[np.float64], observed: NDArray[np.intp], happened: NDArray[np.bool_]) -> Belief:
        """The belief about an event with (N,) probabilities, known at the t observed documents."""
        shares = np.clip(shares, 0.0, 1.0)
        return cls.given(shares, np.sqrt(shares * (1.0 - shares)), observed, happened.astype(np.float64))

    @classmethod
    def given(
        cls,
        mean: NDArray[np.float64],
        std: NDArray[np.float64],
        observed: NDArray[np.intp],
        values: NDArray[np.float64],
    ) -> Belief:
        """The belief with (N,) mean and std, except for the t observed documents, which have their values.

        Changes mean and std in place.
        """
        scored = np.zeros(len(mean), dtype=np.bool_)
        mean[observed] = values
        std[observed] = 0.0
        scored[observed] = True
        return cls(mean, std, scored)
