from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import rankdata

from boundarymorph.errors import InvalidInput
from boundarymorph.selection import Pool, SelectionSession, TrendConfig
from boundarymorph.selection.features import lexical, rank_and_similarity, signals, standardised, terms


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_any_finite_values_are_standardised(values: NDArray[np.float64]) -> None:
    result = standardised(values)
    assert np.isfinite(result).all()
    if result.any():
        assert result.mean() == pytest.approx(0, abs=1e-6)
        assert result.std() == pytest.approx(1)


def test_equal_values_say_nothing() -> None:
    assert standardised(np.full(5, 3.7)).tolist() == [0.0] * 5


def test_huge_retrieval_scores_still_fill_the_set() -> None:
    rng = np.random.default_rng(0)
    scores = np.where(np.arange(12) % 2, 1.7e308, -1.7e308)
    pool = Pool.of([str(i) for i in range(12)], rng.normal(size=(12, 4)), rng.normal(size=4), scores)
    session = SelectionSession(pool, budget=6, k=4, config=TrendConfig())
    while (asked := session.ask(2)).size:
        session.tell(asked, rng.uniform(size=asked.size))
    assert len(session.selection().documents) == 4


def test_features_of_a_pool() -> None:
    rng = np.random.default_rng(0)
    pool = Pool.of(list("abcd"), rng.normal(size=(4, 3)), rng.normal(size=3), features={"bm25": [0.0, 4.0, 9.0, 1.0]})
    rank, similarity = rank_and_similarity(pool)
    assert (np.diff(rank) < 0).all() and (np.diff(similarity) < 0).all()
    np.testing.assert_allclose(lexical(pool)[0], standardised(np.sqrt(pool.features["bm25"])))
    plain = Pool.of(list("abcd"), pool.embeddings, pool.query)
    assert lexical(plain).shape == (0, 4)


def test_a_fused_pool_brings_its_similarity() -> None:
    rng = np.random.default_rng(0)
    similarity = np.array([0.3, 0.9, 0.1, 0.5])
    features = {"similarity": similarity, "bm25": np.array([0.0, 4.0, 9.0, 1.0])}
    pool = Pool.of(list("abcd"), rng.normal(size=(4, 3)), rng.normal(size=3), [4.0, 3.0, 2.0, 1.0], features)
    rank, told = rank_and_similarity(pool)
    assert (np.diff(rank) < 0).all()
    np.testing.assert_allclose(told, standardised(similarity))


def test_terms_are_centred_and_of_mean_squared_length_one() -> None:
    rng = np.random.default_rng(0)
    pool = Pool.of(list("abcd"), rng.normal(size=(4, 3)), rng.normal(size=3))
    assert terms(pool).shape == (0, 4)
    for none in (np.empty((0, 4), np.bool_), np.zeros((2, 4), np.bool_), np.ones((2, 4), np.bool_)):
        assert not terms(replace(pool, terms=none)).any()
    found = terms(replace(pool, terms=np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=np.bool_)))
    scale = np.sqrt((0.75 + 1.0) / 4)
    expected = [[0.75, -0.25, -0.25, -0.25], [0.5, 0.5, -0.5, -0.5], [0, 0, 0, 0]]
    np.testing.assert_allclose(found, np.array(expected) / scale)


def test_signals_of_the_callers() -> None:
    """By name, on ranks of their own, whatever their scale; a missing value says nothing."""
    rng = np.random.default_rng(0)
    clicks, age = np.array([1e9, np.nan, 3.0, 3.0, -7.0]), np.array([np.nan] * 5)
    features = {"clicks": clicks, "bm25": np.ones(5), "age": age, "similarity": np.ones(5), "flat": np.full(5, 2.0)}
    pool = Pool.of(list("abcde"), rng.normal(size=(5, 3)), rng.normal(size=3), [5, 4, 3, 2, 1], features)
    columns = signals(pool)
    assert columns.shape == (3, 5)
    np.testing.assert_array_equal(columns[[0, 2]], np.zeros((2, 5)))
    there = [0, 2, 3, 4]
    np.testing.assert_allclose(columns[1][there], standardised(rankdata(clicks[there])))
    assert columns[1][1] == 0
    for bad in ({"clicks": [1, 2, 3, 4, np.inf]}, {"bm25": [1, 2, 3, 4, np.nan]}, {"clicks": [1, 2]}):
        with pytest.raises(InvalidInput):
            Pool.of(list("abcde"), pool.embeddings, pool.query, features=bad)
