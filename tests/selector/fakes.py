"""A retriever that needs no model, and tasks for it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.candidates import IndexSource, PoolSource
from boundarymorph.retrieval.document import Document, Retrieval, Search
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.selection import Pool
from boundarymorph.selector.selector import Selector
from boundarymorph.selector.task import Aim, Rounds, SelectionTask, Spending
from tests.clocks import Clock
from tests.retrieval.fakes import vector_of

MakeSelector = Callable[..., Selector]
QUERY = "query"
IDS = [f"d{number}" for number in range(30)]


class FakeRetriever:
    """An index of 30 documents, of which `gone` are deleted.

    On the test's clock, retrieval takes 3 seconds and a fetch 0.5.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.gone: set[str] = set()
        self.fetched: list[str] = []

    async def retrieve(self, index: str, search: Search, *, caller: str = "") -> Retrieval:
        self.clock.now += 3
        ids = IDS[: search.depth]
        return Retrieval(Pool.from_embeddings(ids, np.array([vector_of(id) for id in ids]), vector_of(search.query)))

    async def documents(
        self, index: str, ids: Sequence[str], *, texts: bool = True, caller: str = ""
    ) -> Mapping[str, Document]:
        self.clock.now += 0.5
        self.fetched += ids
        return {id: Document(id, id) for id in ids if id not in self.gone}

    async def characters(self, index: str, ids: Sequence[str], *, caller: str = "") -> Mapping[str, int]:
        return {id: len(id) for id in ids if id not in self.gone}

    async def embed_query(self, query: str, *, caller: str = "") -> NDArray[np.float32]:
        return vector_of(query)

    async def embed_documents(self, texts: Sequence[str], *, caller: str = "") -> Embeddings:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def task(budget: int = 6, k: int = 4, rounds: Rounds = 1_000, **fields: Any) -> SelectionTask:
    """Return a task for the index, with fields of any of its parts."""
    source = IndexSource("index", Search(QUERY, 30))
    return changed(SelectionTask(source, Aim(k), Spending(budget, rounds=rounds)), **fields)


def changed(task: SelectionTask, **fields: Any) -> SelectionTask:
    """Return the task with other values of its fields, or of fields of its parts."""
    for part in ("aim", "spending", "relevance", "report", "context"):
        names = {field.name for field in dataclasses.fields(getattr(task, part))}
        given = {name: fields.pop(name) for name in names & fields.keys()}
        task = dataclasses.replace(task, **{part: dataclasses.replace(getattr(task, part), **given)})
    return dataclasses.replace(task, **fields)


def own_pool(documents: Sequence[Document], query: str = QUERY, **given: Any) -> PoolSource:
    """Return candidates of a request, in place of the index's documents."""
    vectors = np.array([vector_of(f"d{number}") for number in range(len(documents))])
    return PoolSource(query, documents, vectors, vector_of(query), **given)
