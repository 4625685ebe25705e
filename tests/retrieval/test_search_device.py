"""Devices that are not there: the service searches on the CPU, and every answer says so."""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.retrieval.catalog import IndexCatalog
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.index import FlatView
from boundarymorph.retrieval.local import LocalRetriever
from boundarymorph.retrieval.mirror import BeyondDevice, MirroredIndex
from boundarymorph.retrieval.segmented import SegmentedIndex
from boundarymorph.settings import Settings
from boundarymorph.wiring import build_catalog, build_indexes
from tests.contract.vector_index import names, unit


async def warnings_of(catalog: IndexCatalog) -> list[list[str]]:
    """What the answers of a plain, a filtered and a hybrid search are told with."""
    index = catalog.create("a", encoder=None, dimension=8)
    index.upsert([Document(id, "tram", metadata={"id": id}) for id in names(20)], unit(20, 8))
    retriever = LocalRetriever(catalog, None)
    query = unit(1, 8, seed=1)[0]
    options: list[dict[str, Any]] = [{}, {"filter": {"id": "d3"}}, {"hybrid": True}]
    found = [await retriever.retrieve("a", "tram", 5, query, **option) for option in options]
    await retriever.close()
    assert [len(each.pool) for each in found] == [5, 1, 5]
    return [list(each.warnings) for each in found]


@pytest.mark.parametrize("device", ["cuda:99", "faiss:99"])
async def test_a_gpu_that_is_not_there(tmp_path: Path, device: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    catalog = build_indexes(Settings(data_directory=tmp_path, search_device=device))
    assert isinstance(catalog, IndexCatalog)
    told = await warnings_of(catalog)
    assert told == [[f"search_device {device} cannot be used here; the CPU searched"]] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"] and device in caplog.text
    assert isinstance(catalog.get("a").refresh(), SegmentedIndex)
    assert catalog.get("a").compact()
    catalog.close()


async def test_without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boundarymorph.retrieval.torch_index", None)
    catalog = build_indexes(Settings(data_directory=tmp_path, search_device="cuda"))
    assert isinstance(catalog, IndexCatalog)
    assert all("cuda" in warning for (warning,) in await warnings_of(catalog))
    catalog.close()


async def test_on_the_cpu_there_is_nothing_to_say(tmp_path: Path) -> None:
    catalog = build_indexes(Settings(data_directory=tmp_path))
    assert isinstance(catalog, IndexCatalog)
    assert await warnings_of(catalog) == [[], [], []]
    catalog.close()


def test_a_command_uses_no_device(tmp_path: Path) -> None:
    """So that it can write the search snapshots that a service with a device only reads."""
    catalog = build_catalog(Settings(data_directory=tmp_path, search_device="cuda:99"))
    index = catalog.create("a", encoder=None, dimension=8)
    index.upsert([Document(id, "") for id in names(20)], unit(20, 8))
    assert index.compact()
    catalog.close()


class Refusing:
    """A device that answers nothing."""

    def nominate(self, view: FlatView, query: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
        raise BeyondDevice("it is small")


class Small(MirroredIndex[Refusing]):
    def _mirrored(self, view: FlatView, before: tuple[FlatView, Refusing] | None) -> Refusing:
        return Refusing()


async def test_a_single_search_that_the_device_cannot_answer(tmp_path: Path) -> None:
    catalog = IndexCatalog(tmp_path, Small, warnings=["of all"])
    beyond = "the CPU searched, not the device: it is small"
    assert await warnings_of(catalog) == [["of all", beyond], ["of all"], ["of all", beyond]]
    catalog.close()
