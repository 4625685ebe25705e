"""Test a scorer with a few pairs, and name the mistakes of a wrong set-up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput, ScorerFailed
from boundarymorph.scoring.scorer import Scorer

PAIRS = (  # a query, and the one text that answers it
    ("how do bees make honey", "Bees collect nectar from flowers and thicken it to honey in the cells of their comb."),
    ("when was the printing press invented", "Gutenberg built the first printing press with movable type around 1440."),
    ("why is the sky blue", "The sky looks blue because air scatters the short, blue waves of sunlight the most."),
    ("how to change a bicycle tyre", "Take off the wheel, lever the tyre of the bicycle over the rim, fit a new one."),
    ("what does the heart do", "The heart pumps blood through the body, which carries oxygen to all organs."),
    ("which city is the capital of Portugal", "Lisbon is the capital of Portugal and its largest city."),
)
QUERIES, TEXTS = [query for query, _ in PAIRS], [text for _, text in PAIRS]
PROBE = "probe"
MIDDLE = 3  # the query by which the order of scores is tested: its text is neither first nor last
RETEST_SECONDS = 60.0  # seconds after a failed test
LONG = 20_000  # characters of the long text
SAME = 0.02  # most difference between two scores of one pair, in half precision and other batches
FLAT = 1e-4  # smaller differences count as equal
LEAST_WON = 4  # number of queries whose own text must have the best score
REVERSED = 0.35  # a share of won comparisons that is worse than chance

Score = Callable[[str, Sequence[str]], Awaitable[NDArray[np.float64]]]


class FaultyScorer(ScorerFailed):
    slug = "scorer-failed"


class ScorerProbe:
    """A small call of a scorer, which also tests each model there until the model passes."""

    def __init__(self, scorer: Scorer, *, tests: bool = True) -> None:
        """Set the scorer.

        Args:
            scorer: A scorer without a cache, which would answer instead.
            tests: Whether to test models.
        """
        self._scorer, self._tests = scorer, tests
        self._model: str | None = None
        self._test: asyncio.Task[str | None] | None = None
        self._again = 0.0

    async def __call__(self, deadline: float) -> None:
        """Score a short pair.

        Raises the errors of `Scorer.score`, and FaultyScorer once a test has found the fault.
        """
        answer = await self._scorer.score(PROBE, [PROBE], deadline=deadline)
        model = answer.model or self._scorer.name
        if self._tests and (self._test is None or model != self._model):
            self._model, self._test = model, asyncio.create_task(trouble_of(self._scorer))
            self._again = time.monotonic() + RETEST_SECONDS
        if self._test is None:
            return
        await asyncio.wait({self._test}, timeout=max(0.0, (deadline - time.monotonic()) / 2))
        if not self._test.done():
            return
        if self._test.cancelled() or self._test.exception() is not None:
            self._test = None  # the next probe tests again
        elif (trouble := self._test.result()) is not None:
            if time.monotonic() >= self._again:
                self._test = None  # its server may have been repaired under the same name
            raise FaultyScorer(f"{self._model}: {trouble} (scorer.self_test = false leaves the test out)")


async def trouble_of(scorer: Scorer) -> str | None:
    """Score about fifty short pairs and a long one, and return the scorer's fault, if any.

    Raises the errors of `Scorer.score`, except ScorerFailed and InvalidInput.
    """

    async def score(query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        return (await scorer.score(query, texts)).values

    try:
        scores = np.stack([await score(query, TEXTS) for query in QUERIES])
        again = await score(QUERIES[MIDDLE], TEXTS)
        alone = np.concatenate([await score(QUERIES[MIDDLE], [text]) for text in TEXTS])
        trouble = _of_nothing_read(scores) or _of_order(scores[MIDDLE], again, alone) or _of_relevance(scores)
        return trouble or await _of_long_texts(score)
    except ScorerFailed as error:
        return f"its answer cannot be used: {error}"


def _of_nothing_read(scores: NDArray[np.float64]) -> str | None:
    if not np.isfinite(scores).all():
        return "it gives no number for some pairs"
    if np.ptp(scores) < FLAT:
        return f"it gives every pair the same score, {scores[0, 0]:.3g}: is it a reranker, and are its inputs read?"
    if np.ptp(scores, axis=1).max() < FLAT:
        return "its scores do not depend on the text: is the text cut to nothing, or missing in the template?"
    if np.ptp(scores, axis=0).max() < FLAT:
        return "its scores do not depend on the query: is the query missing in the template?"
    return None


def _of_order(batch: NDArray[np.float64], again: NDArray[np.float64], alone: NDArray[np.float64]) -> str | None:
    """Return the fault of the scores of one query's texts in equal batches and one by one."""
    if np.abs(batch - again).max() > SAME:
        return "it gives the same pairs other scores each time: is a layer untrained, or dropout on?"
    if np.abs(batch - alone).max() <= SAME:
        return None
    if any(np.abs(np.roll(alone, by) - batch).max() <= SAME for by in (1, -1)):
        return "the scores of a batch are shifted by one text: its server loses or adds an item"
    if np.abs(np.sort(alone) - np.sort(batch)).max() <= SAME:
        return "the scores of a batch come in another order than the texts: does its server sort them?"
    return "the score of a pair depends on the other pairs of its batch: is padding read, or a batch normalised?"


def _of_relevance(scores: NDArray[np.float64]) -> str | None:
    """Return the fault of (n, n) scores of n queries with n texts, best on the diagonal."""
    own = np.diag(scores)
    others = scores[~np.eye(len(scores), dtype=np.bool_)].reshape(len(scores), -1)
    better = float(np.mean(own[:, np.newaxis] > others) + np.mean(own[:, np.newaxis] == others) / 2)
    won = int((own > others.max(axis=1)).sum())
    if better < REVERSED:
        return (
            "it gives answers lower scores than other texts: are its labels swapped, or are the scores distances, of "
            "which the lowest is best?"
        )
    if won < LEAST_WON:
        return (
            f"it finds the answers to {won} of {len(scores)} plain questions: is it a reranker, with the template that "
            "it was trained with?"
        )
    return None


async def _of_long_texts(score: Score) -> str | None:
    filler = "This sentence is here for its length. "
    text = TEXTS[0] + " " + filler * (LONG // len(filler))
    try:
        (value,) = await score(QUERIES[0], [text])
    except (ScorerFailed, InvalidInput) as error:
        return f"it fails on a text of {len(text):,} characters: {error}"
    return None if np.isfinite(value) else f"it gives no number for a text of {len(text):,} characters"
