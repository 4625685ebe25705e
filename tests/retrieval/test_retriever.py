"""Test IndexRetriever: contract, documents that come with a pool, and given candidates."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput
from boundarymorph.inference.concurrency import run_in_default_thread
from boundarymorph.retrieval.candidates import GivenCandidates, PoolSource
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.index_retriever import BLOCK, CHARACTERS, IndexRetriever
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.contract.retriever import DOCUMENTS, RetrieverContract
from tests.retrieval.fakes import SeededEncoder


@pytest.fixture
async def indexes(tmp_path: Path) -> AsyncIterator[LocalCatalog]:
    indexes, encoder = LocalCatalog(tmp_path), SeededEncoder()
    vectors = (await encoder.encode_documents([document.content for document in DOCUMENTS])).vectors
    indexes.create("trams", encoder=encoder.name, dimension=encoder.dimension).upsert(DOCUMENTS, vectors)
    indexes.create("own", encoder=None, dimension=4).upsert([Document(f"e{i}", "") for i in range(4)], np.eye(4))
    indexes.create("empty", encoder=encoder.name, dimension=encoder.dimension)
    indexes.create("foreign", encoder="other-encoder", dimension=4).upsert([Document("x", "")], np.ones((1, 4)))
    yield indexes
    indexes.close()


class TestIndexRetriever(RetrieverContract):
    @pytest.fixture
    async def retriever(self, indexes: LocalCatalog) -> AsyncIterator[IndexRetriever]:
        retriever = IndexRetriever(indexes, SeededEncoder())
        yield retriever
        await retriever.close()


async def test_index_retriever_without_an_encoder_takes_only_vectors(indexes: LocalCatalog) -> None:
    retriever = IndexRetriever(indexes, None)
    pool = (await retriever.retrieve("own", Search("", 1, embedding=[0, 1, 0, 0]))).pool
    assert list(pool.ids) == ["e1"]
    with pytest.raises(InvalidInput):
        await retriever.retrieve("trams", Search("text", 1))
    with pytest.raises(InvalidInput):
        await retriever.embed_query("text")
    with pytest.raises(InvalidInput):
        await retriever.embed_documents(["text"])
    await retriever.close()
    with pytest.raises(RuntimeError):
        await retriever.documents("own", ["e1"])


async def test_retriever_omits_long_documents_from_the_pool(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path)
    count = 3 * BLOCK
    texts = {"short": 1, "long": CHARACTERS // BLOCK}
    for name, characters in texts.items():
        rows = [Document(str(number), "t" * characters) for number in range(count)]
        catalog.create(name, encoder=None, dimension=2).upsert(rows, np.ones((count, 2), np.float32))
    retriever = IndexRetriever(catalog, None)
    search = Search("", count, [1, 1], documents=count)
    assert len((await retriever.retrieve("short", search)).documents) == count
    assert len((await retriever.retrieve("long", search)).documents) == BLOCK
    await retriever.close()
    catalog.close()


TEXTS = ("the cat sat", "catalogues", "nothing", "a category of cats")
QUERY = "Cat, cats or catalogue"
HAVING = [[True, False, False, False], [False, False, False, True], [False] * 4, [False, True, False, False]]


@pytest.mark.parametrize("embeddings", [None, np.eye(4)])
@pytest.mark.parametrize("features", [{}, {"bm25": [4.0, 3.0, 2.0, 1.0]}])
@pytest.mark.parametrize("words", [True, False])
async def test_given_candidates_have_the_query_terms_of_each_document(
    catalog: LocalCatalog, embeddings: NDArray[np.float64] | None, features: dict[str, list[float]], words: bool
) -> None:
    """This holds wherever BM25 and vectors come from, but only for a method that uses words."""
    documents = [Document(str(number), text) for number, text in enumerate(TEXTS)]
    candidates = GivenCandidates(
        IndexRetriever(catalog, None),
        PoolSource(
            QUERY,
            documents,
            embeddings,
            query_embedding=None if embeddings is None else np.ones(4),
            scores=[1.0, 3.0, 2.0, 4.0],
            features=features,
            words=words,
        ),
    )
    pool = (await candidates.retrieve(run_in_default_thread)).pool
    assert list(pool.ids) == ["3", "1", "2", "0"]
    assert ("bm25" in pool.features) == (words or bool(features))
    if words:
        assert pool.terms is not None
        np.testing.assert_array_equal(pool.terms, np.array(HAVING)[:, [3, 1, 2, 0]])
    else:
        assert pool.terms is None
