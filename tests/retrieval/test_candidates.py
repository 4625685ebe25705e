"""Candidates that came with the request."""

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import in_default_thread
from boundarymorph.retrieval.document import Document, GivenCandidates
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.local.catalog import LocalCatalog

TEXTS = ("the cat sat", "catalogues", "nothing", "a category of cats")
QUERY = "Cat, cats or catalogue"
HAVING = [[True, False, False, False], [False, False, False, True], [False] * 4, [False, True, False, False]]


@pytest.mark.parametrize("embeddings", [None, np.eye(4)])
@pytest.mark.parametrize("features", [{}, {"bm25": [4.0, 3.0, 2.0, 1.0]}])
@pytest.mark.parametrize("words", [True, False])
async def test_which_documents_have_which_words_of_the_query(
    catalog: LocalCatalog, embeddings: NDArray[np.float64] | None, features: dict[str, list[float]], words: bool
) -> None:
    """Whoever computed BM25 and the vectors; but only for a method that has use for words."""
    documents = [Document(str(number), text) for number, text in enumerate(TEXTS)]
    candidates = GivenCandidates(
        IndexRetriever(catalog, None),
        QUERY,
        documents,
        embeddings=embeddings,
        query_embedding=None if embeddings is None else np.ones(4),
        scores=[1.0, 3.0, 2.0, 4.0],
        features=features,
        words=words,
    )
    pool = (await candidates.retrieve(in_default_thread)).pool
    assert list(pool.ids) == ["3", "1", "2", "0"]
    assert ("bm25" in pool.features) == (words or bool(features))
    if words:
        assert pool.terms is not None
        np.testing.assert_array_equal(pool.terms, np.array(HAVING)[:, [3, 1, 2, 0]])
    else:
        assert pool.terms is None
