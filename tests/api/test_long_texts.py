"""Long texts: the beginning of each, or as many passages as Cohere's parameter says."""

import httpx
import pytest

from boundarymorph.api.passages import passages
from tests.api.service import answer
from tests.scoring.fakes import score_of

QUERY = "the harbour at night"
LENGTH = 1_600  # of a passage, by default
TEXTS = [" ".join(f"w{number}x{word}" for word in range(60 + 140 * (number % 5))) for number in range(12)]
PARTS = {str(number): passages(text, LENGTH) for number, text in enumerate(TEXTS)}


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


@pytest.mark.parametrize(("path", "field"), [("/select", "pool"), ("/v1/rerank", "documents"), ("/rerank", "texts")])
async def test_the_beginning_is_read_and_nothing_else_is_offered(
    client: httpx.AsyncClient, path: str, field: str
) -> None:
    asked = {"query": QUERY, field: TEXTS}
    plain, first = [(await client.post(path, json=asked | more)).json() for more in ({}, {"long_texts": "first"})]
    if path == "/select":
        assert plain["documents"] == first["documents"]
    refused = await client.post(path, json=asked | {"long_texts": "best_of"})
    assert refused.status_code in (400, 422) and "long_texts" in refused.text


async def test_as_many_chunks_as_cohere_was_told(client: httpx.AsyncClient) -> None:
    of_two = {id: max(score_of(QUERY, part) for part in parts[:2]) for id, parts in PARTS.items()}
    found = answer(await client.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS, "max_chunks_per_doc": 2}))
    assert [str(one["index"]) for one in found["results"]] == sorted(of_two, key=lambda id: -of_two[id])
    both = {"query": QUERY, "documents": [{"text": "a", "page": 1}], "max_chunks_per_doc": 2, "group_by": "page"}
    assert (await client.post("/v1/rerank", json=both)).status_code == 400
