"""BM25 and hybrid retrieval of indexes in Milvus: over the texts of the pool, and by a server that has the function."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.fusion import fuse
from boundarymorph.retrieval.milvus import index as indexes
from boundarymorph.retrieval.milvus.catalog import MilvusCatalog
from boundarymorph.retrieval.milvus.collection import MilvusCollection
from boundarymorph.retrieval.milvus.connection import MilvusConnection, Server
from boundarymorph.retrieval.retriever import Search
from boundarymorph.retrieval.stores.index import HYBRID_OF_THE_POOL
from boundarymorph.retrieval.words.lexical import PoolWords
from tests.retrieval import milvus

COUNT = 60
ORDER = [f"d{n}" for n in range(COUNT)]  # by their vectors
QUERY = np.array([1.0, 0.0], np.float32)
VECTORS = np.array([[np.cos(n / COUNT), np.sin(n / COUNT)] for n in range(COUNT)], np.float32)
DOCUMENTS = [
    Document(
        f"d{n}", "a tram " * (n % 5) + f"number {n}", title="night tram" if n % 7 == 6 else None, metadata={"n": n}
    )
    for n in range(COUNT)
]
DOCUMENTS[50] = Document("d50", "the one glockenspiel", metadata={"n": 50})
BY_ID = {document.id: document for document in DOCUMENTS}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusCatalog]:
    with milvus.embedded(tmp_path_factory.mktemp("milvus")) as url:
        catalog = MilvusCatalog(MilvusConnection(url), prefix=milvus.PREFIX)
        catalog.create("words", encoder=None, dimension=2).upsert(DOCUMENTS, VECTORS)
        yield catalog
        catalog.close()


def contents(ids: list[str]) -> list[str]:
    return [BY_ID[id].content for id in ids]


def test_bm25_is_of_the_texts_of_the_pool(catalog: MilvusCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    index, query = catalog.get("words"), "tram number 7, tram of the night"
    for depth in (1, 20, 100):
        found = index.retrieve(Search(query, depth, QUERY))
        assert (list(found.pool.ids), list(found.warnings)) == (ORDER[:depth], [])
        expected = PoolWords.of(contents(ORDER[:depth])).bm25(query)
        np.testing.assert_array_equal(found.pool.features["bm25"], expected)
        np.testing.assert_array_equal(found.pool.terms, PoolWords.of(contents(ORDER[:depth])).terms(query))
        assert depth == 1 or expected.max() > expected.min()
    monkeypatch.setattr(indexes, "ANSWER_BYTES", 4 * 100)  # in portions
    parts = index.retrieve(Search(query, 20, QUERY)).pool
    np.testing.assert_array_equal(parts.features["bm25"], PoolWords.of(contents(ORDER[:20])).bm25(query))
    assert list(parts.ids) == ORDER[:20]


def test_hybrid_ranks_those_nearest_by_their_words(catalog: MilvusCatalog) -> None:
    for filter, near in ((None, ORDER), ({"n": {"gte": 40}}, ORDER[40:])):
        found = catalog.get("words").retrieve(Search("glockenspiel tram", 12, QUERY, filter=filter, hybrid=True))
        near = near[:24]
        bm25 = dict(zip(near, PoolWords.of(contents(near)).bm25("glockenspiel tram"), strict=True))
        best = sorted((id for id in near if bm25[id] > 0), key=lambda id: -bm25[id])
        expected = fuse([near[:12], best[:12]]).ids[:12]
        assert list(found.pool.ids) == expected
        assert found.pool.features["bm25"].tolist() == [bm25[id] for id in expected]
        terms = PoolWords.of(contents(expected)).terms("glockenspiel tram")
        np.testing.assert_array_equal(found.pool.terms, terms)
        assert len(np.unique(terms, axis=1).T) > 1
        assert list(found.warnings) == [HYBRID_OF_THE_POOL.format("Milvus", len(near))]
        similarities = [float(VECTORS[ORDER.index(id)] @ QUERY) for id in expected]
        np.testing.assert_allclose(found.pool.features["similarity"], similarities, atol=1e-3)
        assert ("d50" in expected) == (filter is not None)


def test_an_index_without_words_has_none(catalog: MilvusCatalog) -> None:
    index = catalog.create("none", encoder=None, dimension=2, lexical=False)
    index.upsert(DOCUMENTS, VECTORS)
    found = index.retrieve(Search("tram", 10, QUERY))
    assert (dict(found.pool.features), list(found.warnings)) == ({}, [])


@pytest.mark.parametrize(
    ("name", "lite", "halves", "arrays", "text"),
    [
        ("milvus_lite-3.2.2", True, False, False, False),
        ("v2.3.5-lite", False, False, False, False),
        ("v2.4.23", False, True, False, False),
        ("2.5.0", False, True, True, True),
        ("v2.10.1-dev", False, True, True, True),
        ("nothing known", False, False, False, False),
    ],
)
def test_what_servers_can_do(name: str, lite: bool, halves: bool, arrays: bool, text: bool) -> None:
    server = Server.of(name)
    assert (server.lite, server.half_precision, server.array_index, server.full_text) == (lite, halves, arrays, text)


class TestBM25OfTheServer:
    """Over milvus-lite, which has the function: the calls are those for a server, the scores of milvus-lite are not."""

    @pytest.fixture
    def catalog(
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[MilvusCatalog]:
        monkeypatch.setattr(Server, "full_text", property(lambda _: True))
        monkeypatch.delenv("MILVUS_URL", raising=False)
        with milvus.embedded(tmp_path_factory.mktemp("milvus")) as url:
            catalog = MilvusCatalog(MilvusConnection(url), prefix=milvus.PREFIX)
            catalog.create("words", encoder=None, dimension=2).upsert(DOCUMENTS, VECTORS)
            yield catalog
            catalog.close()

    def test_words_of_the_whole_collection(self, catalog: MilvusCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
        search = MilvusCollection.search_words

        def positive(*arguments: Any) -> dict[str, float]:
            return {id: -score for id, score in search(*arguments).items()}

        monkeypatch.setattr(MilvusCollection, "search_words", positive)
        index = catalog.get("words")
        hybrid = index.retrieve(Search("glockenspiel", 12, QUERY, hybrid=True))
        assert (len(hybrid.pool), list(hybrid.warnings)) == (12, [])
        assert list(hybrid.pool.ids[:2]) == ["d0", "d50"]  # the first of each ranking
        assert np.flatnonzero(hybrid.pool.features["bm25"]).tolist() == [1]
        np.testing.assert_allclose(hybrid.pool.features["similarity"][1], VECTORS[50] @ QUERY, atol=1e-3)
        filtered = index.retrieve(Search("glockenspiel", 12, QUERY, filter={"n": {"lt": 50}}, hybrid=True)).pool
        assert "d50" not in filtered.ids
        for query, having in (
            ("tram", {id for id in ORDER if "tram" in BY_ID[id].content}),
            ("", set()),
            ("?!", set()),
        ):
            pool = index.retrieve(Search(query, 40, QUERY)).pool
            assert list(pool.ids) == ORDER[:40]
            scored = {id for id, score in zip(pool.ids, pool.features["bm25"], strict=True) if score > 0}
            assert scored == having.intersection(ORDER[:40])
