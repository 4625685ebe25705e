"""Compose a session from options, for tests that vary many of them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection import (
    BestBoundary,
    Boundary,
    Budget,
    Config,
    DiverseFinish,
    GroupLimit,
    Limit,
    OrderBoundary,
    Pool,
    SearchBoundary,
    SearchTarget,
    SelectionConfig,
    Session,
    ThresholdBoundary,
    Tolerance,
    capacity_of,
)
from boundarymorph.selection.boundary import keep_chosen
from boundarymorph.selection.state import Reading


class Target(NamedTuple):
    """Find this share of the relevant documents with this probability."""

    share: float
    probability: float


class Groups(NamedTuple):
    """At most `at_most` documents of each group; with `counts_groups`, k counts groups."""

    groups: NDArray[np.intp] | None = None
    at_most: int = 1
    counts_groups: bool = False

    def restrict(self, limit: Limit) -> GroupLimit:
        if self.counts_groups:
            return GroupLimit(limit, self.groups, 1, self.at_most)
        return GroupLimit(limit, self.groups, self.at_most)


def session_of(
    pool: Pool,
    *,
    budget: int,
    k: int | Limit,
    config: Config | None = None,
    known: Mapping[int, float] | None = None,
    tolerance: float | None = None,
    order: bool = False,
    min_relevance: float | None = None,
    distinct: Groups | None = None,
    negligible: float = 0.0,
    diversity: float = 0.0,
    reading: Reading | None = None,
    target: Target | None = None,
) -> Session:
    """Compose a session.

    With a target, `min_relevance` defines what to find, otherwise it is a threshold.
    """
    method = config or SelectionConfig()
    limit = capacity_of(k=k) if isinstance(k, int) else k
    if distinct is not None:
        limit = distinct.restrict(limit)
    best = BestBoundary(limit, method, negligible, DiverseFinish(diversity) if diversity else keep_chosen)
    boundary: Boundary = OrderBoundary(best) if order else best
    stop = Budget(budget) if tolerance is None else Tolerance(budget, tolerance)
    if min_relevance is not None:
        boundary = ThresholdBoundary(best, min_relevance)
        if target is not None:
            boundary, stop = SearchBoundary(best, min_relevance, target.share), SearchTarget(budget, target.probability)
    size = min(max(0, budget) + len(known or ()), len(pool))
    return Session(pool, method.posterior(pool, size), boundary, stop, known=known, reading=reading)
