"""How many documents come with a pool."""

from pathlib import Path

import numpy as np

from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.index_retriever import BLOCK, CHARACTERS, IndexRetriever
from boundarymorph.retrieval.local.catalog import LocalCatalog


async def test_long_documents_do_not_come_with_the_pool(tmp_path: Path) -> None:
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


async def test_the_best_by_words_come_with_the_first_of_the_pool(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path)
    rows = [Document(str(number), "night train" if number in (15, 30) else "tram") for number in range(40)]
    vectors = np.stack([np.ones(40), np.arange(40.0)], axis=1).astype(np.float32)
    catalog.create("texts", encoder=None, dimension=2).upsert(rows, vectors)
    retriever = IndexRetriever(catalog, None)
    retrieved = await retriever.retrieve("texts", Search("night", 40, [1, 0], documents=8))
    assert list(retrieved.documents) == [*retrieved.pool.ids[:6], "15", "30"]
    await retriever.close()
    catalog.close()
