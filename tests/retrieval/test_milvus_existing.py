"""Collections that others made, as indexes: searched, filtered and read as any index is, and never changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymilvus import DataType, MilvusClient

from boundarymorph.errors import InvalidInput, RetrieverFailed
from boundarymorph.retrieval.catalog import UnreadableIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.milvus.connection import MilvusConnection
from boundarymorph.retrieval.milvus.table import MilvusStore
from boundarymorph.retrieval.retriever import Search
from boundarymorph.retrieval.stores.catalog import AttachedCatalog
from boundarymorph.settings import Attached
from tests.contract.vector_index import unit
from tests.retrieval import milvus
from tests.stateful.profile import times

names_of_collections = (f"Papers{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with milvus.embedded(tmp_path_factory.mktemp("milvus")) as url:
        yield url


@pytest.mark.parametrize("numbers", [False, True])
async def test_a_collection_of_one_s_own(url: str, numbers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    client, own = MilvusClient(url), next(names_of_collections)
    schema = MilvusClient.create_schema()
    schema.add_field("pk", DataType.INT64 if numbers else DataType.VARCHAR, is_primary=True, max_length=100)
    schema.add_field("emb", DataType.FLOAT_VECTOR, dim=8)
    schema.add_field("body", DataType.VARCHAR, max_length=100)
    schema.add_field("head", DataType.VARCHAR, max_length=100)
    client.create_collection(own, schema=schema)
    wanted = MilvusClient.prepare_index_params()
    wanted.add_index("emb", index_type="FLAT", metric_type="IP")
    client.create_index(own, wanted)
    client.load_collection(own)
    vectors = unit(50, 8)
    ids = [str(n - 20) for n in range(50)]
    rows = zip(ids, vectors, strict=True)
    client.insert(own, [{"pk": int(i) if numbers else i, "emb": v, "body": f"b{i}", "head": f"h{i}"} for i, v in rows])
    described = Attached(table=own, id="pk", vector="emb", text="body", title="head", encoder="seeded-8")
    catalog = AttachedCatalog(MilvusStore(MilvusConnection(url)), {"papers": described})
    retriever = IndexRetriever(catalog, None)
    query = unit(1, 8, seed=1)[0]
    pool = (await retriever.retrieve("papers", Search("", 10, query))).pool
    scores = vectors.astype(np.float64) @ query
    assert list(pool.ids) == [ids[row] for row in np.argsort(-scores)[:10]]
    np.testing.assert_allclose(pool.scores, np.sort(scores)[::-1][:10], atol=1e-12)
    with monkeypatch.context() as patch:
        for module in ("table", "collection"):
            patch.setattr(f"boundarymorph.retrieval.milvus.{module}.ANSWER_BYTES", 32 * 7)
        parts = (await retriever.retrieve("papers", Search("", 10, query))).pool
    assert parts.ids == pool.ids
    np.testing.assert_array_equal(parts.embeddings, pool.embeddings)
    assert await retriever.documents("papers", ["-3", "x", "7"]) == {
        i: Document(i, f"b{i}", f"h{i}") for i in ("-3", "7")
    }
    assert await retriever.characters("papers", ["-13"]) == {"-13": 8}
    with pytest.raises(InvalidInput, match="seeded-8"):
        await retriever.retrieve("papers", Search("text", 10))
    assert len((await retriever.retrieve("papers", Search("", 10, query, filter={"a": 1}))).pool) == 0
    index = catalog.get("papers")
    for change in (lambda: index.upsert([], np.empty((0, 8))), lambda: index.delete(["1"])):
        with pytest.raises(InvalidInput, match="table of your own"):
            change()
    with pytest.raises(InvalidInput, match="table of your own"):
        catalog.delete("papers")
    (listed,) = catalog.list()
    assert listed == (info := catalog.describe("papers"))
    assert (info.name, info.count, info.encoder) == ("papers", 50, "seeded-8")
    assert catalog.exists("papers")
    wrong = AttachedCatalog(
        MilvusStore(MilvusConnection(url)), {"papers": Attached(table=own, id="pk", vector="emb", text="words")}
    )
    with pytest.raises(RetrieverFailed, match="'words'"):
        wrong.get("papers")
    (unreadable,) = wrong.list()
    assert isinstance(unreadable, UnreadableIndex) and "'words'" in str(unreadable.error)
    for part in (catalog, wrong, client):
        part.close()
    await retriever.close()


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
def papers(url: str) -> Iterator[tuple[AttachedCatalog, str]]:
    """A collection of many types of fields, with 80 documents."""
    client, name = MilvusClient(url), next(names_of_collections)
    schema = MilvusClient.create_schema(enable_dynamic_field=True)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=100)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=4)
    schema.add_field("text", DataType.VARCHAR, max_length=1_000)
    elements = {"tags": DataType.VARCHAR, "numbers": DataType.INT64}
    for field, (type, _) in SCHEMA.items():
        options = {"element_type": elements[field], "max_capacity": 10} if field in elements else {}
        schema.add_field(field, type, max_length=100, **options)
    wanted = MilvusClient.prepare_index_params()
    wanted.add_index("vector", index_type="FLAT", metric_type="COSINE")
    client.create_collection(name, schema=schema, index_params=wanted)
    vectors = unit(len(ROWS), 4)
    client.insert(
        name,
        [{"id": f"d{n}", "vector": vectors[n], "text": f"text {n}", **row} for n, row in enumerate(ROWS)],
    )
    described = Attached(table=name)
    catalog = AttachedCatalog(MilvusStore(MilvusConnection(url)), {"papers": described})
    assert catalog.get("papers").count() == len(ROWS)
    yield catalog, name
    catalog.close()
    client.close()


def test_metadata_are_the_other_fields(papers: tuple[AttachedCatalog, str]) -> None:
    read = papers[0].get("papers").documents([f"d{n}" for n in range(len(ROWS))])
    for n, row in enumerate(ROWS):
        expected = row | {"single": float(np.float32(row["single"]))}
        assert read[f"d{n}"] == Document(f"d{n}", f"text {n}", metadata=expected)


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
def test_filters_mean_what_they_mean_everywhere(papers: tuple[AttachedCatalog, str], filter: dict[str, Any]) -> None:
    index = papers[0].get("papers")
    found = index.retrieve(Search("", len(ROWS), np.ones(4), filter=filter))
    rows = index.documents([f"d{n}" for n in range(len(ROWS))])
    assert set(found.pool.ids) == {id for id, document in rows.items() if Filter(filter).matches(document.metadata)}
