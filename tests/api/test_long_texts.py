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
