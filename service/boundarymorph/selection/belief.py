"""What is believed of every document at one moment of a session."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """mean, std: (N,) float64; a scored document sits at its score with std 0. scored: (N,) mask."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    scored: NDArray[np.bool_]

    def of(self, documents: NDArray[np.intp]) -> Belief:
        """The belief about these documents alone."""
        return Belief(self.mean[documents], self.std[documents], self.scored[documents])

    @classmethod
    def of_shares(cls, shares: NDArray[np.float64], observed: NDArray[np.intp], happened: NDArray[np.bool_]) -> Belief:
        """About an event that happens with (N,) probabilities, and has or has not happened where it was observed."""
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
        """(N,) mean and std as they are where nothing was observed; the t observed documents sit at their values.

        It takes mean and std over, and changes them.
        """
        scored = np.zeros(len(mean), dtype=np.bool_)
        mean[observed] = values
        std[observed] = 0.0
        scored[observed] = True
        return cls(mean, std, scored)
