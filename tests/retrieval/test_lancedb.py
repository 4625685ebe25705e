"""Tables of LanceDB as indexes, in folders."""

import shutil
from pathlib import Path
from typing import Any, ClassVar

import lancedb
import numpy as np
import orjson
import pyarrow as arrow
import pytest
from lancedb.index import FTS, IvfFlat

from boundarymorph.errors import EmptyIndex, InvalidEmbeddings, RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.catalog import Index
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.retriever import Search
from boundarymorph.retrieval.stores.catalog import AttachedCatalog
from boundarymorph.retrieval.stores.lancedb import APPROXIMATE, LanceStore
from boundarymorph.settings import Attached
from tests.contract.store import DIMENSION, DOCUMENTS, QUERIES, TYPED, VECTORS, ReadOnly, StoreContract


def fill(folder: Path, name: str, rows: list[Document], *, text: bool = False, type: Any = None) -> Any:
    """text: whether metadata are JSON in text."""
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
    """Metadata as JSON in a column of text: filters are decided here."""

    halves = True

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, tmp_path_factory: pytest.TempPathFactory) -> Index:
        fill(folder := tmp_path_factory.mktemp("lance"), "tales", DOCUMENTS, text=True, type=arrow.float16())
        return AttachedCatalog(LanceStore(str(folder)), {}).get("tales")


class TestTyped(ReadOnly, StoreContract):
    """Metadata in a column of structs: filters become SQL."""

    documents: ClassVar[list[Document]] = TYPED

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, tmp_path_factory: pytest.TempPathFactory) -> Index:
        fill(folder := tmp_path_factory.mktemp("lance"), "tales", TYPED).create_index("text", config=FTS())
        return AttachedCatalog(LanceStore(str(folder)), {}).get("tales")


class TestColumns(StoreContract):
    """Each field of the metadata in a column of its own."""

    documents: ClassVar[list[Document]] = TYPED

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, tmp_path_factory: pytest.TempPathFactory) -> Index:
        folder = tmp_path_factory.mktemp("lance")
        table = fill(folder, "first", TYPED).to_arrow().drop_columns(["metadata"])
        for name in dict.fromkeys(name for each in TYPED for name in each.metadata):
            table = table.append_column(name, [[each.metadata.get(name) for each in TYPED]])
        lancedb.connect(folder).create_table("columns", table)
        return AttachedCatalog(LanceStore(str(folder)), {"mine": Attached(table="columns", title="title")}).get("mine")


def test_a_large_table_is_searched_by_its_index(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3_000, DIMENSION)).astype(np.float32)
    ids = [str(n) for n in range(3_000)]
    column = arrow.array(list(vectors), arrow.list_(arrow.float32(), DIMENSION))
    table = lancedb.connect(tmp_path).create_table("t", arrow.table({"id": ids, "text": ids, "vector": column}))
    table.create_index("vector", config=IvfFlat(distance_type="cosine", num_partitions=4))
    search = {"exact_up_to": 10, "nprobes": 4}
    catalog = AttachedCatalog(
        LanceStore(str(tmp_path)), {"a": Attached(table="t", search=search), "exact": Attached(table="t")}
    )
    found, exact = (catalog.get(name).retrieve(Search("", 500, np.ones(DIMENSION))) for name in ("a", "exact"))
    assert (list(found.warnings), list(exact.warnings)) == ([APPROXIMATE], [])
    assert found.pool.ids == exact.pool.ids


def test_what_is_wrong_with_a_table_is_said(tmp_path: Path) -> None:
    table = fill(tmp_path, "tales", TYPED)
    catalog = AttachedCatalog(LanceStore(str(tmp_path)), {"mine": Attached(table="tales")}, schema_seconds=0)
    index = catalog.get("mine")
    table.update(where="id = 'plain'", values={"text": ""})
    table.update(where="id = 'a b'", values={"vector": [0.0] * DIMENSION})
    found = index.retrieve(Search("tram", 200, QUERIES[0]))
    assert len(found.pool) == len(TYPED) - 1
    assert "LanceDB returned 119 of the 120 nearest" in found.warnings[0]
    assert any("no text" in warning for warning in found.warnings)
    with pytest.raises(InvalidEmbeddings, match="8 dimensions"):
        index.retrieve(Search("", 5, np.ones(3)))
    for wrong, said in (({"text": "body"}, "no column 'body'"), ({"vector": "text"}, "holds no vectors")):
        attached = Attached(**{"table": "tales", **wrong})
        with pytest.raises(RetrieverFailed, match=said):
            AttachedCatalog(LanceStore(str(tmp_path)), {"mine": attached}).get("mine")
    table.delete("true")
    with pytest.raises(EmptyIndex):
        index.retrieve(Search("", 5, QUERIES[0]))
    lancedb.connect(tmp_path).drop_table("tales")
    with pytest.raises(UnknownIndex, match="tales"):
        catalog.get("mine")
    shutil.rmtree(tmp_path)
    with pytest.raises(RetrieverUnavailable, match="no folder"):
        catalog.get("mine")


def test_what_others_write_is_seen(tmp_path: Path) -> None:
    table = fill(tmp_path, "tales", TYPED[:10])
    index = AttachedCatalog(LanceStore(str(tmp_path)), {}).get("tales")
    assert len(index.retrieve(Search("", 50, QUERIES[0])).pool) == 10
    table.delete("id = 'plain'")
    assert "plain" not in index.retrieve(Search("", 50, QUERIES[0])).pool.ids
    assert index.documents(["plain"]) == {}


def test_ids_that_are_numbers(tmp_path: Path) -> None:
    column = arrow.array([[1.0, 0.0], [0.0, 1.0]], arrow.list_(arrow.float32(), 2))
    rows = {"id": [7, -3], "text": ["tram", None], "vector": column}
    lancedb.connect(tmp_path).create_table("t", arrow.table(rows))
    index = AttachedCatalog(LanceStore(str(tmp_path)), {}).get("t")
    assert index.retrieve(Search("tram", 2, [1.0, 0.1])).pool.ids == ["7", "-3"]
    assert index.documents(["x", "07", "-3", "9" * 30]) == {"-3": Document("-3", "")}
