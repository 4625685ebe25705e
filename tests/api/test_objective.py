"""Test POST /select with an objective: the scorer, or a person over HTTP, finds nearly all."""

from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest

from boundarymorph.settings import Settings
from tests.fakes.scorer import score_of
from tests.fakes.service import answer, texts

QUERY = "walls of old towns"
ABOUT = ("harbour cranes lift cargo from ships", "bees make honey in the hive", "walls guard the old town")
POOL = [
    {"id": f"{topic}-{number}", "text": f"{words} {number % 7} {number * topic % 11}"}
    for number in range(60)
    for topic, words in enumerate(ABOUT)
    if topic < 2 or number < 20
]
RELEVANT = {document["id"] for document in POOL if document["id"].startswith("2-")}
OBJECTIVE = {"find": 0.9, "in": 0.8}
PERSON = {"query": QUERY, "budget": 0, "objective": OBJECTIVE}


async def judge_by_hand(
    client: httpx.AsyncClient, source: Mapping[str, Any]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Judge proposed documents until the last answer; return the judgements and that answer."""
    judged: dict[str, float] = {}
    while True:
        found = answer(await client.post("/select", json={**PERSON, **source, "known_scores": judged}))
        assert found["usage"]["cross_encoder_calls"] == found["usage"]["cached_scores"] == 0
        named = [document["id"] for document in found["next"]]
        assert not set(named) & set(judged) and len(named) == len(set(named)) <= 10
        assert {document["id"] for document in found["documents"]} == {id for id, score in judged.items() if score}
        if not named:
            return judged, found
        assert found["stop_reason"] == "budget" and found["recall"]["probability"] < OBJECTIVE["in"]
        judged |= {id: float(id in RELEVANT) for id in named}


async def test_objective_is_reached_by_human_judgements_without_a_call(client: httpx.AsyncClient) -> None:
    judged, found = await judge_by_hand(client, {"pool": POOL})
    assert found["stop_reason"] == "found" and found["status"] == "complete" and found["next"] == []
    recall = found["recall"]
    assert recall["probability"] >= OBJECTIVE["in"] and recall["low"] <= recall["expected"] <= recall["high"]
    assert len({id for id in judged if id in RELEVANT}) >= OBJECTIVE["find"] * len(RELEVANT)
    assert len(judged) < len(POOL) / 2
    assert found["min_relevance"] == 0.5 and found["k"] is None and found["relevance"] == "scorer"


async def test_objective_is_answered_by_the_scorer_within_the_budget(client: httpx.AsyncClient) -> None:
    """The answer has every scored document that reaches the minimum."""
    pool = texts(150)
    scores = {document["id"]: score_of(QUERY, document["text"]) for document in pool}
    least = float(np.quantile([*scores.values()], 0.8))
    asked = {"query": QUERY, "pool": pool, "objective": {"find": 0.5}, "min_relevance": least, "explain": True}
    few = answer(await client.post("/select", json={**asked, "budget": 20}))
    assert few["stop_reason"] == "budget" and few["usage"]["cross_encoder_calls"] == 20 and len(few["next"]) == 10
    called = {call["id"] for made in few["rounds"] for call in made["calls"]}
    assert {document["id"] for document in few["documents"]} == {id for id in called if scores[id] >= least}
    assert few["expected_loss"] == pytest.approx(1 - few["recall"]["expected"])
    most = answer(await client.post("/select", json={**asked, "budget": 150, "reuse": False}))
    assert most["stop_reason"] == "found" and most["next"] == [] and most["recall"]["probability"] >= 0.9
    assert few["usage"]["cross_encoder_calls"] < most["usage"]["cross_encoder_calls"] < len(pool)
    default = answer(await client.post("/select", json={**asked, "reuse": False}))
    assert default["usage"]["budget"] == Settings().auto_budget
