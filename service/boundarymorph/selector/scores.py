"""Calibrate the scores of a selection, and predict how long scoring takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import ProbabilityMap
from boundarymorph.calibration.shipped import NAME, shipped_map
from boundarymorph.notices import Notice
from boundarymorph.retrieval.document import VectorSource
from boundarymorph.scoring.rerankers import trust_of
from boundarymorph.selection import Observation, Selection
from boundarymorph.selection.methods import HUMAN_CONFIG, METHODS, Config
from boundarymorph.selection.pool import SIGNAL_WEIGHTS, Trust
from boundarymorph.selector.task import SelectionTask

WORDS = "words"  # stands for an encoder's name where vectors were made from words
FIRST_GUESS = 1e-4  # seconds per character: a tenth of a second for an abstract
MOST_CHARACTERS = 2_048  # characters that count: most cross-encoders cut texts at 512 tokens
OVERHEAD = 50  # characters added for each document
SHARE = 0.5  # largest share of the remaining time that a round may be expected to take
HARMFUL = Notice(
    "harmful-scorer", "by its judgements, this scorer makes sets worse here; leave out 'budget' to make no calls"
)
SPARED = Notice(
    "harmful-scorer-not-called",
    "no call was made: by its judgements, this scorer makes sets worse here; a 'budget' in the request makes calls",
)


@dataclass
class CalibratedScores:
    """The scorer's scores of a task's documents, and how relevance is read as a probability.

    Attributes:
        reading: Maps relevance to a probability; None for relevance itself.
        created: When the calibration was made.
        ranking_only: Whether the session only sorts, so that it can get probabilities in place of scores.
        human: Whether relevance is the one that people are expected to find.
        trust: The trust in the scorer.
        harmful: Whether judgements say that calls make sets worse.
        shipped: The map that ships, if there is no calibration to use. It is applied to the answer alone.
        scores: The scorer's own scores, by position.
    """

    reading: ProbabilityMap | None = None
    created: str | None = None
    ranking_only: bool = False
    human: bool = False
    trust: Trust = "normal"
    harmful: bool = False
    shipped: ProbabilityMap | None = None
    scores: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        task: SelectionTask,
        vectors: VectorSource,
        scorer: str | None,
        encoder: str | None,
        trust: Trust | None = None,
    ) -> tuple[CalibratedScores, list[Notice]]:
        """Return the scores of a task, with the map of its calibration, or a warning why not.

        Args:
            task: The task.
            vectors: The source of the pool's vectors.
            scorer: The name of the scorer; None if unknown.
            encoder: The name of the encoder; None if unknown.
            trust: The declared trust in the scorer.
        """
        calibration, trusted = task.relevance.calibration, task.relevance.trust or trust_of(scorer, trust)
        ranking_only, human = task.spending.goal == "scores", task.relevance.human
        shipped = shipped_map(scorer) if task.relevance.shipped and human else None
        bare = cls(None, None if shipped is None else NAME, ranking_only, human, trusted, shipped=shipped)
        if calibration is None:
            return bare, []
        known = {"lexical": WORDS, "index": encoder, "encoder": encoder}.get(vectors)
        if (why := calibration.staleness(scorer, known)) is not None:
            return bare, [Notice("calibration-not-used", f"the calibration was not used: {why}")]
        reading, measured = calibration.maps.get("human" if human else "scorer"), calibration.trust
        harmful = measured == "none" and human
        if task.relevance.trust is None and measured is not None:
            trusted = "weak" if measured == "none" else measured
        used = reading is not None or (measured is not None and human)
        return cls(reading, calibration.created if used else None, ranking_only, human, trusted, harmful), []

    def config(self, method: str) -> Config:
        """Return the configuration of a session by the method of this name."""
        if not self.human:
            return METHODS[method]
        return replace(HUMAN_CONFIG, signal_weight=SIGNAL_WEIGHTS[self.trust])

    def threshold(self, relevance: float) -> float:
        """Convert a minimum relevance, as callers know it, to the scale of the session."""
        return relevance if self.reading is None else self.reading.inverse(relevance)

    def threshold_of_set(self, relevance: float) -> float:
        """Convert a minimum relevance of the set, which the shipped map turns into probabilities."""
        return self.threshold(relevance) if self.shipped is None else self.shipped.inverse(relevance)

    def read(self, selection: Selection) -> Selection:
        """Return the selection in the same order, with relevance as a probability if a map ships."""
        if self.shipped is None:
            return selection
        low, relevance, high = (self.shipped(selection.relevance + side * selection.std) for side in (-1, 0, 1))
        return replace(selection, relevance=relevance, std=(high - low) / 2)

    def add(self, documents: NDArray[np.intp], scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Keep the (n,) scores of n documents, by position, and return (n,) values for the session."""
        self.scores.update(zip(documents.tolist(), scores.tolist(), strict=True))
        return self.reading(scores) if self.reading is not None and self.ranking_only else scores

    def original_scores(self, texts: NDArray[np.intp]) -> dict[int, float]:
        """Return the scorer's own scores by position.

        Args:
            texts: (N,) numbers, equal for documents that share a score.
        """
        if self.reading is None and not self.human:
            return {}
        by_text = {int(texts[position]): score for position, score in self.scores.items()}
        positions = np.flatnonzero(np.isin(texts, list(by_text)))
        return {position: by_text[int(texts[position])] for position in positions.tolist()}

    def history(self, history: Sequence[Observation]) -> Sequence[Observation]:
        """Return the calls of a session with the scorer's own scores."""
        if self.reading is None:
            return history
        return [replace(observation, score=self.scores[observation.document]) for observation in history]

    def add_known(self, known: Mapping[int, float]) -> dict[int, float]:
        """Keep known scores by position, and return the values for the session."""
        documents, scores = np.array(list(known), dtype=np.intp), np.array(list(known.values()), dtype=np.float64)
        return dict(zip(known, self.add(documents, scores).tolist(), strict=True))


class Pace:
    """The scorer's recent seconds per character, which limit rounds so that they end in time.

    They are measured over the rounds of all selections, with queueing.
    """

    def __init__(self) -> None:
        self._seconds = FIRST_GUESS

    def limit(self, documents: int, seconds: float) -> int:
        """Return `documents`, or fewer if even short ones would take too long.

        They should be scored in half of these seconds.
        """
        return max(1, int(min(documents, self._characters(seconds) / OVERHEAD)))

    def count_fitting(self, texts: Sequence[str], seconds: float) -> int:
        """Return how many of the first texts are likely to be scored in half of these seconds.

        It is at least 1.
        """
        allowed = self._characters(seconds)
        return max(1, sum(total <= allowed for total in accumulate(map(_counted, texts))))

    def record(self, texts: Sequence[str], seconds: float) -> None:
        """Learn from a round, by half of the ratio, so that a wrong estimate is soon corrected."""
        self._seconds = math.sqrt(self._seconds * _rate(texts, seconds))

    def record_timeout(self, texts: Sequence[str], seconds: float) -> None:
        """Learn from a round that was not finished after `seconds`."""
        self._seconds = max(self._seconds, _rate(texts, seconds))

    def _characters(self, seconds: float) -> float:
        return SHARE * seconds / self._seconds


def _rate(texts: Sequence[str], seconds: float) -> float:
    return max(seconds, 1e-6) / sum(map(_counted, texts))


def _counted(text: str) -> int:
    return OVERHEAD + min(len(text), MOST_CHARACTERS)
