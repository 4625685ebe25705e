"""Make the task of a request."""

from __future__ import annotations

import binascii
import math
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pybase64
from numpy.typing import ArrayLike, NDArray

from boundarymorph.api.boosts import BoostRule, rules_of
from boundarymorph.api.schemas import Distinct
from boundarymorph.api.select_schemas import AskedQuery, PoolBody, PoolDocument, SelectRequest, VectorBlock
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import InvalidEmbeddings, InvalidInput
from boundarymorph.inference.concurrency import Deadline
from boundarymorph.reading import check_bound
from boundarymorph.retrieval.boosts import Boosts
from boundarymorph.retrieval.candidates import IndexSource, PoolSource, Source
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.filters import read_path
from boundarymorph.retrieval.passages import Cut
from boundarymorph.selection import methods
from boundarymorph.selection.capacity import LIKELY
from boundarymorph.selection.pool import COMPLETE
from boundarymorph.selector.documents import Grouping
from boundarymorph.selector.task import (
    Acceptance,
    Aim,
    Context,
    Relevance,
    Report,
    Rounds,
    SelectionTask,
    Spending,
    Target,
    WeightedSource,
)
from boundarymorph.settings import Limits, Settings

ITEM_BYTES = {"float16": 2, "float32": 4}
FEW_CALLS = 50  # most calls for which the main directions of vectors suffice
READ_AHEAD = 200  # documents that come with a pool; most documents that are read later are among them
NO_CALLER = Context()  # the service itself
USUAL_WINDOW = 512  # tokens, assumed for a scorer with an unknown window if the request asks for passages
# By the value of on_failure.
ACCEPTANCES: dict[str | None, Acceptance] = {"error": "complete", None: "scored", "degrade": "anything"}


def task_of(
    request: SelectRequest,
    settings: Settings,
    arrival: float,
    calibration: Calibration | None = None,
    *,
    window: int | None = None,
    context: Context = NO_CALLER,
) -> SelectionTask:
    """Return the task of a request, with defaults filled in and limits checked.

    Args:
        request: The request.
        settings: The defaults and limits.
        arrival: The time of the request's arrival, on `time.monotonic()`.
        calibration: The calibration of pools; an index brings its own with its candidates.
        window: The tokens that the scorer reads, or None if it does not say.
        context: The caller and its limits; the request adds its deadline and what it accepts.

    Raises:
        LimitExceeded: If a value is beyond a limit.
        InvalidEmbeddings: If vectors are malformed.
        InvalidInput: If other values are malformed, or do not go together.
    """
    limits, method = settings.limits, request.method or settings.method
    searches = request.objective is not None and request.objective.find is not None
    queries = request.queries or [AskedQuery(query=request.query or "")]
    check_bound("queries", len(queries), limits.queries, "queries")
    check_bound("query", max(len(query.query) for query in queries), limits.query_characters, "characters")
    sources = [WeightedSource(source_of(request, one.query, settings, window), one.weight) for one in queries]
    return SelectionTask(
        sources[0].source,
        _aim(request, settings),
        _spending(request, settings),
        Relevance(
            method,
            is_human(request.relevance, method, settings, searches=searches),
            calibration=calibration if request.calibrated and request.index is None else None,
            shipped=request.calibrated,
            instruction=instruction_of(request.instruction, limits),
            boosts=boosts_of(request.boost, _documents_by_id(request)),
        ),
        _report(request, limits),
        context_of(context, request.deadline_ms, request.on_failure, settings, arrival),
        sources if request.queries else (),
    )


def context_of(
    context: Context, deadline_ms: float | None, on_failure: str | None, settings: Settings, arrival: float
) -> Context:
    """Return the context with the deadline of a request, and with the results that it accepts."""
    seconds = settings.deadline_seconds if deadline_ms is None else deadline_ms / 1e3
    deadline = Deadline.from_request(arrival, min(seconds, settings.limits.deadline_seconds))
    return replace(context, deadline=deadline, accepts=ACCEPTANCES[on_failure])


def _aim(request: SelectRequest, settings: Settings) -> Aim:
    limits, objective, max_tokens = settings.limits, request.objective, request.max_tokens
    k = request.k or settings.k
    least = LIKELY if objective and request.min_relevance is None else request.min_relevance
    aim = Aim(
        k=limits.k if objective else None if max_tokens is not None else k,
        max_tokens=max_tokens,
        min_relevance=least,
        distinct=grouping_of(request.distinct, k, settings),
        negligible=settings.negligible if max_tokens is not None and least is None else 0.0,
        diversity=request.diversity,
        target=None if objective is None else Target(objective.find, objective.within),
        excluded_ids=frozenset(request.exclude_ids or ()),
    )
    check_bound("exclude_ids", len(request.exclude_ids or ()), limits.pool, "ids")
    check_bound("k", aim.k or 0, limits.k, "documents")
    diverse = aim.k if aim.diversity else None
    check_bound("k", diverse or 0, limits.diverse, "documents with 'diversity' (limits.diverse)")
    check_bound("max_tokens", max_tokens or 0, limits.max_tokens, "tokens")
    return aim


def boosts_of(rules: Sequence[BoostRule] | None, given: Mapping[str, PoolDocument]) -> Boosts | None:
    """Return the boosts of a request with these rules and documents, at the present time.

    Raises:
        InvalidInput: If a rule is malformed.
        LimitExceeded: If a filter is too large.
    """
    weights = {id: document.weight for id, document in given.items() if document.weight is not None}
    return Boosts(rules_of(rules or (), time.time()), weights) if rules or weights else None


def _spending(request: SelectRequest, settings: Settings) -> Spending:
    limits, objective = settings.limits, request.objective
    spending = Spending(
        budget_of(request, settings),
        explicit=request.budget is not None,
        goal=request.spend,
        rounds=rounds_of(request.rounds, settings),
        tolerance=settings.auto_settle if request.budget == "auto" and objective is None else None,
        reuse=request.reuse and not (objective and request.budget == 0),  # then only the caller's scores count
        known=_known(request),
    )
    check_bound("known_scores", len(spending.known), limits.known_scores, "known scores")
    check_bound("budget", spending.budget, limits.budget, "calls")
    return spending


def rounds_of(given: Rounds | None, settings: Settings) -> Rounds:
    """Return the most requests to the scorer, by request or settings. Raises LimitExceeded."""
    rounds = settings.rounds if given is None else given
    check_bound("rounds", 1 if rounds == "auto" else rounds, settings.limits.rounds, "rounds")
    return rounds


def _report(request: SelectRequest, limits: Limits) -> Report:
    proposals = 0 if request.objective is None else request.objective.next
    check_bound("objective.next", proposals, limits.k, "documents")
    by_default = request.return_documents is None and request.index is not None
    return Report(
        bool(request.return_documents) or by_default,
        request.explain == "pool",
        request.explain_depth,
        proposals,
        optional_texts=by_default,
    )


def instruction_of(given: str | None, limits: Limits) -> str | None:
    """Return an instruction; None for an empty one. Raises LimitExceeded."""
    check_bound("instruction", len(given or ""), limits.query_characters, "characters")
    return given or None


def is_human(relevance: str | None, method: str, settings: Settings, *, searches: bool = False) -> bool:
    """Return whether relevance is the judgement expected of people, instead of the score.

    Args:
        relevance: The field of the request.
        method: The method in force.
        settings: The defaults.
        searches: Whether the request has an objective to find all relevant documents.

    Raises:
        InvalidInput: If the request asks for it, but its method or objective only knows scores.
    """
    knows = method == methods.DEFAULT and not searches
    if relevance == "human" and not knows:
        other = f"the method {methods.DEFAULT!r}" if not searches else "no 'objective'"
        raise InvalidInput(f"'relevance': \"human\" goes with {other}; leave one of them out")
    return knows and (relevance or settings.relevance) == "human"


def _known(request: SelectRequest) -> dict[str, float]:
    """Return the scores that came with a request, by id."""
    scores = ((id, document.cross_encoder_score) for id, document in _documents_by_id(request).items())
    return {id: score for id, score in scores if score is not None} | (request.known_scores or {})


def _documents_by_id(request: SelectRequest) -> dict[str, PoolDocument]:
    """Return the documents that came with a request, by id."""
    documents = [] if request.pool is None else request.pool.documents
    return {_id(place, document): document for place, document in enumerate(documents)}


def _id(place: int, document: PoolDocument) -> str:
    return str(place) if document.id is None else document.id


def grouping_of(distinct: Distinct | None, k: int, settings: Settings) -> Grouping | None:
    """Return the limit on the documents of a group, or None.

    Args:
        distinct: The field of the request.
        k: The number of documents or groups to return.
        settings: The limits.

    Raises:
        LimitExceeded: If a group may have too many documents.
        InvalidInput: If the path of a field is malformed.
    """
    if distinct is None:
        return None
    counts_groups = distinct.k_counts == "groups"
    most = distinct.at_most * k if counts_groups else distinct.at_most
    check_bound("distinct.at_most", most, settings.limits.k, "documents in all" if counts_groups else "documents")
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


def source_of(request: SelectRequest, query: str, settings: Settings, window: int | None) -> Source:
    """Return the source of the candidates of one query. Raises as `task_of` does."""
    limits = settings.limits
    vector = _query_embedding(request.query_embedding, limits)
    if request.index is not None:
        depth = settings.depth if request.depth is None else request.depth
        check_bound("depth", depth, limits.pool, "candidates")
        depth = min(depth + len(request.exclude_ids or ()), limits.pool)  # replaces the excluded documents
        budget = budget_of(request, settings)
        few = budget <= FEW_CALLS and not (request.queries or request.diversity or request.objective)
        distant = bool(settings.retriever.url or settings.stores)
        search = Search(
            query,
            depth,
            vector,
            request.filter,
            request.hybrid,
            documents=READ_AHEAD if distant and (budget or request.return_documents is not False) else 0,
            directions=few and (request.method or settings.method) == methods.DEFAULT,
        )
        defaults: set[Literal["calibration", "distinct"]] = set()
        if request.calibrated:
            defaults.add("calibration")
        if request.objective is None and "distinct" not in request.model_fields_set:
            defaults.add("distinct")
        return IndexSource(request.index, search, distant, frozenset(defaults))
    assert request.pool is not None
    pool = request.pool
    documents = documents_of(pool, limits)
    bm25 = _complete([given.bm25 for given in pool.documents], "bm25")
    scores = _complete([given.score for given in pool.documents], "score")
    features = _features(pool, limits) | ({} if bm25 is None else {"bm25": np.array(bm25)})
    return PoolSource(
        query,
        documents,
        embeddings=_embeddings(pool, limits),
        query_embedding=vector,
        scores=scores,
        features=features,
        tokens=[given.tokens for given in pool.documents],
        words=(request.method or settings.method) in methods.BY_WORDS,
        vectors=request.vectors or settings.vectors,
        ranked=request.ranked,
        cut=cut_of(documents, query, window, limits, asked=bool(request.passages), known=_known(request))
        if request.makes_passages
        else None,
    )


def cut_of(
    documents: Sequence[Document],
    query: str,
    window: int | None,
    limits: Limits,
    *,
    asked: bool,
    known: Container[str] = (),
) -> Cut | None:
    """Return how long documents become passages, or None if all stay whole.

    Args:
        documents: The pool.
        query: The query, which takes a part of the window.
        window: The tokens that the scorer reads, or None if it does not say.
        limits: The most passages.
        asked: Whether the request asks for passages. An unknown window then has USUAL_WINDOW tokens.
        known: The ids of documents whose scores came with the request, and which stay whole.
    """
    if window is None and asked:
        window = USUAL_WINDOW
    if window is None:
        return None
    return Cut.plan(
        documents, query, window, per_document=limits.document_passages, in_all=limits.passages, known=known
    )


def documents_of(pool: PoolBody, limits: Limits) -> list[Document]:
    """Return the documents of a pool. Raises LimitExceeded."""
    check_bound("pool", len(pool.documents), limits.pool, "documents")
    documents = []
    for position, given in enumerate(pool.documents):
        characters = len(given.text) + len(given.title or "")
        check_bound(f"pool.documents.{position}.text", characters, limits.text_characters, "characters")
        documents.append(Document(_id(position, given), given.text, given.title, given.metadata))
    return documents


def _query_embedding(given: list[float] | VectorBlock | None, limits: Limits) -> ArrayLike | None:
    if isinstance(given, VectorBlock):
        vectors = _decode(given, "query_embedding", limits)
        if vectors.ndim != 1:
            raise InvalidEmbeddings(f"query_embedding: the shape is {given.shape}; give one vector, of shape [d]")
        return vectors
    if given is not None:
        check_bound("query_embedding", len(given), limits.dimension, "numbers")
    return given


def _embeddings(pool: PoolBody, limits: Limits) -> NDArray[np.floating] | Sequence[ArrayLike | None] | None:
    single = [document.embedding for document in pool.documents]
    if pool.embeddings is None:
        check_bound(
            "embedding", max((len(vector) for vector in single if vector), default=0), limits.dimension, "numbers"
        )
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
    check_bound("pool.features", len(pool.features), limits.features, "signals")
    for name, values in pool.features.items():
        if name in COMPLETE:
            raise InvalidInput(
                f"pool.features.{name}: the name is taken; choose another one, and send 'bm25' with the documents"
            )
        if len(values) != len(pool.documents):
            raise InvalidInput(
                f"pool.features.{name}: {len(values)} values for {len(pool.documents)} documents; give one for each, "
                "or null"
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
    check_bound(f"{field}.shape", block.shape[-1], limits.dimension, "numbers a vector")
    check_bound(f"{field}.shape", math.prod(block.shape[:-1]), limits.pool, "vectors")
    try:
        raw = pybase64.b64decode(block.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidEmbeddings(f"{field}.data is not base64: {error}") from None
    expected = ITEM_BYTES[block.dtype] * math.prod(block.shape)
    if len(raw) != expected:
        raise InvalidEmbeddings(
            f"{field}.data has {len(raw):,} bytes where {block.dtype} of shape {block.shape} take {expected:,}; "
            f"correct the shape, or {field}.dtype, which is float16 by default"
        )
    return np.frombuffer(raw, dtype=np.dtype(block.dtype).newbyteorder("<")).reshape(block.shape)
