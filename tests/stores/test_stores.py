"""The contract of stores over collections of others in Milvus, and what is shared by all stores."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from unittest.mock import create_autospec

import numpy as np
import pytest
from numpy.typing import NDArray
from pymilvus import DataType, MilvusClient

from boundarymorph.errors import InvalidInput, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.build import build_indexes
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.encoders import Embeddings
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.interfaces import Catalog, Index, IndexConfiguration, UnreadableIndex
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.stores.catalog import Catalogs, StoreCatalog
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.retrieval.stores.table import guessed
from boundarymorph.settings import SERVICE, Attached, Settings
from boundarymorph_stores.milvus import MilvusStore
from boundarymorph_stores.milvus_connection import MilvusConnection
from boundarymorph_stores.testing import (
    DIMENSION,
    DOCUMENTS,
    FLAWED,
    QUERIES,
    VECTORS,
    Flaws,
    ReadOnly,
    StoreContract,
)
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
    def index(cls, url: str) -> Iterator[Index]:
        client = MilvusClient(url)
        fill_milvus(client, "articles")
        catalog = StoreCatalog(MilvusStore(MilvusConnection(url)), {"mine": Attached(table="articles", title="title")})
        yield catalog.get("mine")
        catalog.close()
        client.close()


def fill_milvus(client: MilvusClient, name: str) -> None:
    schema = MilvusClient.create_schema(enable_dynamic_field=True)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=100)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=DIMENSION)
    schema.add_field("text", DataType.VARCHAR, max_length=1_000)
    schema.add_field("title", DataType.VARCHAR, max_length=100, nullable=True)
    wanted = MilvusClient.prepare_index_params()
    wanted.add_index("vector", index_type="FLAT", metric_type="COSINE")
    client.create_collection(name, schema=schema, index_params=wanted)
    client.insert(
        name,
        [
            {"id": each.id, "vector": vector, "text": each.text, "title": each.title, **each.metadata}
            for each, vector in zip(DOCUMENTS, VECTORS, strict=True)
        ],
    )


class TestMilvusFlaws(Flaws):
    refused: ClassVar[set[str]] = {"nameless", "twice"}

    @pytest.fixture(scope="class")
    @classmethod
    def flawed(cls, url: str) -> Iterator[StoreIndex]:
        client = MilvusClient(url)
        known = {id: {"id": id, "text": text, "vector": vector} for id, text, vector in FLAWED if id is not None}
        schema = MilvusClient.create_schema()
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=100)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)
        schema.add_field("text", DataType.VARCHAR, max_length=100, nullable=True)
        wanted = MilvusClient.prepare_index_params()
        wanted.add_index("vector", index_type="FLAT", metric_type="COSINE")
        client.create_collection("flawed", schema=schema, index_params=wanted)
        client.insert("flawed", list(known.values()))
        catalog = StoreCatalog(MilvusStore(MilvusConnection(url)), {"mine": Attached(table="flawed")})
        yield catalog.get("mine")
        catalog.close()
        client.close()


def test_columns_are_guessed_by_the_names_that_frameworks_give_them() -> None:
    langchain = {"langchain_id": "", "content": "", "embedding": "vector", "langchain_metadata": "json"}
    assert guessed("t", langchain) == Attached(
        table="t", id="langchain_id", text="content", vector="embedding", metadata=("langchain_metadata",)
    )
    assert guessed("t", {"id": "", "text": "", "a": "vector", "b": "vector"}) is None
    assert guessed("t", {"id": "", "a": "vector"}) is None


async def test_an_index_is_found_by_its_name_or_its_store(url: str, tmp_path: Path) -> None:
    client = MilvusClient(url)
    fill_milvus(client, "papers")
    base = LocalCatalog(tmp_path / "indexes")
    base.create("notes", encoder=None, dimension=4)
    away = MilvusStore(MilvusConnection(f"http://127.0.0.1:{free_port()}", timeout=0.2))
    described = Attached(table="papers")
    catalogs = Catalogs(
        base,
        {
            "lake": StoreCatalog(MilvusStore(MilvusConnection(url)), {}),
            "away": StoreCatalog(away, {}),
            "shelf": StoreCatalog(MilvusStore(MilvusConnection(url)), {"books": described}),
        },
    )
    catalogs.check()  # only of the base: a store that is away does not make the service unready
    for name in ("papers", "lake/papers", "books", "shelf/books"):
        assert catalogs.get(name).count() == len(DOCUMENTS)
        assert catalogs.exists(name)
    assert catalogs.get("notes").count() == 0
    listed = {info.name: info for info in catalogs.list()}
    assert {"notes", "books", "lake/papers", "away/"} <= set(listed)
    assert isinstance(listed["away/"], UnreadableIndex)
    for name in ("nobody", "lake/nobody", "nobody/papers", "/papers"):
        with pytest.raises(UnknownIndex):
            catalogs.get(name)
    with pytest.raises(RetrieverUnavailable):
        catalogs.get("away/papers")
    with pytest.raises(InvalidInput, match="of your own"):
        catalogs.delete("books")
    both = Catalogs(base, {name: StoreCatalog(MilvusStore(MilvusConnection(url)), {}) for name in ("a", "b")})
    with pytest.raises(InvalidInput, match="several stores"):
        both.get("papers")
    for part in (catalogs, both, client):
        part.close()


def test_a_store_that_is_away_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    base, store = create_autospec(Catalog, instance=True), create_autospec(StoreCatalog, instance=True)
    catalogs = Catalogs(base, {"shelf": store})
    refused = RetrieverUnavailable("nothing listens at shelf:5432")
    for outcome in (refused, refused, None, None, refused):
        store.check.side_effect = outcome
        assert catalogs.totals() is base.totals()
    said = [record.message.partition(":")[0] + record.message.rpartition(":")[2] for record in caplog.records]
    away = "stores.shelf5432"
    assert said == [away, "stores.shelf ready again", away]


class Fitting(SeededEncoder):
    """An encoder of the dimension of the tables."""

    def __init__(self, vectors: dict[str, NDArray[np.float32]]) -> None:
        super().__init__()
        self.known = vectors
        self.dimension = DIMENSION

    async def encode_query(self, text: str) -> NDArray[np.float32]:
        return np.asarray(QUERIES[0], np.float32)

    async def encode_documents(self, texts: Sequence[str]) -> Embeddings:
        found = await super().encode_documents(texts)
        return replace(found, vectors=np.array([self.known[text] for text in texts]))


async def test_the_encoder_is_checked_with_a_document(url: str) -> None:
    client = MilvusClient(url)
    fill_milvus(client, "probed")
    attached = Attached(table="probed", title="title", encoder=SERVICE)
    right = {each.content: vector for each, vector in zip(DOCUMENTS, VECTORS, strict=True)}
    wrong = dict(zip(right, unit(len(right), DIMENSION, seed=99), strict=True))
    short = dict(zip(right, unit(len(right), DIMENSION - 1), strict=True))
    search = Search("tales", 5)
    for vectors, said in ((right, None), (wrong, "not made by the encoder 'seeded'"), (short, "8 dimensions")):
        catalog = StoreCatalog(MilvusStore(MilvusConnection(url)), {"probed": attached})
        encoder = Fitting(vectors)
        retriever = IndexRetriever(catalog, encoder)
        if said is None:
            for _ in range(2):
                assert len((await retriever.retrieve("probed", search)).pool) == 5
            assert len(encoder.encoded) == 1
        else:
            with pytest.raises(InvalidInput, match=said):
                await retriever.retrieve("probed", search)
            assert len((await retriever.retrieve("probed", Search("", 5, QUERIES[0]))).pool) == 5
        await retriever.close()
        catalog.close()
    without = IndexRetriever(StoreCatalog(MilvusStore(MilvusConnection(url)), {"probed": attached}), None)
    with pytest.raises(InvalidInput, match="without an encoder"):
        await without.retrieve("probed", search)
    client.close()


def test_an_index_is_made_in_the_store_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    settings = Settings(data_directory=tmp_path, stores={"lake": {"url": f"lancedb://{tmp_path / 'lake'}"}})
    with closing(build_indexes(settings)) as catalogs:
        catalogs.create("here", encoder=None, dimension=4)
        catalogs.create("lake/there", encoder=None, dimension=4).upsert([Document("a", "tram")], unit(1, 4))
        assert [info.name for info in catalogs.list()] == ["here", "lake/there"]
        assert sum(of_kind.indexes for of_kind in catalogs.totals().values()) == 1  # on this disk
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


@pytest.mark.strangers
def test_what_is_not_known_of_an_index_is_null() -> None:
    """A table of somebody else's has no age here, and an index in a store no size on this disk."""
    described = IndexConfiguration(None, 4, "", "hnsw").described("articles", 3)
    assert (described.created, described.bytes) == (None, None)
    made = IndexConfiguration(None, 4, "2026-11-28T07:10:31+00:00").described("articles", 3, 4_096)
    assert (made.created, made.bytes) == ("2026-11-28T07:10:31+00:00", 4_096)
