"""Test Milvus as a store: attached collections, answers in parts, words, and versions."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from pymilvus import DataType, MilvusClient

from boundarymorph.errors import CorruptIndex, InvalidConfiguration, LimitExceeded, RetrieverFailed
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.interfaces import Index, UnreadableIndex
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph.settings import AttachedTable, StoreSettings
from boundarymorph_stores import milvus as stores
from boundarymorph_stores.milvus import MilvusStore, MilvusTable
from boundarymorph_stores.milvus_connection import MilvusConnection, Server
from tests.contract.vector_index import names, unit
from tests.stateful.profile import times
from tests.stores import milvus
from tests.stores.milvus import fill

names_of_collections = (f"Papers{number}" for number in itertools.count())
prefixes = (f"test{number}_" for number in itertools.count())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with milvus.embedded(tmp_path_factory.mktemp("milvus")) as url:
        yield url.replace("milvus:", "http:")


@pytest.fixture
def catalog(url: str) -> Iterator[StoreCatalog]:
    """Yield a catalog with its own collections in the shared server."""
    catalog = StoreCatalog(MilvusStore(MilvusConnection(url)), prefix=next(prefixes))
    yield catalog
    catalog.close()


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_pool_over_the_search_limit_is_complete(
    catalog: StoreCatalog, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The pool is read in pages, or at once if it is only a little larger, also with a filter."""
    assert stores.SEARCH_LIMIT == 16_384
    documents = [Document(id, "", metadata={"third": n % 3 == 0, "s": str(n % 3)}) for n, id in enumerate(names(120))]
    catalog.create("a", encoder=None, dimension=4, kind=kind, lexical=False).upsert(documents, unit(120, 4))
    assert catalog.describe("a").kind == kind
    whole = catalog.get("a").retrieve(Search("", 120, np.ones(4))).pool
    monkeypatch.setattr(stores, "SEARCH_LIMIT", 20)
    for answer_bytes in (stores.ANSWER_BYTES, 16 * 7):
        monkeypatch.setattr(stores, "ANSWER_BYTES", answer_bytes)
        index = catalog.get("a")
        for depth in (20, 21, 61, 120, 10_000):
            found = index.retrieve(Search("", depth, np.ones(4)))
            assert (list(found.pool.ids), list(found.warnings)) == (list(whole.ids[:depth]), []), depth
            np.testing.assert_array_equal(found.pool.embeddings, whole.embeddings[:depth])
    thirds = [id for id in whole.ids if int(id[1:]) % 3 == 0]
    for filter, expected in (({"s": "0"}, thirds), ({"third": True}, thirds), ({"third": "1"}, [])):
        for depth in (25, 38, 1_000):
            assert list(index.retrieve(Search("", depth, np.ones(4), filter=filter)).pool.ids) == expected[:depth]


def test_documents_over_the_request_limit_are_read_in_parts(
    catalog: StoreCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "IDS_AT_A_TIME", 7)
    monkeypatch.setattr(stores, "TEXTS_AT_A_TIME", 7)
    monkeypatch.setattr(stores, "REQUEST_BYTES", 7 * (4 * 4 + stores.ROW_BYTES))
    index = catalog.create("many", encoder=None, dimension=4)
    index.upsert([Document(id, f"text {id}") for id in names(50)], unit(50, 4))
    assert list(index.documents(names(50))) == names(50)
    assert len(index.digests(names(60))) == 50
    assert index.delete(names(40)) == 40
    assert set(index.retrieve(Search("", 100, np.ones(4))).pool.ids) == set(names(10, 40))


@pytest.mark.parametrize(
    ("most", "over", "what"),
    [
        (Document("i" * stores.MAX_ID_BYTES, ""), Document("i" * (stores.MAX_ID_BYTES + 1), ""), "id"),
        (Document("a", "ä" * 32_767 + "a"), Document("a", "ä" * 32_768), "text"),
        (Document("a", "", "t" * stores.MAX_BYTES), Document("a", "", "t" * (stores.MAX_BYTES + 1)), "title"),
        (
            Document("a", "", metadata={"a": "v" * (stores.MAX_BYTES - 8)}),
            Document("a", "", metadata={"a": "v" * (stores.MAX_BYTES - 7)}),
            "metadata",
        ),
    ],
)
def test_document_over_a_field_limit_is_refused(
    catalog: StoreCatalog, most: Document, over: Document, what: str
) -> None:
    index = catalog.create("a", encoder=None, dimension=4)
    with pytest.raises(LimitExceeded, match=f"the {what} of"):
        index.check(over)
    with pytest.raises(LimitExceeded, match=f"the {what} of"):
        index.upsert([over], unit(1, 4))
    assert index.count() == 0
    index.check(most)
    index.upsert([most], unit(1, 4))
    assert list(index.documents([most.id]).values()) == [most]


def test_collections_without_the_prefix_are_left_alone(catalog: StoreCatalog, url: str) -> None:
    other = StoreCatalog(MilvusStore(MilvusConnection(url)), prefix=f"{catalog._prefix}other_")
    other.create("theirs", encoder=None, dimension=4)
    assert "theirs" not in {index.name for index in catalog.list()}
    schema = stores._schema(4, halves=False, words=False)
    MilvusConnection(url).call("create_collection", f"{catalog._prefix}mine", schema=schema)
    with pytest.raises(CorruptIndex, match=r"stores\.NAME\.prefix"):
        catalog.get("mine")
    assert [type(index) for index in catalog.list() if index.name == "mine"] == [UnreadableIndex]
    other.close()


def test_url_sets_server_database_and_consistency(tmp_path: Path) -> None:
    for url in ("", "localhost:19530", "http://user:secret@host", "data"):
        with pytest.raises(InvalidConfiguration) as raised:
            MilvusConnection(url)
        assert "secret" not in str(raised.value)
    for text, url, database, consistency in (
        ("milvus://h:1", "http://h:1", "", "strong"),
        ("milvuss://h:1/rag?consistency=bounded", "https://h:1", "rag", "bounded"),
        (f"milvus://{tmp_path}/a.db", f"{tmp_path}/a.db", "", "strong"),
    ):
        store = MilvusStore.connect(StoreSettings(url=SecretStr(text), api_key=SecretStr("root:secret")))
        connection = store._connection
        assert (connection.url, connection._database, store._consistency) == (url, database, consistency)
        assert connection._token == "root:secret"
    index = StoreCatalog(store).create("a", encoder=None, dimension=4)  # in the database file
    index.upsert([Document("x", "text")], unit(1, 4))
    assert index.documents(["x"])["x"].text == "text"
    store.close()
    for wrong in ("milvus://h?consistency=some", "milvus://h?level=strong"):
        with pytest.raises(InvalidConfiguration, match="only the option consistency: strong, session"):
            MilvusStore.connect(StoreSettings(url=SecretStr(wrong)))


@pytest.mark.parametrize(
    ("name", "lite", "halves", "text"),
    [
        ("milvus_lite-3.2.2", True, False, False),
        ("v2.3.5-lite", False, False, False),
        ("v2.4.23", False, True, False),
        ("v2.10.1-dev", False, True, True),
        ("nothing known", False, False, False),
    ],
)
def test_server_version_determines_its_features(name: str, lite: bool, halves: bool, text: bool) -> None:
    server = Server.parse(name)
    assert (server.lite, server.half_precision, server.full_text) == (lite, halves, text)


def test_float16_vectors_are_read_in_both_forms(catalog: StoreCatalog) -> None:
    """Servers from 2.4 on send bytes for a search, and a list of bytes for a query."""
    catalog.create("a", encoder=None, dimension=8)
    table = catalog.get("a").table
    assert isinstance(table, MilvusTable) and not table._halves
    table._vector = replace(table._vector, type="FLOAT16_VECTOR")
    halves = unit(2, 8).astype("<f2")
    rows: list[dict[str, Any]] = [{"vector": halves[0].tobytes()}, {"vector": [halves[1].tobytes()]}]
    np.testing.assert_array_equal(table._matrix(rows), halves)
    assert table._matrix([]).shape == (0, 8)
    assert table._asked(np.ones(8, np.float32)).dtype == np.float16
    for halved, expected in ((True, "FLOAT16_VECTOR"), (False, "FLOAT_VECTOR")):
        fields = stores._schema(8, halves=halved, words=False).fields
        assert [each.dtype.name for each in fields if each.name == "vector"] == [expected]


def test_server_with_full_text_search_finds_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """milvus-lite has the calls of a server, but other scores."""
    monkeypatch.setattr(Server, "full_text", property(lambda _: True))
    monkeypatch.delenv("MILVUS_URL", raising=False)
    with milvus.embedded(tmp_path) as url:
        catalog = StoreCatalog(MilvusStore(MilvusConnection(url.replace("milvus:", "http:"))))
        index = catalog.create("words", encoder=None, dimension=2)
        turns = np.linspace(0, 1, 30)
        texts = [f"a tram {n}" if n != 25 else "the one glockenspiel" for n in range(30)]
        documents = [Document(f"d{n}", text, metadata={"s": str(n % 2)}) for n, text in enumerate(texts)]
        index.upsert(documents, np.stack([np.cos(turns), np.sin(turns)], axis=1))
        for filter, expected in ((None, ["d0", "d25"]), ({"s": "1"}, ["d1", "d25"]), ({"s": "0"}, ["d0", "d2"])):
            search = Search("glockenspiel", 6, np.array([1.0, 0.0]), filter=filter, hybrid=True)
            found = index.retrieve(search)
            assert (list(found.pool.ids[:2]), len(found.pool), list(found.warnings)) == (expected, 6, [])
        catalog.create("none", encoder=None, dimension=2, lexical=False)
        assert [catalog.get(name).table.words for name in ("words", "none")] == [True, False]
        catalog.close()


def test_attached_collection_with_numeric_ids_is_read(url: str) -> None:
    """The collection uses inner products."""
    own = next(names_of_collections)
    schema = MilvusClient.create_schema()
    schema.add_field("pk", DataType.INT64, is_primary=True)
    schema.add_field("emb", DataType.FLOAT_VECTOR, dim=8)
    for name in ("body", "head"):
        schema.add_field(name, DataType.VARCHAR, max_length=100)
    vectors, ids = unit(50, 8), [str(n - 20) for n in range(50)]
    rows = [{"pk": int(i), "emb": v, "body": f"b{i}", "head": f"h{i}"} for i, v in zip(ids, vectors, strict=True)]
    fill(url, own, schema, rows, vector="emb", metric="IP")
    described = AttachedTable(table=own, id="pk", vector="emb", text="body", title="head", encoder="seeded-8")
    catalog = StoreCatalog(MilvusStore(MilvusConnection(url)), {"papers": described})
    index, search = catalog.get("papers"), Search("", 10, unit(1, 8, seed=1)[0])
    pool = index.retrieve(search).pool
    scores = vectors.astype(np.float64) @ search.unit
    assert list(pool.ids) == [ids[row] for row in np.argsort(-scores)[:10]]
    np.testing.assert_allclose(pool.scores, np.sort(scores)[::-1][:10], atol=1e-12)
    assert index.documents(["-3", "x", "7"]) == {i: Document(i, f"b{i}", f"h{i}") for i in ("-3", "7")}
    assert (index.info.encoder, catalog.describe("papers").count) == ("seeded-8", 50)
    wrong = StoreCatalog(catalog._store, {"papers": described.model_copy(update={"text": "words"})})
    with pytest.raises(RetrieverFailed, match="'words'"):
        wrong.get("papers")
    (unreadable,) = wrong.list()
    assert isinstance(unreadable, UnreadableIndex) and "'words'" in str(unreadable.error)
    catalog.close()


INTEGERS = [-128, -2, -1, 0, 1, 2, 127]
FLOATS = [-2.25, -0.0, 0.1, 0.5, 1.0, 1.5, 1e300]
STRINGS = ["", "a", "b", "B", "ä", "\U0001f642", "1", "true", "%", "'", '"\\\n']
ANY: list[Any] = [None, True, False, 0, 1, 0.5, 2**53 + 1, *STRINGS, [], [1, "a"], [None, 0.5], [True], {"a": 1}, {}]
ANY += [{"a": value} for value in (None, 0, 1.5, True, "b", [1], {"b": "a"})]
SCHEMA: dict[str, tuple[DataType, list[Any]]] = {
    "n": (DataType.INT64, [*INTEGERS, 2**63 - 1, -(2**63)]),
    "small": (DataType.INT8, INTEGERS),
    "double": (DataType.DOUBLE, FLOATS),
    "single": (DataType.FLOAT, FLOATS[:-1]),
    "flag": (DataType.BOOL, [True, False]),
    "name": (DataType.VARCHAR, STRINGS),
    "tags": (DataType.ARRAY, [[], ["a"], ["b", "ä"], ["a", "b"]]),
    "numbers": (DataType.ARRAY, [[], [1], [2, 127], [-1, 0]]),
    "more": (DataType.JSON, [{"a": value} for value in ANY] + [{}]),
}
BEYOND = ["a", "b c", "ä"]  # fields that the schema does not name


def random_metadata(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        row = {field: values[rng.integers(len(values))] for field, (_, values) in SCHEMA.items()}
        rows.append(row | {name: ANY[rng.integers(len(ANY))] for name in BEYOND if rng.random() < 0.6})
    return rows


ROWS = random_metadata(80)


@pytest.fixture(scope="module")
def papers(url: str) -> Iterator[Index]:
    """Return a collection of 80 documents with many types of fields."""
    name = next(names_of_collections)
    schema = MilvusClient.create_schema(enable_dynamic_field=True)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=100)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=4)
    schema.add_field("text", DataType.VARCHAR, max_length=1_000)
    elements = {"tags": DataType.VARCHAR, "numbers": DataType.INT64}
    for field, (type, _) in SCHEMA.items():
        options = {"element_type": elements[field], "max_capacity": 10} if field in elements else {}
        schema.add_field(field, type, max_length=100, **options)
    vectors = unit(len(ROWS), 4)
    rows = [{"id": f"d{n}", "vector": vectors[n], "text": f"text {n}", **row} for n, row in enumerate(ROWS)]
    fill(url, name, schema, rows)
    catalog = StoreCatalog(MilvusStore(MilvusConnection(url)), {"papers": AttachedTable(table=name)})
    index = catalog.get("papers")
    read = index.documents([f"d{n}" for n in range(len(ROWS))])
    for n, row in enumerate(ROWS):
        expected = row | {"single": float(np.float32(row["single"]))}
        assert read[f"d{n}"] == Document(f"d{n}", f"text {n}", metadata=expected)
    yield index
    catalog.close()


scalars = st.sampled_from(
    [None, True, False, 2**63 - 1, *INTEGERS, 200, *FLOATS, 1e19, float(np.float32(0.1)), *STRINGS]
)
orderable = scalars.filter(lambda value: value is not None and not isinstance(value, bool))
paths = st.sampled_from([*SCHEMA, *BEYOND, "more.a", "more.a.a", "a.a", "name.a", "more.0", "a.'", "nobody"])
comparisons = st.one_of(
    scalars,
    st.fixed_dictionaries({}, optional={"eq": scalars, "ne": scalars}).filter(bool),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("gt", "gte", "lt", "lte"), orderable)).filter(bool),
    st.fixed_dictionaries({"in": st.lists(scalars, max_size=4)}),
    st.fixed_dictionaries({"nin": st.lists(scalars, max_size=4)}),
    st.fixed_dictionaries({"exists": st.booleans()}),
)
filters = st.recursive(
    st.dictionaries(paths, comparisons, min_size=1, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"and": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"or": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=4,
)


@settings(max_examples=times(25, 500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(filters)
def test_milvus_filters_match_like_python_filters(papers: Index, filter: dict[str, Any]) -> None:
    found = papers.retrieve(Search("", len(ROWS), np.ones(4), filter=filter))
    rows = papers.documents([f"d{n}" for n in range(len(ROWS))])
    assert set(found.pool.ids) == {id for id, document in rows.items() if Filter(filter).matches(document.metadata)}
