"""Test indexes without vectors, which search by words.

A search returns the same vectors that a pool with these texts has.
"""

from collections.abc import AsyncIterator

import numpy as np
import pytest

from boundarymorph.errors import EmptyIndex, InvalidInput
from boundarymorph.inference.concurrency import run_in_default_thread
from boundarymorph.notices import Notice
from boundarymorph.retrieval.candidates import GivenCandidates, PoolSource
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.retrieval.fakes import SeededEncoder

WORDS = ["tram", "rail", "wheel", "bell", "street", "driver", "ticket", "depot"]
QUERY = "tram depot"


def written(count: int) -> list[Document]:
    """Return documents with at least one query word each, and different lengths and contents."""
    rng = np.random.default_rng(count)
    return [
        Document(f"d{n}", " ".join(["tram" if n % 2 else "depot", *rng.choice(WORDS, 3 + n)]), metadata={"n": n})
        for n in range(count)
    ]


def put(catalog: LocalCatalog, documents: list[Document]) -> None:
    index = catalog.create("words", encoder=None, dimension=0, kind="words")
    index.upsert(documents, np.empty((len(documents), 0), np.float32))


@pytest.fixture
async def retriever(catalog: LocalCatalog) -> AsyncIterator[IndexRetriever]:
    retriever = IndexRetriever(catalog, None)
    yield retriever
    await retriever.close()


async def test_words_index_pool_equals_the_pool_of_its_texts(catalog: LocalCatalog) -> None:
    """The statistics of index and pool are equal if all documents contain a query word."""
    documents = written(30)
    put(catalog, documents)
    retriever = IndexRetriever(catalog, SeededEncoder())
    found = await retriever.retrieve("words", Search(QUERY, 100))
    given = await GivenCandidates(retriever, PoolSource(QUERY, documents, words=True)).retrieve(run_in_default_thread)
    assert found.vectors == given.vectors == "lexical"
    assert sorted(found.pool.ids) == sorted(given.pool.ids)
    np.testing.assert_allclose(found.pool.scores, given.pool.scores, rtol=1e-12)
    assert found.pool.features.keys() == given.pool.features.keys() == {"bm25", "similarity"}
    theirs = [given.pool.ids.index(id) for id in found.pool.ids]
    similarity = found.pool.features["similarity"]
    np.testing.assert_allclose(similarity, given.pool.features["similarity"][theirs], atol=1e-5)
    assert found.pool.terms is not None and given.pool.terms is not None
    np.testing.assert_array_equal(found.pool.terms, given.pool.terms[:, theirs])
    among = found.pool.embeddings @ found.pool.embeddings.T
    np.testing.assert_allclose(
        among, (given.pool.embeddings @ given.pool.embeddings.T)[np.ix_(theirs, theirs)], atol=1e-4
    )
    await retriever.close()


async def test_words_index_search_handles_depth_filters_and_no_match(
    catalog: LocalCatalog, retriever: IndexRetriever
) -> None:
    put(catalog, [])
    with pytest.raises(EmptyIndex):
        await retriever.retrieve("words", Search(QUERY, 5))
    put(catalog, [*written(30), Document("other", "nothing in common")])
    best = (await retriever.retrieve("words", Search(QUERY, 100))).pool.ids
    assert len(best) == 30
    assert list((await retriever.retrieve("words", Search(QUERY, 7))).pool.ids) == list(best[:7])
    few = (await retriever.retrieve("words", Search(QUERY, 100, filter={"n": {"lt": 4}}))).pool
    assert set(few.ids) == {"d0", "d1", "d2", "d3"}
    for search, reason in (
        (Search("zebra", 5), "no document has a word of the query"),
        (Search(QUERY, 5, filter={"n": 99}), "no document that passes the filter has a word of the query"),
    ):
        found = await retriever.retrieve("words", search)
        assert (len(found.pool), found.vectors, list(found.warnings)) == (
            0,
            "lexical",
            [Notice("no-word-found", reason)],
        )


async def test_words_index_refuses_searches_by_vectors(catalog: LocalCatalog, retriever: IndexRetriever) -> None:
    put(catalog, written(3))
    for search in (Search(QUERY, 5, embedding=[1.0]), Search(QUERY, 5, hybrid=True)):
        with pytest.raises(InvalidInput, match="no vectors"):
            await retriever.retrieve("words", search)
    for options in ({"dimension": 4}, {"dimension": 0, "lexical": False}):
        with pytest.raises(InvalidInput, match="without vectors"):
            catalog.create("other", encoder=None, kind="words", **options)  # type: ignore[arg-type]
    assert not catalog.exists("other")
