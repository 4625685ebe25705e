"""Limit the number of documents of each group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.capacity import Capacity, Limit

CERTAIN = 2.0  # a margin beyond any difference of two relevances
LEVELS = 64  # levels of relevance at which the documents of a group are counted


@dataclass(frozen=True, slots=True, eq=False)
class GroupLimit(Limit):
    """A limit on the set, with a further limit on each group.

    Attributes:
        within: The limit on the set as a whole.
        groups: (N,) numbers from 0 to N - 1, equal within a group; None if documents of the same text are a group.
        at_most: The most documents of a group that count towards the set.
        with_others: The most documents of a group that are returned with one that counts, including it; 0 for none.
    """

    within: Limit
    groups: NDArray[np.intp] | None = None
    at_most: int = 1
    with_others: int = 0

    def capacity_for(self, stay: NDArray[np.bool_], texts: NDArray[np.intp]) -> GroupedCapacity:
        groups = (texts if self.groups is None else self.groups)[stay]
        return GroupedCapacity(
            self.within.capacity_for(stay, texts), groups, np.full_like(groups, self.at_most), self.with_others
        )


@dataclass(frozen=True, eq=False)
class GroupedCapacity(Capacity):
    """A capacity with a limit on each group.

    The best set takes documents greedily, as long as their group and k allow it. The margin of a document depends on
    the bound that it meets first: the bound of its group, where it would replace another document of the group, or the
    bound of the whole set.

    Attributes:
        capacity: The capacity of the whole set.
        groups: (N,) numbers from 0, equal within a group.
        limits: (N,) the most documents of the group that each document belongs to.
        others: As `GroupLimit.with_others`.
    """

    capacity: Capacity
    groups: NDArray[np.intp]
    limits: NDArray[np.intp]
    others: int = 0
    by_groups = True

    def holds_all(self, count: int) -> bool:
        return self.capacity.holds_all(count) and not self._crowded.any()

    def holds(self, documents: NDArray[np.bool_]) -> bool:
        """Return whether the best documents of each group fit."""
        return self.capacity.holds(documents & self.eligible(documents.astype(np.float64)))

    def nothing_to_decide(self, count: int) -> bool:
        none_fits = self.capacity.nothing_to_decide(count) and not self.capacity.holds_all(count)
        return none_fits or self.holds_all(count)

    def subset(self, stay: NDArray[np.bool_]) -> GroupedCapacity:
        return GroupedCapacity(self.capacity.subset(stay), self.groups[stay], self.limits[stay], self.others)

    def narrow(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> GroupedCapacity:
        used = np.bincount(self.groups[taken & ~stay], minlength=self._count)[self.groups[stay]]
        limits = np.maximum(self.limits[stay] - used, 0)
        return GroupedCapacity(self.capacity.narrow(stay, taken), self.groups[stay], limits)

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        mask = self.eligible(worth)
        mask[mask] = self.capacity.subset(mask).fill(worth[mask])
        return mask

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        places = _places(worth, self.groups)
        eligible = places < self.limits
        inside = eligible.copy()
        overall = worth - worth.min() + CERTAIN  # beyond any margin to the bound of the whole set
        capacity = self.capacity.subset(eligible)
        if eligible.any() and not capacity.holds_all(int(np.count_nonzero(eligible))):
            margin, inside[eligible] = capacity.margin(worth[eligible])
            if not inside[eligible].all():
                highest, lowest = margin[~inside[eligible]].max(), margin[inside[eligible]].min()
                overall[eligible] = margin - (highest + lowest) / 2.0
        last, following, passed = np.full((3, self._count), np.nan)  # by group, on either side of its bound
        at, after = places == self.limits - 1, places == self.limits
        last[self.groups[at]], passed[self.groups[at]] = worth[at], overall[at]
        following[self.groups[after]] = worth[after]
        within = worth - ((last + following) / 2.0)[self.groups]
        instead = worth + (passed - last)[self.groups]  # margin to the whole set, in the place of the group's last
        out = np.nan_to_num(np.minimum(within, instead), nan=-CERTAIN)
        return np.where(eligible, np.fmin(overall, within), out), inside

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        return self.capacity.best(shares * self._admitted(shares, worth), worth)

    def eligible(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return the (N,) mask of the best documents of each group, within its limit."""
        return best_of_each(worth, self.groups, self.limits)

    def with_others(self, chosen: NDArray[np.bool_], worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        best = best_of_each(np.where(chosen, np.inf, worth), self.groups, self.others)
        return chosen | best & np.isin(self.groups, self.groups[chosen])

    def _admitted(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the (m, N) probabilities that each outcome is among the best of its group.

        The number of documents of a group that reach a level is approximated by a Poisson variable. Its rate is chosen
        so that the probability of zero documents is right for independent documents. With a limit of 1 this is exact.
        """
        admitted = np.ones(worth.shape)
        documents = np.flatnonzero(self._crowded & (self.limits > 0))
        admitted[:, self.limits == 0] = 0.0
        largest = float(worth.max(initial=0.0))
        if not documents.size or largest == 0:
            return admitted
        numbers, groups = np.unique(self.groups[documents], return_inverse=True)
        limits = np.empty(len(numbers), dtype=np.intp)
        limits[groups] = self.limits[documents]
        levels = np.minimum(worth[:, documents] * (LEVELS / largest), LEVELS - 1).astype(np.intp)
        cells = (levels * len(documents) + np.arange(len(documents))).ravel()
        mass = np.bincount(cells, shares[:, documents].ravel(), LEVELS * len(documents)).reshape(LEVELS, -1)
        reach = np.minimum(np.cumsum(mass[::-1], axis=0)[::-1], 1.0)
        expected, rate = (_by_group(of, groups, len(numbers)) for of in (reach, -np.log1p(-reach * (1.0 - 1e-12))))
        supply = np.minimum(expected, _expected_at_most(limits, rate))
        supplied, wanted = (of - np.append(of[1:], np.zeros((1, len(numbers))), axis=0) for of in (supply, expected))
        ratio = np.divide(supplied, wanted, out=np.ones_like(wanted), where=wanted > 1e-12)
        admitted[:, documents] = ratio[levels, groups]
        return admitted

    @cached_property
    def _crowded(self) -> NDArray[np.bool_]:
        """Mask of the documents whose group exceeds its limit."""
        return np.bincount(self.groups, minlength=self._count)[self.groups] > self.limits

    @cached_property
    def _count(self) -> int:
        return int(self.groups.max(initial=-1)) + 1


def best_of_each(
    worth: NDArray[np.float64], groups: NDArray[np.intp], limits: NDArray[np.intp] | int
) -> NDArray[np.bool_]:
    """Return the (N,) mask of the best documents of each group, within its limit."""
    return _places(worth, groups) < limits


def _places(worth: NDArray[np.float64], groups: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the (N,) number of documents of its group that come before each document.

    The order is by worth, ties by position.
    """
    order = np.lexsort((-worth, groups))
    count = np.arange(len(order))
    first = np.diff(groups[order], prepend=-1) != 0
    places = np.empty_like(count)
    places[order] = count - np.maximum.accumulate(np.where(first, count, 0))
    return places


def _by_group(values: NDArray[np.float64], groups: NDArray[np.intp], count: int) -> NDArray[np.float64]:
    """Return the (LEVELS, count) sums by group of (LEVELS, n) values."""
    cells = np.arange(len(values))[:, None] * count + groups
    sums = np.bincount(cells.ravel(), values.ravel(), len(values) * count).astype(np.float64)
    return sums.reshape(len(values), count)


def _expected_at_most(limits: NDArray[np.intp], rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `E[min(limit, C)]` for Poisson variables C with these rates."""
    term = np.exp(-rate)
    below, expected = np.zeros_like(rate), np.zeros_like(rate)
    for count in range(int(limits.max(initial=0))):
        below += term
        expected += np.where(count < limits, 1.0 - below, 0.0)
        term *= rate / (count + 1)
    return expected
