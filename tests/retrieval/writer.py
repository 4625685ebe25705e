"""A process that writes to an index until it is killed, and says on stdout what has been acknowledged.

python -m tests.retrieval.writer DIRECTORY build          new documents
python -m tests.retrieval.writer DIRECTORY update FIRST   new versions, from FIRST on, of documents 0 to 199
python -m tests.retrieval.writer DIRECTORY create         new, empty indexes
"""

import itertools
import random
import sys
from pathlib import Path

import numpy as np

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.retrieval.fakes import vector_of

DIMENSION = 32
BATCH = 5
KNOWN = 200


def document_of(number: int, version: int) -> Document:
    # The padding makes a batch span several database pages.
    return Document(str(number), f"document {number} version {version} " + "padding " * 200)


def main() -> None:
    what = sys.argv[2]
    first = int(sys.argv[3]) if what == "update" else 0
    catalog = LocalCatalog(Path(sys.argv[1]))
    if what == "create":
        for number in itertools.count():
            catalog.create(f"index-{number}", encoder=None, dimension=DIMENSION)
            print(number, flush=True)
    index = catalog.create("index", encoder=None, dimension=DIMENSION)
    rng = random.Random(first)
    for batch in itertools.count(first):
        if what == "build":
            numbers, version = list(range(batch * BATCH, (batch + 1) * BATCH)), 0
        else:
            numbers, version = rng.sample(range(KNOWN), BATCH), batch
        documents = [document_of(number, version) for number in numbers]
        index.upsert(documents, np.array([vector_of(document.text) for document in documents]))
        print(version, *numbers, flush=True)


if __name__ == "__main__":
    main()
