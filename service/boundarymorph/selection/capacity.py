"""Capacities: which documents fit into the returned set, with limits on groups and a wish for diversity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.process import VonMisesFisher, median_distance

LIKELY = 0.5
BINS = 4_096  # of densities
LEAST_WORTH = 1e-6  # of a document under a token limit, which gives each a positive density


class Capacity(Protocol):
    """A limit on the set that is returned of N documents."""

    def holds_all(self, count: int) -> bool:
        """Whether all `count` documents fit."""

    def holds(self, documents: NDArray[np.bool_]) -> bool:
        """Whether all documents of a mask (N,) fit."""

    def nothing_to_decide(self, count: int) -> bool:
        """Whether all `count` documents fit, or none."""

    def among(self, stay: NDArray[np.bool_]) -> Capacity:
        """The capacity for the documents of a mask (N,)."""

    def narrowed(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> Capacity:
        """The capacity for the documents of a mask (N,) once all others are decided. Its boundary lies behind those of
        `taken` (N,) that stay. Packing does not use it."""

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(N,) mask of the documents to return."""

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """(N,) margins, by which documents are inside or outside the set, and the (N,) mask of those inside."""

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        """The expected worth of the best set if all outcomes were known. Documents have (m, N) outcomes with (m, N)
        probabilities. It is taken as the fractional choice among all outcomes, which is exact for many documents."""


@dataclass(frozen=True, slots=True)
class DocumentCapacity:
    """k documents."""

    k: int

    def holds_all(self, count: int) -> bool:
        return self.k >= count

    def holds(self, documents: NDArray[np.bool_]) -> bool:
        return self.holds_all(int(np.count_nonzero(documents)))

    def nothing_to_decide(self, count: int) -> bool:
        return self.holds_all(count)

    def among(self, stay: NDArray[np.bool_]) -> DocumentCapacity:
        return self

    def narrowed(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> DocumentCapacity:
        return DocumentCapacity(int(np.count_nonzero(taken & stay)))

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        return top_k(worth, self.k)

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        return worth, top_k(worth, self.k)

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        return _best(shares, worth, float(self.k))


@dataclass(frozen=True, slots=True, eq=False)
class TokenCapacity:
    """Documents of `lengths` (N,) tokens, at most `limit` of them together.

    The returned set is packed by worth over the root of the length. Calls go to the boundary of a set of `count`
    documents, by default as many as would fit if all had the mean length.
    """

    lengths: NDArray[np.float64]
    limit: float
    count: int | None = None

    def holds_all(self, count: int) -> bool:
        return float(self.lengths.sum()) <= self.limit

    def holds(self, documents: NDArray[np.bool_]) -> bool:
        return float(self.lengths[documents].sum()) <= self.limit

    def nothing_to_decide(self, count: int) -> bool:
        return self.holds_all(count) or bool((self.lengths > self.limit).all())

    def among(self, stay: NDArray[np.bool_]) -> TokenCapacity:
        return TokenCapacity(self.lengths[stay], self.limit, self._fitting)

    def narrowed(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> DocumentCapacity:
        return DocumentCapacity(int(np.count_nonzero(taken & stay)))

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        mask = np.zeros(len(worth), dtype=np.bool_)
        room = self.limit
        for document in np.argsort(-np.maximum(worth, LEAST_WORTH) / np.sqrt(self.lengths), kind="stable"):
            if self.lengths[document] <= room:
                mask[document] = True
                room -= self.lengths[document]
        return mask

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        return worth, top_k(worth, max(1, min(self._fitting, len(worth) - 1)))

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        return _best(shares * self.lengths, worth / self.lengths, self.limit, worth / np.sqrt(self.lengths))

    @property
    def _fitting(self) -> int:
        return int(self.limit / self.lengths.mean()) if self.count is None else self.count


@dataclass(frozen=True, slots=True)
class LikelyCapacity:
    """All documents with a probability above one half, given as their worth."""

    def holds_all(self, count: int) -> bool:
        return count == 0

    def holds(self, documents: NDArray[np.bool_]) -> bool:
        return not documents.any()

    def nothing_to_decide(self, count: int) -> bool:
        return self.holds_all(count)

    def among(self, stay: NDArray[np.bool_]) -> LikelyCapacity:
        return self

    def narrowed(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> LikelyCapacity:
        return self

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        return worth > LIKELY

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        return worth - LIKELY, worth > LIKELY

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        return float((shares * worth).sum())


def capacity_of(*, k: int | None = None, lengths: ArrayLike | None = None, max_tokens: int | None = None) -> Capacity:
    """A capacity in documents or in tokens. With equal lengths a token limit becomes a number of documents. Raises
    InvalidInput."""
    if max_tokens is None or lengths is None:
        if k is None or k < 1:
            raise InvalidInput(f"k is {k}; it must be 1 or more documents")
        return DocumentCapacity(k)
    sizes = np.asarray(lengths, dtype=np.float64)
    if sizes.size == 0 or not (np.isfinite(sizes) & (sizes > 0)).all():
        raise InvalidInput("every document needs a length of at least one token")
    if max_tokens < sizes.min():
        raise InvalidInput(f"max_tokens is {max_tokens}; the shortest document has {sizes.min():.0f} tokens")
    if (sizes == sizes[0]).all():
        return DocumentCapacity(int(max_tokens // sizes[0]))
    return TokenCapacity(sizes, float(max_tokens))


def _best(
    sizes: NDArray[np.float64],
    densities: NDArray[np.float64],
    room: float,
    order: NDArray[np.float64] | None = None,
) -> float:
    """The worth of the first pieces that fit, by a histogram of what orders them, which is the densities by default."""
    order = densities if order is None else order
    largest = float(order.max(initial=0.0))
    if largest == 0:
        return 0.0
    bins = (order * (BINS / largest)).astype(np.intp)
    filled = np.bincount(bins.ravel(), sizes.ravel(), BINS + 1)
    above = np.cumsum(filled[::-1])[::-1] - filled
    taken = np.divide(np.clip(room - above, 0.0, filled), filled, out=np.zeros_like(filled), where=filled > 0)
    inside = np.flatnonzero(bins >= np.argmax(taken > 0))  # few of all
    return float((taken[bins.take(inside)] * sizes.take(inside) * densities.take(inside)).sum())


def top_k(worth: NDArray[np.float64], k: int) -> NDArray[np.bool_]:
    """(N,) mask of the k largest values, ties by retrieval rank (paper app. C.3). k >= N takes all."""
    count = len(worth)
    if k >= count:
        return np.ones(count, dtype=np.bool_)
    threshold = np.partition(worth, count - k)[count - k]
    mask: NDArray[np.bool_] = worth > threshold
    ties = np.flatnonzero(worth == threshold)
    mask[ties[: k - np.count_nonzero(mask)]] = True
    return mask


CERTAIN = 2.0  # a margin beyond any difference of two relevances
LEVELS = 64  # of relevance, at which the documents of a group are counted


@dataclass(frozen=True, slots=True, eq=False)
class Distinct:
    """The groups of a pool and their limit.

    groups: (N,) numbers from 0 to N - 1, equal within a group; None if documents of the same text are a group.
    at_most: documents of a group in the set. counts_groups: whether k counts groups. The best document of each then
    counts, and up to `at_most` - 1 others come with it.
    """

    groups: NDArray[np.intp] | None = None
    at_most: int = 1
    counts_groups: bool = False

    def limited(self, capacity: Capacity, groups: NDArray[np.intp]) -> GroupedCapacity:
        """The capacity with these groups. If k counts groups, only the best document of each counts."""
        return GroupedCapacity(capacity, groups, np.full_like(groups, 1 if self.counts_groups else self.at_most))

    def with_others(
        self, chosen: NDArray[np.bool_], worth: NDArray[np.float64], groups: NDArray[np.intp]
    ) -> NDArray[np.bool_]:
        """(N,) mask of the chosen documents. If k counts groups, others of their groups join them."""
        if not self.counts_groups:
            return chosen
        best = best_of_each(np.where(chosen, np.inf, worth), groups, self.at_most)
        return best & np.isin(groups, groups[chosen])


@dataclass(frozen=True, eq=False)
class GroupedCapacity:
    """A capacity with a limit on each group. groups: (N,) numbers from 0; limits: (N,) the most documents of the group
    that each document belongs to.

    The best set takes documents greedily, as long as their group and k allow it. The margin of a document depends on
    the bound that it meets first: that of its group, where it would replace another document of the group, or that of
    the whole set.
    """

    capacity: Capacity
    groups: NDArray[np.intp]
    limits: NDArray[np.intp]

    def holds_all(self, count: int) -> bool:
        return self.capacity.holds_all(count) and not self._crowded.any()

    def holds(self, documents: NDArray[np.bool_]) -> bool:
        """Whether the best documents of each group fit."""
        return self.capacity.holds(documents & self.eligible(documents.astype(np.float64)))

    def nothing_to_decide(self, count: int) -> bool:
        none_fits = self.capacity.nothing_to_decide(count) and not self.capacity.holds_all(count)
        return none_fits or self.holds_all(count)

    def among(self, stay: NDArray[np.bool_]) -> GroupedCapacity:
        return GroupedCapacity(self.capacity.among(stay), self.groups[stay], self.limits[stay])

    def narrowed(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> GroupedCapacity:
        used = np.bincount(self.groups[taken & ~stay], minlength=self._count)[self.groups[stay]]
        limits = np.maximum(self.limits[stay] - used, 0)
        return GroupedCapacity(self.capacity.narrowed(stay, taken), self.groups[stay], limits)

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        mask = self.eligible(worth)
        mask[mask] = self.capacity.among(mask).fill(worth[mask])
        return mask

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        places = _places(worth, self.groups)
        eligible = places < self.limits
        inside = eligible.copy()
        overall = worth - worth.min() + CERTAIN  # beyond what stands between a document and the set as a whole
        capacity = self.capacity.among(eligible)
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
        instead = worth + (passed - last)[self.groups]  # overall, in the place of the last
        out = np.nan_to_num(np.minimum(within, instead), nan=-CERTAIN)
        return np.where(eligible, np.fmin(overall, within), out), inside

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        return self.capacity.best(shares * self._admitted(shares, worth), worth)

    def eligible(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(N,) mask of the best documents of each group, within its limit."""
        return best_of_each(worth, self.groups, self.limits)

    def _admitted(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> NDArray[np.float64]:
        """(m, N) how likely each outcome is to be among the best of its group: as many as it may have.

        The number of documents of a group that reach a level is approximated by a Poisson variable. Its rate is chosen
        so that the probability of none is right for independent documents. With a limit of 1 this is exact.
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
    """Mask (N,) of the best documents of each group, as many as it may have."""
    return _places(worth, groups) < limits


def _places(worth: NDArray[np.float64], groups: NDArray[np.intp]) -> NDArray[np.intp]:
    """(N,) the number of documents of its group that come before each document, by worth, ties by position."""
    order = np.lexsort((-worth, groups))
    count = np.arange(len(order))
    first = np.diff(groups[order], prepend=-1) != 0
    places = np.empty_like(count)
    places[order] = count - np.maximum.accumulate(np.where(first, count, 0))
    return places


def _by_group(values: NDArray[np.float64], groups: NDArray[np.intp], count: int) -> NDArray[np.float64]:
    """(LEVELS, count) sums of (LEVELS, n) values."""
    cells = np.arange(len(values))[:, None] * count + groups
    sums = np.bincount(cells.ravel(), values.ravel(), len(values) * count).astype(np.float64)
    return sums.reshape(len(values), count)


def _expected_at_most(limits: NDArray[np.intp], rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """E[min(limit, C)] of Poisson numbers C with these rates."""
    term = np.exp(-rate)
    below, expected = np.zeros_like(rate), np.zeros_like(rate)
    for count in range(int(limits.max(initial=0))):
        below += term
        expected += np.where(count < limits, 1.0 - below, 0.0)
        term *= rate / (count + 1)
    return expected


CANDIDATES = 10  # considered for each document of the set, by relevance, and
MORE_CANDIDATES = 100  # in addition
LEAST = 1e-9  # relevance and variance, as both need a logarithm


def diverse(
    vectors: NDArray[np.floating], relevance: NDArray[np.float64], count: int, diversity: float
) -> NDArray[np.intp]:
    """Positions of at most `count` of N documents, in the order in which they were chosen.

    Each maximises (1 - diversity) log r + diversity log v. r is its relevance; v is its variance conditional on the
    documents chosen before, in a Gaussian process over the (N, d) unit vectors. At a diversity of one half this is
    the greedy search for the most probable set of a determinantal point process (Chen, Zhang and Zhou 2018). At 0 only
    relevance counts.
    """
    few = np.sort(np.argsort(-relevance, kind="stable")[: CANDIDATES * count + MORE_CANDIDATES])
    if len(few) <= count:
        return few
    points, quality = vectors[few].astype(np.float64), np.log(np.maximum(relevance[few], LEAST))
    kernel = VonMisesFisher.from_median(median_distance(vectors) / 2.0)
    left, rows = np.ones(len(few)), np.empty((count, len(few)))
    chosen: list[int] = []
    for step in range(count):
        worth = (1.0 - diversity) * quality + diversity * np.log(left)
        worth[chosen] = -np.inf
        best = int(worth.argmax())
        row = kernel(1.0 - points @ points[best]) - rows[:step, best] @ rows[:step]
        rows[step] = row / np.sqrt(left[best])
        left = np.maximum(left - np.square(rows[step]), LEAST)
        chosen.append(best)
    return few[chosen]
