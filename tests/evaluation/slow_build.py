"""A process to be killed while it scores, which says how far it is."""

import asyncio
import sys
from pathlib import Path

from boundarymorph.evaluation.builder import TableBuilder
from tests.evaluation.test_builder import COLLECTION, Lengths
from tests.retrieval.fakes import SeededEncoder

if __name__ == "__main__":
    builder = TableBuilder(SeededEncoder(), Lengths(pause=0.5), 40)
    asyncio.run(builder.build(COLLECTION, Path(sys.argv[1]), lambda *seen: print(*seen, flush=True)))
