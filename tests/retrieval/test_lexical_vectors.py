"""Test the vectors that are made of a pool's words."""

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.retrieval.lexical_vectors import DIMENSIONS, LexicalVectors, lexical_vectors
from boundarymorph.retrieval.words import PoolWords

TOPICS = (
    "tram line rails stop driver ticket",
    "violin string bow quartet concert",
    "soil seed harvest tractor barn",
    "court judge verdict appeal law",
)


def vectors_of(texts: list[str], query: str = "tram") -> LexicalVectors:
    vectors = lexical_vectors(PoolWords.from_texts(texts), query)
    assert vectors.documents.dtype == vectors.query.dtype == np.float32
    assert vectors.documents.shape == (len(texts), len(vectors.query))
    assert len(vectors.query) <= DIMENSIONS
    lengths = np.linalg.norm(np.vstack([vectors.documents, vectors.query]), axis=1)
    np.testing.assert_allclose(lengths, 1.0, atol=1e-6)
    return vectors


def corpus(count: int, seed: int = 0) -> list[str]:
    """Return texts about topics in turn, with common words and words of their own."""
    rng = np.random.default_rng(seed)
    noise = [f"noise{number}" for number in range(3_000)]
    return [
        " ".join(
            [*rng.choice(TOPICS[number % len(TOPICS)].split(), 8), *rng.choice(noise, 12), "the", "of", f"own{number}"]
        )
        for number in range(count)
    ]


def cosines(texts: list[str], query: str) -> NDArray[np.float64]:
    """Return the TF-IDF cosines between all texts and, last, the query, by definition."""
    vocabulary = sorted({word for text in texts for word in text.split()})
    counts = np.array([[text.split().count(word) for word in vocabulary] for text in [*texts, query]], dtype=np.float64)
    frequency = (counts[:-1] > 0).sum(axis=0)
    weights = 1 + np.log((1 + len(texts)) / (1 + frequency))
    values = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0) * weights
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    products: NDArray[np.float64] = values @ values.T
    return products


@pytest.mark.parametrize("count", [1, 30, DIMENSIONS - 1])
def test_lexical_vectors_of_a_small_pool_have_tf_idf_cosines(count: int) -> None:
    texts, query = corpus(count), "tram driver concert"
    vectors, expected = vectors_of(texts, query), cosines(texts, query)
    np.testing.assert_allclose(vectors.documents @ vectors.documents.T, expected[:-1, :-1], atol=1e-5)
    similarity = vectors.documents @ vectors.query
    wanted = expected[:-1, -1]  # up to the length of the query's part in the pool's space
    np.testing.assert_allclose(similarity / np.linalg.norm(similarity), wanted / np.linalg.norm(wanted), atol=1e-5)


def test_lexical_vectors_of_a_large_pool_separate_topics() -> None:
    texts = corpus(600)
    vectors = vectors_of(texts, "violin quartet")
    assert len(vectors.query) == DIMENSIONS
    topic = np.arange(600) % len(TOPICS)
    products = vectors.documents @ vectors.documents.T
    same = topic[:, None] == topic[None]
    other = products[~same]
    np.fill_diagonal(same, val=False)
    assert products[same].mean() > other.mean() + 0.25
    similarity = vectors.documents @ vectors.query
    assert (topic[np.argsort(-similarity)[:100]] == 1).all()


@pytest.mark.parametrize("count", [5, 300])
def test_lexical_vectors_of_texts_without_words_are_orthogonal(count: int) -> None:
    vectors = vectors_of(["", *corpus(count), "-- ?!"])
    np.testing.assert_allclose(vectors.documents[0] @ vectors.documents.T, [1.0, *[0.0] * count, 1.0], atol=1e-6)
    assert vectors.documents[0] @ vectors.query == pytest.approx(0, abs=1e-6)
    other = vectors_of(corpus(count), "unheard")
    np.testing.assert_allclose(other.documents @ other.query, 0, atol=1e-6)
    none = vectors_of([""] * count)
    np.testing.assert_array_equal(none.documents @ none.documents.T, np.ones((count, count)))


def test_lexical_vectors_of_rank_100_are_exact() -> None:
    """The decomposition finds all 100 kinds of texts, also those with equal singular values."""
    kinds = corpus(100)
    texts, query = kinds * 4, "tram driver concert"
    vectors, expected = vectors_of(texts, query), cosines(texts, query)
    np.testing.assert_allclose(vectors.documents @ vectors.documents.T, expected[:-1, :-1], atol=1e-4)
    alone = vectors_of([f"a{kind} b{kind}" for kind in range(100)] * 4, "a7").documents
    np.testing.assert_allclose(alone @ alone.T, np.tile(np.eye(100), (4, 4)), atol=1e-4)
