"""Test tables of LanceDB as indexes."""

import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, ClassVar

import lancedb
import numpy as np
import orjson
import pyarrow as arrow
import pytest
from lancedb.index import FTS, IvfFlat

from boundarymorph.errors import RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.interfaces import Index
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.settings import AttachedTable
from boundarymorph_stores.lancedb import LanceStore
from boundarymorph_stores.testing import (
    DIMENSION,
    DOCUMENTS,
    FLAWED,
    QUERIES,
    TYPED,
    VECTORS,
    Flaws,
    ReadOnly,
    StoreContract,
)

COLUMNS = [replace(each, metadata={k: v for k, v in each.metadata.items() if "." not in k}) for each in TYPED]


def fill(folder: Path, name: str, rows: list[Document], *, text: bool = False, type: Any = None) -> Any:
    """Make a table of documents; with `text`, metadata are JSON in a text column."""
    vectors = arrow.array(
        list(VECTORS[: len(rows)].astype((type or arrow.float32()).to_pandas_dtype())),
        arrow.list_(type or arrow.float32(), DIMENSION),
    )
    metadata = [dict(each.metadata) for each in rows]
    table = arrow.table(
        {
            "id": [each.id for each in rows],
            "vector": vectors,
            "text": [each.text for each in rows],
            "title": [each.title for each in rows],
            "metadata": [orjson.dumps(each).decode() for each in metadata] if text else metadata,
        }
    )
    return lancedb.connect(folder).create_table(name, table)


class TestText(ReadOnly, StoreContract):
    """Metadata are JSON in a text column, so filters are evaluated in Python."""

    halves = True

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, tmp_path_factory: pytest.TempPathFactory) -> Index:
        fill(folder := tmp_path_factory.mktemp("lance"), "tales", DOCUMENTS, text=True, type=arrow.float16())
        return StoreCatalog(LanceStore(str(folder)), {}).get("tales")


class TestTyped(ReadOnly, StoreContract):
    """Metadata are in a struct column, so filters become SQL."""

    documents: ClassVar[list[Document]] = TYPED

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, tmp_path_factory: pytest.TempPathFactory) -> Index:
        fill(folder := tmp_path_factory.mktemp("lance"), "tales", TYPED).create_index("text", config=FTS())
        return StoreCatalog(LanceStore(str(folder)), {}).get("tales")


class TestColumns(StoreContract):
    """Each metadata field has its own column, without dots in its name."""

    documents: ClassVar[list[Document]] = COLUMNS

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, tmp_path_factory: pytest.TempPathFactory) -> Index:
        folder = tmp_path_factory.mktemp("lance")
        table = fill(folder, "first", COLUMNS).to_arrow().drop_columns(["metadata"])
        for name in dict.fromkeys(name for each in COLUMNS for name in each.metadata):
            table = table.append_column(name, [[each.metadata.get(name) for each in COLUMNS]])
        lancedb.connect(folder).create_table("columns", table)
        return StoreCatalog(LanceStore(str(folder)), {"mine": AttachedTable(table="columns", title="title")}).get(
            "mine"
        )


def pairs(rows: list[list[float]]) -> arrow.Array:
    return arrow.array(rows, arrow.list_(arrow.float32(), 2))


def only(folder: Path, columns: dict[str, Any]) -> StoreIndex:
    """Return the index over the only table of a folder."""
    lancedb.connect(folder).create_table("only", arrow.table(columns))
    return StoreCatalog(LanceStore(str(folder)), {}).get("only")


@pytest.mark.strangers
def test_times_become_texts_in_metadata(tmp_path: Path) -> None:
    columns = {
        "at": arrow.array([None, datetime(2025, 3, 5, microsecond=250_000, tzinfo=UTC)], arrow.timestamp("us", "UTC")),
        "day": arrow.array([date(2025, 3, 4), date(2025, 3, 5)], arrow.date32()),
        "clock": arrow.array([time(1, 2), time(13, 45)], arrow.time64("us")),
        "several": arrow.array([[], [1_741_176_000_000_000_123]], arrow.list_(arrow.timestamp("ns"))),
        "took": arrow.array([0, 1_500], arrow.duration("ns")),
    }
    index = only(tmp_path, {"id": ["a", "b"], "text": ["tram"] * 2, "vector": pairs([[1.0, 0.5]] * 2), **columns})
    assert index.documents(["b"])["b"].metadata == {
        "at": "2025-03-05T00:00:00.250000+00:00",
        "day": "2025-03-05",
        "clock": "13:45:00",
        "several": ["2025-03-05T12:00:00"],
        "took": "0:00:00.000001",
    }
    for filter in ({"at": {"gte": "2025-03-05"}}, {"day": "2025-03-05"}, {"several": {"gt": "2025"}}):
        assert list(index.retrieve(Search("", 9, [1.0, 0.0], filter=filter)).pool.ids) == ["b"], filter


class TestFlaws(Flaws):
    @pytest.fixture
    def flawed(self, tmp_path: Path) -> StoreIndex:
        ids, texts, vectors = zip(*FLAWED, strict=True)
        return only(tmp_path, {"id": ids, "text": texts, "vector": pairs(list(vectors))})


def test_large_table_is_searched_by_its_vector_index(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3_000, DIMENSION)).astype(np.float32)
    ids = [str(n) for n in range(3_000)]
    column = arrow.array(list(vectors), arrow.list_(arrow.float32(), DIMENSION))
    days = arrow.array([0] * 3_000, arrow.date32())
    rows = {"id": ids, "text": ids, "vector": column, "day": days}
    table = lancedb.connect(tmp_path).create_table("t", arrow.table(rows))
    table.create_index("vector", config=IvfFlat(distance_type="cosine", num_partitions=4))
    search = {"exact_up_to": 10, "nprobes": 4}
    catalog = StoreCatalog(
        LanceStore(str(tmp_path)), {"a": AttachedTable(table="t", search=search), "exact": AttachedTable(table="t")}
    )
    found, exact = (catalog.get(name).retrieve(Search("", 500, np.ones(DIMENSION))) for name in ("a", "exact"))
    assert ([each.slug for each in found.warnings], list(exact.warnings)) == (["approximate-search"], [])
    assert found.pool.ids == exact.pool.ids
    sifted = catalog.get("a").retrieve(Search("", 500, np.ones(DIMENSION), filter={"day": {"gte": "1970"}}))
    assert len(sifted.pool) == 500
    assert "approximate-search" in [each.slug for each in sifted.warnings]


def test_mistakes_in_a_table_description_are_named(tmp_path: Path) -> None:
    table = fill(tmp_path, "tales", TYPED[:10])
    catalog = StoreCatalog(LanceStore(str(tmp_path)), {"mine": AttachedTable(table="tales")}, schema_seconds=0)
    index = catalog.get("mine")
    assert len(index.retrieve(Search("", 50, QUERIES[0])).pool) == 10
    table.delete("id = 'plain'")  # changes by other programs are visible
    assert "plain" not in index.retrieve(Search("", 50, QUERIES[0])).pool.ids
    assert index.documents(["plain"]) == {}
    for wrong, said in (({"text": "body"}, "no column 'body'"), ({"vector": "text"}, "holds no vectors")):
        attached = AttachedTable(**{"table": "tales", **wrong})
        with pytest.raises(RetrieverFailed, match=said):
            StoreCatalog(LanceStore(str(tmp_path)), {"mine": attached}).get("mine")
    lancedb.connect(tmp_path).drop_table("tales")
    with pytest.raises(UnknownIndex, match="tales"):
        catalog.get("mine")
    shutil.rmtree(tmp_path)
    with pytest.raises(RetrieverUnavailable, match="no folder"):
        catalog.get("mine")


def test_document_ids_may_be_numbers(tmp_path: Path) -> None:
    index = only(tmp_path, {"id": [7, -3], "text": ["tram", None], "vector": pairs([[1.0, 0.0], [0.0, 1.0]])})
    assert index.retrieve(Search("tram", 2, [1.0, 0.1])).pool.ids == ["7", "-3"]
    assert index.documents(["x", "07", "-3", "9" * 30]) == {"-3": Document("-3", "")}
