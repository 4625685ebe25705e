"""Selections in this process have the answers of HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from boundarymorph import InvalidScores, Selector, extend
from boundarymorph.api.select_answers import RoundEvent, SelectResponse
from boundarymorph.errors import InvalidInput, LimitExceeded
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


def _no_call(query: str, texts: Sequence[str]) -> list[float]:
    raise AssertionError


def without_chance(response: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name not in ("id", "timings_ms", "scorer")}


EMBEDDED: dict[str, Any] = {"embeddings": VECTORS, "query_embedding": VECTOR}
OPTIONS: list[dict[str, Any]] = [
    {"budget": budget, "k": 10, "relevance": relevance, **more}
    for budget in (0, 7, "auto")
    for relevance in ("people", "scorer")
    for more in (
        {},
        {"rounds": 2, "k": 1},
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
    body: dict[str, Any] = {"query": QUERY, "pool": documents, "budget": 0, "k": 30, "return_documents": True}
    async with serving(settings) as client:
        for ranked in (False, True):
            there = answer(await client.post("/select", json=body | {"ranked": ranked}))
            for given in (known, dict(enumerate(known))):
                here = await asyncio.to_thread(extend, QUERY, TEXTS, given, k=30, ranked=ranked)
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

    options: dict[str, Any] = {"budget": 20, "k": 10, "ranked": True}
    expected = (await Selector(scores).aselect(QUERY, TEXTS, **options)).documents
    for selector in (Selector(coroutine), Selector(lambda query, texts: coroutine(query, texts))):
        assert (await selector.aselect(QUERY, TEXTS, **options)).documents == expected
    paired = (await Selector(of_pairs, pairs=True).aselect(QUERY, TEXTS, **options)).documents
    assert [document.id for document in paired] == [document.id for document in expected]


class CrossEncoder:
    """As that of sentence-transformers: an object that can be called, but not so."""

    def __call__(self, *_: Any) -> None:
        raise AssertionError

    def predict(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray[Any, Any]:
        return np.array([score_of(*pair) for pair in pairs], dtype=np.float32)


class Ranker:
    """As that of FlashRank 0.2, which writes the scores into the passages that it is given, and sorts them."""

    def rerank(self, request: Any) -> list[dict[str, Any]]:
        for passage in request.passages:
            passage["score"] = np.float32(score_of(request.query, passage["text"]))
        request.passages.sort(key=lambda passage: passage["score"], reverse=True)
        passages: list[dict[str, Any]] = request.passages
        return passages


class Listwise:
    """As FlashRank's language models, which give no scores."""

    def rerank(self, request: Any) -> list[dict[str, Any]]:
        passages: list[dict[str, Any]] = request.passages
        return passages


def test_models_of_others_are_taken_as_they_are() -> None:
    options: dict[str, Any] = {"budget": 20, "k": 10, "ranked": True}
    expected = Selector(scores).select(QUERY, TEXTS, **options).documents
    for model in (CrossEncoder(), Ranker()):
        found = Selector(model).select(QUERY, TEXTS, **options).documents
        assert [(document.id, document.source) for document in found] == [
            (document.id, document.source) for document in expected
        ]
    with pytest.raises(InvalidScores, match="nan"):
        Selector(Listwise()).select(QUERY, TEXTS, **options)


def test_a_name_is_that_of_a_cross_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str) -> CrossEncoder:
        assert name == "cross-encoder/ms-marco-MiniLM-L6-v2"
        return CrossEncoder()

    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(CrossEncoder=named))
    found = Selector("cross-encoder/ms-marco-MiniLM-L6-v2").select(QUERY, TEXTS, budget=20, k=10)
    assert found.usage.cross_encoder_calls == 20
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InvalidInput, match="'any' needs sentence-transformers: pip install sentence-transformers"):
        Selector("any")


def test_the_embedded_cross_encoder_is_taken_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["The capital of France is Paris.", "A recipe for soup with lentils."]
    found = Selector("embedded").select("what is the capital of France?", texts, budget=2, k=2).documents
    assert [document.id for document in found] == ["0", "1"]
    assert found[0].cross_encoder_score is not None and found[0].cross_encoder_score > 0.9
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InvalidInput, match=r"pip install --find-links dist 'boundarymorph\[models\]'"):
        Selector("embedded")


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


@pytest.mark.parametrize("options", [{"budget": 5}, {"budget": "auto"}, {"B": 5}])
def test_a_budget_of_what_makes_no_call(options: dict[str, Any]) -> None:
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
        ({"vectors": "encoder"}, "there is no encoder"),
        ({"metadata": METADATA[:59]}, "metadata: 59 for 60 texts"),
        ({"pool": ["a"]}, "pool: give the texts"),
        ({"index": "texts"}, "'index' and 'pool'"),
        ({"calibration": True}, "calibration: there are none"),
        ({"instruction": "recent"}, "instruction: the scorer"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Selector(scores).select(QUERY, TEXTS, **options)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ("a text", "a list of texts, not a single one"),
        ([*TEXTS, None], r"texts\[60\] is of the type NoneType"),
        ([float("nan")], r"texts\[0\] is of the type float"),
    ],
)
def test_texts_that_are_none(texts: Any, says: str) -> None:
    for select in (Selector(scores).select, partial(extend, scores=[])):
        with pytest.raises(InvalidInput, match=says):
            select(QUERY, texts)


def test_numbers_of_numpy_are_numbers() -> None:
    usual = Selector(scores).select(QUERY, TEXTS, budget=5, k=3, min_relevance=0.25)
    found = Selector(scores).select(QUERY, TEXTS, budget=np.int64(5), k=np.int32(3), min_relevance=np.float32(0.25))
    assert without_chance(found.model_dump()) == without_chance(usual.model_dump())


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


def test_a_function_that_stops_an_iteration_does_not_hang() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        Selector(lambda query, texts: next(iter(()))).select(QUERY, TEXTS, budget=5)


async def test_a_coroutine_function_ends_at_the_deadline() -> None:
    begun: list[int] = []

    async def stuck(query: str, texts: Sequence[str]) -> list[float]:
        begun.append(len(texts))
        if len(begun) == 2:
            await asyncio.Event().wait()
        return scores(query, texts)

    found = await Selector(stuck).aselect(QUERY, TEXTS, budget=20, k=10, rounds=3, deadline_ms=400)
    assert (found.status, found.stop_reason, len(found.documents)) == ("partial", "deadline", 10)
    assert found.usage.cross_encoder_calls >= begun[0]


async def test_a_timeout_of_the_function_is_the_callers() -> None:
    async def fails(query: str, texts: Sequence[str]) -> list[float]:
        raise TimeoutError("of the function")

    with pytest.raises(TimeoutError, match="of the function"):
        await Selector(fails).aselect(QUERY, TEXTS, budget=5, deadline_ms=60_000)
