"""Test that selections in this process equal the answers over HTTP."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from boundarymorph import InvalidScores, Selector, extend
from boundarymorph.api.select_answers import RoundEvent, SelectResponse
from boundarymorph.errors import InvalidInput
from boundarymorph.settings import Settings
from tests.fakes.scorer import score_of
from tests.fakes.service import answer, serving

QUERY = "by the sea"
WORDS = ("sea", "beach", "hotel", "hill", "view", "ski", "valley", "boat")
TEXTS = [" ".join(WORDS[(i * step) % 8] for step in (1, 3, 5)) + f" {i // 2}" for i in range(60)]
METADATA = [{"page": i // 3} for i in range(60)]
RANDOM = np.random.default_rng(0)
VECTORS, VECTOR = RANDOM.normal(size=(60, 8)), RANDOM.normal(size=8)


def scores(query: str, texts: Sequence[str]) -> list[float]:
    return [score_of(query, text) for text in texts]


def without_chance(response: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name not in ("id", "timings_ms", "scorer")}


EMBEDDED: dict[str, Any] = {"embeddings": VECTORS, "query_embedding": VECTOR}
OPTIONS: list[dict[str, Any]] = [
    {"budget": 0, "relevance": "human", "distinct": "text"},
    {"budget": 7, "relevance": "scorer"},
    {"budget": 7, "relevance": "human", "rounds": 2, "k": 1},
    {"budget": 7, "relevance": "human", "min_relevance": 0.5, "ranked": True},
    {"budget": "auto", "relevance": "scorer", "distinct": {"by": "page", "at_most": 2}, "explain": True},
    {"budget": "auto", "relevance": "human"} | EMBEDDED,
    {"budget": 7, "relevance": "scorer", "rounds": 3, "diversity": 0.3} | EMBEDDED,
]


async def test_selector_select_answers_like_the_http_route(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path)
    selector = Selector(scores, settings=settings)
    documents = [{"text": text, "metadata": its} for text, its in zip(TEXTS, METADATA, strict=True)]
    async with serving(settings) as client:
        for options in OPTIONS:
            body = {"query": QUERY, "pool": documents, "k": 10, "return_documents": True} | options
            if body.pop("embeddings", None) is not None:
                body["pool"] = [one | {"embedding": row} for one, row in zip(documents, VECTORS.tolist(), strict=True)]
                body["query_embedding"] = VECTOR.tolist()
            there = answer(await client.post("/select", json=body))
            here = await selector.aselect(QUERY, TEXTS, metadata=METADATA, **{"k": 10, **options})
            assert without_chance(here.model_dump(mode="json")) == without_chance(there), options


async def test_extend_answers_like_the_http_route(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path)
    known = scores(QUERY, TEXTS[:20])
    documents: list[dict[str, Any]] = [{"text": text} for text in TEXTS]
    for document, score in zip(documents, known, strict=False):
        document["cross_encoder_score"] = score
    body: dict[str, Any] = {"query": QUERY, "pool": documents, "budget": 0, "k": 30, "return_documents": True}
    async with serving(settings) as client:
        for ranked in (False, True):
            there = answer(await client.post("/select", json=body | {"ranked": ranked}))
            for given in (known, dict(enumerate(known))):
                here = await asyncio.to_thread(extend, QUERY, TEXTS, given, k=30, ranked=ranked)
                assert without_chance(here.model_dump(mode="json")) == without_chance(there)
    assert here.usage.cross_encoder_calls == 0


def test_stream_ends_with_the_answer_and_stops_when_left() -> None:
    asked: list[int] = []

    def counting(query: str, texts: Sequence[str]) -> list[float]:
        asked.append(len(texts))
        return scores(query, texts)

    selector = Selector(counting, rounds=3)
    *rounds, last = selector.stream(QUERY, TEXTS, budget=9, k=5)
    assert [step.cross_encoder_calls for step in rounds if isinstance(step, RoundEvent)] == [0, 3, 6]
    assert isinstance(last, SelectResponse)
    assert last.documents == selector.select(QUERY, TEXTS, budget=9, k=5).documents
    asked.clear()
    for step in selector.stream(QUERY, TEXTS, budget=9, k=5):
        if isinstance(step, RoundEvent) and step.cross_encoder_calls:
            break
    assert asked == [3]


async def _coroutine(query: str, texts: Sequence[str]) -> list[float]:
    return scores(query, texts)


class CrossEncoder:
    """A class like that of sentence-transformers, which is callable for another purpose."""

    def __call__(self, *_: Any) -> None:
        raise AssertionError

    def predict(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray[Any, Any]:
        return np.array([score_of(*pair) for pair in pairs], dtype=np.float32)


class Ranker:
    """A class like that of FlashRank 0.2, which adds the scores to the passages and sorts them."""

    def rerank(self, request: Any) -> list[dict[str, Any]]:
        for passage in request.passages:
            passage["score"] = np.float32(score_of(request.query, passage["text"]))
        request.passages.sort(key=lambda passage: passage["score"], reverse=True)
        return cast(list[dict[str, Any]], request.passages)


@pytest.mark.parametrize(
    ("scorer", "options"),
    [
        (_coroutine, {}),
        (lambda query, texts: _coroutine(query, texts), {}),
        (lambda pairs: np.array([[score_of(*pair)] for pair in pairs], dtype=np.float32), {"pairs": True}),
        (CrossEncoder(), {}),
        (Ranker(), {}),
    ],
)
def test_selector_takes_every_kind_of_scorer(scorer: Any, options: dict[str, Any]) -> None:
    call: dict[str, Any] = {"budget": 20, "k": 10, "ranked": True}
    found, expected = (made.select(QUERY, TEXTS, **call) for made in (Selector(scorer, **options), Selector(scores)))
    assert [(each.id, each.source) for each in found.documents] == [
        (each.id, each.source) for each in expected.documents
    ]


def test_selector_loads_a_cross_encoder_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str) -> CrossEncoder:
        assert name == "cross-encoder/ms-marco-MiniLM-L6-v2"
        return CrossEncoder()

    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(CrossEncoder=named))
    found = Selector("cross-encoder/ms-marco-MiniLM-L6-v2").select(QUERY, TEXTS, budget=20, k=10)
    assert found.usage.cross_encoder_calls == 20
    assert found.usage.trips == found.usage.scorer_requests > 0  # its earlier name
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InvalidInput, match="'any' needs sentence-transformers: pip install sentence-transformers"):
        Selector("any")


def test_selector_loads_the_embedded_cross_encoder_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["The capital of France is Paris.", "A recipe for soup with lentils."]
    found = Selector("embedded").select("which city is the capital of France?", texts, budget=2, k=2).documents
    assert [document.id for document in found] == ["0", "1"]
    assert found[0].cross_encoder_score is not None and found[0].cross_encoder_score > 0.9
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InvalidInput, match=r"pip install --find-links dist 'boundarymorph\[models\]'"):
        Selector("embedded")


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
def test_select_refuses_invalid_scores(given: Any, says: str) -> None:
    with pytest.raises(InvalidScores, match=says):
        Selector(lambda query, texts: given).select(QUERY, TEXTS, budget=1, rounds=1)


def test_extend_refuses_a_budget() -> None:
    for options in ({"budget": 5}, {"budget": "auto"}, {"B": 5}):
        with pytest.raises(InvalidInput, match="extend makes no call"):
            extend(QUERY, TEXTS, [0.5], **options)
    assert extend(QUERY, TEXTS, [0.5], budget=0).usage.budget == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kk": 3}, "did you mean 'k'"),
        ({"k": 0}, "k: "),
        ({"min_relevance": np.float32("nan")}, "min_relevance: must be a finite number, not nan"),
        ({"embeddings": VECTORS}, "query_embedding: there is no encoder"),
        ({"embeddings": [["a"]]}, "embeddings: not an array"),
        ({"vectors": "encoder"}, "has no encoder"),
        ({"metadata": METADATA[:59]}, "metadata: 59 for 60 texts"),
        ({"pool": ["a"]}, "pool: give the texts"),
        ({"index": "texts"}, "'index' and 'pool'"),
        ({"calibration": True}, "calibration: there are none"),
        ({"instruction": "recent"}, "instruction: the scorer"),
    ],
)
def test_select_refuses_wrong_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Selector(scores).select(QUERY, TEXTS, **options)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(ZeroDivisionError, ZeroDivisionError), (StopIteration, RuntimeError), (TimeoutError("ours"), TimeoutError)],
)
def test_error_of_the_scorer_function_reaches_the_caller(raised: Any, expected: type[Exception]) -> None:
    def fails(query: str, texts: Sequence[str]) -> list[float]:
        raise raised

    with pytest.raises(expected):
        Selector(fails).select(QUERY, TEXTS, budget=5, deadline_ms=60_000)


async def test_scorer_coroutine_is_cancelled_at_the_deadline() -> None:
    begun: list[int] = []

    async def stuck(query: str, texts: Sequence[str]) -> list[float]:
        begun.append(len(texts))
        if len(begun) == 2:
            await asyncio.Event().wait()
        return scores(query, texts)

    found = await Selector(stuck).aselect(QUERY, TEXTS, budget=20, k=10, rounds=3, deadline_ms=400)
    assert (found.status, found.stop_reason, len(found.documents)) == ("partial", "deadline", 10)
    assert found.usage.cross_encoder_calls >= begun[0]
