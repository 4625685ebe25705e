"""A selection from outside: its task, its progress before each round, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Calibration
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
from boundarymorph.inference.deadline import NEVER, Deadline
from boundarymorph.retrieval.candidates import Candidates
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.retriever import Retriever, VectorSource
from boundarymorph.scoring.bill import Bill
from boundarymorph.selection import Observation, Outlook, Pool, Selection, StopReason
from boundarymorph.selection.methods import DEFAULT
from boundarymorph.selection.pool import Places
from boundarymorph.selector.documents import FREE, Grouping, Room

Goal = Literal["set", "order", "ranking", "scores"]
Accepted = Literal["complete", "scored", "anything"]


@dataclass(frozen=True, slots=True)
class WeightedQuery:
    """One of several queries, with its candidates. weight: above 0 and up to 1."""

    query: str
    weight: float
    candidates: Callable[[Retriever], Candidates]


@dataclass(frozen=True, slots=True)
class SelectionTask:
    """Find the best documents for a query with at most `budget` calls.

    candidates: made by the retriever. k: documents to return, or None for as many as fit into max_tokens.
    min_relevance: of these, only those that are more likely than not to score at least this. distinct: at most so
    many documents of a group. negligible, diversity: as in `SelectionSession`. goal: what calls are spent
    on: the set; or, if every document fits into it, its order; or the ranking of all candidates; or the scores of all.
    batch_size: the most calls per round; growing: whether rounds begin small and grow (`selection.rounds`). settle:
    stop when the expected loss is at most this share of the set's relevance. method: a name in `methods.METHODS`.
    deadline: when the current set becomes the result. accepts: the result after the deadline or a failure of scorer or
    retriever: only a complete one, or else their error; or an incomplete one, but Overloaded if nothing was scored for
    lack of capacity; or any. reuse: whether scores known from earlier tasks are evidence that replaces calls. caller:
    the name of the key that pays if scores cost money. tenant: whose known scores are used. return_documents:
    whether the result has their texts. explain_pool: whether progress and result contain the belief about all
    candidates. calibration: makes relevance a probability. instruction: for the scorer, if it takes one.
    excluded: ids of candidates that are not selected and not scored; what is known of their scores is evidence, and
    replaces no call. queries: instead of the query and its candidates, for one set of what answers any of them.
    room: where its memory is counted.
    """

    query: str
    candidates: Callable[[Retriever], Candidates]
    budget: int
    k: int | None
    max_tokens: int | None = None
    min_relevance: float | None = None
    distinct: Grouping | None = None
    negligible: float = 0.0
    diversity: float = 0.0
    goal: Goal = "order"
    batch_size: int = 1
    growing: bool = False
    settle: float | None = None
    method: str = DEFAULT
    deadline: Deadline = NEVER
    accepts: Accepted = "anything"
    reuse: bool = True
    caller: str = ""
    tenant: str = ""
    return_documents: bool = False
    explain_pool: bool = False
    calibration: Calibration | None = None
    instruction: str | None = None
    excluded: frozenset[str] = frozenset()
    queries: Sequence[WeightedQuery] = ()
    room: Room = FREE

    @property
    def ranks_all(self) -> bool:
        """Whether the result has all candidates instead of k."""
        return self.goal in ("ranking", "scores")


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
    believed: Selection | None = None
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
    believed: Selection | None = None
    places: Places | None = None
    bill: Bill | None = None
    calibration: str | None = None
    scores: Mapping[int, float] = field(default_factory=dict)
    answered: Answered | None = None
