"""How many documents come with a pool."""

from pathlib import Path

import numpy as np

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.index_retriever import BLOCK, CHARACTERS, IndexRetriever
from boundarymorph.retrieval.interfaces import Search
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
