"""The scores of a selection: what a calibration makes of them, how long they take, and whether the scorer works."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import ProbabilityMap
from boundarymorph.retrieval.document import VectorSource
from boundarymorph.scoring.scorer import by_witnesses
from boundarymorph.selection import Observation
from boundarymorph.selection.methods import METHODS, TO_PEOPLE, Config
from boundarymorph.selection.pool import Pool, ranks, standardised, witnesses
from boundarymorph.selector.task import SelectionTask
from boundarymorph.telemetry import metrics

WORDS = "words"  # in place of an encoder's name, for vectors that were made from words
FIRST_GUESS = 1e-4  # seconds a character: a tenth of a second for an abstract
MOST_CHARACTERS = 2_048  # counted of a text: most cross-encoders cut it at 512 tokens
OVERHEAD = 50  # characters added for each document
SHARE = 0.5  # of the remaining time that a round is expected to take at most


@dataclass
class CalibratedScores:
    """The scorer's scores of a task's documents, and how relevance is read as a probability.

    reading: turns relevance into a probability, None for relevance as it is; created: when its calibration was made.
    warnings: about it. ranking_only: whether the session only sorts, so that it can get probabilities in place of
    scores. witnesses: what these add, if relevance is what people are expected to find. scores: the scorer's own, by
    position.
    """

    reading: ProbabilityMap | None = None
    created: str | None = None
    warnings: Sequence[str] = ()
    ranking_only: bool = False
    witnesses: float | None = None
    scores: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, task: SelectionTask, vectors: VectorSource, scorer: str | None, encoder: str | None, texts: Sequence[str]
    ) -> CalibratedScores:
        """Take the map of the task's calibration, or say in a warning why not.

        scorer, encoder: names of the models in use, None if they are not known. texts: the first of the pool.
        """
        witnesses, calibration = by_witnesses(scorer, texts) if task.to_people else None, task.calibration
        ranking_only = task.goal == "scores"
        if calibration is None:
            return cls(witnesses=witnesses, ranking_only=ranking_only)
        known = {"lexical": WORDS, "index": encoder, "encoder": encoder}.get(vectors)
        if (why := calibration.stale(scorer, known)) is not None:
            warning = f"the calibration was not used: {why}"
            return cls(warnings=[warning], witnesses=witnesses, ranking_only=ranking_only)
        reading = calibration.maps.get("people" if task.to_people else "scorer")
        return cls(reading, calibration.created if reading else None, (), ranking_only, witnesses)

    def config(self, method: str) -> Config:
        """Return the configuration of a session by the method of this name."""
        return METHODS[method] if self.witnesses is None else replace(TO_PEOPLE, by_witnesses=self.witnesses)

    @property
    def to_people(self) -> bool:
        """Whether relevance is what people are expected to find."""
        return self.witnesses is not None

    def threshold(self, relevance: float) -> float:
        """Convert a minimum relevance, as callers know it, to the scale of the session."""
        return relevance if self.reading is None else self.reading.inverse(relevance)

    def add(self, documents: NDArray[np.intp], scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Keep the scores (n,) of n documents, by position, and return (n,) what the session gets."""
        self.scores.update(zip(documents.tolist(), scores.tolist(), strict=True))
        return self.reading(scores) if self.reading is not None and self.ranking_only else scores

    def original(self, texts: NDArray[np.intp]) -> dict[int, float]:
        """Return the scorer's own scores by position. texts: (N,) numbers, equal for documents that share a score."""
        if self.reading is None and self.witnesses is None:
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


RECENT, PLACES = 30, 256  # queries that are remembered of a place, and places
FEWEST = 5  # scores of a query, from which on they are counted
QUERIES, TO_COMPARE = 3, 10  # that constant or saturated scores need, and those against the witnesses
SAME = 1e-3  # of the greatest score, by which scores that are the same may differ for rounding
EDGE, EDGES = 1e-6, 0.9  # so near to 0 or 1 a score has no order left; the share of such scores that is too many
# A scorer that guesses has a mean rank correlation of 0 with a standard error of .1 over ten queries of ten scores, and
# one whose scores are reversed -.4 to -.9 (docs/evaluation.md).
CONTRARY, ERRORS = -0.2, 3.0  # a mean correlation below 0, and by so many standard errors


class Doubt(StrEnum):
    """Why a scorer seems not to work."""

    CONSTANT = "constant"
    SATURATED = "saturated"
    CONTRARY = "contrary"


@dataclass(frozen=True, slots=True)
class Place:
    """Where scores are compared. scorer: name of the model; index: empty for pools that callers bring."""

    scorer: str
    tenant: str
    index: str


class Seen(NamedTuple):
    """The scores of one query. correlation: of their ranks with those of the witnesses; NaN without any."""

    scores: int
    least: float
    greatest: float
    at_edge: int
    correlation: float


class Trust:
    """Whether scorers work, by place. Kept in the memory of the process."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Place, OrderedDict[int, Seen]] = OrderedDict()

    def warnings(self, place: Place, query: str, pool: Pool, scores: Mapping[int, float]) -> list[str]:
        """Note the scorer's scores of a query, by position in its pool, and say why it seems not to work here."""
        if len(scores) < FEWEST:
            return []
        seen = self._seen.setdefault(place, OrderedDict())
        self._seen.move_to_end(place)
        seen[hash(query)] = _seen(pool, scores)
        seen.move_to_end(hash(query))
        for kept, most in ((seen, RECENT), (self._seen, PLACES)):
            if len(kept) > most:
                kept.popitem(last=False)
        found = _doubt(list(seen.values()))
        if found is None:
            return []
        doubt, text = found
        metrics.scorer_doubts.labels(doubt).inc()
        return [f"the scorer may not work {'on this index' if place.index else 'on these pools'}: {text}"]


def _seen(pool: Pool, scores: Mapping[int, float]) -> Seen:
    documents, values = np.array(list(scores)), np.array(list(scores.values()))
    at_edge = np.count_nonzero((values <= EDGE) | (values >= 1.0 - EDGE))
    correlation = _rank_correlation(values, witnesses(pool)[documents])
    return Seen(len(values), float(values.min()), float(values.max()), int(at_edge), correlation)


def _rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return Spearman's correlation; NaN if one side does not vary."""
    first, second = standardised(ranks(one)), standardised(ranks(other))
    return float(first @ second) / len(one) if first.any() and second.any() else float("nan")


def _doubt(seen: list[Seen]) -> tuple[Doubt, str] | None:
    """Return what is wrong with the scores of these queries, and a sentence about it."""
    if len(seen) < QUERIES:
        return None
    scores, greatest = sum(each.scores for each in seen), max(each.greatest for each in seen)
    if greatest - min(each.least for each in seen) <= SAME * greatest:
        return Doubt.CONSTANT, f"all of its last {scores} scores, of {len(seen)} queries, are {greatest:.3g}"
    share = sum(each.at_edge for each in seen) / scores
    if share >= EDGES:
        return Doubt.SATURATED, (
            f"{share:.0%} of its last {scores} scores, of {len(seen)} queries, are 0 or 1 to six digits, which leaves "
            "no order among them; does it round them, or are they made of numbers that are too large?"
        )
    correlations = np.array([each.correlation for each in seen if not np.isnan(each.correlation)])
    if len(correlations) < TO_COMPARE:
        return None
    mean = float(correlations.mean())
    if mean > CONTRARY or mean + ERRORS * float(correlations.std(ddof=1)) / len(correlations) ** 0.5 >= 0.0:
        return None
    return Doubt.CONTRARY, (
        f"over the last {len(correlations)} queries its scores fall where similarity and words rise (mean rank "
        f'correlation {mean:.2f}); are they reversed? Compare answers with those of "budget": 0'
    )
