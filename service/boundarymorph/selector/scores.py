"""The scores of a selection: what a calibration makes of them, and how long they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Calibrated
from boundarymorph.retrieval.document import VectorSource
from boundarymorph.scoring.scorer import by_witnesses
from boundarymorph.selection import Observation
from boundarymorph.selection.methods import METHODS, TO_PEOPLE, Config
from boundarymorph.selection.pool import Pool
from boundarymorph.selector.task import SelectionTask

WORDS = "words"  # in place of an encoder's name, for vectors that were made from words
FIRST_GUESS = 1e-4  # seconds a character: a tenth of a second for an abstract
MOST_CHARACTERS = 2_048  # counted of a text: most cross-encoders cut it at 512 tokens
OVERHEAD = 50  # characters added for each document
SHARE = 0.5  # of the remaining time that a round is expected to take at most


@dataclass
class CalibratedScores:
    """The scorer's scores of a task's documents, and what its session gets in their place.

    calibration: on the task's pool, None for scores as they are. warnings: about it. ranking_only: whether the session
    only sorts, so that it can get probabilities in any case. witnesses: what these add, if the session makes of scores
    what people are expected to find. scores: the scorer's own, by position.
    """

    calibration: Calibrated | None = None
    warnings: Sequence[str] = ()
    ranking_only: bool = False
    witnesses: float | None = None
    scores: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        task: SelectionTask,
        pool: Pool,
        vectors: VectorSource,
        scorer: str | None,
        encoder: str | None,
        texts: Sequence[str],
    ) -> CalibratedScores:
        """Apply the calibration of a task to its pool, or say in a warning why not.

        scorer, encoder: names of the models in use, None if they are not known. texts: the first of the pool.
        """
        calibration, witnesses = task.calibration, by_witnesses(scorer, texts) if task.to_people else None
        if calibration is None or calibration.form == "none":  # whose judgements were too few to tell
            return cls(witnesses=witnesses)
        known = {"lexical": WORDS, "index": encoder, "encoder": encoder}.get(vectors)
        if (why := calibration.stale(scorer, known)) is not None:
            return cls(warnings=[f"the calibration {calibration.name!r} was not used: {why}"], witnesses=witnesses)
        on_pool = calibration.on(pool)
        warnings = []
        if on_pool.missing:
            lacking = ", ".join(on_pool.missing)
            warnings = [f"the calibration {calibration.name!r} went by the scores alone, as this pool has no {lacking}"]
        return cls(on_pool, warnings, ranking_only=task.goal == "scores", witnesses=witnesses)

    def config(self, method: str) -> Config:
        """Return the configuration of a session by the method of this name."""
        told = self.calibration.near if self.calibration is not None and self.calibration.told else None
        if self.witnesses is None or told == 0.0:
            return METHODS[method]
        return replace(TO_PEOPLE, by_witnesses=self.witnesses, told=told)

    @property
    def told(self) -> bool:
        """Whether the session gets probabilities instead of scores."""
        return self.calibration is not None and (self.calibration.told or self.ranking_only)

    @property
    def to_people(self) -> bool:
        """Whether relevance is what people are expected to find."""
        return self.witnesses is not None or (self.calibration is not None and self.calibration.told)

    @property
    def name(self) -> str | None:
        """The name of the calibration in use."""
        return None if self.calibration is None else self.calibration.name

    @property
    def reading(self) -> Callable[[NDArray[np.float64]], NDArray[np.float64]] | None:
        """How a session is to read the scores that it gets; None if as they are."""
        return None if self.calibration is None or self.calibration.told else self.calibration.read

    def threshold(self, relevance: float) -> float:
        """Convert a minimum relevance to the scale of what the session gets."""
        if self.calibration is None or self.calibration.told:
            return relevance
        return self.calibration.reaching(relevance)

    def add(self, documents: NDArray[np.intp], scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Keep the scores (n,) of n documents, by position, and return (n,) what the session gets."""
        self.scores.update(zip(documents.tolist(), scores.tolist(), strict=True))
        if self.calibration is None or not self.told:
            return scores
        return self.calibration.probability(scores, documents)

    def original(self, texts: NDArray[np.intp]) -> dict[int, float]:
        """Return the scorer's own scores by position. texts: (N,) numbers, equal for documents that share a score."""
        if self.calibration is None and self.witnesses is None:
            return {}
        by_text = {int(texts[position]): score for position, score in self.scores.items()}
        positions = np.flatnonzero(np.isin(texts, list(by_text)))
        return {position: by_text[int(texts[position])] for position in positions.tolist()}

    def history(self, history: Sequence[Observation]) -> Sequence[Observation]:
        """Return the calls of a session with the scorer's own scores."""
        if self.calibration is None:
            return history
        return [replace(observation, score=self.scores[observation.document]) for observation in history]

    def add_known(self, known: Mapping[int, float]) -> dict[int, float]:
        """As `add`, for known scores by position."""
        documents, scores = np.array(list(known), dtype=np.intp), np.array(list(known.values()), dtype=np.float64)
        return dict(zip(known, self.add(documents, scores).tolist(), strict=True))


class Pace:
    """The scorer's recent seconds per character, over the rounds of all selections, queueing included, by which a
    round gets such a size that its scores arrive before the deadline."""

    def __init__(self) -> None:
        self._seconds = FIRST_GUESS

    def at_most(self, documents: int, seconds: float) -> int:
        """Return `documents`, or fewer if not even short ones are likely to be scored in half of these seconds."""
        return max(1, int(min(documents, self._characters(seconds) / OVERHEAD)))

    def fitting(self, texts: Sequence[str], seconds: float) -> int:
        """Return how many of the first texts are likely to be scored in half of these seconds; at least 1."""
        allowed = self._characters(seconds)
        return max(1, sum(total <= allowed for total in accumulate(map(_counted, texts))))

    def took(self, texts: Sequence[str], seconds: float) -> None:
        """Learn from a round, by half of the ratio, so that a wrong estimate is soon corrected in either direction."""
        self._seconds = math.sqrt(self._seconds * _rate(texts, seconds))

    def exceeded(self, texts: Sequence[str], seconds: float) -> None:
        """Learn from a round that was not finished after so many seconds."""
        self._seconds = max(self._seconds, _rate(texts, seconds))

    def _characters(self, seconds: float) -> float:
        return SHARE * seconds / self._seconds


def _rate(texts: Sequence[str], seconds: float) -> float:
    return max(seconds, 1e-6) / sum(map(_counted, texts))


def _counted(text: str) -> int:
    return OVERHEAD + min(len(text), MOST_CHARACTERS)
