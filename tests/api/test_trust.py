"""A scorer that does not work on an index, over HTTP: what answers and metrics say of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.scoring.build import build_scorer
from boundarymorph.settings import Settings
from tests.api.service import NDJSON, answer, faked, serving
from tests.metrics import counted
from tests.scoring.remote.servers import Ours, Reply, running

WORDS = ["tram", "violin", "harbour", "glacier", "pepper", "lantern", "orchard", "granite", "falcon", "velvet"]
Score = Callable[[str, str], float]


def alike(query: str, text: str) -> float:
    """Higher, the more often the word of the query is there."""
    return (1.0 + text.split().count(query)) / 12.0


class Scripted(Ours):
    """A scorer with scores of the test's."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def reply(self, body: dict[str, Any]) -> Reply:
        scores = [self.score(body["query"], text) for text in body["texts"]]
        return Reply({"model": self.model, "scores": scores, "truncated": 0})


def documents() -> list[dict[str, str]]:
    """Of each word, ten that have it once to ten times."""
    return [
        {"id": f"{word}-{count}", "text": " ".join([word] * count + ["else"] * (10 - count))}
        for word in WORDS
        for count in range(1, 11)
    ]


@asynccontextmanager
async def index_with(score: Score, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A service with such a scorer, and an index "words" without vectors."""
    async with running(Scripted(score)) as [server]:
        settings = Settings.model_validate(
            {"data_directory": folder, "scorer": {"url": f"http://127.0.0.1:{server.port}", "self_test": False}}
        )

        async with serving(settings, faked(build_scorer(settings))) as client:
            answer(await client.put("/indexes/words", json={"encoder": "none"}))
            lines = b"\n".join(map(orjson.dumps, documents()))
            answer(await client.post("/indexes/words/documents", content=lines, headers=NDJSON))
            yield client


async def asked(client: httpx.AsyncClient) -> list[list[str]]:
    """What is said of the scorer in the answer to each word."""
    said = []
    for word in WORDS:
        request = {"query": word, "index": "words", "budget": 8, "k": 5, "rounds": 1}
        warnings = answer(await client.post("/select", json=request))["warnings"]
        said.append([warning for warning in warnings if "may not work" in warning])
    return said


@pytest.mark.parametrize(
    ("score", "doubt", "first", "words"),
    [
        (lambda query, text: 1.0 - alike(query, text), "contrary", 10, "similarity and words rise"),
        (lambda query, text: 0.5, "constant", 3, "scores, of 3 queries, are 0.5"),
        (lambda query, text: float(text.split().count(query) % 2), "saturated", 3, "are 0 or 1 to six digits"),
    ],
    ids=["reversed", "constant", "saturated"],
)
async def test_a_scorer_that_does_not_work(tmp_path: Path, score: Score, doubt: str, first: int, words: str) -> None:
    async with index_with(score, tmp_path) as client:
        before = counted("boundarymorph_scorer_doubts_total", doubt=doubt)
        said = await asked(client)
        after = counted("boundarymorph_scorer_doubts_total", doubt=doubt)
    assert [bool(warnings) for warnings in said] == [number + 1 >= first for number in range(len(WORDS))]
    assert "on this index: " in said[first - 1][0] and words in said[first - 1][0]
    assert after - before == len(WORDS) + 1 - first


async def test_scores_that_callers_bring_are_not_the_scorer_s(tmp_path: Path) -> None:
    async with index_with(alike, tmp_path) as client:
        for word in WORDS:
            pool = [one | {"cross_encoder_score": 0.5} for one in documents()[:20]]
            body = answer(await client.post("/select", json={"query": word, "pool": pool, "budget": 0, "k": 5}))
            assert not any("may not work" in warning for warning in body["warnings"])
