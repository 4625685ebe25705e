"""The progress and the result of a selection."""

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
    """How complete a result is: complete; limited by time or the scorer; only the first stage's ranking."""

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
    def of(cls, error: BoundaryMorphError) -> Interruption:
        """error: one of INTERRUPTING."""
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

    calls, cached, reused, tokens: as in `SelectionResult`; budget: the task's; outlook: of the current set;
    selected: positions in the pool of the current set; passages: as in `SelectionResult`; history: the scores of the
    last round.
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
class Answered:
    """Which of Q queries was asked or answered. leading: (k,) the query that each document of the set answers best;
    relevance: (Q, k) to each, NaN where a query did not find the document; asked: for each call of the history."""

    leading: NDArray[np.intp]
    relevance: NDArray[np.float64]
    asked: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """How a set came about. first, last: the belief about all candidates before the first call and at the end. sets:
    the set after each round, as positions in the pool."""

    first: Selection
    last: Selection
    sets: Mapping[int, NDArray[np.intp]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SelectionResult:
    """The result of a selection. Documents that were found to be deleted meanwhile are not in it.

    task: as it was carried out. passages: among the candidates, of which the set has at most one of each document.
    budget: the calls that it was allowed, 0 if by judgements they make sets worse and the request names no budget.
    history: the scores that were asked for, all of which count against it. calls: how many of them the cross-encoder
    computed for this task; cached: how many came from a cache, or from another task that was computing the same pair.
    reused: scores known before, which replaced as many calls; outlook: what the set is expected to miss, and what more
    calls would bring; documents: by id, as far as they were fetched; truncated: scored pairs that were cut to fit the
    cross-encoder; trips: requests to the scorer; tokens: that a language model read and wrote; seconds: by stage, and
    their total; vectors: the source of the pool's vectors; explained: if the task asks for it and anything was
    believed. calibration: when that in use was made; human: whether relevance is what people are expected to find;
    model, trust: the scorer's full name, if it is known, and how far it is trusted; scores: the scorer's own, by
    position, where relevance is something else.
    answered: of a task with several queries. proposals: with a target, the documents to read next, each with its
    probability to reach `min_relevance`. spans: the relevant parts of what was scored for this task, by its text.
    has_texts: whether an answer has the texts of the set: the task asks for them, and they are not too large for one.
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
    trips: int
    seconds: Mapping[str, float]
    warnings: Sequence[Notice]
    vectors: VectorSource
    explained: Explained | None = None
    tokens: TokenCounts | None = None
    calibration: str | None = None
    human: bool = False
    model: str | None = None
    trust: Trust = "normal"
    scores: Mapping[int, float] = field(default_factory=dict)
    answered: Answered | None = None
    proposals: Selection | None = None
    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    has_texts: bool = False

    def without_texts(self) -> SelectionResult:
        """Return the result without the texts, which would take more bytes than an answer may have."""
        return replace(self, has_texts=False, warnings=[*self.warnings, TEXTS_LEFT_OUT])

    def spans_in(self, document: Document) -> list[Span] | None:
        """Return the relevant parts of a document's text, which the scorer read after its title; None if it named none
        for this task. The places of a passage's parts are places in the whole text."""
        passage = self.passages.by_id.get(document.id)
        before = len(document.content) - len(document.text) - (0 if passage is None else passage.start)
        found = [
            Span(max(0, start - before), end - before, score)
            for start, end, score in self.spans.get(document.content, ())
        ]
        return [span for span in found if span.end > 0] or None
