"""Test the self-test of a scorer, which reports wrong configurations."""

import asyncio
import math
import random
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from boundarymorph.scoring import selftest
from boundarymorph.scoring.selftest import FaultyScorer, ScorerProbe, trouble_of
from tests.fakes.wires import Ours, running, scoring
from tests.patience import PATIENCE

Score = Callable[[str, list[str]], list[Any]]


def overlap(query: str, text: str) -> float:
    """Score by common words, which works."""
    words = set(re.findall(r"\w{4,}", query.lower()))
    shared = sum(any(word[:5] in other for other in text.lower().split()) for word in words)
    return 1 / (1 + math.exp(4 - 8 * shared / max(1, len(words))))


def works(query: str, texts: list[str]) -> list[Any]:
    return [overlap(query, text) for text in texts]


def each(change: Callable[[float], Any]) -> Score:
    return lambda query, texts: [change(score) for score in works(query, texts)]


BROKEN: dict[str, tuple[Score, str]] = {
    "swapped labels": (each(lambda score: 1 - score), "labels swapped"),
    "distances": (each(lambda score: 0.4 - score / 4), "lowest is best"),
    "no activation": (each(lambda score: 8 * score - 4), "raw logit"),
    "constant": (each(lambda score: 0.5), "every pair the same score, 0.5"),
    "another template": (lambda query, texts: [len(text) % 17 / 17 for text in texts], "do not depend on the query"),
    "a template for other models": (
        lambda query, texts: [random.Random(query + text).random() for text in texts],
        "template that it was trained with",
    ),
    "truncated to nothing": (lambda query, texts: [len(query) / 99] * len(texts), "do not depend on the text"),
    "random": (lambda query, texts: [random.random() for _ in texts], "other scores each time"),
    "NaN on long texts": (
        lambda query, texts: [None if len(text) > 4_000 else overlap(query, text) for text in texts],
        "it fails on a text of 20,",
    ),
    "sorted answers": (lambda query, texts: sorted(works(query, texts), reverse=True), "another order than the texts"),
    "off by one": (lambda query, texts: works(query, [*texts[1:], texts[0]]), "shifted by one"),
    "normalised in a batch": (
        lambda query, texts: [score / sum(works(query, texts)) for score in works(query, texts)],
        "depends on the other pairs",
    ),
}


class Scoring(Ours):
    """A server that scores with the given function."""

    def __init__(self, score: Score, model: str = "stand-in") -> None:
        super().__init__(model)
        self.score = score

    def reply(self, body: dict[str, Any]) -> Any:
        reply = super().reply(body)
        reply.body["scores"] = self.score(body["query"], body["texts"])
        return reply


async def found(score: Score) -> str | None:
    async with running(Scoring(score)) as servers, scoring(*servers) as scorer:
        return await trouble_of(scorer)


async def test_self_test_passes_a_working_scorer() -> None:
    assert await found(works) is None
    noisy = random.Random(1)
    assert await found(each(lambda score: min(1, score + noisy.uniform(0, 0.009)))) is None, "half precision"
    assert await found(each(lambda score: score**8)) is None, "saturated"


@pytest.mark.parametrize("what", BROKEN)
async def test_self_test_names_the_fault_of_a_broken_scorer(what: str) -> None:
    score, said = BROKEN[what]
    trouble = await found(score)
    assert trouble is not None and said in trouble


async def test_scorer_probe_tests_each_model_once() -> None:
    wire = Scoring(works, "first")
    async with running(wire) as servers, scoring(*servers) as scorer:
        probe = ScorerProbe(scorer)
        await until_tested(probe)
        asked = len(servers[0].asked)
        await probe(time.monotonic() + PATIENCE)
        assert len(servers[0].asked) == asked + 1
        wire.score, wire.model = BROKEN["swapped labels"][0], "second"
        wire.description = {"model": "second", "max_texts": 512}
        with pytest.raises(FaultyScorer, match=r"second: .*labels swapped.*scorer.self_test"):
            await until_tested(probe)
        await ScorerProbe(scorer, tests=False)(time.monotonic() + PATIENCE)


async def test_scorer_probe_tests_a_failed_scorer_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "RETEST_SECONDS", 0.0)
    wire = Scoring(BROKEN["swapped labels"][0])
    async with running(wire) as servers, scoring(*servers) as scorer:
        probe = ScorerProbe(scorer)
        with pytest.raises(FaultyScorer):
            await until_tested(probe)
        wire.score = works
        await until_tested(probe)


async def until_tested(probe: ScorerProbe) -> None:
    deadline = time.monotonic() + PATIENCE
    for _ in range(2):  # the first round may detect another model
        await probe(deadline)
        await asyncio.sleep(0)
