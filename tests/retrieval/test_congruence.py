"""Indexes of this machine, on the CPU and with FAISS as on a GPU, Milvus, and a worker at the other end of a socket,
over the same documents: the same ids, in the same order up to ties, with the same vectors and scores to the bit. FAISS,
with its float32 sums, agrees as far as these go."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput, RetrieverUnavailable
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.interfaces import Catalog, Retriever, Search
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.local.vectors import rounding_error
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.selection.pool import Pool
from boundarymorph.server.app import create_retriever_app
from boundarymorph.server.composition import Retrieval
from boundarymorph.settings import Settings
from tests.api.service import on_socket
from tests.contract.vector_index import unit
from tests.patience import PATIENCE
from tests.retrieval import milvus
from tests.retrieval.engines import indexes
from tests.retrieval.fakes import SeededEncoder
from tests.retrieval.test_vector_indexes import mirror

COUNT, DIMENSION = 400, 24
REMOTE = ("here", "milvus")  # that are asked through a socket, too
DEPTHS = (1, 100, 10_000)
FILTERS: list[dict[str, Any] | None] = [
    None,
    {},
    {"year": {"gte": 1990, "lt": 2000}},
    {"or": [{"tags": "c"}, {"lang": {"nin": ["de", "en"]}}]},
    {"by.name": {"gt": "M"}, "not": {"tags": {"exists": False}}},
]


def document(number: int, text: str = "text") -> Document:
    metadata: dict[str, Any] = {"year": 1980 + number % 40, "by": {"name": "ANZ"[number % 3]}}
    if number % 4:
        metadata["lang"] = ("de", "en", "fr", None)[number % 4]
    if number % 5:
        metadata["tags"] = ["abcde"[number % 5], "abcde"[number % 3]]
    return Document(
        f"ä {number}", f"{text} {number}", title=f"title {number}" if number % 2 else None, metadata=metadata
    )


def vectors(numbers: list[int], seed: int) -> NDArray[np.float32]:
    """Every eighth document shares its vector with seven others; each third lies where float16 is coarse."""
    rows = unit(COUNT * 2, DIMENSION, seed)
    rows[::3] = np.sign(rows[::3]) * (1 + 4e-4 * np.abs(rows[::3]))
    return rows[[number if number % 8 else number % 40 for number in numbers]]


@pytest.fixture
def catalogs(tmp_path: Path) -> Iterator[dict[str, Catalog]]:
    with milvus.embedded(tmp_path / "milvus") as url:
        made: dict[str, Catalog] = {
            "here": LocalCatalog(tmp_path / "indexes"),
            "faiss": LocalCatalog(tmp_path / "faiss", lambda dimension: mirror(dimension, 100)),
            "milvus": indexes(url, tmp_path / "data"),
        }
        for catalog in made.values():
            catalog.create("many", encoder=None, dimension=DIMENSION, lexical=False)
        yield made
        for catalog in made.values():
            catalog.close()


@pytest.fixture
async def retrievers(catalogs: dict[str, Catalog]) -> AsyncIterator[dict[str, Retriever]]:
    """Over each catalog one in this process, and over some one at the other end of a socket."""
    async with AsyncExitStack() as stack:
        made: dict[str, Retriever] = {}
        for name, catalog in catalogs.items():
            made[name] = here = IndexRetriever(catalog, None)
            stack.push_async_callback(here.close)
            if name not in REMOTE:
                continue
            app = create_retriever_app(Settings(), build=served(catalog))
            there = RemoteRetriever(await stack.enter_async_context(on_socket(app)))
            stack.push_async_callback(there.close)
            await answering(there)
            made[f"{name}, remote"] = there
        yield made


def served(catalog: Catalog) -> Callable[..., Retrieval]:
    def build(*_: object) -> Retrieval:
        encoder = SeededEncoder()
        return Retrieval(catalog, encoder, IndexRetriever(catalog, encoder))

    return build


async def answering(retriever: RemoteRetriever) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await retriever.embed_query("probe")
                return
            except RetrieverUnavailable:
                await asyncio.sleep(0.005)


def congruent(one: Pool, other: Pool) -> None:
    assert len(one) == len(other)
    np.testing.assert_array_equal(one.query, other.query)
    np.testing.assert_array_equal(one.scores, other.scores)
    last = one.scores[-1]
    for score in np.unique(one.scores):
        tied = np.flatnonzero(one.scores == score).tolist()
        if score > last:  # of those that tie at the end of the pool, any may be in it
            assert {one.ids[row] for row in tied} == {other.ids[row] for row in tied}
    theirs = {id: row for row, id in enumerate(other.ids)}
    pairs = [(row, theirs[id]) for row, id in enumerate(one.ids) if id in theirs]
    mine, others = (list(rows) for rows in zip(*pairs, strict=True)) if pairs else ([], [])
    np.testing.assert_array_equal(one.embeddings[mine], other.embeddings[others])


def agrees_with_faiss(found: Pool, everything: Pool) -> None:
    """FAISS over the same rows scores the same up to rounding, and finds the same up to what rounding can swap."""
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(everything.embeddings)
    (scores,), (rows,) = index.search(found.query[None], len(found))
    error = rounding_error(DIMENSION)
    np.testing.assert_allclose(found.scores, scores, rtol=0, atol=error)
    clearly = found.scores[-1] + 2 * error
    theirs = {everything.ids[row] for row in rows.tolist()}
    assert {id for id, score in zip(found.ids, found.scores, strict=True) if score > clearly} <= theirs
    certain = {everything.ids[row] for row in rows[scores > clearly].tolist()}
    assert certain <= set(found.ids)


async def all_congruent(retrievers: dict[str, Retriever], seed: int) -> None:
    queries = [*unit(1, DIMENSION, seed), vectors([16], 0)[0]]
    reference = retrievers["here"]
    for query in queries:
        everything = (await reference.retrieve("many", Search("", 10_000, query))).pool
        for depth in DEPTHS:
            agrees_with_faiss((await reference.retrieve("many", Search("", depth, query))).pool, everything)
        for filter in FILTERS:
            for depth in DEPTHS if filter is None else DEPTHS[1:]:
                expected = (await reference.retrieve("many", Search("", depth, query, filter=filter))).pool
                for name, retriever in retrievers.items():
                    found = await retriever.retrieve("many", Search("", depth, query, filter=filter))
                    assert list(found.warnings) == [], name
                    congruent(expected, found.pool)
    ids = [f"ä {number}" for number in range(0, COUNT, 7)]
    for retriever in retrievers.values():
        assert await retriever.documents("many", ids) == await reference.documents("many", ids)
        assert await retriever.characters("many", ids) == await reference.characters("many", ids)


def write(catalogs: dict[str, Catalog], numbers: list[int], text: str, seed: int) -> None:
    for catalog in catalogs.values():
        catalog.get("many").upsert([document(number, text) for number in numbers], vectors(numbers, seed))


async def test_all_retrievers_agree(catalogs: dict[str, Catalog], retrievers: dict[str, Retriever]) -> None:
    write(catalogs, list(range(COUNT)), "text", 0)
    await all_congruent(retrievers, 1)
    write(catalogs, list(range(100, 200)), "new", 2)  # other vectors, same ids
    write(catalogs, list(range(300, 350)), "other text, same vector", 0)
    write(catalogs, list(range(COUNT, COUNT + 30)), "more", 0)
    assert {catalog.get("many").delete([f"ä {n}" for n in range(50, 150)]) for catalog in catalogs.values()} == {100}
    await all_congruent(retrievers, 3)
    assert {catalog.get("many").count() for catalog in catalogs.values()} == {COUNT - 70}


def test_all_delete_the_same_by_a_filter(catalogs: dict[str, Catalog]) -> None:
    write(catalogs, list(range(80)), "text", 0)
    for filter in (*FILTERS[2:], {"year": "none"}, {"year": 1985, "tags": {"in": ["a", "b"]}}, {}, {}):
        left = []
        for catalog in catalogs.values():
            index = catalog.get("many")
            deleted = index.delete_matching(Filter(filter))
            left.append((deleted, index.count(), set(index.documents([f"ä {n}" for n in range(80)]))))
        assert all(of_one == left[0] for of_one in left), filter
    assert left[0] == (0, 0, set())


async def test_all_retrievers_refuse_alike(catalogs: dict[str, Catalog], retrievers: dict[str, Retriever]) -> None:
    write(catalogs, [1, 2, 3], "text", 0)
    query = unit(1, DIMENSION)[0]
    said = set()
    for retriever in retrievers.values():
        with pytest.raises(InvalidInput) as raised:
            await retriever.retrieve("many", Search("", 5, query, filter={"year": {"above": 1}}))
        said.add(str(raised.value))
    assert len(said) == 1


async def test_all_retrievers_find_nothing_alike(
    catalogs: dict[str, Catalog], retrievers: dict[str, Retriever]
) -> None:
    write(catalogs, [1, 2, 3], "text", 0)
    for filter in ({"year": 7}, {"year": "seven"}):
        said = set()
        for retriever in retrievers.values():
            found = await retriever.retrieve("many", Search("", 5, unit(1, DIMENSION)[0], filter=filter))
            assert len(found.pool) == 0
            said.add(tuple(found.warnings))
        assert len(said) == 1


def test_pools_that_differ_are_told_apart() -> None:
    """What the tests above rest on."""
    rows, query = unit(6, 4), unit(1, 4, seed=1)[0]
    pool = Pool.of(list("abcdef"), rows[[0, 0, 1, 2, 3, 3]], query)
    first = next(row for row in range(5) if pool.scores[row] == pool.scores[row + 1])
    turned = list(pool.ids)
    turned[first], turned[first + 1] = turned[first + 1], turned[first]
    congruent(pool, Pool(turned, pool.embeddings, pool.query, pool.scores))
    distinct = next(row for row in range(5) if pool.scores[row] > pool.scores[row + 1])
    wrong = list(pool.ids)
    wrong[distinct], wrong[distinct + 1] = wrong[distinct + 1], wrong[distinct]
    with pytest.raises(AssertionError):
        congruent(pool, Pool(wrong, pool.embeddings, pool.query, pool.scores))
    with pytest.raises(AssertionError):
        congruent(pool, Pool(pool.ids, np.nextafter(pool.embeddings, 2), pool.query, pool.scores))
    with pytest.raises(AssertionError):
        congruent(pool, Pool(pool.ids[:5], pool.embeddings[:5], pool.query, pool.scores[:5]))
