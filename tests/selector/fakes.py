"""A retriever that needs no model, and tasks for it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.document import (
    Candidates,
    Document,
    GivenCandidates,
    IndexedCandidates,
    Retrieved,
    Retriever,
    Search,
)
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.selection import Pool
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import SelectionTask
from tests.clocks import Clock
from tests.retrieval.fakes import vector_of

MakeSelector = Callable[..., Selector]
QUERY = "query"
IDS = [f"d{number}" for number in range(30)]


class FakeRetriever:
    """One index of 30 documents. Retrieval takes 3 seconds of the clock and a fetch 0.5; `gone` were deleted since."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.gone: set[str] = set()
        self.fetched: list[str] = []

    async def retrieve(self, index: str, search: Search) -> Retrieved:
        self.clock.now += 3
        ids = IDS[: search.depth]
        return Retrieved(Pool.of(ids, np.array([vector_of(id) for id in ids]), vector_of(search.query)))

    async def documents(self, index: str, ids: Sequence[str], *, texts: bool = True) -> Mapping[str, Document]:
        self.clock.now += 0.5
        self.fetched += ids
        return {id: Document(id, id) for id in ids if id not in self.gone}

    async def characters(self, index: str, ids: Sequence[str]) -> Mapping[str, int]:
        return {id: len(id) for id in ids if id not in self.gone}

    async def embed_query(self, query: str) -> NDArray[np.float32]:
        return vector_of(query)

    async def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def task(budget: int = 6, k: int = 4, rounds: int = 1_000, return_documents: bool = False) -> SelectionTask:
    return SelectionTask(
        QUERY,
        partial(IndexedCandidates, index="index", search=Search(QUERY, 30)),
        budget,
        k,
        rounds=rounds,
        return_documents=return_documents,
    )


def own_pool(documents: Sequence[Document], query: str = QUERY, **given: Any) -> Callable[[Retriever], Candidates]:
    """Candidates that come with the request, at the places of the documents d0, d1, ... of the index."""
    vectors = np.array([vector_of(f"d{number}") for number in range(len(documents))])
    return partial(
        GivenCandidates, query=query, given=documents, embeddings=vectors, query_embedding=vector_of(query), **given
    )
