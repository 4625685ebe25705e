"""Indexes in Milvus: the Retriever contract, what is kept and told of documents, names, limits and other processes."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from boundarymorph.errors import (
    CorruptIndex,
    EmptyIndex,
    IndexConflict,
    InvalidConfiguration,
    InvalidEmbeddings,
    InvalidIndexName,
    InvalidInput,
    LimitExceeded,
    RetrieverFailed,
    UnknownIndex,
)
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.index_retriever import IndexRetriever
from boundarymorph.retrieval.ingestion import ingest
from boundarymorph.retrieval.milvus import collection as collections
from boundarymorph.retrieval.milvus.catalog import DIMENSIONS, MilvusCatalog
from boundarymorph.retrieval.milvus.collection import quoted
from boundarymorph.retrieval.milvus.connection import Connection
from boundarymorph.retrieval.milvus.existing import Existing
from boundarymorph.retrieval.milvus.index import MAX_ID_BYTES, MAX_JSON_BYTES, MAX_TERMS, MAX_TEXT_BYTES, MilvusIndex
from boundarymorph.retrieval.milvus.vectors import VectorCache
from boundarymorph.retrieval.retriever import Search
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
    catalog = MilvusCatalog(Connection(url), prefix=prefix)
    yield catalog
    catalog.close()


@pytest.fixture
def keeping(url: str, prefix: str, tmp_path: Path) -> Iterator[MilvusCatalog]:
    """The same indexes, whose vectors are kept here."""
    catalog = MilvusCatalog(
        Connection(url), prefix=prefix, make_cache=lambda dimension: VectorCache(tmp_path, dimension, 2**20)
    )
    yield catalog
    catalog.close()


class TestMilvus(RetrieverContract):
    @pytest.fixture(params=["catalog", "keeping"])
    async def retriever(self, request: pytest.FixtureRequest) -> AsyncIterator[IndexRetriever]:
        catalog: MilvusCatalog = request.getfixturevalue(request.param)
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


@pytest.mark.parametrize("kept", [False, True])
def test_no_more_than_milvus_finds_at_once(
    catalog: MilvusCatalog, keeping: MilvusCatalog, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boundarymorph.retrieval.milvus.searched.SEARCH_LIMIT", 20)
    catalog.create("a", encoder=None, dimension=4).upsert([Document(id, "") for id in names(20)], unit(20, 4))
    index = (keeping if kept else catalog).get("a")
    assert index.retrieve(Search("", 19, np.ones(4))).warnings == []
    assert index.retrieve(Search("", 20, np.ones(4))).warnings == []
    index.upsert([Document("d20", "")], -np.ones((1, 4)))
    assert index.retrieve(Search("", 20, np.ones(4))).warnings == []
    for depth in (21, 10_000):
        found = index.retrieve(Search("", depth, np.ones(4)))
        assert (len(found.pool), found.warnings) == (
            20,
            [f"Milvus finds no more than 20 documents at once, not {depth:,}"],
        )
    assert collections.SEARCH_LIMIT == 16_384


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
    with pytest.raises(InvalidInput, match="hybrid"):
        index.retrieve(Search("", 5, np.ones(4), hybrid=True))
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


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_creating_describing_and_deleting(catalog: MilvusCatalog, url: str, prefix: str, kind: str) -> None:
    other = MilvusCatalog(Connection(url), prefix=prefix)
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
    other = MilvusCatalog(Connection(url), prefix=prefix)
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
    with pytest.raises(InvalidInput, match="flat or hnsw"):
        catalog.create("a", encoder=None, dimension=4, kind="sq8")
    assert catalog.list() == []


def test_an_interrupted_creation_is_taken_up(catalog: MilvusCatalog) -> None:
    catalog._build("a", None, 4, "flat")
    index = catalog.create("a", encoder=None, dimension=4)
    index.upsert([Document("x", "")], unit(1, 4))
    assert index.retrieve(Search("", 5, np.ones(4))).pool.ids == ["x"]
    catalog._build("a", None, 4, "flat")  # as another process would a moment later
    assert index.count() == 1


def test_collections_of_others_are_left_alone(catalog: MilvusCatalog, url: str, prefix: str) -> None:
    other = MilvusCatalog(Connection(url), prefix=f"{prefix}other_")
    other.create("theirs", encoder=None, dimension=4)
    assert catalog.list() == []
    connection = Connection(url)
    connection.call("create_collection", f"{prefix}mine", dimension=4)
    with pytest.raises(CorruptIndex, match=r"milvus\.collections"):
        catalog.get("mine")
    assert catalog.list() == []
    connection.close()
    other.close()


@pytest.mark.parametrize("numbers", [False, True])
async def test_a_collection_of_one_s_own(url: str, prefix: str, numbers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from pymilvus import DataType, MilvusClient

    client, own = MilvusClient(url), f"{prefix}Papers"
    schema = MilvusClient.create_schema()
    schema.add_field("pk", DataType.INT64 if numbers else DataType.VARCHAR, is_primary=True, max_length=100)
    schema.add_field("emb", DataType.FLOAT_VECTOR, dim=8)
    schema.add_field("body", DataType.VARCHAR, max_length=100)
    schema.add_field("head", DataType.VARCHAR, max_length=100, nullable=True)
    client.create_collection(own, schema=schema)
    wanted = MilvusClient.prepare_index_params()
    wanted.add_index("emb", index_type="FLAT", metric_type="IP")
    client.create_index(own, wanted)
    client.load_collection(own)
    vectors = unit(50, 8)
    ids = [str(n - 20) for n in range(50)]
    rows = zip(ids, vectors, strict=True)
    client.insert(own, [{"pk": int(i) if numbers else i, "emb": v, "body": f"b{i}", "head": None} for i, v in rows])
    described = Existing(own, id="pk", vector="emb", text="body", title="head", encoder="seeded-8")
    catalog = MilvusCatalog(Connection(url), prefix=prefix, existing={"papers": described})
    retriever = IndexRetriever(catalog, None)
    query = unit(1, 8, seed=1)[0]
    pool = (await retriever.retrieve("papers", Search("", 10, query))).pool
    scores = vectors.astype(np.float64) @ query
    assert list(pool.ids) == [ids[row] for row in np.argsort(-scores)[:10]]
    np.testing.assert_allclose(pool.scores, np.sort(scores)[::-1][:10], atol=1e-12)
    with monkeypatch.context() as patch:
        for module in ("existing", "collection"):
            patch.setattr(f"boundarymorph.retrieval.milvus.{module}.ANSWER_BYTES", 32 * 7)
        parts = (await retriever.retrieve("papers", Search("", 10, query))).pool
    assert parts.ids == pool.ids
    np.testing.assert_array_equal(parts.embeddings, pool.embeddings)
    assert await retriever.documents("papers", ["-3", "x", "7"]) == {i: Document(i, f"b{i}") for i in ("-3", "7")}
    assert await retriever.characters("papers", ["-13"]) == {"-13": 4}
    with pytest.raises(InvalidInput, match="seeded-8"):
        await retriever.retrieve("papers", Search("text", 10))
    with pytest.raises(InvalidInput, match="no filter"):
        await retriever.retrieve("papers", Search("", 10, query, filter={"a": 1}))
    index = catalog.get("papers")
    for change in (lambda: index.upsert([], np.empty((0, 8))), lambda: index.delete(["1"])):
        with pytest.raises(InvalidInput, match="of your own"):
            change()
    with pytest.raises(InvalidInput, match="of your own"):
        catalog.delete("papers")
    assert [(info.name, info.count, info.encoder) for info in catalog.list()] == [("papers", 50, "seeded-8")]
    assert catalog.exists("papers")
    wrong = MilvusCatalog(
        Connection(url),
        prefix=prefix,
        existing={"papers": Existing(own, id="pk", vector="emb", text="words", title=None, encoder=None)},
    )
    with pytest.raises(RetrieverFailed, match="'words'"):
        wrong.get("papers")
    assert wrong.list() == []
    for part in (catalog, wrong, client):
        part.close()
    await retriever.close()


def test_kept_vectors_follow_what_is_written(catalog: MilvusCatalog, keeping: MilvusCatalog) -> None:
    catalog.create("a", encoder=None, dimension=16).upsert([Document(id, "") for id in names(300)], unit(300, 16))
    index = keeping.get("a")
    assert isinstance(index, MilvusIndex)
    rng, query = np.random.default_rng(0), unit(1, 16, seed=5)[0]
    for step in range(12):
        expected = catalog.get("a").retrieve(Search("", 200, query)).pool
        found = index.retrieve(Search("", 200, query)).pool
        assert found.ids == expected.ids
        np.testing.assert_array_equal(found.embeddings, expected.embeddings)
        chosen = [f"d{row}" for row in rng.choice(300, 30, replace=False)]
        if step % 3:
            catalog.get("a").upsert([Document(id, "") for id in chosen], unit(30, 16, seed=step))
        else:
            catalog.get("a").delete(chosen)


def test_kept_vectors_are_not_asked_for_again(keeping: MilvusCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    index = keeping.create("a", encoder=None, dimension=16)
    index.upsert([Document(id, "") for id in names(50)], unit(50, 16))
    asked: list[str] = []
    read = collections.Collection.vectors

    def vectors(self: collections.Collection, ids: dict[str, int], fields: list[str]) -> object:
        asked.extend(ids)
        return read(self, ids, fields)

    monkeypatch.setattr(collections.Collection, "vectors", vectors)
    first = index.retrieve(Search("", 50, np.ones(16))).pool
    assert sorted(asked) == sorted(names(50))
    asked.clear()
    again = index.retrieve(Search("", 50, np.ones(16))).pool
    assert asked == []
    np.testing.assert_array_equal(first.embeddings, again.embeddings)
    index.upsert([Document("d7", "new text, same vector")], unit(50, 16)[7:8])
    index.upsert([Document("d8", "")], unit(1, 16, seed=9))
    index.retrieve(Search("", 50, np.ones(16)))
    assert asked == ["d8"]


def test_urls(tmp_path: Path) -> None:
    for url in ("", "localhost:19530", "ftp://host", "http://user:secret@host", "data", "http://a b"):
        with pytest.raises(InvalidConfiguration) as raised:
            Connection(url)
        assert "secret" not in str(raised.value)


def test_a_file(tmp_path: Path) -> None:
    """milvus-lite in this process, through the same code."""
    catalog = MilvusCatalog(Connection(str(tmp_path / "milvus.db")), prefix=milvus.PREFIX)
    index = catalog.create("a", encoder=None, dimension=4)
    index.upsert([Document("x", "text")], unit(1, 4))
    assert index.retrieve(Search("", 5, np.ones(4))).pool.ids == ["x"]
    catalog.close()


@pytest.mark.parametrize("text", ODD)
def test_quoted_strings_have_no_way_out(text: str) -> None:
    inner = quoted(text)[1:-1]
    assert "\n" not in inner and "\r" not in inner
    assert '"' not in inner.replace("\\\\", "").replace('\\"', "")
