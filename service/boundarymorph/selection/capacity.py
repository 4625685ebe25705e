"""Decide which documents fit into the returned set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import InvalidInput

LIKELY = 0.5
BINS = 4_096  # bins of the histogram of densities
LEAST_WORTH = 1e-6  # under a token limit, so that each document has a positive density


class Limit(ABC):
    """A limit on the set that is returned."""

    @abstractmethod
    def capacity_for(self, stay: NDArray[np.bool_], texts: NDArray[np.intp]) -> Capacity:
        """Return the capacity for some documents.

        Args:
            stay: (N,) mask of the documents.
            texts: (N,) numbers, equal for documents of the same text.
        """


class Capacity(Limit):
    """A limit on the set that is returned, for N documents."""

    by_groups = False  # whether documents may stay out although the set as a whole has space for them

    def capacity_for(self, stay: NDArray[np.bool_], texts: NDArray[np.intp]) -> Capacity:
        return self.subset(stay)

    def eligible(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return the (N,) mask of the documents that only the size of the set may keep out."""
        return np.ones(len(worth), dtype=np.bool_)

    def with_others(self, chosen: NDArray[np.bool_], worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return the (N,) mask of the chosen documents and of those that come with them."""
        return chosen

    @abstractmethod
    def holds_all(self, count: int) -> bool:
        """Return whether all `count` documents fit."""

    @abstractmethod
    def holds(self, documents: NDArray[np.bool_]) -> bool:
        """Return whether all documents of an (N,) mask fit."""

    @abstractmethod
    def nothing_to_decide(self, count: int) -> bool:
        """Return whether all `count` documents fit, or none."""

    @abstractmethod
    def subset(self, stay: NDArray[np.bool_]) -> Capacity:
        """Return the capacity for the documents of an (N,) mask."""

    @abstractmethod
    def narrow(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> Capacity:
        """Return the capacity for some documents once all others are decided.

        Packing does not use it.

        Args:
            stay: (N,) mask of the documents.
            taken: (N,) mask of the current set. The new boundary lies behind its documents that stay.
        """

    @abstractmethod
    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return the (N,) mask of the documents to return."""

    @abstractmethod
    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return margins and the mask of the documents inside the set.

        Returns:
            (N,) margins, by which documents are inside or outside the set, and the (N,) mask.
        """

    @abstractmethod
    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        """Return the expected worth of the best set if all outcomes were known.

        It is computed as the fractional choice among all outcomes, which is exact for many documents.

        Args:
            shares: (m, N) probabilities of the outcomes.
            worth: (m, N) worth of the outcomes.
        """


@dataclass(frozen=True, slots=True)
class DocumentCapacity(Capacity):
    """At most k documents."""

    k: int

    def holds_all(self, count: int) -> bool:
        return self.k >= count

    def holds(self, documents: NDArray[np.bool_]) -> bool:
        return self.holds_all(int(np.count_nonzero(documents)))

    def nothing_to_decide(self, count: int) -> bool:
        return self.holds_all(count)

    def subset(self, stay: NDArray[np.bool_]) -> DocumentCapacity:
        return self

    def narrow(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> DocumentCapacity:
        return DocumentCapacity(int(np.count_nonzero(taken & stay)))

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        return top_k(worth, self.k)

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        return worth, top_k(worth, self.k)

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        return _best(shares, worth, float(self.k))


@dataclass(frozen=True, slots=True, eq=False)
class TokenCapacity(Capacity):
    """Documents with a limit on their tokens.

    The returned set is packed by worth over the root of the length. Calls go to the boundary of a set of `count`
    documents.

    Attributes:
        lengths: (N,) tokens.
        limit: The most tokens of all documents together.
        count: The size of the set for calls; None for as many as would fit if all had the mean length.
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

    def subset(self, stay: NDArray[np.bool_]) -> TokenCapacity:
        return TokenCapacity(self.lengths[stay], self.limit, self._fitting)

    def narrow(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> DocumentCapacity:
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
class LikelyCapacity(Capacity):
    """All documents with a probability above one half, given as their worth."""

    def holds_all(self, count: int) -> bool:
        return count == 0

    def holds(self, documents: NDArray[np.bool_]) -> bool:
        return not documents.any()

    def nothing_to_decide(self, count: int) -> bool:
        return self.holds_all(count)

    def subset(self, stay: NDArray[np.bool_]) -> LikelyCapacity:
        return self

    def narrow(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> LikelyCapacity:
        return self

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        return worth > LIKELY

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        return worth - LIKELY, worth > LIKELY

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        return float((shares * worth).sum())


def capacity_of(*, k: int | None = None, lengths: ArrayLike | None = None, max_tokens: int | None = None) -> Capacity:
    """Return a capacity in documents or in tokens.

    With equal lengths, a token limit becomes a number of documents.

    Args:
        k: The most documents, if there is no token limit.
        lengths: (N,) tokens of the documents.
        max_tokens: The most tokens.

    Raises:
        InvalidInput: If k is below 1, a length is not positive, or no document fits.
    """
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
    """Return the worth of the first pieces that fit, by a histogram.

    Args:
        sizes: Sizes of the pieces.
        densities: Worth of the pieces per unit of size.
        room: The size that is available.
        order: The values that order the pieces; by default the densities.
    """
    order = densities if order is None else order
    largest = float(order.max(initial=0.0))
    if largest == 0:
        return 0.0
    bins = (order * (BINS / largest)).astype(np.intp)
    filled = np.bincount(bins.ravel(), sizes.ravel(), BINS + 1)
    above = np.cumsum(filled[::-1])[::-1] - filled
    taken = np.divide(np.clip(room - above, 0.0, filled), filled, out=np.zeros_like(filled), where=filled > 0)
    inside = np.flatnonzero(bins >= np.argmax(taken > 0))  # usually few
    return float((taken[bins.take(inside)] * sizes.take(inside) * densities.take(inside)).sum())


def top_k(worth: NDArray[np.float64], k: int) -> NDArray[np.bool_]:
    """Return the (N,) mask of the k largest values, ties by retrieval rank (paper app. C.3).

    If k >= N, all are included.
    """
    count = len(worth)
    if k >= count:
        return np.ones(count, dtype=np.bool_)
    threshold = np.partition(worth, count - k)[count - k]
    mask: NDArray[np.bool_] = worth > threshold
    ties = np.flatnonzero(worth == threshold)
    mask[ties[: k - np.count_nonzero(mask)]] = True
    return mask
