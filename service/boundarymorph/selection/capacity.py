"""Capacities: which documents fit into the returned set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import InvalidInput

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

    def among(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> Capacity:
        """The remaining capacity for a subset, after others have been taken. Both are (N,) masks."""

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(N,) mask of the documents to return."""

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """(N,) margins, by which documents are inside or outside the set, and the (N,) mask of those inside."""

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        """The expected worth of the best set if all outcomes were known. Documents have (m, N) outcomes with (m, N)
        probabilities. It is taken as the best fractional choice among all outcomes, which is exact for many documents
        and an upper bound for few."""


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

    def among(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> DocumentCapacity:
        return DocumentCapacity(self.k - int(np.count_nonzero(taken & ~stay)))

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        return top_k(worth, self.k)

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        return worth, top_k(worth, self.k)

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        return _best(shares, worth, float(self.k))


@dataclass(frozen=True, slots=True, eq=False)
class TokenCapacity:
    """Documents of `lengths` (N,) tokens, at most `limit` of them together: a knapsack.

    The linear relaxation takes documents by density, which is worth per token, up to the first that does not fit. Its
    density eta is the price of a token, and worth - eta * length is a document's margin. The returned set is then
    filled up with later documents that still fit.
    """

    lengths: NDArray[np.float64]
    limit: float

    def holds_all(self, count: int) -> bool:
        return float(self.lengths.sum()) <= self.limit

    def holds(self, documents: NDArray[np.bool_]) -> bool:
        return float(self.lengths[documents].sum()) <= self.limit

    def nothing_to_decide(self, count: int) -> bool:
        return self.holds_all(count) or bool((self.lengths > self.limit).all())

    def among(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> TokenCapacity:
        return TokenCapacity(self.lengths[stay], self.limit - float(self.lengths[taken & ~stay].sum()))

    def fill(self, worth: NDArray[np.float64]) -> NDArray[np.bool_]:
        mask = np.zeros(len(worth), dtype=np.bool_)
        room = self.limit
        for document in self._by_density(worth):
            if self.lengths[document] <= room:
                mask[document] = True
                room -= self.lengths[document]
        return mask

    def margin(self, worth: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        order = self._by_density(worth)
        fitting = int(np.searchsorted(np.cumsum(self.lengths[order]), self.limit, side="right"))
        mask = np.zeros(len(worth), dtype=np.bool_)
        mask[order[: max(fitting, 1)]] = True  # a first document that is too long alone is still contested
        broken = order[min(max(fitting, 1), len(order) - 1)]
        price = max(float(worth[broken]), LEAST_WORTH) / self.lengths[broken]
        return worth - price * self.lengths, mask

    def best(self, shares: NDArray[np.float64], worth: NDArray[np.float64]) -> float:
        return _best(shares * self.lengths, worth / self.lengths, self.limit)

    def in_documents(self) -> DocumentCapacity:
        """The capacity in documents of mean length: at least one, and not all."""
        return DocumentCapacity(max(1, min(int(self.limit / self.lengths.mean()), len(self.lengths) - 1)))

    def _by_density(self, worth: NDArray[np.float64]) -> NDArray[np.intp]:
        return np.argsort(-np.maximum(worth, LEAST_WORTH) / self.lengths, kind="stable")


@dataclass(frozen=True, slots=True)
class LikelyCapacity:
    """All documents with a probability above one half, given as their worth."""

    def holds_all(self, count: int) -> bool:
        return count == 0

    def holds(self, documents: NDArray[np.bool_]) -> bool:
        return not documents.any()

    def nothing_to_decide(self, count: int) -> bool:
        return self.holds_all(count)

    def among(self, stay: NDArray[np.bool_], taken: NDArray[np.bool_]) -> LikelyCapacity:
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


def _best(sizes: NDArray[np.float64], densities: NDArray[np.float64], room: float) -> float:
    """The largest worth of pieces that fit, by a histogram of their densities."""
    largest = float(densities.max(initial=0.0))
    if largest == 0:
        return 0.0
    bins = (densities * (BINS / largest)).astype(np.intp)
    filled = np.bincount(bins.ravel(), sizes.ravel(), BINS + 1)
    above = np.cumsum(filled[::-1])[::-1] - filled
    taken = np.divide(np.clip(room - above, 0.0, filled), filled, out=np.zeros_like(filled), where=filled > 0)
    inside = bins >= np.argmax(taken > 0)  # few of all
    return float((taken[bins[inside]] * sizes[inside] * densities[inside]).sum())


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
