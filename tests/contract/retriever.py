"""The tests that every Retriever passes.

A test class inherits them, and provides the fixture `retriever` over these indexes: "trams", built with the retriever's
encoder from DOCUMENTS; "own", of 4 dimensions without an encoder, with the unit vectors "e0" to "e3"; "empty", with the
encoder; "foreign", built with another encoder.
"""

import numpy as np
import pytest

from boundarymorph.errors import EmptyIndex, InvalidEmbeddings, InvalidInput, UnknownIndex
from boundarymorph.retrieval.document import Document, Retriever, Search

DOCUMENTS = [
    Document("tram", "Trams run every ten minutes.", title="Transport", metadata={"line": 4}),
    Document("violin", "A violin has four strings."),
    Document("bread", "Bread is baked at dawn."),
]


class RetrieverContract:
    async def test_retriever_returns_the_nearest_documents_of_a_query(self, retriever: Retriever) -> None:
        pool = (await retriever.retrieve("trams", Search("A violin has four strings.", 2))).pool
        assert len(pool) == 2
        assert pool.ids[0] == "violin"
        assert pool.scores.dtype == np.float64
        np.testing.assert_allclose(pool.scores, pool.embeddings.astype(np.float64) @ pool.query, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(pool.embeddings, axis=1), 1, atol=1e-6)

    async def test_retriever_returns_every_document_at_a_large_depth(self, retriever: Retriever) -> None:
        assert set((await retriever.retrieve("trams", Search("trams", 10_000))).pool.ids) == {"tram", "violin", "bread"}

    async def test_retriever_reads_documents_by_id(self, retriever: Retriever) -> None:
        documents = await retriever.documents("trams", ["bread", "tram", "unknown"])
        assert dict(documents) == {"tram": DOCUMENTS[0], "bread": DOCUMENTS[2]}

    async def test_retriever_returns_the_first_documents_with_the_pool(self, retriever: Retriever) -> None:
        for wanted, expected in ((0, {}), (1, {"violin": DOCUMENTS[1]}), (10_000, {d.id: d for d in DOCUMENTS})):
            search = Search("A violin has four strings.", 3, documents=wanted)
            assert dict((await retriever.retrieve("trams", search)).documents) == expected

    async def test_retriever_reads_lengths_by_id(self, retriever: Retriever) -> None:
        characters = await retriever.characters("trams", ["bread", "tram", "unknown"])
        assert dict(characters) == {"bread": 23, "tram": 28 + len("Transport")}

    async def test_retriever_applies_a_filter(self, retriever: Retriever) -> None:
        for filter, expected in (
            ({"line": 4}, {"tram"}),
            ({"line": {"gte": 5}}, set()),
            ({"line": {"ne": 4}}, {"violin", "bread"}),
            ({}, {"tram", "violin", "bread"}),
        ):
            assert set((await retriever.retrieve("trams", Search("violin", 3, filter=filter))).pool.ids) == expected
        nearest = (
            await retriever.retrieve("trams", Search("A violin has four strings.", 1, filter={"line": {"ne": 4}}))
        ).pool
        assert list(nearest.ids) == ["violin"]
        with pytest.raises(InvalidInput, match=r"filter\.line"):
            await retriever.retrieve("trams", Search("violin", 3, filter={"line": {"above": 1}}))

    async def test_retriever_explains_a_pool_emptied_by_a_filter(self, retriever: Retriever) -> None:
        for filter, reasons in (
            ({"line": {"gte": 5}}, []),
            ({"line": "4"}, ["the filter compares 'line' with a string, and no document has a string there"]),
            ({"not": {"line": {"lt": 9}}, "page": {"gt": 1}}, ["the filter compares 'page' with a number, and no"]),
        ):
            found = await retriever.retrieve("trams", Search("violin", 3, filter=filter))
            assert (len(found.pool), len(found.pool.embeddings), len(found.pool.scores)) == (0, 0, 0)
            first, *others = found.warnings
            assert first.slug == "no-document-passes-filter"
            assert all(each.slug == "filter-type-mismatch" for each in others)
            assert all(each.message.startswith(reason) for each, reason in zip(others, reasons, strict=True))

    async def test_retriever_accepts_a_query_embedding(self, retriever: Retriever) -> None:
        pool = (await retriever.retrieve("own", Search("", 2, embedding=[0, 0, 9, 1]))).pool
        assert list(pool.ids) == ["e2", "e3"]
        with pytest.raises(InvalidInput, match="query_embedding"):
            await retriever.retrieve("own", Search("text", 2))
        with pytest.raises(InvalidEmbeddings):
            await retriever.retrieve("own", Search("", 2, embedding=[1, 0, 0]))
        with pytest.raises(InvalidEmbeddings):
            await retriever.retrieve("own", Search("", 2, embedding=[0, 0, 0, 0]))

    async def test_retriever_refuses_text_for_an_index_of_another_encoder(self, retriever: Retriever) -> None:
        with pytest.raises(InvalidInput, match="other-encoder"):
            await retriever.retrieve("foreign", Search("text", 2))

    async def test_retriever_refuses_empty_and_unknown_indexes(self, retriever: Retriever) -> None:
        with pytest.raises(EmptyIndex):
            await retriever.retrieve("empty", Search("text", 2))
        with pytest.raises(UnknownIndex):
            await retriever.retrieve("missing", Search("text", 2))
        with pytest.raises(UnknownIndex):
            await retriever.documents("missing", ["a"])

    async def test_retriever_embeds_texts_like_documents_of_the_index(self, retriever: Retriever) -> None:
        embeddings = await retriever.embed_documents([document.content for document in DOCUMENTS])
        pool = (await retriever.retrieve("trams", Search("", 3, embedding=embeddings.vectors[2]))).pool
        assert pool.ids[0] == "bread"
        assert pool.scores[0] > 0.9999
        query = await retriever.embed_query("trams")
        np.testing.assert_array_equal(query, (await retriever.retrieve("trams", Search("trams", 1))).pool.query)
