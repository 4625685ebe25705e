"""The tests that every Scorer passes.

A test class inherits them, and provides the fixture `scorer`.
"""

import asyncio

import numpy as np

from boundarymorph.scoring.scorer import Scorer

QUERY = "how often do trams run?"
TEXTS = [
    "Trams run every ten minutes on weekdays.",
    "A violin has four strings.",
    "",
    "The timetable of the tram: one leaves each quarter of an hour.",
    "Ärzte empfehlen 8 Stunden Schlaf 🙂",
]


class ScorerContract:
    async def test_scorer_returns_floats_within_0_and_1(self, scorer: Scorer) -> None:
        scores = await scorer.score(QUERY, TEXTS)
        assert scores.values.shape == (len(TEXTS),)
        assert scores.values.dtype == np.float64
        assert ((scores.values >= 0) & (scores.values <= 1)).all()
        assert scores.truncated == 0

    async def test_scorer_gives_a_pair_one_score_in_any_batch(self, scorer: Scorer) -> None:
        together = (await scorer.score(QUERY, TEXTS)).values
        backwards = (await scorer.score(QUERY, TEXTS[::-1])).values[::-1]
        concurrently = await asyncio.gather(
            *(scorer.score(QUERY, [text]) for text in TEXTS), scorer.score("what has four strings?", TEXTS)
        )
        np.testing.assert_array_equal(together, backwards)
        np.testing.assert_array_equal(together, [scores.values[0] for scores in concurrently[:-1]])

    async def test_scorer_accepts_no_texts(self, scorer: Scorer) -> None:
        scores = await scorer.score(QUERY, [])
        assert scores.values.shape == (0,)
        assert scores.values.dtype == np.float64
