"""Indexes in Milvus: the Retriever contract, what is kept and told of documents, names, limits and other processes."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pymilvus import DataType

from boundarymorph.errors import (
    CorruptIndex,
    EmptyIndex,
    IndexConflict,
    InvalidConfiguration,
    InvalidEmbeddings,
    InvalidIndexName,
    InvalidInput,
    LimitExceeded,
    RetrieverUnavailable,
    UnknownIndex,
)
from boundarymorph.retrieval.catalog import UnreadableIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.ingestion import ingest
from boundarymorph.retrieval.milvus import collection as collections
from boundarymorph.retrieval.milvus.catalog import DIMENSIONS, MilvusCatalog, _schema
from boundarymorph.retrieval.milvus.collection import Consistency, quoted
from boundarymorph.retrieval.milvus.connection import MilvusConnection, Server
from boundarymorph.retrieval.milvus.index import MAX_ID_BYTES, MAX_JSON_BYTES, MAX_TERMS, MAX_TEXT_BYTES, MilvusIndex
from boundarymorph.retrieval.milvus.structures import KINDS, Structures
from boundarymorph.retrieval.retriever import Search
from boundarymorph.retrieval.stores.index import StoreIndex
from boundarymorph.retrieval.uploads import BadLine, ParsedDocument, parse_array
from tests.contract.retriever import DOCUMENTS, RetrieverContract
from tests.contract.vector_index import names, unit
from tests.retrieval import milvus
from tests.retrieval.fakes import SeededEncoder

prefixes = (f"test{number}_" for number in itertools.count())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with milvus.embedded(tmp_path_factory.mktemp("milvus")) as url:
        yield url


@pytest.fixture
def prefix() -> str:
    """Each test has its own collections in the one server."""
    return next(prefixes)


@pytest.fixture
def catalog(url: str, prefix: str) -> Iterator[MilvusCatalog]:
    catalog = MilvusCatalog(MilvusConnection(url), prefix=prefix)
    yield catalog
    catalog.close()


class TestMilvus(RetrieverContract):
    @pytest.fixture
    async def retriever(self, catalog: MilvusCatalog) -> AsyncIterator[IndexRetriever]:
        encoder = SeededEncoder()
        vectors = (await encoder.encode_documents([document.content for document in DOCUMENTS])).vectors
        catalog.create("trams", encoder=encoder.name, dimension=encoder.dimension).upsert(DOCUMENTS, vectors)
        catalog.create("own", encoder=None, dimension=4).upsert([Document(f"e{i}", "") for i in range(4)], np.eye(4))
        catalog.create("empty", encoder=encoder.name, dimension=encoder.dimension)
        catalog.create("foreign", encoder="other-encoder", dimension=4).upsert([Document("x", "")], np.ones((1, 4)))
        retriever = IndexRetriever(catalog, encoder)
        yield retriever
        await retriever.close()


ODD = [
    "plain",
    "q\"uo'te",
    "back\\slash",
    "new\nline\r\ttab",
    "ünïcode 漢字 🙂",
    "\x01\x7f",
    "%{x} [1] or true",
    "x" * 512,
    "🙂" * 512,
]


def test_documents_come_back_as_they_were(catalog: MilvusCatalog) -> None:
    index = catalog.create("odd", encoder=None, dimension=4)
    documents = [Document(id, f"text of {id}\0", title=None if n % 2 else id) for n, id in enumerate(ODD)]
    metadata = {"n": 2**64 - 1, "f": 0.1, "t": [1, None, {"ä.b": []}], "s": "a\0b", "": {"x": True}, "d": {}}
    documents.append(Document("full", "", title="", metadata=metadata))
    index.upsert(documents, unit(len(documents), 4), [bytes([n]) * 16 for n in range(len(documents))])
    ids = [document.id for document in documents]
    assert list(index.documents([*reversed(ids), "unknown"]).values()) == documents[::-1]
    assert index.characters([*ids, "unknown"]) == {d.id: len(d.text) + len(d.title or "") for d in documents}
    assert index.digests([*ids, "unknown"]) == {id: bytes([n]) * 16 for n, id in enumerate(ids)}
    assert index.count() == len(ids)
    assert set(index.retrieve(Search("", 100, np.ones(4))).pool.ids) == set(ids)
    assert index.delete([*ids[:-1], "unknown", ids[0]]) == len(ids) - 1
    assert index.delete(ids[:-1]) == 0
    assert index.retrieve(Search("", 100, np.ones(4))).pool.ids == ["full"]
    assert (index.documents([]), index.characters([]), index.digests([]), index.delete([])) == ({}, {}, {}, 0)
    index.upsert([], np.empty((0, 4)))


def test_the_later_of_one_call_wins_and_an_upsert_replaces(catalog: MilvusCatalog) -> None:
    index = catalog.create("a", encoder=None, dimension=4)
    index.upsert([Document("a", "first"), Document("b", ""), Document("a", "second")], np.eye(4)[:3])
    assert (index.count(), index.documents(["a"])["a"].text) == (2, "second")
    assert index.retrieve(Search("", 1, [0, 0, 1, 0])).pool.ids == ["a"]
    index.upsert([Document("a", "third")], np.eye(4)[3:])
    found = index.retrieve(Search("", 1, [0, 0, 0, 1])).pool
    assert (found.ids, found.scores.tolist(), index.documents(["a"])["a"].text) == (["a"], [1.0], "third")


def test_more_than_one_request_holds(catalog: MilvusCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collections, "IDS_AT_A_TIME", 7)
    monkeypatch.setattr(collections, "REQUEST_BYTES", 7 * (4 * 4 + collections.ROW_BYTES))
    monkeypatch.setattr("boundarymorph.retrieval.milvus.index.TEXTS_AT_A_TIME", 7)
    index = catalog.create("many", encoder=None, dimension=4)
    index.upsert([Document(id, f"text {id}") for id in names(50)], unit(50, 4))
    assert list(index.documents(names(50))) == names(50)
    assert len(index.digests(names(60))) == 50
    assert index.delete(names(40)) == 40
    assert set(index.retrieve(Search("", 100, np.ones(4))).pool.ids) == set(names(10, 40))


def test_a_call_that_is_refused_writes_nothing(catalog: MilvusCatalog) -> None:
    index = catalog.create("a", encoder=None, dimension=4)
    good = Document("good", "text")
    for vectors in (np.zeros((2, 4)), np.full((2, 4), np.nan), unit(2, 5), unit(1, 4)):
        with pytest.raises(InvalidEmbeddings):
            index.upsert([good, Document("other", "")], vectors)
    with pytest.raises(InvalidInput, match="'other'"):
        index.upsert([good, Document("other", "", metadata={"x": object()})], unit(2, 4), [b"", b""])
    assert index.count() == 0


@pytest.mark.parametrize(
    ("most", "over", "what"),
    [
        (Document("i" * MAX_ID_BYTES, ""), Document("i" * (MAX_ID_BYTES + 1), ""), "id"),
        (Document("a", "ä" * (MAX_TEXT_BYTES // 2)), Document("b", "ä" * (MAX_TEXT_BYTES // 2 + 1)), "text"),
        (Document("a", "", "t" * MAX_TEXT_BYTES), Document("b", "", "t" * (MAX_TEXT_BYTES + 1)), "title"),
        (
            Document("a", "", metadata={"": [" " * (MAX_JSON_BYTES - 9)]}),
            Document("b", "", metadata={"": [" " * (MAX_JSON_BYTES - 8)]}),
            "metadata",
        ),
        (
            Document("a", "", metadata={"n": list(range(MAX_TERMS - 2))}),
            Document("b", "", metadata={"n": list(range(MAX_TERMS - 1))}),
            "metadata",
        ),
    ],
)
def test_limits_of_milvus(catalog: MilvusCatalog, most: Document, over: Document, what: str) -> None:
    index = catalog.create("a", encoder=None, dimension=4)
    with pytest.raises(LimitExceeded, match=f"the {what} of"):
        index.upsert([most, over], unit(2, 4))
    assert index.count() == 0
    with pytest.raises(LimitExceeded, match=f"the {what} of"):
        index.check(over)
    index.check(most)
    index.upsert([most], unit(1, 4))
    assert list(index.documents([most.id]).values()) == [most]


async def test_what_milvus_cannot_hold_is_a_bad_line(catalog: MilvusCatalog) -> None:
    async def upload() -> AsyncIterator[ParsedDocument | BadLine]:
        for line, length in enumerate((3, MAX_TEXT_BYTES + 1, 5), start=1):
            yield ParsedDocument(line, Document(f"d{line}", "t" * length), unit(1, 4)[0].astype(np.float32))

    index = catalog.create("a", encoder=None, dimension=4)
    with pytest.raises(InvalidInput, match="line 2: the text of 'd2'"):
        await ingest(index, None, upload(), strict=True)
    assert index.count() == 0
    report = await ingest(index, None, upload())
    assert (report.added, report.skipped, [bad.line for bad in report.problems]) == (2, 1, [2])
    assert index.count() == 2


def test_pools_beyond_one_answer(catalog: MilvusCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pages where there is much more, all at once where there is little more, and with a filter."""
    assert collections.SEARCH_LIMIT == 16_384
    metadata = [{"third": n % 3 == 0} for n in range(120)]
    documents = [Document(id, "", metadata=row) for id, row in zip(names(120), metadata, strict=True)]
    catalog.create("a", encoder=None, dimension=4, lexical=False).upsert(documents, unit(120, 4))
    whole = catalog.get("a").retrieve(Search("", 120, np.ones(4))).pool
    for module in ("collection", "index"):
        monkeypatch.setattr(f"boundarymorph.retrieval.milvus.{module}.SEARCH_LIMIT", 20)
    index = catalog.get("a")
    for depth in (20, 21, 50, 59, 61, 119, 120, 10_000):
        found = index.retrieve(Search("", depth, np.ones(4)))
        assert (list(found.pool.ids), list(found.warnings)) == (list(whole.ids[:depth]), []), depth
        np.testing.assert_array_equal(found.pool.embeddings, whole.embeddings[:depth])
    thirds = [id for id in whole.ids if int(id[1:]) % 3 == 0]
    for filter, expected in (({"third": True}, thirds), ({"third": 1}, [])):
        for depth in (25, 38, 1_000):
            assert list(index.retrieve(Search("", depth, np.ones(4), filter=filter)).pool.ids) == expected[:depth]


def test_vectors_that_are_too_many_for_one_answer(catalog: MilvusCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    index = catalog.create("a", encoder=None, dimension=8)
    index.upsert([Document(id, "") for id in names(100)], unit(100, 8))
    whole = index.retrieve(Search("", 90, np.ones(8))).pool
    for module in ("index", "collection"):
        monkeypatch.setattr(f"boundarymorph.retrieval.milvus.{module}.ANSWER_BYTES", 32 * 7)
    parts = index.retrieve(Search("", 90, np.ones(8))).pool
    assert parts.ids == whole.ids
    np.testing.assert_array_equal(parts.embeddings, whole.embeddings)
    np.testing.assert_array_equal(parts.scores, whole.scores)


def test_filters_that_nothing_passes_and_hybrid(catalog: MilvusCatalog) -> None:
    index = catalog.create("a", encoder=None, dimension=4)
    with pytest.raises(EmptyIndex):
        index.retrieve(Search("", 5, np.ones(4), filter={"a": 1}))
    index.upsert([Document("x", "", metadata={"a": 2})], unit(1, 4))
    assert len(index.retrieve(Search("", 5, np.ones(4), filter={"a": 1})).pool) == 0
    without = catalog.create("b", encoder=None, dimension=4, lexical=False)
    with pytest.raises(InvalidInput, match="keeps no words"):
        without.retrieve(Search("", 5, np.ones(4), hybrid=True))
    with pytest.raises(InvalidInput, match="depth"):
        index.retrieve(Search("", 0, np.ones(4)))


async def test_uploads_cost_what_has_changed(catalog: MilvusCatalog) -> None:
    encoder = SeededEncoder()
    index = catalog.create("a", encoder=encoder.name, dimension=encoder.dimension)
    first = b'[{"id":"a","text":"one"},{"id":"b","text":"two","metadata":{"n":[1]}},{"id":"a","text":"three"}]'
    report = await ingest(index, encoder, parse_array(first, 32))
    assert (report.added, report.superseded) == (2, 1)
    second = b'[{"id":"a","text":"three"},{"id":"b","text":"two","metadata":{"n":[2]}}]'
    report = await ingest(index, encoder, parse_array(second, 32))
    assert (report.unchanged, report.updated, encoder.encoded) == (1, 1, ["three", "two", "two"])


@pytest.mark.parametrize("kind", KINDS)
def test_creating_describing_and_deleting(catalog: MilvusCatalog, url: str, prefix: str, kind: str) -> None:
    other = MilvusCatalog(MilvusConnection(url), prefix=prefix)
    assert (catalog.list(), catalog.exists("a.b-c_d")) == ([], False)
    index = catalog.create("a.b-c_d", encoder="e", dimension=4, kind=kind)
    index.upsert([Document(id, "") for id in names(200)], unit(200, 4))
    assert len(index.retrieve(Search("", 150, np.ones(4))).pool) == 150
    assert catalog.create("a.b-c_d", encoder="e", dimension=4) is index
    catalog.create("a", encoder=None, dimension=2)
    described = other.describe("a.b-c_d")
    assert (described.name, described.count, described.dimension) == ("a.b-c_d", 200, 4)
    assert (described.encoder, described.kind, described.created) == ("e", kind, index.info.created)
    assert [info.name for info in other.list()] == ["a", "a.b-c_d"]
    for encoder, dimension, wanted in (("f", 4, kind), ("e", 5, kind), ("e", 4, {"flat": "hnsw"}.get(kind, "flat"))):
        with pytest.raises(IndexConflict):
            other.create("a.b-c_d", encoder=encoder, dimension=dimension, kind=wanted)
    other.delete("a.b-c_d")
    with pytest.raises(UnknownIndex):
        index.retrieve(Search("", 1, np.ones(4)))  # known to this catalog until it fails
    for call in (catalog.get, catalog.describe, catalog.delete, other.get):
        with pytest.raises(UnknownIndex, match=r"a\.b-c_d"):
            call("a.b-c_d")
    with pytest.raises(UnknownIndex):
        index.count()
    catalog.create("a.b-c_d", encoder=None, dimension=4)
    assert other.get("a.b-c_d").info.encoder is None
    with pytest.raises(EmptyIndex):
        other.get("a.b-c_d").retrieve(Search("", 1, np.ones(4)))
    other.close()


def test_of_two_that_make_one_index_one_is_told_that_it_did(
    catalog: MilvusCatalog, url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = MilvusCatalog(MilvusConnection(url), prefix=prefix)
    looks = iter([False])
    exists = other.exists
    monkeypatch.setattr(other, "exists", lambda name: next(looks, None) is None and exists(name))
    assert catalog.ensure("a", encoder=None, dimension=4)
    assert not catalog.ensure("a", encoder=None, dimension=4)
    assert not other.ensure("a", encoder=None, dimension=4)  # it saw none when it looked
    other.close()


def test_what_cannot_be_created(catalog: MilvusCatalog) -> None:
    for name in ("", "A", "a/b", "_a", "a" * 65, "ä"):
        for call in (catalog.get, catalog.exists, catalog.delete):
            with pytest.raises(InvalidIndexName):
                call(name)
    for dimension in (0, DIMENSIONS[0] - 1, DIMENSIONS[-1] + 1):
        with pytest.raises(InvalidInput, match="dimensions"):
            catalog.create("a", encoder=None, dimension=dimension)
    with pytest.raises(InvalidInput, match="diskann or autoindex"):
        catalog.create("a", encoder=None, dimension=4, kind="sq8")
    assert catalog.list() == []


def test_an_interrupted_creation_is_taken_up(catalog: MilvusCatalog) -> None:
    catalog._build("a", None, 4, "flat", lexical=False)
    index = catalog.create("a", encoder=None, dimension=4)
    index.upsert([Document("x", "")], unit(1, 4))
    assert index.retrieve(Search("", 5, np.ones(4))).pool.ids == ["x"]
    catalog._build("a", None, 4, "flat", lexical=False)  # as another process would a moment later
    assert index.count() == 1


def test_collections_of_others_are_left_alone(catalog: MilvusCatalog, url: str, prefix: str) -> None:
    other = MilvusCatalog(MilvusConnection(url), prefix=f"{prefix}other_")
    other.create("theirs", encoder=None, dimension=4)
    assert catalog.list() == []
    connection = MilvusConnection(url)
    connection.call("create_collection", f"{prefix}mine", dimension=4)
    with pytest.raises(CorruptIndex, match=r"--store milvus"):
        catalog.get("mine")
    assert [type(index) for index in catalog.list()] == [UnreadableIndex]
    connection.close()
    other.close()


def test_urls(tmp_path: Path) -> None:
    for url in ("", "localhost:19530", "ftp://host", "http://user:secret@host", "data", "http://a b"):
        with pytest.raises(InvalidConfiguration) as raised:
            MilvusConnection(url)
        assert "secret" not in str(raised.value)


def test_a_file(tmp_path: Path) -> None:
    """milvus-lite in this process, through the same code."""
    catalog = MilvusCatalog(MilvusConnection(str(tmp_path / "milvus.db")), prefix=milvus.PREFIX)
    index = catalog.create("a", encoder=None, dimension=4)
    index.upsert([Document("x", "text")], unit(1, 4))
    assert index.retrieve(Search("", 5, np.ones(4))).pool.ids == ["x"]
    catalog.close()


@pytest.mark.parametrize("text", ODD)
def test_quoted_strings_have_no_way_out(text: str) -> None:
    inner = quoted(text)[1:-1]
    assert "\n" not in inner and "\r" not in inner
    assert '"' not in inner.replace("\\\\", "").replace('\\"', "")


def test_an_index_in_use_is_described_once_in_a_while(url: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = 0.0, []
    connection, other = MilvusConnection(url), MilvusCatalog(MilvusConnection(url), prefix=prefix)
    catalog = MilvusCatalog(connection, prefix=prefix, schema_seconds=5, clock=lambda: now)
    catalog.create("a", encoder=None, dimension=4).upsert([Document("x", "text")], unit(1, 4))
    call = connection.call

    def counted(method: str, *args: Any, **options: Any) -> Any:
        asked.append(method)
        return call(method, *args, **options)

    monkeypatch.setattr(connection, "call", counted)
    for _ in range(3):
        catalog.get("a").retrieve(Search("", 1, np.ones(4)))
        catalog.get("a").documents(["x"])
    assert "describe_collection" not in asked
    now = 5.0
    for _ in range(3):
        catalog.get("a")
    assert asked.count("describe_collection") == 1
    # Another process makes it anew, of other vectors: the first call fails, and the next knows.
    other.delete("a")
    other.create("a", encoder=None, dimension=6).upsert([Document("y", "text")], unit(1, 6))
    with pytest.raises((RetrieverUnavailable, InvalidEmbeddings)):
        catalog.get("a").retrieve(Search("", 1, np.ones(4)))
    assert catalog.get("a").retrieve(Search("", 1, np.ones(6))).pool.ids == ["y"]
    other.delete("a")
    with pytest.raises(UnknownIndex):
        catalog.get("a").retrieve(Search("", 1, np.ones(6)))
    with pytest.raises(UnknownIndex, match="'a'"):
        catalog.get("a")
    catalog.close()
    other.close()


@pytest.mark.parametrize("consistency", ["strong", "session", "bounded", "eventually"])
def test_consistency_is_of_searches(url: str, prefix: str, consistency: Consistency) -> None:
    catalog = MilvusCatalog(MilvusConnection(url), prefix=prefix, consistency=consistency)
    index = catalog.create("a", encoder=None, dimension=4)
    asked: list[str] = []
    assert isinstance(index, StoreIndex) and isinstance(index.table, MilvusIndex)
    collection = index.table._collection
    loaded = collection._loaded

    def watched(method: str, **options: Any) -> Any:
        asked.append(options["consistency_level"])
        return loaded(method, **options)

    collection._loaded = watched  # type: ignore[method-assign]
    index.upsert([Document("x", "")], unit(1, 4), [b"digest"])
    assert (index.digests(["x"]), asked) == ({"x": b"digest"}, ["Strong"])  # what decides about writing
    asked.clear()
    assert index.documents(["x"]).keys() <= {"x"}
    collection.search(np.ones(4, np.float32), 1, [])
    assert asked == [consistency.capitalize()] * 2
    catalog.close()


def test_parameters_of_the_settings() -> None:
    structures = Structures(
        {"ivf": {"nlist": 16}, "hnsw": {"M": 8}}, {"ivf": {"nprobe": 3}, "diskann": {"search_list": 7}}
    )
    assert structures.index("ivf") == {"index_type": "IVF_FLAT", "metric_type": "COSINE", "params": {"nlist": 16}}
    assert structures.index("hnsw")["params"] == {"M": 8, "efConstruction": 360}
    assert [structures.index(kind)["index_type"] for kind in KINDS] == [
        "FLAT",
        "IVF_FLAT",
        "HNSW",
        "DISKANN",
        "AUTOINDEX",
    ]
    assert structures.searching("ivf", 100) == {"nprobe": 3}
    assert structures.searching("hnsw", 100) == {"ef": 200}
    assert structures.searching("hnsw", 16_384) == {"ef": 32_768}
    assert (structures.searching("diskann", 5), structures.searching("diskann", 9)) == (
        {"search_list": 7},
        {"search_list": 9},
    )
    assert Structures(search={"hnsw": {"ef": 64}}).searching("hnsw", 100) == {"ef": 100}
    assert (structures.searching("flat", 9), structures.exhaustive("flat"), structures.exhaustive("ivf")) == (
        {},
        {},
        {"nprobe": 16},
    )


def test_clusters_that_hold_too_little_are_all_searched(url: str, prefix: str) -> None:
    structures = Structures({"ivf": {"nlist": 32}}, {"ivf": {"nprobe": 1}})
    catalog = MilvusCatalog(MilvusConnection(url), prefix=prefix, structures=structures)
    index = catalog.create("a", encoder=None, dimension=8, kind="ivf", lexical=False)
    index.upsert([Document(id, "") for id in names(2_000)], unit(2_000, 8))
    assert len(index.retrieve(Search("", 1_500, np.ones(8))).pool) == 1_500
    catalog.close()


def test_half_precision_vectors_are_read_as_they_are() -> None:
    """As servers from 2.4 send them: as bytes by a search, and as a list of bytes by a query."""
    described = {
        "properties": {},
        "enable_dynamic_field": False,
        "fields": [{"name": "vector", "type": DataType.FLOAT16_VECTOR, "params": {"dim": 8}}],
    }
    collection = collections.MilvusCollection(SimpleNamespace(call=lambda *_: described), "a")  # type: ignore[arg-type]
    halves = unit(2, 8).astype("<f2")
    rows: list[dict[str, Any]] = [{"vector": halves[0].tobytes()}, {"vector": [halves[1].tobytes()]}]
    assert collection.halves
    np.testing.assert_array_equal(collection.matrix(rows), halves.astype(np.float32))
    assert collection.matrix([]).shape == (0, 8)
    for server, wanted, expected in (("2.4.1", True, "16"), ("2.4.1", False, ""), ("2.3.5", True, "")):
        schema = _schema(8, halves=wanted and Server.of(server).half_precision, full_text=False)
        (vector,) = [field for field in schema.fields if field.name == "vector"]
        assert vector.dtype.name == f"FLOAT{expected}_VECTOR"
