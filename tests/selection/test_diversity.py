"""Sets whose documents say different things."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.selection import Distinct, SelectionSession, TrendConfig
from boundarymorph.selection.capacity import diverse
from boundarymorph.selection.geometry import median_distance
from tests.selection.pools import clustered


def literally(vectors: NDArray[np.floating], relevance: NDArray[np.float64], count: int, diversity: float) -> list[int]:
    """By the determinants themselves."""
    kappa = math.log(2) / (median_distance(vectors) / 2)
    covariance = np.exp(-kappa * (1 - vectors @ vectors.T))
    chosen: list[int] = []
    while len(chosen) < count:
        before = np.linalg.slogdet(covariance[np.ix_(chosen, chosen)])[1]
        gains = {}
        for one in set(range(len(vectors))) - set(chosen):
            with_it = [*chosen, one]
            left = np.linalg.slogdet(covariance[np.ix_(with_it, with_it)])[1] - before
            gains[one] = (1 - diversity) * math.log(relevance[one]) + diversity * left
        chosen.append(max(gains, key=lambda one: (gains[one], -one)))
    return chosen


@pytest.mark.parametrize("diversity", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_each_adds_the_most(diversity: float, seed: int) -> None:
    pool, scores = clustered(40, 6, seed)
    found = diverse(pool.embeddings, scores, 12, diversity).tolist()
    assert found == literally(pool.embeddings, scores, 12, diversity)
    if diversity == 0:
        assert found == np.argsort(-scores, kind="stable")[:12].tolist()


def test_copies_come_last() -> None:
    pool, scores = clustered(30, 6, 1)
    vectors, relevance = np.repeat(pool.embeddings, 4, axis=0), np.repeat(scores, 4)
    assert len(set(diverse(vectors, relevance, 20, 0.5) // 4)) == 20
    assert len(set(diverse(vectors, relevance, 40, 0.5).tolist())) == 40  # more than there are different ones
    assert len(set(diverse(vectors, relevance, 20, 0.0) // 4)) == 5
    assert diverse(vectors[:3], relevance[:3], 5, 0.5).tolist() == [0, 1, 2]
    assert len(set(diverse(np.ones((50, 4)) / 2, np.zeros(50), 10, 0.5).tolist())) == 10


def test_in_a_session_with_groups() -> None:
    pool, scores = clustered(80, 8, 2)
    groups = np.arange(80) // 4
    known = dict(enumerate(scores.tolist()))
    options = {"budget": 0, "k": 8, "known": known, "config": TrendConfig()}
    plain = SelectionSession(pool, **options).selection().documents  # type: ignore[arg-type]
    varied = SelectionSession(pool, **options, diversity=0.4).selection()  # type: ignore[arg-type]
    assert set(varied.documents.tolist()) == set(diverse(pool.embeddings, scores, 8, 0.4).tolist())
    assert set(varied.documents.tolist()) != set(plain.tolist()) and (np.diff(varied.relevance) <= 0).all()
    both = SelectionSession(pool, **options, diversity=0.4, distinct=Distinct(groups, 2, True))  # type: ignore[arg-type]
    chosen = both.selection().documents
    assert np.bincount(groups[chosen]).max() == 2 and len(set(groups[chosen])) == 8 and len(chosen) == 16
