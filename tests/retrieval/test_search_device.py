"""Test that searches fall back to the CPU, with a warning, if the GPU is missing or fails."""

import logging
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.retrieval.build import build_indexes
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.local.catalog import LocalCatalog, LocalIndex
from boundarymorph.retrieval.local.gpu import FaissMirror, FaissShard
from boundarymorph.settings import Settings
from tests.contract.vector_index import names, unit


async def warnings_of(catalog: LocalCatalog) -> list[list[str]]:
    """Return the warnings of a plain, a filtered and a hybrid search."""
    index = catalog.create("a", encoder=None, dimension=8)
    index.upsert([Document(id, "tram", metadata={"id": id}) for id in names(20)], unit(20, 8))
    retriever = IndexRetriever(catalog, None)
    query = unit(1, 8, seed=1)[0]
    options: list[dict[str, Any]] = [{}, {"filter": {"id": "d3"}}, {"hybrid": True}]
    found = [await retriever.retrieve("a", Search("tram", 5, query, **option)) for option in options]
    await retriever.close()
    assert [len(each.pool) for each in found] == [5, 1, 5]
    return [[warning.message for warning in each.warnings] for each in found]


async def test_missing_search_device_is_reported_by_every_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = build_indexes(Settings(data_directory=tmp_path / "plain"))
    assert isinstance(plain, LocalCatalog) and await warnings_of(plain) == [[], [], []]
    plain.close()
    caplog.set_level(logging.WARNING)
    device = "faiss:99"
    catalog = build_indexes(Settings(data_directory=tmp_path, search_device=device))
    assert isinstance(catalog, LocalCatalog)
    told = await warnings_of(catalog)
    assert told == [[f"search_device {device} cannot be used here; the CPU searched"]] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"] and device in caplog.text
    assert catalog.get("a").compact()
    catalog.close()


SIZE = 100  # documents that fit into the memory of the device
NO_ROOM = "the CPU searched, not the device: it could not load the documents of this index; the log says why"


def put(index: LocalIndex, ids: list[str], seed: int = 0) -> None:
    index.upsert([Document(id, "") for id in ids], unit(len(ids), 8, seed))


class Memory(faiss.IndexFlatIP):
    """A GPU in the form of FAISS on the CPU, whose memory becomes full during an addition."""

    def add(self, rows: NDArray[np.float32]) -> None:  # type: ignore[override]
        super().add(rows[:7])
        if self.ntotal + len(rows) - 7 > SIZE:
            raise RuntimeError("Error: StandardGpuResources: alloc fail type FlatData: cudaMalloc error 2")
        super().add(rows[7:])


def full(dimension: int) -> FaissMirror:
    return FaissMirror([FaissShard(Memory(dimension))], 2_048)


def test_cpu_answers_once_the_device_memory_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog, plain = LocalCatalog(tmp_path, full), LocalCatalog(tmp_path)
    queries = unit(5, 8, seed=9)

    def warnings() -> set[tuple[str, ...]]:
        told = set()
        for query in queries:
            found = catalog.get("a").retrieve(Search("", 5, query))
            assert list(found.pool.ids) == list(plain.get("a").retrieve(Search("", 5, query)).pool.ids)
            told.add(tuple(warning.message for warning in found.warnings))
        return told

    put(catalog.create("a", encoder=None, dimension=8), names(SIZE))
    assert warnings() == {()}
    assert not caplog.records
    put(catalog.create("a", encoder=None, dimension=8), names(50, SIZE))
    assert warnings() == {(NO_ROOM,)}
    put(catalog.create("a", encoder=None, dimension=8), names(20, 10), seed=1)  # later documents are found as well
    catalog.get("a").delete(names(5))
    assert warnings() == {(NO_ROOM,)}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "150 vectors of 8 numbers" in caplog.text
    vectors = catalog.get("a").refresh()
    assert vectors.view().rows.count == SIZE + 50 + 20  # no row is counted twice
    few = vectors.view().search(queries[0], 1).sequences
    assert len(vectors.view().subset(few).search(queries[0], 5).ids) == 1
    catalog.close()
    plain.close()
