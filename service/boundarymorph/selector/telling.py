"""The session of a task, and what it is told: the scores, or what a calibration makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Calibrated
from boundarymorph.retrieval.retriever import VectorSource
from boundarymorph.selection import Distinct, ExhaustiveSession, Observation, Pool, SelectionSession, capacity_of
from boundarymorph.selection.methods import METHODS
from boundarymorph.selector.task import SelectionTask

Session = SelectionSession | ExhaustiveSession
WORDS = "words"  # in place of an encoder's name, for vectors that were made from words


@dataclass
class Telling:
    """calibrated: on the pool of the task, None if scores are told as they are. warnings: about it. sorts: whether the
    session only sorts, and so can be told probabilities in any case. scores: the scorer's own, by position."""

    calibrated: Calibrated | None = None
    warnings: Sequence[str] = ()
    sorts: bool = False
    scores: dict[int, float] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """The calibration in use."""
        return None if self.calibrated is None else self.calibrated.name

    @property
    def reading(self) -> Callable[[NDArray[np.float64]], NDArray[np.float64]] | None:
        """How a session is to read the scores that it is told; None if as they are."""
        return None if self.calibrated is None or self.calibrated.told else self.calibrated.read

    def least(self, relevance: float | None) -> float | None:
        """The minimum relevance in terms of what the session is told."""
        if relevance is None or self.calibrated is None or self.calibrated.told:
            return relevance
        return self.calibrated.reaching(relevance)

    def told(self, documents: NDArray[np.intp], scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Note the scores of these documents, and return what to tell."""
        self.scores.update(zip(documents.tolist(), scores.tolist(), strict=True))
        if self.calibrated is None or not (self.calibrated.told or self.sorts):
            return scores
        return self.calibrated.probability(scores, documents)

    def told_of(self, known: Mapping[int, float]) -> dict[int, float]:
        """The same for known scores by position."""
        documents, scores = np.array(list(known), dtype=np.intp), np.array(list(known.values()), dtype=np.float64)
        return dict(zip(known, self.told(documents, scores).tolist(), strict=True))

    def scores_of(self, numbers: NDArray[np.intp]) -> dict[int, float]:
        """The scorer's own scores by position. numbers: (N,), equal for documents that share theirs."""
        if self.calibrated is None:
            return {}
        shared = {int(numbers[position]): score for position, score in self.scores.items()}
        return {position: shared[number] for position, number in enumerate(numbers.tolist()) if number in shared}

    def history(self, history: Sequence[Observation]) -> Sequence[Observation]:
        """The calls with the scorer's own scores."""
        if self.calibrated is None:
            return history
        return [replace(observation, score=self.scores[observation.document]) for observation in history]


def telling(task: SelectionTask, pool: Pool, vectors: VectorSource, scorer: str | None, encoder: str | None) -> Telling:
    """What the session of a task is told. scorer, encoder: names of the models in use, None if they are not known."""
    calibration = task.calibration
    if calibration is None:
        return Telling()
    known = {"lexical": WORDS, "index": encoder, "encoder": encoder}.get(vectors)
    if (why := calibration.stale(scorer, known)) is not None:
        return Telling(warnings=[f"the calibration {calibration.name!r} was not used: {why}"])
    if calibration.form == "none":
        why = f"the calibration {calibration.name!r} changes nothing: its judgements were too few to tell"
        return Telling(warnings=[why])
    calibrated = calibration.on(pool)
    warnings = []
    if calibrated.missing:
        lacking = ", ".join(calibrated.missing)
        warnings = [f"the calibration {calibration.name!r} went by the scores alone, as this pool has no {lacking}"]
    return Telling(calibrated, warnings, sorts=task.goal == "scores")


def session_of(
    task: SelectionTask,
    pool: Pool,
    telling: Telling,
    scores: Mapping[int, float],
    reused: int,
    lengths: NDArray[np.float64] | None,
    distinct: Distinct | None,
) -> Session:
    """The session of a task. scores: known ones by position, of which `reused` replace calls; lengths: (N,) in tokens,
    if max_tokens is set."""
    known = telling.told_of(scores)
    if task.goal == "scores":
        return ExhaustiveSession(pool, known)
    return SelectionSession(
        pool,
        budget=max(0, task.budget - reused),
        k=capacity_of(k=task.k, lengths=lengths, max_tokens=task.max_tokens),
        config=METHODS[task.method],
        known=known,
        settle=task.settle,
        call_cost=task.call_cost,
        order=task.goal != "set",
        min_relevance=telling.least(task.min_relevance),
        distinct=distinct,
        negligible=task.negligible,
        diversity=task.diversity,
        reading=telling.reading,
    )
