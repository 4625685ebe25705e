"""IndexRetriever against the contract."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.contract.retriever import DOCUMENTS, RetrieverContract
from tests.retrieval.fakes import SeededEncoder


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[LocalCatalog]:
    catalog, encoder = LocalCatalog(tmp_path), SeededEncoder()
    vectors = (await encoder.encode_documents([document.content for document in DOCUMENTS])).vectors
    catalog.create("trams", encoder=encoder.name, dimension=encoder.dimension).upsert(DOCUMENTS, vectors)
    catalog.create("own", encoder=None, dimension=4).upsert([Document(f"e{i}", "") for i in range(4)], np.eye(4))
    catalog.create("empty", encoder=encoder.name, dimension=encoder.dimension)
    catalog.create("foreign", encoder="other-encoder", dimension=4).upsert([Document("x", "")], np.ones((1, 4)))
    yield catalog
    catalog.close()


class TestIndexRetriever(RetrieverContract):
    @pytest.fixture
    async def retriever(self, catalog: LocalCatalog) -> AsyncIterator[IndexRetriever]:
        retriever = IndexRetriever(catalog, SeededEncoder())
        yield retriever
        await retriever.close()


async def test_without_an_encoder(catalog: LocalCatalog) -> None:
    retriever = IndexRetriever(catalog, None)
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
