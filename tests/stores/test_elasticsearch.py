"""Test indexes of Elasticsearch and OpenSearch, with the stand-in of `elastic.py`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from pydantic import SecretStr

from boundarymorph.errors import RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.notices import Notice
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.interfaces import Index
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph.settings import AttachedTable, StoreSettings
from boundarymorph_stores.elasticsearch import ElasticsearchStore
from boundarymorph_stores.testing import DIMENSION, DOCUMENTS, QUERIES, VECTORS, ReadOnly, StoreContract
from tests.fakes.upstream import answer, slow, well
from tests.ports import free_port
from tests.stores.elastic import Cluster, cluster, fill, nested, request_json

VECTOR = {"type": "knn_vector", "dimension": DIMENSION, "method": {"name": "hnsw", "engine": "lucene"}}


def sent(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata that the server can keep.

    A field has one type, and a name with dots means a field of an object.
    """
    rest = {k: v for k, v in metadata.items() if k != "loc" or "loc.page" not in metadata}
    return rest | {"year": int(rest["year"])}


ROWS = [replace(each, metadata=nested(sent(each.metadata))) for each in DOCUMENTS]


def store(server: Cluster, **options: Any) -> ElasticsearchStore:
    return ElasticsearchStore.connect(StoreSettings(url=SecretStr(server.url), **options))


@pytest.fixture(params=["elasticsearch", "opensearch"], scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(opensearch=request.param == "opensearch") as server:
        yield server


@pytest.mark.parametrize("server", ["elasticsearch"], indirect=True)
class TestWhole(ReadOnly, StoreContract):
    """Metadata in one object, as LangChain writes them, with guessed mappings."""

    documents: ClassVar[list[Document]] = ROWS

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, server: Cluster) -> Index:
        rows = {
            e.id: {"text": e.text, "title": e.title, "metadata": sent(e.metadata), "vector": v}
            for e, v in zip(DOCUMENTS, VECTORS.tolist(), strict=True)
        }
        fill(server.behind, "tales", {"vector": VECTOR}, rows)
        return StoreCatalog(store(server), {}).get("tales")


@pytest.mark.parametrize("server", ["opensearch"], indirect=True)
class TestFields(ReadOnly, StoreContract):
    """Each metadata field is beside the text, with explicit mappings."""

    documents: ClassVar[list[Document]] = ROWS

    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, server: Cluster) -> Index:
        properties = {"dense": VECTOR, "body": {"type": "keyword"}, "subject": {"type": "keyword"}}
        rows = {
            e.id: {"body": e.text, "head": e.title, "dense": v, **sent(e.metadata)}
            for e, v in zip(DOCUMENTS, VECTORS.tolist(), strict=True)
        }
        fill(server.behind, "fields", properties | {"price": {"type": "double"}}, rows)
        attached = AttachedTable(table="fields", text="body", title="head", vector="dense", search={"window": 7})
        return StoreCatalog(store(server), {"mine": attached}).get("mine")


@pytest.fixture
def small(server: Cluster, request: pytest.FixtureRequest) -> str:
    """Return the name of an index of three documents.

    One of them has no text, and one has a long word.
    """
    name: str = request.node.name.lower().replace("[", "-").rstrip("]")
    words = {"type": "keyword", "ignore_above": 9}
    rows: list[dict[str, Any]] = [
        {"text": "tram", "word": "short", "rate": 0.1, "many": [{"n": 1}, {"m": 2}]},
        {"text": None, "word": "much too long", "rate": 0.3},
        {"text": "bread", "word": "tiny", "rate": 2, "hidden": {"x": 1}, "source.url": "u"},
    ]
    properties = {"embedding": VECTOR, "word": words, "rate": {"type": "float"}, "hidden": {"enabled": False}}
    documents = {f"d{n}": {**row, "embedding": VECTORS[n].tolist()} for n, row in enumerate(rows)}
    fill(server.behind, name, {**properties, "hidden": {"type": "object", "enabled": False}}, documents)
    return name


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        ({"word": "much too long"}, ["d1"]),
        ({"word": {"gt": "m"}}, ["d0", "d1", "d2"]),
        ({"rate": 0.1}, ["d0"]),
        ({"rate": {"gt": 0.1}}, ["d1", "d2"]),
        ({"rate": {"lte": 0.3}}, ["d0", "d1"]),
        ({"rate": "2"}, []),
        ({"many.n": 1}, []),
        ({"hidden.x": 1}, ["d2"]),
        ({"source.url": "u"}, ["d2"]),
    ],
)
def test_filter_is_exact_where_the_server_reads_values_differently(
    server: Cluster, small: str, filter: dict[str, Any], ids: list[str]
) -> None:
    index = StoreCatalog(store(server), {}).get(small)
    assert sorted(index.retrieve(Search("", 9, QUERIES[0], filter=filter)).pool.ids) == ids


def test_large_index_is_searched_by_knn_with_a_warning(server: Cluster, small: str) -> None:
    described = AttachedTable(table=small, vector="embedding", search={"exact_up_to": 2})
    catalog = StoreCatalog(store(server), {"mine": described})
    found = catalog.get("mine").retrieve(Search("tram", 2, QUERIES[0], hybrid=True))
    assert found.warnings[0].slug == "approximate-search"
    assert any("knn" in body or "knn" in body["query"] for body in server.bodies)
    server.bodies.clear()
    for search in (Search("", 10_001, QUERIES[0]), Search("", 2, QUERIES[0], filter={"word": "tiny"})):
        catalog.get("mine").retrieve(search)
    assert all("script_score" in body["query"] for body in server.bodies)


@pytest.mark.servers
def test_mistakes_in_an_index_description_are_named(server: Cluster, small: str) -> None:
    catalog = StoreCatalog(store(server), {"mine": AttachedTable(table=small, vector="embedding")}, schema_seconds=0)
    index = catalog.get("mine")
    textless = Notice("documents-without-text", "1 candidate has no text")
    assert list(index.retrieve(Search("tram", 3, QUERIES[0])).warnings) == [textless]
    for wrong, said in (
        ({"text": "body"}, "no field 'body'; its fields"),
        ({"text": "hidden"}, "'hidden' .* holds no text"),
        ({"text": "_id"}, "'_id' .* holds no text"),
        ({"vector": "text"}, "holds no vectors"),
        ({"vector": "_id"}, "holds no vectors"),
    ):
        attached = AttachedTable(**{"table": small, "vector": "embedding", **wrong})
        with pytest.raises(RetrieverFailed, match=said):
            StoreCatalog(store(server), {"mine": attached}).get("mine")
    settings = StoreSettings(url=SecretStr(f"opensearch://127.0.0.1:{free_port()}"), timeout_seconds=1)
    with pytest.raises(RetrieverUnavailable, match="OpenSearch does not work now"):
        list(ElasticsearchStore.connect(settings).columns())
    for status, kind in ((401, RetrieverFailed), (429, RetrieverUnavailable), (503, RetrieverUnavailable)):
        server.behaviour = answer({"error": "down"}, status)
        with pytest.raises(kind, match=f"answered {status}"):
            index.retrieve(Search("", 5, QUERIES[0]))
    server.behaviour = slow(0.5)
    with pytest.raises(RetrieverUnavailable, match="ReadTimeout"):
        list(store(server, timeout_seconds=0.1).columns())
    server.behaviour = well
    request_json(server.behind, "DELETE", f"/{small}")
    for call in (lambda: index.retrieve(Search("", 5, QUERIES[0])), lambda: catalog.get("mine")):
        with pytest.raises(UnknownIndex):
            call()


@pytest.mark.parametrize(
    ("url", "key", "base", "sent"),
    [
        ("elasticsearch://me:a%2Fb@host:9200", None, "http://host:9200", "Basic bWU6YS9i"),
        ("elasticsearchs://host/behind", "k", "https://host/behind/", "ApiKey k"),
        ("opensearchs://host:9200", None, "https://host:9200", None),
    ],
)
def test_connect_reads_addresses_and_keys(url: str, key: str | None, base: str, sent: str | None) -> None:
    api_key = SecretStr(key) if key else None
    store = ElasticsearchStore.connect(StoreSettings(url=SecretStr(url), api_key=api_key))
    request = store._client.build_request("GET", "/")
    authorized = next(store._client._build_request_auth(request).auth_flow(request))
    assert str(store._client.base_url.copy_with(username=None, password=None)) == base
    assert authorized.headers.get("Authorization") == sent
    assert store.opensearch == url.startswith("opensearch")
    store.close()
