import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from boundarymorph.errors import DuplicateIds, InvalidEmbeddings, InvalidInput
from boundarymorph.selection import Pool
from boundarymorph.selection.pool import row_lengths, unit_rows

EMBEDDINGS = np.random.default_rng(0).normal(size=(4, 6))
IDS = list("abcd")
QUERY = np.arange(1.0, 7.0)


def test_orders_by_inner_product_and_carries_everything_along() -> None:
    terms = np.array([[True, False, False, False], [False, True, True, False]])
    pool = Pool.of(IDS, EMBEDDINGS, QUERY, features={"bm25": [1, 2, 3, 4]}, terms=terms)
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


@pytest.mark.parametrize(
    ("given_type", "kept"),
    [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64), (int, np.float32)],
)
def test_types(given_type: type, kept: type) -> None:
    pool = Pool.of(IDS, (EMBEDDINGS * 10).astype(given_type), QUERY)
    assert pool.embeddings.dtype == pool.query.dtype == kept
    np.testing.assert_allclose(np.linalg.norm(pool.embeddings, axis=1), 1, atol=1e-6)


def test_rows_of_unit_length_are_neither_copied_nor_changed() -> None:
    rows = np.eye(3, dtype=np.float32)
    assert unit_rows(rows, "abc") is rows
    nearly = rows * np.float32(1.001)
    assert unit_rows(nearly, "abc").tolist() == rows.tolist()


def test_the_callers_array_is_left_alone() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        given_rows = EMBEDDINGS.astype(dtype)
        before = given_rows.copy()
        unit_rows(given_rows, IDS)
        np.testing.assert_array_equal(given_rows, before)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_vectors_without_direction_are_named(bad: float) -> None:
    embeddings = EMBEDDINGS.copy()
    embeddings[2] = bad
    with pytest.raises(InvalidEmbeddings, match="'c' has no direction"):
        Pool.of(IDS, embeddings, QUERY)
    with pytest.raises(InvalidEmbeddings, match="the query"):
        Pool.of(IDS, EMBEDDINGS, np.full(6, bad))


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
def test_shapes(embeddings: NDArray[np.floating], query: NDArray[np.floating], message: str) -> None:
    with pytest.raises(InvalidEmbeddings, match=message):
        Pool.of(IDS, embeddings, query)


def test_ids_scores_and_features_are_checked() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        Pool.of([], np.empty((0, 6)), QUERY)
    with pytest.raises(DuplicateIds, match="'b'"):
        Pool.of(["a", "b", "c", "b"], EMBEDDINGS, QUERY)
    with pytest.raises(InvalidInput, match="score"):
        Pool.of(IDS, EMBEDDINGS, QUERY, scores=[1, 2, 3])
    with pytest.raises(InvalidInput, match="'d' is not a finite"):
        Pool.of(IDS, EMBEDDINGS, QUERY, features={"bm25": [1, 2, 3, np.nan]})
    for shape in ((4,), (2, 3), (4, 2)):
        with pytest.raises(InvalidInput, match="terms"):
            Pool.of(IDS, EMBEDDINGS, QUERY, terms=np.ones(shape, dtype=np.bool_))


@settings(max_examples=100)
@given(
    arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.floats(-1e6, 1e6, width=32)),
)
def test_row_lengths(rows: NDArray[np.float32]) -> None:
    wide = np.tile(rows, (1, 70))
    np.testing.assert_allclose(
        row_lengths(wide), np.linalg.norm(wide.astype(np.float64), axis=1), rtol=1e-5, atol=1e-15
    )
