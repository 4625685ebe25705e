"""Converts requests, with their candidates, to checked tasks of the selector, and its results to responses."""

from __future__ import annotations

import binascii
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

import numpy as np
import pybase64
from numpy.typing import ArrayLike, NDArray

from boundarymorph.access.callers import DEFAULT_POLICY
from boundarymorph.api.schemas import AnswerWarning, Distinct, LanguageModelUsage, ScorerInUse
from boundarymorph.api.select_answers import (
    ExpectedRecall,
    ExplainedCall,
    ExplainedPool,
    ExplainedRound,
    NextDocument,
    RoundEvent,
    SelectedDocument,
    SelectResponse,
    Usage,
)
from boundarymorph.api.select_schemas import AskedQuery, PoolBody, SelectRequest, VectorBlock
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import InvalidEmbeddings, InvalidInput
from boundarymorph.inference.concurrency import Deadline
from boundarymorph.reading import bound
from boundarymorph.remote.wire import TokenCounts
from boundarymorph.retrieval.artifacts import Artifacts
from boundarymorph.retrieval.document import (
    Candidates,
    Document,
    GivenCandidates,
    IndexedCandidates,
    Retriever,
    Search,
)
from boundarymorph.retrieval.filters import read_path
from boundarymorph.selection import Observation, Outlook, Pool, Selection, methods
from boundarymorph.selection.capacity import LIKELY
from boundarymorph.selection.pool import COMPLETE
from boundarymorph.selector.documents import Grouping
from boundarymorph.selector.task import Accepted, Progress, SelectionResult, SelectionTask, Target, WeightedQuery
from boundarymorph.settings import Limits, Settings

log = logging.getLogger(__name__)
ITEM_BYTES = {"float16": 2, "float32": 4}
FEW_CALLS = 50  # up to which the main directions of vectors are enough (docs/evaluation.md)
READ_AHEAD = 200  # documents that come with a pool; most of those that are asked for are among them
ACCEPTED: dict[str | None, Accepted] = {"error": "complete", None: "scored", "degrade": "anything"}  # by on_failure
DECIMALS = 5  # of the numbers about a whole pool


def task_of(
    request: SelectRequest, settings: Settings, arrival: float, calibration: Calibration | None = None
) -> SelectionTask:
    """Fill in defaults and check limits. Raises LimitExceeded, InvalidEmbeddings or InvalidInput.

    arrival: of the request, on `time.monotonic()`. calibration: of pools; that of an index comes with its
    candidates.
    """
    limits, objective = settings.limits, request.objective
    seconds = settings.deadline_seconds if request.deadline_ms is None else request.deadline_ms / 1e3
    queries = request.queries or [AskedQuery(query=request.query or "")]
    bound("queries", len(queries), limits.queries, "queries")
    task = SelectionTask(
        query="\n".join(query.query for query in queries),
        candidates=candidates_of(request, queries[0].query, settings),
        budget=budget_of(request, settings),
        k=limits.k if objective else None if request.max_tokens is not None else request.k or settings.k,
        max_tokens=request.max_tokens,
        min_relevance=LIKELY if objective and request.min_relevance is None else request.min_relevance,
        distinct=grouping_of(request.distinct, request.k or settings.k, settings),
        diversity=request.diversity,
        negligible=settings.negligible if request.max_tokens is not None and request.min_relevance is None else 0.0,
        settle=_settle(request, settings),
        method=request.method or settings.method,
        to_people=_to_people(request, settings),
        explicit=request.budget is not None,
        rounds=settings.rounds if request.rounds is None else request.rounds,
        goal=request.spend,
        return_documents=request.return_documents,
        deadline=Deadline.of_request(arrival, min(seconds, limits.deadline_seconds)),
        accepts=ACCEPTED[request.on_failure],
        reuse=request.reuse and not (objective and request.budget == 0),  # else the caller's answers are all
        explain_pool=request.explain == "pool",
        calibration=None if request.calibration is False or request.index is not None else calibration,
        instruction=request.instruction,
        excluded=frozenset(request.exclude_ids or ()),
        known=_known(request, limits),
        target=None if objective is None else Target(objective.find, objective.within),
        proposals=0 if objective is None else objective.next,
        queries=[
            WeightedQuery(one.query, one.weight, candidates_of(request, one.query, settings))
            for one in request.queries or ()
        ],
    )
    if request.index is not None:
        task = replace(task, complete=partial(_completed, request=request))
    bound("exclude_ids", len(request.exclude_ids or ()), limits.pool, "ids")
    bound("known_scores", len(task.known), limits.known_scores, "known scores")
    bound("objective.next", task.proposals, limits.k, "documents")
    bound("instruction", len(request.instruction or ""), limits.query_characters, "characters")
    bound("query", max(len(query.query) for query in queries), limits.query_characters, "characters")
    bound("budget", task.budget, limits.budget, "calls")
    bound("k", task.k or 0, limits.k, "documents")
    bound("k", task.k or 0 if task.diversity else 0, limits.diverse, "documents with 'diversity' (limits.diverse)")
    bound("max_tokens", task.max_tokens or 0, limits.max_tokens, "tokens")
    bound("rounds", 1 if task.rounds == "auto" else task.rounds, limits.rounds, "rounds")
    return task


def _settle(request: SelectRequest, settings: Settings) -> float | None:
    """Return the expected loss at which a selection stops that goes by what it believes."""
    return settings.auto_settle if request.budget == "auto" and request.objective is None else None


def _to_people(request: SelectRequest, settings: Settings) -> bool:
    """Return whether relevance is to be what people find. Raises InvalidInput for a method that only knows scores."""
    finds = request.objective is not None and request.objective.find is not None
    knows = (request.method or settings.method) == methods.DEFAULT and not finds
    if request.relevance == "people" and not knows:
        other = f"the method {methods.DEFAULT!r}" if not finds else "no 'objective'"
        raise InvalidInput(f"'relevance': \"people\" goes with {other}; leave one of them out")
    return knows and (request.relevance or settings.relevance) == "people"


def _completed(task: SelectionTask, found: Artifacts, *, request: SelectRequest) -> SelectionTask:
    """Return the task with the artifacts of its index: with its calibration, unless the request wants none, and with at
    most one document for each value of its field `distinct`, unless the request has a `distinct` of its own. An
    objective never has a limit on groups."""
    task = replace(task, calibration=None if request.calibration is False else found.calibration)
    if found.distinct is None or request.objective is not None or "distinct" in request.model_fields_set:
        return task
    try:
        return replace(task, distinct=Grouping(read_path(found.distinct, "distinct")))
    except InvalidInput as error:  # what is kept with the index is damaged
        log.warning("the index %r is searched without its 'distinct': %s", request.index, error)
        return task


def _known(request: SelectRequest, limits: Limits) -> dict[str, float]:
    """Return the scores that came with a request, by id."""
    documents = [] if request.pool is None else request.pool.documents
    with_pool = {
        str(place) if given.id is None else given.id: given.cross_encoder_score
        for place, given in enumerate(documents)
        if given.cross_encoder_score is not None
    }
    return with_pool | (request.known_scores or {})


def grouping_of(distinct: Distinct | None, k: int, settings: Settings) -> Grouping | None:
    """Return how documents are grouped. k: documents or groups to return. Raises LimitExceeded or InvalidInput."""
    if distinct is None:
        return None
    counts_groups = distinct.k_counts == "groups"
    most = distinct.at_most * k if counts_groups else distinct.at_most
    bound("distinct.at_most", most, settings.limits.k, "documents in all" if counts_groups else "documents")
    path = None if distinct.by == "text" else read_path(distinct.by, "distinct.by")
    return Grouping(path, distinct.at_most, counts_groups)


def budget_of(request: SelectRequest, settings: Settings) -> int:
    """Return the calls that a request allows."""
    match request.budget:
        case None if request.objective is None:
            return settings.budget
        case None | "auto":
            return min(settings.auto_budget, settings.limits.budget)
        case budget:
            return int(budget)


def candidates_of(request: SelectRequest, query: str, settings: Settings) -> Callable[[Retriever], Candidates]:
    """Return what makes the candidates of one query. Raises LimitExceeded, InvalidEmbeddings or InvalidInput."""
    limits = settings.limits
    vector = _query_embedding(request.query_embedding, limits)
    if request.index is not None:
        depth = settings.depth if request.depth is None else request.depth
        bound("depth", depth, limits.pool, "candidates")
        depth = min(depth + len(request.exclude_ids or ()), limits.pool)  # in place of those
        budget = budget_of(request, settings)
        few = budget <= FEW_CALLS and not (request.queries or request.diversity or request.objective)
        distant = bool(settings.retriever.url or settings.stores)
        search = Search(
            query,
            depth,
            vector,
            request.filter,
            request.hybrid,
            documents=READ_AHEAD if distant and (budget or request.return_documents) else 0,
            directions=few and (request.method or settings.method) == methods.DEFAULT,
        )
        return partial(IndexedCandidates, index=request.index, search=search, distant=distant)
    assert request.pool is not None
    pool = request.pool
    documents = documents_of(pool, limits)
    bm25 = _complete([given.bm25 for given in pool.documents], "bm25")
    scores = _complete([given.score for given in pool.documents], "score")
    features = _features(pool, limits) | ({} if bm25 is None else {"bm25": np.array(bm25)})
    return partial(
        GivenCandidates,
        query=query,
        given=documents,
        embeddings=_embeddings(pool, limits),
        query_embedding=vector,
        scores=scores,
        features=features,
        tokens=[given.tokens for given in pool.documents],
        words=(request.method or settings.method) in methods.BY_WORDS,
        vectors=request.vectors or settings.vectors,
        ranked=request.ranked,
    )


def documents_of(pool: PoolBody, limits: Limits) -> list[Document]:
    """Return the documents of a pool. Raises LimitExceeded."""
    bound("pool", len(pool.documents), limits.pool, "documents")
    documents = []
    for position, given in enumerate(pool.documents):
        characters = len(given.text) + len(given.title or "")
        bound(f"pool.documents.{position}.text", characters, limits.text_characters, "characters")
        identifier = str(position) if given.id is None else given.id
        documents.append(Document(identifier, given.text, given.title, given.metadata))
    return documents


def _query_embedding(given: list[float] | VectorBlock | None, limits: Limits) -> ArrayLike | None:
    if isinstance(given, VectorBlock):
        vectors = _decode(given, "query_embedding", limits)
        if vectors.ndim != 1:
            raise InvalidEmbeddings(f"query_embedding: the shape {given.shape} is not that of one vector, [d]")
        return vectors
    if given is not None:
        bound("query_embedding", len(given), limits.dimension, "numbers")
    return given


def _embeddings(pool: PoolBody, limits: Limits) -> NDArray[np.floating] | Sequence[ArrayLike | None] | None:
    single = [document.embedding for document in pool.documents]
    if pool.embeddings is None:
        bound("embedding", max((len(vector) for vector in single if vector), default=0), limits.dimension, "numbers")
        return None if all(vector is None for vector in single) else single
    if any(vector is not None for vector in single):
        raise InvalidEmbeddings("give embeddings with the documents or as one block, not both")
    vectors = _decode(pool.embeddings, "pool.embeddings", limits)
    if vectors.ndim != 2 or len(vectors) != len(pool.documents):
        raise InvalidEmbeddings(
            f"pool.embeddings: the shape {pool.embeddings.shape} does not fit {len(pool.documents)} documents"
        )
    return vectors


def _features(pool: PoolBody, limits: Limits) -> dict[str, NDArray[np.float64]]:
    """Return arrays of shape (N,), with NaN for missing values."""
    bound("pool.features", len(pool.features), limits.features, "signals")
    for name, values in pool.features.items():
        if name in COMPLETE:
            raise InvalidInput(
                f"pool.features.{name}: the name is taken; call it otherwise, and send 'bm25' with documents"
            )
        if len(values) != len(pool.documents):
            raise InvalidInput(
                f"pool.features.{name}: {len(values)} values for {len(pool.documents)} documents; give one for each, "
                "null where there is none"
            )
    return {name: np.array(values, dtype=np.float64) for name, values in pool.features.items()}


def _complete(values: Sequence[float | None], what: str) -> list[float] | None:
    given = [value for value in values if value is not None]
    if not given:
        return None
    if len(given) < len(values):
        raise InvalidInput(f"pool.documents: {len(given)} of {len(values)} have a {what}; give all of them or none")
    return given


def _decode(block: VectorBlock, field: str, limits: Limits) -> NDArray[np.floating]:
    bound(f"{field}.shape", block.shape[-1], limits.dimension, "numbers a vector")
    bound(f"{field}.shape", math.prod(block.shape[:-1]), limits.pool, "vectors")
    try:
        raw = pybase64.b64decode(block.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidEmbeddings(f"{field}.data is not base64: {error}") from None
    expected = ITEM_BYTES[block.dtype] * math.prod(block.shape)
    if len(raw) != expected:
        raise InvalidEmbeddings(
            f"{field}.data has {len(raw):,} bytes where {block.dtype} of shape {block.shape} take {expected:,}; "
            f"is {field}.dtype right? It is float16 unless it says float32"
        )
    return np.frombuffer(raw, dtype=np.dtype(block.dtype).newbyteorder("<")).reshape(block.shape)


def response_of(result: SelectionResult, *, explain: bool = False, policy: str = DEFAULT_POLICY) -> SelectResponse:
    """Convert the result of a selection to the response. policy: the name of the one in force."""
    task = result.task
    return SelectResponse(
        id=uuid4().hex,
        documents=_documents(result, task),
        pool_size=len(result.pool),
        k=None if task.target else task.k,
        max_tokens=task.max_tokens,
        min_relevance=task.min_relevance,
        relevance="people" if result.to_people else "scorer",
        calibration=result.calibration,
        scorer=ScorerInUse(model=result.model, trust=result.trust),
        policy=policy,
        method=task.method,
        vectors=result.vectors,
        usage=Usage(
            budget=task.budget,
            cross_encoder_calls=result.calls,
            cached_scores=result.cached,
            rounds=result.rounds,
            trips=result.trips,
            reused_scores=result.reused,
            truncated_documents=result.truncated,
            expected_gain=_gains(result.outlook),
            language_model=usage_of(result.tokens),
        ),
        status=result.status.value,
        stop_reason=result.stop_reason.value,
        expected_loss=result.outlook.loss,
        recall=result.outlook.recall and ExpectedRecall.model_validate(result.outlook.recall, from_attributes=True),
        answerable=result.outlook.answerable,
        next=_next(result, task),
        timings_ms={stage: round(seconds * 1e3, 3) for stage, seconds in result.seconds.items()},
        warnings=list(map(AnswerWarning.model_validate, result.warnings)),
        rounds=_rounds(result) if explain else None,
        pool=_pool(result) if task.explain_pool else None,
    )


def event_of(progress: Progress, *, explain: bool = False) -> RoundEvent:
    """Convert the progress of a selection to an event."""
    return RoundEvent(
        rounds=progress.rounds,
        cross_encoder_calls=progress.calls,
        cached_scores=progress.cached,
        reused_scores=progress.reused,
        budget=progress.budget,
        expected_loss=progress.outlook.loss,
        answerable=progress.outlook.answerable,
        expected_gain=_gains(progress.outlook),
        ids=[progress.pool.ids[position] for position in progress.selected],
        language_model=usage_of(progress.tokens),
        calls=_calls(progress.history, progress.pool) if explain else None,
    )


def usage_of(tokens: TokenCounts | None) -> LanguageModelUsage | None:
    """Return the tokens of a language model; None if none was asked."""
    return None if tokens is None else LanguageModelUsage(input_tokens=tokens.read, output_tokens=tokens.written)


def _gains(outlook: Outlook) -> dict[str, float]:
    return {str(calls): gain for calls, gain in outlook.gains.items()}


def _next(result: SelectionResult, task: SelectionTask) -> list[NextDocument] | None:
    if task.target is None or result.proposals is None:
        return None
    found = []
    for position, probability in zip(result.proposals.documents, result.proposals.relevance.tolist(), strict=True):
        id = result.pool.ids[position]
        read = result.documents.get(id) if task.return_documents else None
        content = {"text": read.text, "title": read.title, "metadata": dict(read.metadata)} if read else {}
        found.append(NextDocument(id=id, probability=probability, **content))
    return found


def _documents(result: SelectionResult, task: SelectionTask) -> list[SelectedDocument]:
    answered = result.answered
    selection, pool, with_text = result.selection, result.pool, task.return_documents
    chosen = []
    for rank, position in enumerate(selection.documents.tolist(), start=1):
        scored, relevance = bool(selection.scored[rank - 1]), float(selection.relevance[rank - 1])
        read = result.documents.get(pool.ids[position])
        document = read if with_text else None
        value = [] if task.distinct is None or read is None else task.distinct.value(read)
        chosen.append(
            SelectedDocument(
                id=pool.ids[position],
                rank=rank,
                relevance=relevance,
                std=float(selection.std[rank - 1]),
                source="cross_encoder" if scored else "posterior",
                cross_encoder_score=result.scores.get(position, relevance) if scored else None,
                retrieval_rank=position + 1,
                retrieval_score=float(pool.scores[position]),
                query=None if answered is None else int(answered.leading[rank - 1]),
                relevances=None if answered is None else _nullable(answered.relevance[:, rank - 1]),
                group=value[0] if value else None,
                text=document.text if document else None,
                title=document.title if document else None,
                metadata=dict(document.metadata) if document else None,
            )
        )
    return chosen


def _nullable(values: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _rounds(result: SelectionResult) -> list[ExplainedRound]:
    rounds: defaultdict[int, list[ExplainedCall]] = defaultdict(list)
    asked = None if result.answered is None else result.answered.asked
    for observation, call in zip(result.history, _calls(result.history, result.pool, asked), strict=True):
        rounds[observation.round].append(call)
    explained, ids = result.explained, result.pool.ids
    return [
        ExplainedRound(
            round=number,
            calls=calls,
            ids=None if explained is None else [ids[place] for place in explained.sets[number - 1]],
        )
        for number, calls in rounds.items()
    ]


def _calls(history: Sequence[Observation], pool: Pool, asked: Sequence[int] | None = None) -> list[ExplainedCall]:
    """asked: of which of several queries each call was."""
    queries: Sequence[int | None] = asked or [None] * len(history)
    return [
        ExplainedCall(
            id=pool.ids[call.document],
            query=query,
            retrieval_rank=call.document + 1,
            rival=None if call.rival is None else pool.ids[call.rival],
            gap=None if call.rival is None else call.value,
            value=call.value if call.rival is None else None,
            score=call.score,
        )
        for call, query in zip(history, queries, strict=True)
    ]


def _pool(result: SelectionResult) -> ExplainedPool:
    first, last = (None, None) if result.explained is None else (result.explained.first, result.explained.last)
    first_relevance, first_std = _of_all(first, result.pool)
    relevance, std = _of_all(last, result.pool)
    return ExplainedPool(
        ids=list(result.pool.ids),
        retrieval_scores=_rounded(result.pool.scores),
        first_relevance=first_relevance,
        first_std=first_std,
        relevance=relevance,
        std=std,
    )


def _of_all(believed: Selection | None, pool: Pool) -> tuple[list[float | None], list[float | None]]:
    """Return relevance and standard deviation of all documents of the pool, None where unknown."""
    values = np.full((2, len(pool)), np.nan)
    if believed is not None:
        relevance, std = np.round((believed.relevance, believed.std), DECIMALS)
        smallest = np.where(believed.scored, 0.0, 10.0**-DECIMALS)  # a standard deviation of 0 says that it was scored
        values[:, believed.documents] = relevance, np.maximum(std, smallest)
    nullable = values.astype(object)
    nullable[np.isnan(values)] = None
    return nullable[0].tolist(), nullable[1].tolist()


def _rounded(values: NDArray[np.float64]) -> list[float]:
    """Round to DECIMALS, to keep long lists of numbers short."""
    rounded: list[float] = np.round(values, DECIMALS).tolist()
    return rounded
