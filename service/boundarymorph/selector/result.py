"""The result of a selection, and its progress before each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import (
    BoundaryMorphError,
    CostCeiling,
    DeadlineExceeded,
    EncoderFailed,
    EncoderUnavailable,
    Overloaded,
    RetrieverFailed,
    RetrieverUnavailable,
    ScorerFailed,
    ScorerUnavailable,
    StorageUnavailable,
)
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.retriever import VectorSource
from boundarymorph.scoring.bill import Bill
from boundarymorph.selection import Observation, Outlook, Pool, Selection, StopReason
from boundarymorph.selection.plane import Places


class Status(StrEnum):
    """How complete a result is: complete; limited by time or the scorer; only the first stage's ranking."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    RETRIEVAL_ONLY = "retrieval_only"


class Interruption(StrEnum):
    """Why a selection ended before its session was done."""

    DEADLINE = "deadline"
    OVERLOADED = "overloaded"
    COST_CEILING = "cost_ceiling"
    ENCODER_UNAVAILABLE = "encoder_unavailable"
    ENCODER_FAILED = "encoder_failed"
    RETRIEVER_UNAVAILABLE = "retriever_unavailable"
    RETRIEVER_FAILED = "retriever_failed"
    SCORER_UNAVAILABLE = "scorer_unavailable"
    SCORER_FAILED = "scorer_failed"

    @classmethod
    def of(cls, error: BoundaryMorphError) -> Interruption:
        """error: one of INTERRUPTING."""
        return next(_INTERRUPTIONS[kind] for kind in type(error).__mro__ if kind in _INTERRUPTIONS)


_INTERRUPTIONS: dict[type, Interruption] = {
    DeadlineExceeded: Interruption.DEADLINE,
    Overloaded: Interruption.OVERLOADED,
    CostCeiling: Interruption.COST_CEILING,
    EncoderUnavailable: Interruption.ENCODER_UNAVAILABLE,
    EncoderFailed: Interruption.ENCODER_FAILED,
    RetrieverUnavailable: Interruption.RETRIEVER_UNAVAILABLE,
    StorageUnavailable: Interruption.RETRIEVER_UNAVAILABLE,
    RetrieverFailed: Interruption.RETRIEVER_FAILED,
    ScorerUnavailable: Interruption.SCORER_UNAVAILABLE,
    ScorerFailed: Interruption.SCORER_FAILED,
}
INTERRUPTING: tuple[type[BoundaryMorphError], ...] = tuple(_INTERRUPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a task before a round.

    calls, cached, reused, bill: as in `SelectionResult`; budget: the task's; outlook: of the current set;
    selected: positions in the pool of the current set; history: the scores of the last round; believed: the belief
    about all candidates, if the task asks for it. asked: for each of the history, of which query, if there are several.
    """

    rounds: int
    calls: int
    cached: int
    budget: int
    reused: int
    outlook: Outlook
    pool: Pool
    selected: NDArray[np.intp]
    history: Sequence[Observation]
    believed: Selection | None
    bill: Bill | None = None
    asked: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """Which of Q queries was asked or answered. leading: (k,) the query that each document of the set answers best;
    relevance: (Q, k) to each, NaN where a query did not find the document; asked: for each call of the history."""

    leading: NDArray[np.intp]
    relevance: NDArray[np.float64]
    asked: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SelectionResult:
    """The result of a selection. Documents that were found to be deleted meanwhile are not in it.

    history: the scores that were asked for, all of which count against the budget. calls: how many of them the
    cross-encoder computed for this task; cached: how many came from a cache, or from another task that was computing
    the same pair. reused: scores known before, which replaced as many calls; outlook: what the set is
    expected to miss, and what more calls would bring; documents: by id, as far as they were fetched; truncated: scored
    pairs that were cut to fit the cross-encoder; bill: what a scorer that costs money charged, None for others;
    seconds: by stage, and their total; vectors: the source of the pool's vectors; believed: as in `Progress`;
    places: the candidates' positions on a map, if the task asks for it. calibration: the name of that in use; scores:
    the scorer's own, by position, where relevance is something else. answered: of a task with several queries.
    """

    pool: Pool
    selection: Selection
    history: Sequence[Observation]
    rounds: int
    status: Status
    stop_reason: StopReason | Interruption
    outlook: Outlook
    calls: int
    cached: int
    reused: int
    documents: Mapping[str, Document]
    truncated: int
    seconds: Mapping[str, float]
    warnings: Sequence[str]
    vectors: VectorSource
    believed: Selection | None
    places: Places | None
    bill: Bill | None = None
    calibration: str | None = None
    scores: Mapping[int, float] = field(default_factory=dict)
    answered: Answered | None = None
