"""Test collections of Qdrant as indexes, with the client's own engine in place of a server."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import numpy as np
import orjson
import pytest
from pydantic import SecretStr
from qdrant_client import QdrantClient, models

from boundarymorph.errors import InvalidInput, RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.notices import Notice
from boundarymorph.retrieval.document import Document, Search, fingerprint
from boundarymorph.retrieval.interfaces import Index
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.settings import AttachedTable, StoreSettings
from boundarymorph_stores import qdrant as stores
from boundarymorph_stores.qdrant import QdrantStore
from boundarymorph_stores.testing import DIMENSION, DOCUMENTS, FLAWED, QUERIES, VECTORS, Flaws, ReadOnly, StoreContract
from tests.contract.vector_index import unit
from tests.ports import free_port

pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact")
COSINE = models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE)


@pytest.fixture
def client() -> Iterator[QdrantClient]:
    client = QdrantClient(":memory:")
    yield client
    client.close()


def fill(client: QdrantClient, name: str, payloads: list[dict[str, Any]], vector: str | None = None) -> None:
    client.create_collection(name, {vector: COSINE} if vector else COSINE)
    points = zip(payloads, VECTORS.tolist(), strict=False)
    client.upsert(
        name,
        [
            models.PointStruct(id=n, vector={vector: row} if vector else row, payload=payload)
            for n, (payload, row) in enumerate(points)
        ],
    )


class TestMetadata(ReadOnly, StoreContract):
    """Metadata are in one field, as LangChain writes them."""

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls) -> Iterator[Index]:
        client = QdrantClient(":memory:")
        rows = [
            {"key": each.id, "page_content": each.text, "title": each.title, "metadata": dict(each.metadata)}
            for each in DOCUMENTS
        ]
        fill(client, "tales", rows)
        attached = AttachedTable(table="tales", id="key", text="page_content", title="title", metadata=("metadata",))
        yield StoreCatalog(QdrantStore(client), {"mine": attached}).get("mine")
        client.close()


class TestFields(ReadOnly, StoreContract):
    """Each metadata field is beside the text, and the vector has a name."""

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls) -> Iterator[Index]:
        client = QdrantClient(":memory:")
        fill(
            client, "tales", [{"key": e.id, "text": e.text, "head": e.title, **e.metadata} for e in DOCUMENTS], "dense"
        )
        attached = AttachedTable(table="tales", id="key", vector="dense", title="head")
        yield StoreCatalog(QdrantStore(client), {"mine": attached}).get("mine")
        client.close()


class TestFlaws(Flaws):
    @pytest.fixture
    def flawed(self, client: QdrantClient) -> StoreIndex:
        client.create_collection("t", models.VectorParams(size=2, distance=models.Distance.COSINE))
        rows = [(vector, {"key": id, "text": text}) for id, text, vector in FLAWED]
        points = [models.PointStruct(id=n, vector=vector, payload=row) for n, (vector, row) in enumerate(rows)]
        client.upsert("t", points)
        return StoreCatalog(QdrantStore(client), {"mine": AttachedTable(table="t", id="key")}).get("mine")


@pytest.mark.strangers
def test_document_ids_may_be_numbers_texts_or_uuids(client: QdrantClient) -> None:
    fill(client, "t", [{"key": 7, "text": "tram", "title": 8}, {"key": "7a", "text": "bread"}, {"text": "lost"}])
    index = StoreCatalog(QdrantStore(client), {"mine": AttachedTable(table="t", id="key", title="title")}).get("mine")
    assert sorted(index.retrieve(Search("tram", 3, QUERIES[0])).pool.ids) == ["7", "7a"]
    assert index.documents(["7", "7a"]) == {"7": Document("7", "tram"), "7a": Document("7a", "bread")}
    client.create_collection("theirs", models.VectorParams(size=4, distance=models.Distance.DOT))
    attached = AttachedTable(table="theirs", title="title", metadata=("metadata",), writable=True)
    index = StoreCatalog(QdrantStore(client), {"theirs": attached}).get("theirs")
    kept = [Document("7", "one"), Document(id := str(UUID(int=5)), "two", "t", {"n": [1]})]
    index.upsert(kept, unit(2, 4))
    assert list(index.documents(["7", id.upper() + "0", id]).values()) == kept
    assert set(index.retrieve(Search("tram", 3, np.ones(4))).pool.ids) == {"7", id}
    assert index.digests(["7"]) == {"7": fingerprint(kept[0])}
    with pytest.raises(InvalidInput, match="a number or a UUID"):
        index.check(Document("seven", ""))
    assert (index.delete(["7", "8"]), index.count()) == (1, 1)
    attached = attached.model_copy(update={"id": "key"})
    with pytest.raises(RetrieverFailed, match="must be that of the point"):
        StoreCatalog(QdrantStore(client), {"theirs": attached}).get("theirs")


def test_fields_of_framework_collections_are_guessed(client: QdrantClient) -> None:
    fill(client, "langchain", [{"page_content": "tram", "metadata": {"year": 1}}])
    fill(client, "llama", [{"_node_content": orjson.dumps({"text": "tram"}).decode(), "year": 1}])
    fill(client, "other", [{"neither": 1}])
    catalog = StoreCatalog(QdrantStore(client), {})
    assert [info.name for info in catalog.list()] == ["langchain", "llama"]
    for name in ("langchain", "llama"):
        index = catalog.get(name)
        assert index.retrieve(Search("tram", 3, QUERIES[0], filter={"year": 1})).pool.ids == ["0"]
        assert index.documents(["0", "x", "00", "7"]) == {"0": Document("0", "tram", metadata={"year": 1})}


def test_mistakes_in_a_collection_description_are_named(client: QdrantClient) -> None:
    fill(client, "tales", [{"text": "tram"}, {"body": "x"}, {"text": 7}])
    catalog = StoreCatalog(
        QdrantStore(client),
        {"mine": AttachedTable(table="tales"), "large": AttachedTable(table="tales", search={"exact_up_to": 1})},
        schema_seconds=0,
    )
    index = catalog.get("mine")
    said = Notice("documents-without-text", "2 candidates have no text")
    assert list(index.retrieve(Search("tram", 3, QUERIES[0])).warnings) == [said]
    approximate = Notice("approximate-search", "Qdrant searched its index, which may miss some of the nearest")
    assert approximate in catalog.get("large").retrieve(Search("tram", 3, QUERIES[0])).warnings
    settings = StoreSettings(url=SecretStr(f"qdrant://127.0.0.1:{free_port()}"), timeout_seconds=1)
    with pytest.raises(RetrieverUnavailable, match="Qdrant"):
        list(QdrantStore.connect(settings).columns())
    with pytest.raises(RetrieverFailed, match="no vector 'dense'; it has vector"):
        StoreCatalog(QdrantStore(client), {"m": AttachedTable(table="tales", vector="dense")}).get("m")
    client.delete_collection("tales")
    for call in (lambda: index.retrieve(Search("", 5, QUERIES[0])), lambda: catalog.get("mine")):
        with pytest.raises(UnknownIndex):
            call()


def test_flat_index_is_searched_exactly(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "EXACT", 1)
    catalog = StoreCatalog(QdrantStore(client))
    for kind, said in (("flat", []), ("hnsw", ["approximate-search"])):
        index = catalog.create(kind, encoder=None, dimension=4, kind=kind, lexical=False)
        index.upsert([Document(f"d{n}", "") for n in range(3)], np.eye(4)[:3])
        assert [each.slug for each in index.retrieve(Search("", 3, [1, 1, 1, 1])).warnings] == said
