"""Define the progress and the result of a selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import (
    BoundaryMorphError,
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
from boundarymorph.notices import TEXTS_LEFT_OUT, Notice
from boundarymorph.remote.wire import Span, TokenCounts
from boundarymorph.retrieval.document import Document, VectorSource
from boundarymorph.retrieval.passages import Passages
from boundarymorph.selection import Observation, Outlook, Pool, Selection, StopReason
from boundarymorph.selection.pool import Trust
from boundarymorph.selector.task import SelectionTask


class Status(StrEnum):
    """How complete a result is.

    Attributes:
        COMPLETE: The session ended by itself.
        PARTIAL: Time or the scorer limited it.
        RETRIEVAL_ONLY: It has only the first stage's ranking.
    """

    COMPLETE = "complete"
    PARTIAL = "partial"
    RETRIEVAL_ONLY = "retrieval_only"


class Interruption(StrEnum):
    """Why a selection ended before its session was done."""

    DEADLINE = "deadline"
    OVERLOADED = "overloaded"
    ENCODER_UNAVAILABLE = "encoder_unavailable"
    ENCODER_FAILED = "encoder_failed"
    RETRIEVER_UNAVAILABLE = "retriever_unavailable"
    RETRIEVER_FAILED = "retriever_failed"
    SCORER_UNAVAILABLE = "scorer_unavailable"
    SCORER_FAILED = "scorer_failed"

    @classmethod
    def from_error(cls, error: BoundaryMorphError) -> Interruption:
        """Return the interruption by an error of INTERRUPTING."""
        return next(_INTERRUPTIONS[kind] for kind in type(error).__mro__ if kind in _INTERRUPTIONS)


_INTERRUPTIONS: dict[type, Interruption] = {
    DeadlineExceeded: Interruption.DEADLINE,
    Overloaded: Interruption.OVERLOADED,
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

    Attributes:
        rounds: The number of rounds so far.
        calls: As in `SelectionResult`.
        cached: As in `SelectionResult`.
        budget: The budget of the task.
        reused: As in `SelectionResult`.
        outlook: The outlook of the current set.
        pool: The candidates.
        selected: Positions in the pool of the current set.
        passages: As in `SelectionResult`.
        history: The calls of the last round.
        tokens: As in `SelectionResult`.
    """

    rounds: int
    calls: int
    cached: int
    budget: int
    reused: int
    outlook: Outlook
    pool: Pool
    selected: NDArray[np.intp]
    passages: Passages
    history: Sequence[Observation]
    tokens: TokenCounts | None = None


@dataclass(frozen=True, slots=True, eq=False)
class QueryAnswers:
    """Which of Q queries were asked and answered.

    Attributes:
        leading: (k,) the query that each document of the set answers best.
        relevance: (Q, k) relevance to each query; NaN where a query did not find the document.
        asked: The query of each call of the history.
    """

    leading: NDArray[np.intp]
    relevance: NDArray[np.float64]
    asked: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """How a set came about.

    Attributes:
        first: The belief about all candidates before the first call.
        last: The belief at the end.
        sets: The set after each round, as positions in the pool.
    """

    first: Selection
    last: Selection
    sets: Mapping[int, NDArray[np.intp]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SelectionResult:
    """The result of a selection, without documents that were deleted meanwhile.

    Attributes:
        task: The task as it was carried out.
        budget: The calls that were allowed; 0 if judgements say that calls make sets worse and the request names no
            budget.
        pool: The candidates.
        selection: The set.
        passages: The passages among the candidates; the set has at most one of each document.
        history: The scores that were asked for, all of which count against the budget.
        rounds: The number of rounds.
        status: How complete the result is.
        stop_reason: Why the selection ended.
        outlook: The loss that the set is expected to have, and the gain of more calls.
        calls: The scores that the cross-encoder computed for this task.
        cached: The scores that came from a cache, or from another task that was computing the same pair.
        reused: The scores known before, which replaced as many calls.
        documents: The documents that were read, by id.
        truncated: The scored pairs that were cut to fit the cross-encoder.
        scorer_requests: The number of requests to the scorer.
        seconds: The seconds by stage, and their total.
        warnings: The warnings.
        vectors: The source of the pool's vectors.
        explained: How the set came about, if the task asks for it and anything was believed.
        tokens: The tokens that a language model read and wrote.
        calibration: When the calibration in use was made.
        human: Whether relevance is the one that people are expected to find.
        model: The full name of the scorer; None if unknown.
        trust: The trust in the scorer.
        scores: The scorer's own scores, by position, where relevance differs from them.
        answered: The queries, in a task with several.
        proposals: With a target, the documents to read next, with their probabilities to reach `min_relevance`.
        spans: The relevant parts of the texts that were scored for this task, by text.
        has_texts: Whether the answer has the texts.
    """

    task: SelectionTask
    budget: int
    pool: Pool
    selection: Selection
    passages: Passages
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
    scorer_requests: int
    seconds: Mapping[str, float]
    warnings: Sequence[Notice]
    vectors: VectorSource
    explained: Explanation | None = None
    tokens: TokenCounts | None = None
    calibration: str | None = None
    human: bool = False
    model: str | None = None
    trust: Trust = "normal"
    scores: Mapping[int, float] = field(default_factory=dict)
    answered: QueryAnswers | None = None
    proposals: Selection | None = None
    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    has_texts: bool = False

    def without_texts(self) -> SelectionResult:
        """Return the result without the texts, which would take more bytes than an answer may have."""
        return replace(self, has_texts=False, warnings=[*self.warnings, TEXTS_LEFT_OUT])

    def spans_in(self, document: Document) -> list[Span] | None:
        """Return the relevant parts of a document's text; None if the scorer named none.

        The scorer read the text after its title. The places of a passage's parts are places in the whole text.
        """
        passage = self.passages.by_id.get(document.id)
        before = len(document.content) - len(document.text) - (0 if passage is None else passage.start)
        found = [
            Span(max(0, start - before), end - before, score)
            for start, end, score in self.spans.get(document.content, ())
        ]
        return [span for span in found if span.end > 0] or None
