"""A selection from outside: its task, its progress before each round, its result in numbers and words, and
what is observed of it."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Calibration
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
from boundarymorph.inference.concurrency import NEVER, Deadline
from boundarymorph.notices import Notice, Slug
from boundarymorph.reading import counted
from boundarymorph.remote.wire import TokenCounts
from boundarymorph.retrieval.artifacts import Artifacts
from boundarymorph.retrieval.document import Candidates, Document, Retriever, VectorSource
from boundarymorph.scoring import rerankers
from boundarymorph.selection import Observation, Outlook, Pool, Selection, StopReason
from boundarymorph.selection.methods import DEFAULT
from boundarymorph.selection.pool import Trust
from boundarymorph.selector.documents import FREE, Grouping, Room
from boundarymorph.telemetry import metrics, tracing

ENOUGH, LOW = 10, 0.05  # scores from which on it is said that all are below this; of relevant documents few are
# what the names of models that read English alone begin with
ENGLISH = ("cross-encoder/ms-marco-MiniLM", "BAAI/bge-small-en", *rerankers.ENGLISH)
SHOWN = 20  # documents in a span
CHARACTERS = 1_000  # of a text in a span
FORMS = {"was": ("was", "were"), "has": ("has", "have"), "it": ("it", "them"), "its": ("its", "their")}  # one, many
Goal = Literal["set", "order", "ranking", "scores"]
Accepted = Literal["complete", "scored", "anything"]
Rounds = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Target:
    """Find this share of the relevant documents with this probability, both above 0; the share is at most 1."""

    share: float
    probability: float


@dataclass(frozen=True, slots=True)
class WeightedQuery:
    """One of several queries, with its candidates. weight: above 0 and up to 1."""

    query: str
    weight: float
    candidates: Callable[[Retriever], Candidates]


def _as_it_is(task: SelectionTask, found: Artifacts) -> SelectionTask:
    return task


@dataclass(frozen=True, slots=True)
class SelectionTask:
    """Find the best documents for a query with at most `budget` calls.

    candidates: made by the retriever. k: documents to return, or None for as many as fit into max_tokens.
    min_relevance: of these, only those that are more likely than not to score at least this. distinct: at most so many
    documents of a group. negligible, diversity: as in `selection.boundary`. goal: what calls are spent on: the set; or,
    if every document fits into it, its order; or the ranking of all candidates; or the scores of all. rounds: in which
    calls go out at most, or "auto": three of a fixed budget. settle: stop when the expected loss is at most this share
    of the set's relevance. method: a name in `methods.METHODS`. to_people: whether relevance is what people are
    expected to find, instead of the score (`selection.trend`). trust: in the scorer, in place of what is declared or
    was measured. explicit: whether the request names the budget. deadline: when the current set becomes the result.
    accepts: the result after the deadline or a failure of scorer or retriever: only a complete one, or else their
    error; or an incomplete one, but Overloaded if nothing was scored for lack of capacity; or any.
    reuse: whether scores known from earlier tasks are evidence that replaces calls. tenant: whose known scores are
    used. return_documents: whether the result has their texts. explain_pool: whether the result has `Explained`.
    calibration: makes relevance a probability. instruction: for the scorer, if it takes one. excluded: ids of
    candidates that are not selected and not scored; what is known of their scores is evidence, and replaces no call.
    known: scores by id that cost no call; those of other documents are ignored. target: find so much of what has
    `min_relevance`. proposals: with a target, how many documents to read next the result names at most. queries:
    instead of the query and its candidates, for one set of what answers any of them. room: where its bytes are counted.
    complete: makes it the task that is carried out, of what comes with the candidates of an index.
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
    rounds: Rounds = "auto"
    settle: float | None = None
    method: str = DEFAULT
    to_people: bool = False
    trust: Trust | None = None
    explicit: bool = True
    deadline: Deadline = NEVER
    accepts: Accepted = "anything"
    reuse: bool = True
    tenant: str = ""
    return_documents: bool = False
    explain_pool: bool = False
    calibration: Calibration | None = None
    instruction: str | None = None
    excluded: frozenset[str] = frozenset()
    known: Mapping[str, float] = field(default_factory=dict)
    target: Target | None = None
    proposals: int = 0
    queries: Sequence[WeightedQuery] = ()
    room: Room = FREE
    complete: Callable[[SelectionTask, Artifacts], SelectionTask] = _as_it_is

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
    selected: positions in the pool of the current set; history: the scores of the last round.
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
    the set after so many rounds, as positions in the pool."""

    first: Selection
    last: Selection
    sets: Mapping[int, NDArray[np.intp]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SelectionResult:
    """The result of a selection. Documents that were found to be deleted meanwhile are not in it.

    task: as it was carried out. history: the scores that were asked for, all of which count against the budget. calls:
    how many of them the cross-encoder computed for this task; cached: how many came from a cache, or from another task
    that was computing the same pair. reused: scores known before, which replaced as many calls; outlook: what the set
    is expected to miss, and what more calls would bring; documents: by id, as far as they were fetched; truncated:
    scored pairs that were cut to fit the cross-encoder; trips: requests to the scorer; tokens: that a language model
    read and wrote; seconds: by stage, and their total; vectors: the source of the pool's vectors; explained: if the
    task asks for it and anything was believed. calibration: when that in use was made; to_people: whether relevance is
    what people are expected to find; model, trust: the scorer's full name, if it is known, and how far it is trusted;
    scores: the scorer's own, by position, where relevance is something else.
    answered: of a task with several queries. proposals: with a target, the documents to read next, each with its
    probability to reach `min_relevance`.
    """

    task: SelectionTask
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
    trips: int
    seconds: Mapping[str, float]
    warnings: Sequence[Notice]
    vectors: VectorSource
    explained: Explained | None = None
    tokens: TokenCounts | None = None
    calibration: str | None = None
    to_people: bool = False
    model: str | None = None
    trust: Trust = "normal"
    scores: Mapping[int, float] = field(default_factory=dict)
    answered: Answered | None = None
    proposals: Selection | None = None


def unfamiliar(query: str, *models: str | None) -> list[Notice]:
    """Describe a query most of whose letters are in a script that the embedded models were not trained on; nothing if
    it is Latin or a model is another. models: of the scorer and the encoder, None if unknown or not in use."""
    letters = [unicodedata.name(letter, "").partition(" ")[0] for letter in query if letter.isalpha()]
    english = [model.partition("@")[0] for model in models if model is not None and model.startswith(ENGLISH)]
    if sum(script != "LATIN" for script in letters) * 2 <= len(letters) or not english:
        return []
    script = Counter(letters).most_common(1)[0][0].capitalize()
    trained = "was trained" if len(english) == 1 else "were trained"
    said = (
        f"the query is in another script ({script}) than {' and '.join(english)} {trained} on, so the answer says "
        "little; use models for its language (scorer.model, encoder.model)"
    )
    return [Notice("unfamiliar-script", said)]


def no_call(stop_reason: StopReason | None, returned: int) -> Notice:
    """Describe why no call was made although some were allowed and no score was known from earlier requests. returned:
    the number of documents in the answer."""
    match stop_reason:
        case StopReason.POOL_EXHAUSTED:
            why = "all scores were known already"
        case StopReason.SETTLED:
            why = "by the scores known already, little is expected to be lost"
        case _ if returned:
            why = 'every document fits, and none can change that; with "spend": "order" calls go to the order'
        case _:
            why = "no document is left that fits"
    return Notice("no-call-made", f"no call was made: {why}")


def none_reached(least: float | None, relevance: NDArray[np.float64], scored: bool) -> list[Notice]:
    """Say why the answer is empty, if no document reaches the minimum relevance. relevance: of the candidates."""
    if least is None or not relevance.size:
        return []
    seen = "the best was" if scored else "the best was expected to have"
    best = math.floor(1000 * relevance.max()) / 1000
    said = f"no document reached {least:g}; {seen} {best:g}; lower min_relevance"
    return [Notice("min-relevance-not-reached", said)]


def nothing_found(scores: Collection[float]) -> list[Notice]:
    """Say that enough documents were scored and all scores are low, if it is so."""
    if len(scores) < ENOUGH or max(scores) >= LOW:
        return []
    said = (
        f"the best of {len(scores)} scores is {max(scores):.2g}: either no document is relevant, or the cross-encoder "
        "does not understand this domain"
    )
    return [Notice("all-scores-low", said)]


def of_documents(slug: Slug, count: int, said: str) -> list[Notice]:
    """Return a warning about `count` documents, if there are any. said: what is said of them, with names of FORMS."""
    forms = {name: one if count == 1 else many for name, (one, many) in FORMS.items()}
    return [Notice(slug, f"{counted(count, 'document', 'documents')} {said.format(**forms)}")] if count else []


class Observer:
    """Observes one selection: each stage is a span and is timed by the watch, which may already be running. counts:
    whether its result goes into the metrics, or is counted with that of a whole."""

    def __init__(self, watch: tracing.Stopwatch, *, counts: bool = True) -> None:
        self._watch, self._counts = watch, counts

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record the block as a stage, or as a part of one."""
        with tracing.span(name), self._watch.stage(name):
            yield

    def seconds(self) -> dict[str, float]:
        """Return the seconds by stage and their total, and put them into the request's Server-Timing."""
        seconds = self._watch.read()
        tracing.tell(seconds)
        return seconds

    def finished(self, result: SelectionResult, task: SelectionTask, model: str | None) -> None:
        """Record a result in the metrics and in the span of its request. model: the scorer's."""
        if not self._counts:
            return
        tracing.describe(lambda texts: attributes(result, task, model, texts=texts))
        for stage, seconds in result.seconds.items():
            metrics.select_stage_seconds.labels(stage).observe(seconds)
        metrics.selections.labels(result.status.value, result.stop_reason.value).inc()
        metrics.cross_encoder_calls.inc(result.calls)
        metrics.select_calls.observe(result.calls)
        metrics.select_rounds.observe(result.rounds)
        metrics.expected_loss.observe(result.outlook.loss)
        if task.budget:
            metrics.budget_used.observe(result.calls / task.budget)


def attributes(result: SelectionResult, task: SelectionTask, model: str | None, *, texts: bool) -> dict[str, Any]:
    """Return the attributes of a selection's span. model: the scorer's. texts: with the query, and the ids and texts of
    documents."""
    found: dict[str, Any] = {
        "openinference.span.kind": "RERANKER",
        "gen_ai.operation.name": "retrieval",
        "gen_ai.provider.name": "boundarymorph",
        "boundarymorph.pool_size": len(result.pool),
        "boundarymorph.budget": task.budget,
        "boundarymorph.cross_encoder_calls": result.calls,
        "boundarymorph.cached_scores": result.cached,
        "boundarymorph.reused_scores": result.reused,
        "boundarymorph.rounds": result.rounds,
        "boundarymorph.status": result.status.value,
        "boundarymorph.stop_reason": result.stop_reason.value,
        "boundarymorph.expected_loss": result.outlook.loss,
    }
    if model is not None:
        found |= {"gen_ai.request.model": model, "reranker.model_name": model}
    if task.k is not None:
        found["reranker.top_k"] = task.k
    if result.tokens is not None:
        found["gen_ai.usage.input_tokens"] = result.tokens.read
        found["gen_ai.usage.output_tokens"] = result.tokens.written
    if texts:
        query = task.query[:CHARACTERS]
        found |= {"reranker.query": query, "gen_ai.retrieval.query.text": query, "input.value": query}
    chosen = result.selection.documents[:SHOWN].tolist()
    worth = result.selection.relevance[:SHOWN].tolist()
    for place, (position, relevance) in enumerate(zip(chosen, worth, strict=True)):
        found[f"reranker.output_documents.{place}.document.score"] = relevance
        if texts:
            found |= _document(result, f"reranker.output_documents.{place}.document", position)
    for position in range(min(SHOWN, len(result.pool)) if texts else 0):
        found |= _document(result, f"reranker.input_documents.{position}.document", position)
    return found


def _document(result: SelectionResult, name: str, position: int) -> dict[str, Any]:
    """Return the id of a document and, as far as it was read, the beginning of its text."""
    id = result.pool.ids[position]
    document = result.documents.get(id)
    content = {} if document is None else {f"{name}.content": document.content[:CHARACTERS]}
    return {f"{name}.id": id, **content}
