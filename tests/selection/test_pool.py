"""Test pools: checks, features, memory, and maps."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from scipy.stats import rankdata

from boundarymorph.errors import DuplicateIds, InvalidEmbeddings, InvalidInput
from boundarymorph.selection import Pool
from boundarymorph.selection.methods import METHODS
from boundarymorph.selection.pool import (
    footprint,
    lexical,
    rank_and_similarity,
    row_lengths,
    signals,
    standardised,
    terms,
    unit_rows,
)
from tests.sessions import session_of

EMBEDDINGS = np.random.default_rng(0).normal(size=(4, 6))
IDS = list("abcd")
QUERY = np.arange(1.0, 7.0)


def test_pool_orders_all_fields_by_inner_product() -> None:
    terms = np.array([[True, False, False, False], [False, True, True, False]])
    pool = Pool.from_embeddings(IDS, EMBEDDINGS, QUERY, features={"bm25": [1, 2, 3, 4]}, terms=terms)
    unit = EMBEDDINGS / np.linalg.norm(EMBEDDINGS, axis=1)[:, None]
    cosines = unit @ (QUERY / np.linalg.norm(QUERY))
    order = np.argsort(-cosines)
    assert list(pool.ids) == [IDS[i] for i in order]
    np.testing.assert_allclose(pool.scores, cosines[order])
    np.testing.assert_allclose(pool.embeddings, unit[order])
    np.testing.assert_array_equal(pool.features["bm25"], np.array([1.0, 2, 3, 4])[order])
    assert pool.terms is not None
    np.testing.assert_array_equal(pool.terms, terms[:, order])
    assert len(pool) == 4


def test_unit_rows_returns_unit_vectors_uncopied() -> None:
    rows = np.eye(3, dtype=np.float32)
    assert unit_rows(rows, "abc") is rows
    nearly = rows * np.float32(1.001)
    assert unit_rows(nearly, "abc").tolist() == rows.tolist()


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_pool_names_vectors_without_a_direction(bad: float) -> None:
    embeddings = EMBEDDINGS.copy()
    embeddings[2] = bad
    with pytest.raises(InvalidEmbeddings, match="'c' has no direction"):
        Pool.from_embeddings(IDS, embeddings, QUERY)
    with pytest.raises(InvalidEmbeddings, match="the query"):
        Pool.from_embeddings(IDS, EMBEDDINGS, np.full(6, bad))


@pytest.mark.parametrize(
    ("embeddings", "query", "message"),
    [
        (EMBEDDINGS[:3], QUERY, "4 documents came with 3"),
        (EMBEDDINGS, QUERY[:5], "6 dimensions and the query's 5"),
        (EMBEDDINGS[0], QUERY, "shape"),
        (np.empty((4, 0)), QUERY, "shape"),
        (np.array([["x"] * 6] * 4), QUERY, "numbers"),
    ],
)
def test_pool_refuses_mismatched_shapes(
    embeddings: NDArray[np.floating], query: NDArray[np.floating], message: str
) -> None:
    with pytest.raises(InvalidEmbeddings, match=message):
        Pool.from_embeddings(IDS, embeddings, query)


def test_pool_checks_ids_scores_and_features() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        Pool.from_embeddings([], np.empty((0, 6)), QUERY)
    with pytest.raises(DuplicateIds, match="'b'"):
        Pool.from_embeddings(["a", "b", "c", "b"], EMBEDDINGS, QUERY)
    with pytest.raises(InvalidInput, match="score"):
        Pool.from_embeddings(IDS, EMBEDDINGS, QUERY, scores=[1, 2, 3])
    with pytest.raises(InvalidInput, match="'d' is not a finite"):
        Pool.from_embeddings(IDS, EMBEDDINGS, QUERY, features={"bm25": [1, 2, 3, np.nan]})
    for shape in ((4,), (2, 3), (4, 2)):
        with pytest.raises(InvalidInput, match="terms"):
            Pool.from_embeddings(IDS, EMBEDDINGS, QUERY, terms=np.ones(shape, dtype=np.bool_))


@settings(max_examples=30)
@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.floats(-1e6, 1e6, width=32)))
def test_row_lengths_equal_euclidean_norms(rows: NDArray[np.float32]) -> None:
    wide = np.tile(rows, (1, 70))
    np.testing.assert_allclose(
        row_lengths(wide), np.linalg.norm(wide.astype(np.float64), axis=1), rtol=1e-5, atol=1e-15
    )


@settings(max_examples=40)
@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_standardised_accepts_any_finite_values(values: NDArray[np.float64]) -> None:
    result = standardised(values)
    assert np.isfinite(result).all()
    if result.any():
        assert result.mean() == pytest.approx(0, abs=1e-6)
        assert result.std() == pytest.approx(1)


def test_rank_and_similarity_depend_on_how_the_pool_is_ranked() -> None:
    """A fused pool has its similarity as a feature; otherwise similarity ranks the pool."""
    rng = np.random.default_rng(0)
    vectors, query, bm25 = rng.normal(size=(4, 3)), rng.normal(size=3), np.array([0.0, 4.0, 9.0, 1.0])
    plain = Pool.from_embeddings(list("abcd"), vectors, query)
    rank, similarity = rank_and_similarity(plain)
    assert (np.diff(rank) < 0).all() and (np.diff(similarity) < 0).all()
    assert lexical(plain).shape == (0, 4)
    features = {"similarity": np.array([0.3, 0.9, 0.1, 0.5]), "bm25": bm25}
    fused = Pool.from_embeddings(list("abcd"), vectors, query, [4.0, 3.0, 2.0, 1.0], features)
    rank, similarity = rank_and_similarity(fused)
    assert (np.diff(rank) < 0).all()
    np.testing.assert_allclose(similarity, standardised(features["similarity"]))
    np.testing.assert_allclose(lexical(fused)[0], standardised(np.sqrt(bm25)))


def test_documents_with_equal_scores_share_a_rank() -> None:
    rng = np.random.default_rng(0)
    pool = Pool.from_embeddings(list("abcde"), rng.normal(size=(5, 3)), rng.normal(size=3), [0.0, 2.0, 0.0, 1.0, 0.0])
    assert pool.ids == ["b", "d", "a", "c", "e"]
    np.testing.assert_allclose(rank_and_similarity(pool)[0], standardised(np.array([5.0, 4.0, 2.0, 2.0, 2.0])))


def test_term_features_are_centred_with_unit_mean_square() -> None:
    rng = np.random.default_rng(0)
    pool = Pool.from_embeddings(list("abcd"), rng.normal(size=(4, 3)), rng.normal(size=3))
    assert terms(pool).shape == (0, 4)
    for none in (np.empty((0, 4), np.bool_), np.zeros((2, 4), np.bool_), np.ones((2, 4), np.bool_)):
        assert not terms(replace(pool, terms=none)).any()
    found = terms(replace(pool, terms=np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=np.bool_)))
    scale = np.sqrt((0.75 + 1.0) / 4)
    expected = [[0.75, -0.25, -0.25, -0.25], [0.5, 0.5, -0.5, -0.5], [0, 0, 0, 0]]
    np.testing.assert_allclose(found, np.array(expected) / scale)


def test_signals_of_callers_become_ranks_of_their_own() -> None:
    """Each signal has its own ranks, whatever its scale; a missing value has no effect."""
    rng = np.random.default_rng(0)
    clicks, age = np.array([1e9, np.nan, 3.0, 3.0, -7.0]), np.array([np.nan] * 5)
    features = {"clicks": clicks, "bm25": np.ones(5), "age": age, "similarity": np.ones(5), "flat": np.full(5, 2.0)}
    pool = Pool.from_embeddings(list("abcde"), rng.normal(size=(5, 3)), rng.normal(size=3), [5, 4, 3, 2, 1], features)
    columns = signals(pool)
    assert columns.shape == (3, 5)
    np.testing.assert_array_equal(columns[[0, 2]], np.zeros((2, 5)))
    there = [0, 2, 3, 4]
    np.testing.assert_allclose(columns[1][there], standardised(rankdata(clicks[there])))
    assert columns[1][1] == 0
    for bad in ({"clicks": [1, 2, 3, 4, np.inf]}, {"bm25": [1, 2, 3, 4, np.nan]}, {"clicks": [1, 2]}):
        with pytest.raises(InvalidInput):
            Pool.from_embeddings(list("abcde"), pool.embeddings, pool.query, features=bad)


pytestmark = pytest.mark.strangers


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("count", "budget", "at_once"), [(3_000, 20, 8), (1_500, 150, 32), (400, 300, 256)])
def test_session_memory_is_within_its_estimate(method: str, count: int, budget: int, at_once: int) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((count, 32), dtype=np.float32)
    ids, bm25, terms = [str(number) for number in range(count)], draw.random(count), draw.random((8, count)) < 0.1
    pool = Pool.from_embeddings(ids, vectors, vectors[0] + 0.1, np.arange(count, 0, -1.0), {"bm25": bm25}, terms)
    tracemalloc.start()
    session = session_of(pool, budget=budget, k=50, config=METHODS[method], order=True)
    while (asked := session.ask(at_once)).size:
        session.tell(asked, draw.random(len(asked)))
    session.ranking()
    session.outlook()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= footprint(pool, budget) <= 4 * peak + pool.embeddings.nbytes
