"""Test attached collections in Milvus, and the code that all stores share."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from pymilvus import DataType, MilvusClient

from boundarymorph.errors import InvalidInput, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.build import build_indexes
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.interfaces import Index, UnreadableIndex
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.stores.catalog import Catalogs, StoreCatalog
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.retrieval.stores.table import guess_columns
from boundarymorph.settings import SERVICE, AttachedTable, Settings
from boundarymorph_stores.milvus import MilvusStore
from boundarymorph_stores.milvus_connection import MilvusConnection
from boundarymorph_stores.testing import DIMENSION, DOCUMENTS, FLAWED, QUERIES, VECTORS, Flaws, ReadOnly, StoreContract
from tests.contract.vector_index import unit
from tests.ports import free_port
from tests.retrieval.fakes import SeededEncoder
from tests.stores import milvus


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with milvus.embedded(tmp_path_factory.mktemp("milvus")) as url:
        yield url.replace("milvus:", "http:")


class TestMilvusAttached(ReadOnly, StoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, articles: MilvusStore) -> Index:
        return StoreCatalog(articles, {"mine": AttachedTable(table="articles", title="title")}).get("mine")


@pytest.fixture(scope="module")
def articles(url: str) -> Iterator[MilvusStore]:
    schema = MilvusClient.create_schema(enable_dynamic_field=True)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=100)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=DIMENSION)
    schema.add_field("text", DataType.VARCHAR, max_length=1_000)
    schema.add_field("title", DataType.VARCHAR, max_length=100, nullable=True)
    rows = zip(DOCUMENTS, VECTORS, strict=True)
    rows_of = [{"id": d.id, "vector": vector, "text": d.text, "title": d.title, **d.metadata} for d, vector in rows]
    milvus.fill(url, "articles", schema, rows_of)
    store = MilvusStore(MilvusConnection(url))
    yield store
    store.close()


class TestMilvusFlaws(Flaws):
    refused: ClassVar[set[str]] = {"nameless", "twice"}

    @pytest.fixture(scope="class")
    @classmethod
    def flawed(cls, articles: MilvusStore, url: str) -> StoreIndex:
        known = {id: {"id": id, "text": text, "vector": vector} for id, text, vector in FLAWED if id is not None}
        schema = MilvusClient.create_schema()
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=100)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)
        schema.add_field("text", DataType.VARCHAR, max_length=100, nullable=True)
        milvus.fill(url, "flawed", schema, list(known.values()))
        return StoreCatalog(articles, {"mine": AttachedTable(table="flawed")}).get("mine")


def test_columns_of_framework_tables_are_guessed() -> None:
    langchain = {"langchain_id": "", "content": "", "embedding": "vector", "langchain_metadata": "json"}
    assert guess_columns("t", langchain) == AttachedTable(
        table="t", id="langchain_id", text="content", vector="embedding", metadata=("langchain_metadata",)
    )
    assert guess_columns("t", {"id": "", "text": "", "a": "vector", "b": "vector"}) is None
    assert guess_columns("t", {"id": "", "a": "vector"}) is None


async def test_catalogs_find_an_index_by_its_name_or_store(articles: MilvusStore, tmp_path: Path) -> None:
    base = LocalCatalog(tmp_path / "indexes")
    base.create("notes", encoder=None, dimension=4)
    away = MilvusStore(MilvusConnection(f"http://127.0.0.1:{free_port()}", timeout=0.2))
    shelf = StoreCatalog(articles, {"books": AttachedTable(table="articles")})
    catalogs = Catalogs(base, {"lake": StoreCatalog(articles, {}), "away": StoreCatalog(away, {}), "shelf": shelf})
    catalogs.check()  # only of this machine: an unavailable store does not make the service unready
    for name in ("articles", "lake/articles", "books", "shelf/books"):
        assert catalogs.get(name).count() == len(DOCUMENTS)
        assert catalogs.exists(name)
    assert catalogs.get("notes").count() == 0
    listed = {info.name: info for info in catalogs.list()}
    assert {"notes", "books", "lake/articles", "away/"} <= set(listed)
    assert isinstance(listed["away/"], UnreadableIndex)
    for name in ("nobody", "lake/nobody", "nobody/articles", "/articles"):
        with pytest.raises(UnknownIndex):
            catalogs.get(name)
    with pytest.raises(RetrieverUnavailable):
        catalogs.get("away/articles")
    with pytest.raises(InvalidInput, match="of your own"):
        catalogs.delete("books")
    with pytest.raises(InvalidInput, match="several stores"):
        Catalogs(base, {name: StoreCatalog(articles, {}) for name in ("a", "b")}).get("articles")
    base.close()
    away.close()


class Fitting(SeededEncoder):
    """An encoder of the dimension of the tables."""

    def __init__(self, vectors: dict[str, NDArray[np.float32]]) -> None:
        super().__init__()
        self.known, self.dimension = vectors, DIMENSION

    async def encode_query(self, text: str, caller: str = "") -> NDArray[np.float32]:
        return np.asarray(QUERIES[0], np.float32)

    async def encode_documents(self, texts: Sequence[str], caller: str = "") -> Embeddings:
        found = await super().encode_documents(texts)
        return replace(found, vectors=np.array([self.known[text] for text in texts]))


async def test_encoder_of_a_store_is_checked_with_one_document(articles: MilvusStore) -> None:
    attached = AttachedTable(table="articles", title="title", encoder=SERVICE)
    right = {each.content: vector for each, vector in zip(DOCUMENTS, VECTORS, strict=True)}
    wrong = dict(zip(right, unit(len(right), DIMENSION, seed=99), strict=True))
    short = dict(zip(right, unit(len(right), DIMENSION - 1), strict=True))
    search = Search("tales", 5)
    for vectors, said in ((right, None), (wrong, "not made by the encoder 'seeded'"), (short, "8 dimensions")):
        encoder = Fitting(vectors)
        retriever = IndexRetriever(StoreCatalog(articles, {"probed": attached}), encoder)
        if said is None:
            for _ in range(2):
                assert len((await retriever.retrieve("probed", search)).pool) == 5
            assert len(encoder.encoded) == 1
        else:
            with pytest.raises(InvalidInput, match=said):
                await retriever.retrieve("probed", search)
            assert len((await retriever.retrieve("probed", Search("", 5, QUERIES[0]))).pool) == 5
    without = IndexRetriever(StoreCatalog(articles, {"probed": attached}), None)
    with pytest.raises(InvalidInput, match="without an encoder"):
        await without.retrieve("probed", search)


def test_index_is_created_in_the_store_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    settings = Settings(data_directory=tmp_path, stores={"lake": {"url": f"lancedb://{tmp_path / 'lake'}"}})
    with closing(build_indexes(settings)) as catalogs:
        catalogs.create("here", encoder=None, dimension=4)
        catalogs.create("lake/there", encoder=None, dimension=4).upsert([Document("a", "tram")], unit(1, 4))
        assert [info.name for info in catalogs.list()] == ["here", "lake/there"]
        assert sum(of_kind.indexes for of_kind in catalogs.totals().values()) == 1  # only the index on this disk counts
        assert [catalogs.get(name).count() for name in ("there", "lake/there")] == [1, 1]
        catalogs.artifacts("there").change(description="of trams")
        assert catalogs.artifacts("lake/there").read().description == "of trams"
        assert catalogs.artifacts("there").index == "lake/there"
        assert [path.name for path in settings.data_directory.glob(".artifacts/lake/*/*")] == ["artifacts.json"]
        with closing(build_indexes(settings)) as elsewhere:
            elsewhere.delete("there")
            elsewhere.create("lake/there", encoder=None, dimension=4)
    with closing(build_indexes(settings)) as catalogs:
        assert catalogs.artifacts("there").read().description is None
        assert list(settings.data_directory.glob(".artifacts/lake/*")) == []
