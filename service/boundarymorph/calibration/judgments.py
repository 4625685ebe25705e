"""Judged queries, and which documents of a query are worth a person's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Self

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Gain
from boundarymorph.calibration.logistic import signals_of
from boundarymorph.selection.pool import Pool

PAIRS = 40  # of a query
RANDOM = 4  # one in so many


@dataclass(frozen=True, slots=True, eq=False)
class JudgedQuery:
    """n judged documents of one query, in retrieval order.

    scores: (n,) in [0, 1]. signals: (n,) each, as in `signals_of`. grades: (n,) from 0.
    """

    scores: NDArray[np.float64]
    signals: Mapping[str, NDArray[np.float64]]
    grades: NDArray[np.float64]

    @classmethod
    def of(
        cls, pool: Pool, documents: NDArray[np.intp], scores: NDArray[np.float64], grades: NDArray[np.float64]
    ) -> Self:
        """documents: (n,) positions in the pool, whose scores and grades these are."""
        order = np.argsort(documents)
        signals = {name: values[documents[order]] for name, values in signals_of(pool).items()}
        return cls(scores[order], signals, grades[order])

    def __len__(self) -> int:
        return len(self.grades)

    def targets(self, gain: Gain, largest: float) -> NDArray[np.float64]:
        """(n,) in [0, 1]: whether each is relevant, that is has a grade of 1 or more (a grade between 0 and 1 says how
        likely it is); or its grade over the largest one."""
        return np.minimum(self.grades, 1.0) if gain == "relevant" else self.grades / largest


def worth_judging(by_scorer: NDArray[np.intp], size: int, seed: int, *, count: int = PAIRS) -> NDArray[np.intp]:
    """Positions of at most `count` documents of a pool of this size, ascending: for three quarters the best by the
    scorer and the first by the retriever, as many of each, and for a quarter any of the rest, at random.

    by_scorer: positions, best first.
    """
    most = min(count, size)
    wanted = most - most // RANDOM
    both = chain.from_iterable(zip_longest(by_scorer[:wanted].tolist(), range(wanted)))
    heads = list(dict.fromkeys(position for position in both if position is not None))[:wanted]
    rest = np.setdiff1d(np.arange(size), heads)
    chosen = np.random.default_rng(seed).choice(rest, min(most - len(heads), len(rest)), replace=False)
    return np.union1d(np.array(heads, dtype=np.intp), chosen).astype(np.intp)
