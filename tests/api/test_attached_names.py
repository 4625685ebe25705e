"""An attached table has one name, and whatever belongs to it goes by the table, under either name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import lancedb
import pytest

from boundarymorph.api.lifecycle import Parts
from boundarymorph.retrieval.build import build_indexes
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.selector.selector import Selector
from boundarymorph.settings import Settings
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import answer, problem, serving
from tests.retrieval.fakes import SeededEncoder

pytestmark = pytest.mark.strangers
ROWS = [{"id": str(n), "text": f"apple {n}", "vector": [float(n + 1), 1.0]} for n in range(4)]


def build(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Parts:
    catalog, encoder, scorer = build_indexes(settings), SeededEncoder(), SeededScorer()
    retriever = IndexRetriever(catalog, encoder)
    return Parts(catalog, encoder, retriever, scorer, Selector(retriever, scorer))


@pytest.fixture
async def attached(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    lancedb.connect(str(tmp_path / "lance")).create_table("notes", ROWS)
    stores = {"store": {"url": f"lancedb://{tmp_path / 'lance'}"}}
    async with serving(Settings(data_directory=tmp_path / "data", stores=stores), build) as client:
        yield client


async def test_both_names_are_one_index(attached: httpx.AsyncClient) -> None:
    listed = answer(await attached.get("/indexes"))["indexes"]
    assert [index["name"] for index in listed] == ["store/notes"]
    for path in ("notes", "store%2Fnotes", "store%2fnotes"):
        assert answer(await attached.get(f"/indexes/{path}"))["name"] == "store/notes"
        assert answer(await attached.get(f"/indexes/{path}/documents/1"))["id"] == "1"
        stats = answer(await attached.get(f"/indexes/{path}/stats"))
        assert (stats["name"], stats["sampled"]) == ("store/notes", len(ROWS))
    problem(await attached.delete("/indexes/notes"), 422, "invalid-input")
    problem(await attached.delete("/indexes/store%2Fnotes"), 422, "invalid-input")
    for name, said in (("notes", "Apples."), ("store%2Fnotes", "Apples and no pears.")):
        assert (await attached.put(f"/indexes/{name}/description", json={"description": said})).status_code == 204
        assert [index["description"] for index in answer(await attached.get("/indexes"))["indexes"]] == [said]
