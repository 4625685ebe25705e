"""What comes of a selection, and what is known of it on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from boundarymorph.selection import Observation, Pool, Selection, StopReason
from boundarymorph.selection.plane import Places


class Status(StrEnum):
    """How much of what was wanted an answer is: all; what there was time or a scorer for; the first stage's ranking."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    RETRIEVAL_ONLY = "retrieval_only"


class Interruption(StrEnum):
    """Why it ended before the session had its way."""

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


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a task stands before a round.

    calls, cached, reused: as of `SelectionResult`; budget: the task's; expected_loss: as of `SelectionSession`;
    selected: positions in the pool, as believed now; history: the scores of the last round; believed: where the
    task wants it, what is believed of all candidates; bill: as of `SelectionResult`.
    """

    rounds: int
    calls: int
    cached: int
    budget: int
    reused: int
    expected_loss: float
    pool: Pool
    selected: NDArray[np.intp]
    history: Sequence[Observation]
    believed: Selection | None
    bill: Bill | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SelectionResult:
    """What came of it. Of what was deleted while it went on, nothing that was noticed is in the selection.

    history: the scores that were asked for, all of which count against the budget. calls: how many of them the
    cross-encoder computed for this task; cached: how many came from a cache, or from another task that was having the
    same computed. reused: scores that were known before, and took the place of as many calls; expected_loss: share of
    the set's relevance that more calls may have brought; documents: by id, as far as they were fetched; truncated:
    scored pairs that were cut to fit the cross-encoder; bill: what a scorer that costs money took, None of another;
    seconds: by stage, and their total; vectors: where those of the pool are from; believed: as of `Progress`; places:
    where the candidates lie on a map, where the task wants it.
    """

    pool: Pool
    selection: Selection
    history: Sequence[Observation]
    rounds: int
    status: Status
    stop_reason: StopReason | Interruption
    expected_loss: float
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
