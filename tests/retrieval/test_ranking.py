"""Test float16 conversion and unit vectors to the last bit, and fused rankings."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from boundarymorph.errors import DuplicateIds
from boundarymorph.retrieval.ranking import floats_from_halves, fuse, halves_from_floats, unit_from_halves, unit_rows_of

NORMAL = 2.0**-14  # the smallest float16 that has all its digits


def every_half() -> NDArray[np.float16]:
    """Return every float16 of magnitude at most 1, including negative zero."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    return halves[np.abs(halves) <= 1]


def test_every_float16_round_trips() -> None:
    halves = every_half()
    np.testing.assert_array_equal(halves_from_floats(floats_from_halves(halves)).view("u2"), halves.view("u2"))


def test_float16_rounding_of_ties_matches_numpy() -> None:
    positive = np.sort(every_half()[np.signbit(every_half()) == 0]).astype(np.float32)
    ties = (positive[:-1] + positive[1:]) / 2
    floats = np.concatenate([ties, np.nextafter(ties, np.float32(2)), np.nextafter(ties, np.float32(0))])
    floats = floats[floats >= NORMAL]
    floats = np.concatenate([floats, -floats])
    np.testing.assert_array_equal(halves_from_floats(floats), floats.astype(np.float16))


@given(arrays(np.float32, 50, elements=st.floats(-1, 1, width=32)))
def test_float16_conversion_rounds_to_the_nearest(floats: NDArray[np.float32]) -> None:
    ours, numpys = halves_from_floats(floats).astype(np.float64), floats.astype(np.float16).astype(np.float64)
    large = np.abs(floats) >= NORMAL
    np.testing.assert_array_equal(ours[large], numpys[large])
    error, best = np.abs(ours - floats), np.abs(numpys - floats)
    assert (error <= best + 2.0**-36).all()  # 2**-12 of the step between small ones


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 7, 384, 1024]))
def test_unit_rows_of_float16_are_exact(seed: int, dimension: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((20, dimension)) + 1e-3
    halves = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    vectors, lengths = unit_rows_of(halves)
    exact = halves.astype(np.float64)
    np.testing.assert_array_equal(lengths, np.sqrt((exact**2).sum(axis=1)))
    np.testing.assert_array_equal(vectors, halves.astype(np.float32) / lengths.astype(np.float32)[:, None])
    np.testing.assert_array_equal(unit_from_halves(halves), vectors)


rankings = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=5)


def exact(id: str, lists: list[list[str]]) -> Fraction:
    return sum((Fraction(1, 60 + ranking.index(id) + 1) for ranking in lists if id in ranking), Fraction())


@given(rankings)
def test_fuse_is_reciprocal_rank_fusion(lists: list[list[str]]) -> None:
    seen = list(dict.fromkeys(id for ranking in lists for id in ranking))
    fused = fuse(lists)
    assert fused.ids == sorted(seen, key=lambda id: (-exact(id, lists), seen.index(id)))
    np.testing.assert_allclose(fused.scores, [float(exact(id, lists)) for id in fused.ids], rtol=1e-14)
    assert (np.diff(fused.scores) <= 0).all()


def test_fuse_refuses_a_ranking_that_repeats_a_document() -> None:
    with pytest.raises(DuplicateIds, match="ranking 2 of 2"):
        fuse([["a"], ["b", "b"]])
