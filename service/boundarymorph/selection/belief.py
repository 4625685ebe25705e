"""Means and standard deviations of all documents at one moment of a session, and which documents are copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.geometry import inner_products


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


PROJECTIONS = 4
CLOSE = 1e-3  # between vectors of unit length: rounding to float16 moves one by 3e-4
NEXT = 8  # neighbours in a projection that each vector is compared with


def shared(belief: Belief, texts: NDArray[np.intp]) -> Belief:
    """The belief with each score copied to all documents of the same text. texts: (N,) numbers, equal for equal
    texts."""
    scores = np.full(int(texts.max(initial=0)) + 1, np.nan)
    scores[texts[belief.scored]] = belief.mean[belief.scored]
    of_text = scores[texts]
    copies = ~belief.scored & ~np.isnan(of_text)
    if not copies.any():
        return belief
    return Belief(np.where(copies, of_text, belief.mean), np.where(copies, 0.0, belief.std), belief.scored | copies)


def first_of_each(documents: NDArray[np.intp], texts: NDArray[np.intp]) -> NDArray[np.intp]:
    """The first document of each text among these, in their order."""
    return documents[np.sort(np.unique(texts[documents], return_index=True)[1])]


def alike(vectors: NDArray[np.floating], seed: int = 0) -> NDArray[np.intp]:
    """(N,) numbers, equal for documents whose (N, d) unit vectors are so close that their texts may be the same.

    Vectors are compared with their neighbours in random projections, so a pair may be missed.
    """
    count, dimension = vectors.shape
    groups = np.arange(count)
    if not dimension:
        return groups
    directions = np.random.default_rng(seed).normal(size=(dimension, PROJECTIONS)).astype(vectors.dtype)
    # Of two vectors, these differ by their distance times a standard normal number.
    places = inner_products(directions.T, vectors)
    order = np.argsort(places[0])
    first, *others = places[::-1, order]
    pairs = []
    for step in range(1, min(NEXT, count - 1) + 1):
        near = np.flatnonzero(np.abs(first[step:] - first[:-step]) < 4 * CLOSE)
        for place in others:
            near = near[np.abs(place[near + step] - place[near]) < 4 * CLOSE]
        pairs.append(np.stack([order[near], order[near + step]]))
    left, right = np.concatenate(pairs, axis=1) if pairs else np.empty((2, 0), dtype=np.intp)
    while (groups[left] != groups[right]).any():
        lowest = np.minimum(groups[left], groups[right])
        np.minimum.at(groups, left, lowest)
        np.minimum.at(groups, right, lowest)
        groups = groups[groups]
    return groups
