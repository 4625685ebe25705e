"""Test that blank texts and queries cost no call, and that blank texts are ranked last."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
import pytest_asyncio

from boundarymorph.errors import ScorerFailed
from boundarymorph.reading import has_content, has_words
from boundarymorph.scoring.scorer import Scores
from boundarymorph.settings import Settings
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import answer, faked, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.strangers]

BLANK = ["", " \n\t", "\f", "\u00a0", "\u200b\u200d", "\ufeff", "\0", "\u202e", "\u3164", "\u2800", "\ufffd", "\u0301"]
WITHOUT_WORDS = ["----", "…", "?", "|---|---|", "\u2015" * 7, "_", "😀", "\"'", "→ ←", "* * *"]
READABLE = ["1", "a", "漢", "é", "مُ", "x\u200b", "\u3164a", "…a", "½"]


class Refusing(SeededScorer):
    """A scorer that refuses requests with a blank text, as some servers do."""

    async def score(
        self,
        query: str,
        texts: Sequence[str],
        *,
        deadline: float | None = None,
        instruction: str | None = None,
        caller: str = "",
    ) -> Scores:
        if not query.strip() or not all(map(has_content, texts)):
            raise ScorerFailed("input cannot contain empty strings")
        return await super().score(query, texts, deadline=deadline, instruction=instruction)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(Settings(data_directory=tmp_path_factory.mktemp("blank")), faked(Refusing())) as client:
        yield client


@pytest.mark.parametrize(
    ("texts", "content", "words"), [(BLANK, False, False), (WITHOUT_WORDS, True, False), (READABLE, True, True)]
)
async def test_blank_texts_and_texts_without_words_are_recognized(texts: list[str], content: bool, words: bool) -> None:
    for text in texts:
        assert (has_content(text), has_words(text)) == (content, words), text


async def test_document_without_words_ranks_last(client: httpx.AsyncClient) -> None:
    for text in WITHOUT_WORDS:
        ranked = answer(await client.post("/v1/rerank", json={"query": "q", "documents": [text, "a"]}))["results"]
        assert [(result["index"], result["relevance_score"] > 0) for result in ranked] == [(1, True), (0, False)]
        body = answer(await client.post("/select", json={"query": "q", "pool": [text, "a"], "k": 1, "budget": 2}))
        assert (body["documents"][0]["id"], body["usage"]["cross_encoder_calls"]) == ("1", 1)
        assert any("1 document has no text to read" in warning["message"] for warning in body["warnings"])


@pytest.mark.parametrize("more", [{}, {"budget": 0}, {"budget": 1}, {"method": "boundarymorph"}, {"diversity": 0.5}])
async def test_select_ranks_blank_documents_last_without_a_call(
    client: httpx.AsyncClient, more: dict[str, Any]
) -> None:
    pool = [{"text": text} for text in [*BLANK, "a", "b", "c"]]
    body = answer(await client.post("/select", json={"query": "q", "pool": pool, "k": len(pool), "budget": 15, **more}))
    assert body["status"] == "complete"
    assert body["usage"]["cross_encoder_calls"] == min(more.get("budget", 15), 3)
    documents = body["documents"]
    first, others = documents[:3], documents[3:]
    assert {int(document["id"]) for document in first} == set(range(len(BLANK), len(pool)))
    assert all(document["relevance"] > 0 for document in first)
    assert all(document["relevance"] == 0 for document in others)
    assert any(f"{len(BLANK)} documents have no text to read" in warning["message"] for warning in body["warnings"])


@pytest.mark.parametrize("budget", [None, 1])
async def test_rerank_ranks_blank_documents_last(client: httpx.AsyncClient, budget: int | None) -> None:
    for path, field in (("/v1/rerank", "documents"), ("/rerank", "texts")):
        given = {"query": "q", field: ["", "a", " ", "b"]} | ({} if budget is None else {"budget": budget})
        ranked: Any = answer(await client.post(path, json=given))
        results = ranked["results"] if path == "/v1/rerank" else ranked
        assert {result["index"] for result in results[:2]} == {1, 3}
        assert {result.get("relevance_score", result.get("score")) for result in results[2:]} == {0}


async def test_upload_skips_blank_documents(client: httpx.AsyncClient) -> None:
    answer(await client.put("/indexes/some"))
    documents = [{"id": str(place), "text": text} for place, text in enumerate([*BLANK, "a"])]
    report = answer(await client.post("/indexes/some/documents", json=documents))
    assert (report["added"], report["skipped"]) == (1, len(BLANK))
    titled = [{"id": "t", "text": " \n", "title": "a title"}]
    assert answer(await client.post("/indexes/some/documents", json=titled))["added"] == 1
    body = answer(await client.post("/select", json={"query": "q", "index": "some", "k": 3}))
    assert {document["id"] for document in body["documents"]} == {str(len(BLANK)), "t"}
