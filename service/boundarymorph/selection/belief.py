"""What is believed of every document at one moment of a session."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """mean, std: (N,) float64; a scored document sits at its score with std 0. scored: (N,) mask."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    scored: NDArray[np.bool_]
