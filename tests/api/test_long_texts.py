"""Long texts by their best passages, within the budget."""

from typing import Any

import httpx
import pytest

from boundarymorph.api.passages import passages
from tests.api.service import answer, problem
from tests.scoring.fakes import score_of

QUERY = "the harbour at night"
LENGTH = 1_600  # of a passage, by default
TEXTS = [" ".join(f"w{number}x{word}" for word in range(60 + 140 * (number % 5))) for number in range(12)]
PARTS = {str(number): passages(text, LENGTH) for number, text in enumerate(TEXTS)}
BEST = {id: max(score_of(QUERY, part) for part in parts) for id, parts in PARTS.items()}
CALLS = sum(map(len, PARTS.values()))
ORDER = sorted(BEST, key=lambda id: -BEST[id])


class TestPassages:
    @pytest.mark.parametrize("text", ["", " ", "short", "two words " * 500, "x" * 5_000, " " * 4_000 + "end"])
    def test_together_they_are_the_text_but_for_spaces(self, text: str) -> None:
        parts = passages(text, 100)
        assert "".join("".join(parts).split()) == "".join(text.split())
        assert all(len(part) <= 100 for part in parts) and parts

    def test_words_stay_whole(self) -> None:
        words = " ".join(f"word{number}" for number in range(2_000))
        assert [word for part in passages(words, 200) for word in part.split()] == words.split()

    def test_no_more_than_asked_for(self) -> None:
        text = "two words " * 500
        assert passages(text, 100, 3) == passages(text, 100)[:3]


async def test_each_document_is_ranked_by_its_best_passage(client: httpx.AsyncClient) -> None:
    asked = {"query": QUERY, "pool": TEXTS, "budget": CALLS, "k": 5, "long_texts": "best_of", "return_documents": True}
    found = answer(await client.post("/select", json=asked))
    assert [one["id"] for one in found["documents"]] == ORDER[:5]
    for one in found["documents"]:
        assert one["relevance"] == pytest.approx(BEST[one["id"]])
        assert score_of(QUERY, one["passage"]) == pytest.approx(BEST[one["id"]])
        assert one["text"] == TEXTS[int(one["id"])]
    assert found["usage"]["cross_encoder_calls"] == CALLS == found["pool_size"] > len(TEXTS)


@pytest.mark.parametrize("budget", [0, 3, 9])
async def test_no_more_calls_than_the_budget_and_no_document_twice(client: httpx.AsyncClient, budget: int) -> None:
    pool: list[dict[str, Any]] = [
        {"id": f"a{n}", "text": text, "score": -n, "metadata": {"n": n}} for n, text in enumerate(TEXTS)
    ]
    asked = {"query": QUERY, "pool": pool, "budget": budget, "k": 8, "long_texts": "best_of", "return_documents": True}
    found = answer(await client.post("/select", json=asked))
    assert found["usage"]["cross_encoder_calls"] == budget
    ids = [one["id"] for one in found["documents"]]
    assert len(set(ids)) == len(ids) == 8 and set(ids) <= {one["id"] for one in pool}
    assert all(one["metadata"] == {"n": int(one["id"][1:])} for one in found["documents"])
    left = answer(await client.post("/select", json={**asked, "exclude_ids": ids}))
    assert {one["id"] for one in left["documents"]} == {one["id"] for one in pool} - set(ids)


async def test_the_first_is_the_default(client: httpx.AsyncClient) -> None:
    asked = {"query": QUERY, "pool": TEXTS, "budget": 12, "k": 5}
    plain, first = [
        answer(await client.post("/select", json=asked | more))["documents"] for more in ({}, {"long_texts": "first"})
    ]
    assert plain == first and all(one["passage"] is None for one in plain)


@pytest.mark.parametrize(
    "more",
    [
        {"pool": None, "index": "texts"},
        {"distinct": True},
        {"max_tokens": 50},
        {"query": None, "queries": ["a", "b"]},
        {"pool": [{"text": "a", "embedding": [1.0, 0.0]}]},
        {"pool": [{"text": "a", "bm25": 1.0}]},
        {"long_texts": "all"},
    ],
    ids=str,
)
async def test_what_does_not_go_together_is_refused(client: httpx.AsyncClient, more: dict[str, Any]) -> None:
    asked = {"query": QUERY, "pool": TEXTS, "long_texts": "best_of"} | more
    problem(await client.post("/select", json=asked), 422, "invalid-input")


@pytest.mark.parametrize(
    ("path", "field", "results", "score", "more"),
    [
        ("/v1/rerank", "documents", "results", "relevance_score", {"long_texts": "best_of"}),
        ("/v1/rerank", "documents", "results", "relevance_score", {"max_chunks_per_doc": 10}),
        ("/v2/rerank", "documents", "results", "relevance_score", {"long_texts": "best_of"}),
        ("/rerank", "texts", None, "score", {"long_texts": "best_of"}),
        ("/v1/reranking", "input", "data", "score", {"long_texts": "best_of"}),
    ],
)
async def test_on_rerank_routes(
    client: httpx.AsyncClient, path: str, field: str, results: str | None, score: str, more: dict[str, Any]
) -> None:
    found = answer(await client.post(path, json={"query": QUERY, field: TEXTS} | more))
    ranked: Any = found if results is None else found[results]
    assert [str(one["index"]) for one in ranked] == ORDER
    assert [one[score] for one in ranked] == pytest.approx([BEST[id] for id in ORDER])
    if results == "results":
        assert found["boundarymorph"]["documents"] == len(TEXTS)
        assert found["boundarymorph"]["cross_encoder_calls"] == CALLS


async def test_every_document_of_a_list_has_a_score_within_a_budget(client: httpx.AsyncClient) -> None:
    asked = {"query": QUERY, "documents": TEXTS, "long_texts": "best_of", "budget": 7}
    found = answer(await client.post("/v1/rerank", json=asked))
    assert sorted(one["index"] for one in found["results"]) == list(range(len(TEXTS)))
    assert found["boundarymorph"]["cross_encoder_calls"] == 7
    assert 0 < len(found["boundarymorph"]["inferred"]) < len(TEXTS)
    top = answer(await client.post("/v1/rerank", json={**asked, "top_n": 3, "budget": CALLS}))
    assert [str(one["index"]) for one in top["results"]] == ORDER[:3]


async def test_as_many_chunks_as_cohere_was_told(client: httpx.AsyncClient) -> None:
    of_two = {id: max(score_of(QUERY, part) for part in parts[:2]) for id, parts in PARTS.items()}
    found = answer(await client.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS, "max_chunks_per_doc": 2}))
    assert [str(one["index"]) for one in found["results"]] == sorted(of_two, key=lambda id: -of_two[id])
    both = {"query": QUERY, "documents": [{"text": "a", "page": 1}], "max_chunks_per_doc": 2, "group_by": "page"}
    assert (await client.post("/v1/rerank", json=both)).status_code == 400
