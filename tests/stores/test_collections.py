"""Test one contract over everything that can hold an index.

That is this machine, PostgreSQL, LanceDB, Qdrant, Milvus, and a stand-in for Elasticsearch and OpenSearch.
"""

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from boundarymorph.errors import (
    EmptyIndex,
    IndexConflict,
    InvalidEmbeddings,
    InvalidIndexName,
    InvalidInput,
    RetrieverFailed,
    UnknownIndex,
)
from boundarymorph.retrieval.artifacts import Artifacts
from boundarymorph.retrieval.document import Document, Search, fingerprint
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.interfaces import Catalog, Index
from boundarymorph.retrieval.stores.catalog import StoreCatalog
from boundarymorph.retrieval.stores.table import created_table
from boundarymorph.retrieval.uploads import parse_array
from boundarymorph_stores.testing import BY_ID, DIMENSION, DOCUMENTS, FILTERS, VECTORS, StoreContract
from tests.contract.vector_index import unit
from tests.retrieval.fakes import SeededEncoder, ingest
from tests.stores.elastic import nested
from tests.stores.engines import ENGINES, engine, indexes

pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact")
names = (f"index-{number}" for number in itertools.count())
SEARCH_SERVERS = ("elasticsearch", "opensearch")


class Place(NamedTuple):
    """A running engine, and the catalog of its indexes."""

    name: str
    url: str
    catalog: Catalog


@pytest.fixture(scope="module", params=ENGINES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(request.param)
    with engine(request.param, folder / "engine") as url, closing(indexes(url, folder / "data")) as catalog:
        yield Place(request.param, url, catalog)


class TestReading(StoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def index(cls, place: Place) -> Index:
        cls.documents = DOCUMENTS
        if place.name in SEARCH_SERVERS:
            cls.documents = [replace(each, metadata=nested(each.metadata)) for each in DOCUMENTS]
        cls.halves = place.name != "qdrant"  # Qdrant divides vectors by their lengths
        index = place.catalog.create(next(names), encoder=None, dimension=DIMENSION)
        index.upsert(cls.documents, VECTORS)
        return index


@pytest.fixture
def index(place: Place) -> Index:
    return place.catalog.create(next(names), encoder=None, dimension=4)


ODD = ["plain", "q\"uo'te", "back\\slash", "new\nline\r\ttab", "ünïcode 漢字 🙂", "\x01\x7f", "%{x} [1]", "x" * 500]


def test_store_returns_documents_with_odd_ids_and_metadata(place: Place, index: Index) -> None:
    odd = [Document(id, f"text of {id}", title=None if n % 2 else id) for n, id in enumerate(ODD)]
    odd.append(
        Document("full", "", metadata={"n": 2**53, "f": 0.1, "t": [1, None, {"ä": []}], "": {"x": True}, "d": {}})
    )
    index.upsert(odd, unit(len(odd), 4), [bytes([n]) * 16 for n in range(len(odd))])
    ids = [each.id for each in odd]
    read = index.documents([*reversed(ids), "unknown"])
    assert [read[id] for id in ids] == odd
    assert list(read) == ids[::-1]
    assert index.characters([*ids, "unknown"]) == {d.id: len(d.text) + len(d.title or "") for d in odd}
    assert index.digests([*ids, "unknown"]) == {id: bytes([n]) * 16 for n, id in enumerate(ids)}
    assert set(index.retrieve(Search("", 100, np.ones(4))).pool.ids) == set(ids)
    assert index.delete([*ids[:-1], "unknown", ids[0]]) == len(ids) - 1
    assert index.delete(ids[:-1]) == 0
    assert list(index.retrieve(Search("", 100, np.ones(4))).pool.ids) == ["full"]
    assert (index.documents([]), index.characters([]), index.digests([]), index.delete([])) == ({}, {}, {}, 0)
    index.upsert([], np.empty((0, 4)))
    assert index.count() == 1


def test_upsert_replaces_and_keeps_the_last_of_repeated_ids(index: Index) -> None:
    with pytest.raises(EmptyIndex):
        index.retrieve(Search("", 1, np.ones(4)))
    index.upsert([Document("a", "first"), Document("b", ""), Document("a", "second")], np.eye(4)[:3])
    assert (index.count(), index.documents(["a"])["a"].text) == (2, "second")
    assert list(index.retrieve(Search("", 1, [0, 0, 1, 0])).pool.ids) == ["a"]
    index.upsert([Document("a", "third", title="t", metadata={"n": 1})], np.eye(4)[3:])
    found = index.retrieve(Search("", 1, [0, 0, 0, 1])).pool
    assert (list(found.ids), found.scores.tolist()) == (["a"], [1.0])
    assert index.documents(["a"]) == {"a": Document("a", "third", "t", {"n": 1})}
    index.upsert([Document(id, "") for id in "cde"], np.tile(np.eye(4)[0], (3, 1)))  # ties go to the first document
    assert list(index.retrieve(Search("", 3, [1, 0.1, 0, 0])).pool.ids) == list("cde")


def test_refused_upsert_writes_nothing(index: Index) -> None:
    good = Document("good", "text")
    for vectors in (np.zeros((2, 4)), np.full((2, 4), np.nan), unit(2, 5), unit(1, 4)):
        with pytest.raises(InvalidEmbeddings):
            index.upsert([good, Document("other", "")], vectors)
    with pytest.raises(InvalidInput, match="'other'"):
        index.upsert([good, Document("other", "", metadata={"x": object()})], unit(2, 4), [b"", b""])
    assert index.count() == 0


def test_delete_matching_removes_only_matching_documents(place: Place) -> None:
    index = place.catalog.create(next(names), encoder=None, dimension=DIMENSION)
    left = [replace(each, metadata=nested(each.metadata)) for each in DOCUMENTS]
    index.upsert(left, VECTORS)
    for filter in (*FILTERS[10:24:4], {"nobody": 1}, {}):
        gone = {each.id for each in left if Filter(filter).matches(each.metadata)}
        assert index.delete_matching(Filter(filter)) == len(gone), filter
        left = [each for each in left if each.id not in gone]
        assert set(index.documents(list(BY_ID))) == {each.id for each in left}
    assert index.count() == 0


async def test_upload_encodes_only_changed_documents(place: Place) -> None:
    encoder = SeededEncoder()
    index = place.catalog.create(next(names), encoder=encoder.name, dimension=encoder.dimension)
    first = b'[{"id":"a","text":"one"},{"id":"b","text":"two","metadata":{"n":[1]}},{"id":"a","text":"three"}]'
    report = await ingest(index, encoder, parse_array(first, 32))
    assert (report.added, report.superseded) == (2, 1)
    second = b'[{"id":"a","text":"three"},{"id":"b","text":"two","metadata":{"n":[2]}}]'
    report = await ingest(index, encoder, parse_array(second, 32))
    assert (report.unchanged, report.updated, encoder.encoded) == (1, 1, ["three", "two", "two"])


def test_catalog_creates_describes_and_deletes_indexes(place: Place) -> None:
    catalog, name = place.catalog, "a.b-c_d"
    assert not catalog.exists(name)
    assert catalog.ensure(name, encoder="e", dimension=4)
    assert not catalog.ensure(name, encoder="e", dimension=4)
    catalog.create("a", encoder=None, dimension=2)
    catalog.get(name).upsert([Document("x", "")], unit(1, 4))
    described = catalog.describe(name)
    assert (described.name, described.count, described.dimension, described.encoder) == (name, 1, 4, "e")
    assert {"a", name} <= {info.name for info in catalog.list()}
    for encoder, dimension in (("f", 4), ("e", 5)):
        with pytest.raises(IndexConflict):
            catalog.ensure(name, encoder=encoder, dimension=dimension)
    catalog.artifacts(name).change(description="tales of trams")
    assert catalog.artifacts(name).read().description == "tales of trams"
    index = catalog.get(name)
    catalog.delete(name)
    for call in (catalog.get, catalog.describe, catalog.delete):
        with pytest.raises(UnknownIndex, match=r"a\.b-c_d"):
            call(name)
    with pytest.raises(UnknownIndex):
        index.count()
    assert catalog.create(name, encoder=None, dimension=4).count() == 0
    assert catalog.artifacts(name).read() == Artifacts()
    catalog.delete(name)
    catalog.delete("a")
    for wrong in ("", "A", "_a", "a" * 65, "ä"):
        with pytest.raises(InvalidIndexName):
            catalog.ensure(wrong, encoder=None, dimension=4)
    with pytest.raises(InvalidInput, match="kind"):
        catalog.ensure("b", encoder=None, dimension=4, kind="sq8")
    if place.url:
        for dimension in (0, 10**6):
            with pytest.raises(InvalidInput, match="dimensions"):
                catalog.ensure("b", encoder=None, dimension=dimension)
    assert not catalog.exists("b")


def test_index_without_words_has_no_bm25(place: Place) -> None:
    index = place.catalog.create(next(names), encoder=None, dimension=4, lexical=False)
    index.upsert([Document(f"d{n}", "tram") for n in range(3)], unit(3, 4))
    found = index.retrieve(Search("tram", 3, np.ones(4)))
    assert (len(found.pool), dict(found.pool.features), list(found.warnings)) == (3, {}, [])
    with pytest.raises(InvalidInput, match="words"):
        index.retrieve(Search("tram", 3, np.ones(4), hybrid=True))


@pytest.mark.parametrize("place", [name for name in ENGINES if name not in ("local", "qdrant")], indirect=True)
def test_attached_table_is_written_only_if_described_as_writable(place: Place) -> None:
    name = next(names)
    place.catalog.create(name, encoder=None, dimension=4).upsert([Document("a", "one", "t", {"n": 1})], unit(1, 4))
    own = place.catalog._resolve(name)[0]  # type: ignore[attr-defined]
    table = created_table(own._store, own._table(name))
    digest = None if place.name != "milvus" else table.digest  # Milvus has no fields without a value

    def described(**options: Any) -> Index:
        attached = table.model_copy(update={"digest": digest, **options})
        return StoreCatalog(own._store, {"theirs": attached}).get("theirs")

    with pytest.raises(InvalidInput, match="or set writable"):
        described(writable=False).delete(["a"])
    with pytest.raises(RetrieverFailed, match="cannot be writable: it needs one column of JSON"):
        described(metadata=("title", "text"))
    index, other = described(), Document("b", "two", metadata={"n": 2})
    index.upsert([other, Document("a", "new", "t", {"n": 3})], unit(2, 4, seed=1))
    assert index.documents(["a", "b"]) == {"a": Document("a", "new", "t", {"n": 3}), "b": other}
    assert len(index.digests(["b", "c"])) == 1
    if digest is None:
        assert index.digests(["b"]) == {"b": fingerprint(other)}
    assert (index.delete(["a", "c"]), index.delete_matching(Filter({"n": 2})), index.count()) == (1, 1, 0)


@pytest.mark.parametrize("place", ["pgvector"], indirect=True)
def test_postgres_refuses_nul_long_names_and_large_vectors(place: Place) -> None:
    index = place.catalog.create(next(names), encoder=None, dimension=4)
    for text, title, id, value in (("\0", "", "a", ""), ("", "\0", "a", ""), ("", "", "\0", ""), ("", "", "a", "\0")):
        with pytest.raises(InvalidInput, match="NUL"):
            index.upsert([Document(id, text, title, {"a": value})], unit(1, 4))
    with pytest.raises(InvalidInput, match="NUL"):
        index.check(Document("a", "\0"))
    index.check(Document("a", r"\u0000", metadata={"a": r"\u0000"}))
    assert place.catalog.ensure("a" * 49, encoder=None, dimension=4)
    with pytest.raises(InvalidInput, match="up to 63 letters"):
        place.catalog.ensure("a" * 50, encoder=None, dimension=4)
    with pytest.raises(InvalidInput, match="up to 4,000 dimensions"):
        place.catalog.ensure("b", encoder=None, dimension=4_001, kind="hnsw")
    assert place.catalog.create("c", encoder=None, dimension=4_000, kind="hnsw").info.kind == "hnsw"
