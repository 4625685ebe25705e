"""Selections in this process have the answers of HTTP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundarymorph import InvalidScores, Selector, extend
from boundarymorph.api.select_answers import RoundEvent, SelectResponse
from boundarymorph.errors import InvalidInput, LimitExceeded
from boundarymorph.settings import Settings
from tests.api.service import answer, serving
from tests.scoring.fakes import score_of

QUERY = "by the sea"
WORDS = ("sea", "beach", "hotel", "hill", "view", "ski", "valley", "boat")
TEXTS = [" ".join(WORDS[(i * step) % 8] for step in (1, 3, 5)) + f" {i // 2}" for i in range(60)]
METADATA = [{"page": i // 3} for i in range(60)]
RANDOM = np.random.default_rng(0)
VECTORS, VECTOR = RANDOM.normal(size=(60, 8)), RANDOM.normal(size=8)


def scores(query: str, texts: Sequence[str]) -> list[float]:
    return [score_of(query, text) for text in texts]


def without_chance(response: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name not in ("id", "timings_ms")}


EMBEDDED: dict[str, Any] = {"embeddings": VECTORS, "query_embedding": VECTOR}
OPTIONS: list[dict[str, Any]] = [
    {"budget": budget, "k": k, "relevance": relevance, **more}
    for budget in (0, 7, 25, "auto")
    for k in (1, 10)
    for relevance in ("people", "scorer")
    for more in (
        {},
        {"rounds": 2},
        {"min_relevance": 0.5, "ranked": True},
        {"distinct": "text"},
        {"distinct": {"by": "page", "at_most": 2}, "explain": True},
        EMBEDDED,
        EMBEDDED | {"rounds": 3, "diversity": 0.3},
    )
]


async def test_the_answers_are_those_of_http(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path)
    selector = Selector(scores, settings=settings)
    assert len(OPTIONS) > 100
    async with serving(settings) as client:
        for options in OPTIONS:
            documents = [{"text": text, "metadata": its} for text, its in zip(TEXTS, METADATA, strict=True)]
            body = {"query": QUERY, "pool": documents, "return_documents": True} | options
            if vectors := body.pop("embeddings", None) is not None:
                body["pool"] = [one | {"embedding": row} for one, row in zip(documents, VECTORS.tolist(), strict=True)]
                body["query_embedding"] = VECTOR.tolist()
            there = answer(await client.post("/select", json=body))
            here = (await selector.aselect(QUERY, TEXTS, metadata=METADATA, **options)).model_dump(mode="json")
            assert without_chance(here) == without_chance(there), (options, vectors)


async def test_known_scores_are_extended_as_over_http(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path)
    known = scores(QUERY, TEXTS[:20])
    documents: list[dict[str, Any]] = [{"text": text} for text in TEXTS]
    for document, score in zip(documents, known, strict=False):
        document["cross_encoder_score"] = score
    body = {"query": QUERY, "pool": documents, "ranked": True, "budget": 0, "k": 30, "return_documents": True}
    async with serving(settings) as client:
        there = answer(await client.post("/select", json=body))
    here = await asyncio.to_thread(extend, QUERY, TEXTS, known, k=30)
    assert without_chance(here.model_dump(mode="json")) == without_chance(there)
    assert here.usage.cross_encoder_calls == 0
    assert {document.source for document in here.documents} == {"cross_encoder", "posterior"}


def test_a_stream_ends_with_the_answer() -> None:
    selector = Selector(scores, rounds=3)
    *rounds, last = selector.stream(QUERY, TEXTS, budget=9, k=5)
    assert [step.cross_encoder_calls for step in rounds if isinstance(step, RoundEvent)] == [0, 3, 6]
    assert isinstance(last, SelectResponse)
    assert last.documents == selector.select(QUERY, TEXTS, budget=9, k=5).documents


def test_a_stream_that_is_left_makes_no_further_call() -> None:
    asked: list[int] = []

    def counting(query: str, texts: Sequence[str]) -> list[float]:
        asked.append(len(texts))
        return scores(query, texts)

    for step in Selector(counting).stream(QUERY, TEXTS, budget=9, k=5, rounds=3):
        if isinstance(step, RoundEvent) and step.cross_encoder_calls:
            break
    assert asked == [3]


async def test_functions_of_every_kind() -> None:
    async def coroutine(query: str, texts: Sequence[str]) -> list[float]:
        return scores(query, texts)

    def of_pairs(pairs: Sequence[tuple[str, str]]) -> np.ndarray[Any, Any]:
        return np.array([[score_of(*pair)] for pair in pairs], dtype=np.float32)

    options: dict[str, Any] = {"budget": 20, "k": 10}
    expected = (await Selector(scores).aselect(QUERY, TEXTS, **options)).documents
    for selector in (Selector(coroutine), Selector(lambda query, texts: coroutine(query, texts))):
        assert (await selector.aselect(QUERY, TEXTS, **options)).documents == expected
    paired = (await Selector(of_pairs, pairs=True).aselect(QUERY, TEXTS, **options)).documents
    assert [document.id for document in paired] == [document.id for document in expected]


async def test_select_works_where_a_loop_runs_as_in_a_notebook() -> None:
    assert len(Selector(scores).select(QUERY, TEXTS, budget=5, k=3).documents) == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([1.001], "apply a sigmoid"),
        ([-0.001], "apply a sigmoid"),
        ([float("nan")], "nan"),
        ([0.5, 0.5], "2 scores for 1 texts"),
        (["high"], "not an array of numbers"),
        (None, "nan"),
    ],
)
def test_scores_that_are_none(given: Any, says: str) -> None:
    with pytest.raises(InvalidScores, match=says):
        Selector(lambda query, texts: given).select(QUERY, TEXTS, budget=1, rounds=1)


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_scores_at_the_edges(edge: float) -> None:
    assert Selector(lambda query, texts: [edge] * len(texts)).select(QUERY, TEXTS, budget=5).status == "complete"
    assert extend(QUERY, TEXTS, [edge]).status == "complete"


@pytest.mark.parametrize("known", [[1.5], [float("nan")], [[0.5]], [0.5] * 61, 0.5])
def test_known_scores_that_are_none(known: Any) -> None:
    with pytest.raises(InvalidScores):
        extend(QUERY, TEXTS, known)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kk": 3}, "did you mean 'k'"),
        ({"k": 0}, "k: "),
        ({"embeddings": VECTORS}, "query_embedding: there is no encoder"),
        ({"embeddings": [["a"]]}, "embeddings: not an array"),
        ({"vectors": "encoder"}, "there is no encoder"),
        ({"metadata": METADATA[:59]}, "metadata: 59 for 60 texts"),
        ({"pool": ["a"]}, "pool: give the texts"),
        ({"index": "texts"}, "'index' and 'pool'"),
        ({"calibration": "mine"}, "calibration: there are none"),
        ({"instruction": "recent"}, "instruction: the scorer"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Selector(scores).select(QUERY, TEXTS, **options)


def test_the_limits_are_those_of_the_settings() -> None:
    selector = Selector(scores, settings=Settings(budget=5, limits={"budget": 5}))
    assert selector.select(QUERY, TEXTS, budget=5).usage.cross_encoder_calls == 5
    with pytest.raises(LimitExceeded, match="budget"):
        selector.select(QUERY, TEXTS, budget=6)


def test_an_error_of_the_function_is_the_callers() -> None:
    def fails(query: str, texts: Sequence[str]) -> list[float]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Selector(fails).select(QUERY, TEXTS, budget=5)


HEAVY = ("torch", "transformers", "onnxruntime", "fastapi", "starlette", "uvicorn", "faiss", "redis", "pydantic")


def test_what_is_imported() -> None:
    program = f"""
import sys
import boundarymorph
print([name for name in {HEAVY} if name in sys.modules])
from boundarymorph import Selector, extend
texts = [f"text {{i}}" for i in range(1_000)]
Selector(lambda query, texts: [0.5] * len(texts)).select("text", texts, budget=25, k=10)
extend("text", texts, [0.5])
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['pydantic']"]
