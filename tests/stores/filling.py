"""A program that uploads documents to an index, and says on stdout how many are written.

Its arguments: the URL, as of `tests.stores.engines`; the directory; and the number of documents.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import numpy as np

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.uploads import BadLine, IngestReport, ParsedDocument
from tests.contract.vector_index import unit
from tests.retrieval.fakes import ingest
from tests.stores.engines import indexes

DIMENSION, BATCH = 16, 64


def documents(count: int) -> list[Document]:
    return [Document(f"ä {n}", f"Of the tram there are {n} tales.", metadata={"n": n}) for n in range(count)]


async def upload(url: str, directory: Path, count: int, progress: bool = False) -> IngestReport:
    """Write documents to the index "many", which is made if there is none."""

    async def entries() -> AsyncIterator[ParsedDocument | BadLine]:
        vectors = unit(count, DIMENSION).astype(np.float32)
        for n, (document, vector) in enumerate(zip(documents(count), vectors, strict=True)):
            yield ParsedDocument(n, document, vector)

    def said(report: IngestReport) -> None:
        if progress:
            print(report.documents, flush=True)

    with closing(indexes(url, directory)) as catalog:
        index = catalog.create("many", encoder=None, dimension=DIMENSION)
        return await ingest(index, None, entries(), batch_size=BATCH, on_progress=said)


def main() -> None:
    asyncio.run(upload(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), progress=True))
