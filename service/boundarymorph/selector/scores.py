"""Calibrate the scores of a selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
