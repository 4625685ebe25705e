"""Test the main directions of an index's vectors.

The store learns them, its processes share them, and searches use them.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.retrieval.document import Document, Retrieval, Search
from boundarymorph.retrieval.local.catalog import LocalIndex
from boundarymorph.retrieval.local.store import COUNT, FEWEST, Directions, DocumentStore

DIMENSION = 160
WORDS = ["river", "bridge", "water", "stone", "tower"]


def topical(count: int, seed: int = 0, dimension: int = DIMENSION, topics: int = 20) -> NDArray[np.float32]:
    """Return (n, d) unit rows near a few topics, as encoders make them."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((topics, dimension))
    rows = centres[rng.integers(topics, size=count)] + 0.3 * rng.standard_normal((count, dimension))
    units: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return units


def put(index: LocalIndex, numbers: Sequence[int], seed: int = 0) -> None:
    documents = [Document(str(number), f"the {WORDS[number % 5]} of town {number}") for number in numbers]
    index.upsert(documents, topical(len(documents), seed, index.info.dimension))


def opened(path: Path, dimension: int = DIMENSION, *, kind: str = "flat", lexical: bool = True) -> LocalIndex:
    if not path.exists():
        DocumentStore.create(path, encoder=None, dimension=dimension, kind=kind, lexical=lexical).close()
    return LocalIndex("index", path)


def found(index: LocalIndex, *, directions: bool = True, hybrid: bool = False, depth: int = 300) -> Retrieval:
    query = topical(1, seed=7, dimension=index.info.dimension)[0]
    return index.retrieve(Search("the river", depth, query, hybrid=hybrid, directions=directions))


@pytest.mark.parametrize(("count", "dimension"), [(700, 160), (100, 160), (300, 1_000)])
def test_directions_span_the_space_of_the_singular_vectors(count: int, dimension: int) -> None:
    vectors = topical(count, dimension=dimension)
    basis = Directions.learn(vectors).basis
    assert basis.shape == (dimension, COUNT)
    assert np.allclose(basis.T @ basis, np.eye(COUNT), atol=1e-4)
    _, lengths, _ = np.linalg.svd(vectors.astype(np.float64))
    most = np.square(lengths[:COUNT]).sum()
    assert 0.99 * most < np.square(vectors @ basis).sum() < 1.0001 * most


@pytest.mark.parametrize("count", [1, 63, 65, 500])
def test_directions_of_a_row_ignore_other_rows(count: int) -> None:
    vectors = topical(500)
    learned = Directions.learn(vectors)
    whole = learned.units(vectors)
    some = np.random.default_rng(count).permutation(500)[:count]
    assert np.array_equal(learned.units(vectors[some]), whole[some])


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_directions_change_only_the_vectors_of_a_pool(tmp_path: Path, kind: str, hybrid: bool) -> None:
    index = opened(tmp_path / "index.sqlite3", kind=kind)
    put(index, range(1_500))
    whole, reduced = (found(index, directions=wanted, hybrid=hybrid).pool for wanted in (False, True))
    assert whole.embeddings.shape == (300, DIMENSION)
    assert reduced.embeddings.shape == (300, COUNT)
    assert reduced.ids == whole.ids
    assert np.array_equal(reduced.scores, whole.scores)
    assert reduced.terms is not None and whole.terms is not None and np.array_equal(reduced.terms, whole.terms)
    assert all(np.array_equal(reduced.features[name], whole.features[name]) for name in whole.features)
    cosines = [(vectors @ vectors.T).ravel() for vectors in (whole.embeddings[::6], reduced.embeddings[::6])]
    assert np.corrcoef(np.stack(cosines))[0, 1] > 0.95


@pytest.mark.parametrize(
    ("writes", "dimension", "lexical", "reduced"),
    [
        (FEWEST - 1, DIMENSION, True, False),
        (FEWEST, 2 * COUNT, True, True),
        (FEWEST, 2 * COUNT - 1, True, False),
        (FEWEST, DIMENSION, False, False),  # weighing the dimensions of a query needs all of them
    ],
)
def test_directions_require_many_documents_dimensions_and_words(
    tmp_path: Path, writes: int, dimension: int, lexical: bool, reduced: bool
) -> None:
    index = opened(tmp_path / "index.sqlite3", dimension, lexical=lexical)
    put(index, range(writes))
    assert found(index).pool.embeddings.shape[1] == (COUNT if reduced else dimension)


def test_directions_are_relearned_and_shared_between_processes(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite3"
    first, second = opened(path), opened(path)
    put(first, range(FEWEST))
    before = second.directions()
    assert before is not None
    put(second, range(FEWEST, 2 * FEWEST - 1), seed=1)
    assert second.directions() is before
    put(second, [2 * FEWEST], seed=2)
    after = first.directions()
    assert after is not None and not np.array_equal(after.basis, before.basis)
    assert np.array_equal(found(first).pool.embeddings, found(second).pool.embeddings)
    assert np.array_equal(found(opened(path)).pool.embeddings, found(second).pool.embeddings)
