"""Converts rerank requests to selection tasks, and their results to rankings of all documents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

from boundarymorph.access.bodies import bound
from boundarymorph.api.passages import OF
from boundarymorph.api.rerank.common import (
    Diagnostics,
    NoDocuments,
    Ranked,
    Ranking,
    RerankRequest,
    Wanted,
    tokens_of,
)
from boundarymorph.api.schemas import LanguageModelUsage
from boundarymorph.api.translate import grouping_of
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import TextTooLong
from boundarymorph.inference.deadline import Deadline
from boundarymorph.retrieval.candidates import GivenCandidates
from boundarymorph.selection import methods
from boundarymorph.selector.documents import Grouping, group_key
from boundarymorph.selector.task import SelectionResult, SelectionTask
from boundarymorph.settings import Limits, Settings


def task_of(
    request: RerankRequest,
    wanted: Wanted,
    settings: Settings,
    arrival: float,
    calibration: Calibration | None = None,
    *,
    field: str = "documents",
) -> SelectionTask:
    """Return the task of ranking all documents. Raises NoDocuments and LimitExceeded.

    field: the name of their field, for messages. arrival: of the request, on `time.monotonic()`.
    """
    _check(request, wanted, settings.limits, field)
    query = wanted.query[: settings.limits.query_characters]  # more than a model reads
    count = len(wanted.texts)
    budget = _budget(request, count, settings)
    degrade = request.on_failure == "degrade"
    exhaustive = budget >= count and not degrade  # the answer then needs only the scores
    seconds = settings.seconds_of(request.deadline_ms)
    return SelectionTask(
        query=query,
        candidates=partial(
            GivenCandidates,
            query=query,
            given=[wanted.document(number) for number in range(count)],
            words=settings.method in methods.BY_WORDS,
            vectors=settings.vectors,
            ranked=True,  # documents mostly come in retrieval order
            listed=exhaustive and calibration is None,  # which has other evidence
        ),
        budget=budget,
        k=min(request.k or count, count),
        goal="scores" if exhaustive else "ranking",
        settle=settings.auto_settle if request.budget == "auto" else None,
        method=settings.method,
        batch_size=count if exhaustive else settings.rerank.batch_size,
        deadline=Deadline.of_request(arrival, seconds),
        accepts="anything" if degrade else "complete",
        calibration=calibration,
        distinct=Grouping((OF,)) if wanted.owners else grouping_of(request.distinct, wanted.top_n or count, settings),
    )


def ranking_of(
    result: SelectionResult, wanted: Wanted, task: SelectionTask, request: RerankRequest, model: str, policy: str
) -> Ranking:
    """Return the requested results with their warnings. policy: the name of the one in force. Raises TextTooLong."""
    if result.truncated and not wanted.cut:
        raise TextTooLong(
            f"{result.truncated} texts are longer than the model reads; let them be truncated, or split them"
        )
    selection, count = result.selection, len(wanted.texts)
    index = [int(result.pool.ids[position]) for position in selection.documents.tolist()]
    results = [Ranked(*of) for of in zip(index, selection.relevance.tolist(), strict=True)]
    results = [ranked for ranked in results if ranked.score >= (request.min_relevance or 0.0)]
    returned = wanted.top_n or count
    results = results[:returned] if task.distinct is None else _distinct(results, wanted, task.distinct, returned)
    scored = [number for number, by_model in zip(index, selection.scored.tolist(), strict=True) if by_model]
    inferred = {ranked.index for ranked in results} - set(scored)
    if wanted.owners:
        results = [Ranked(wanted.owners[ranked.index], ranked.score) for ranked in results]
        inferred = {wanted.owners[number] for number in inferred}
    warnings = [*result.warnings, *wanted.ignored]
    if len(task.query) < len(wanted.query):
        warnings.append(f"of the query, the first {len(task.query):,} characters were read (limits.query_characters)")
    if request.budget is None and task.budget < count:
        texts = "passages" if wanted.owners else "documents"
        warnings.append(
            f"{task.budget} of the {count} {texts} were scored and the scores of the others are expected ones, as a "
            "list of this length is by default (rerank.full_documents, rerank.share); 'budget' chooses another number"
        )
    return Ranking(
        id=uuid4().hex,
        model=model,
        results=results,
        tokens=tokens_of(wanted.query, [wanted.texts[number] for number in scored]),
        diagnostics=Diagnostics(
            status=result.status.value,
            stop_reason=result.stop_reason.value,
            documents=wanted.count,
            budget=task.budget,
            cross_encoder_calls=result.calls,
            cached_scores=result.cached,
            reused_scores=result.reused,
            inferred=sorted(inferred),
            expected_loss=result.outlook.loss,
            calibration=result.calibration,
            policy=policy,
            timings_ms={stage: round(seconds * 1e3, 3) for stage, seconds in result.seconds.items()},
            language_model=LanguageModelUsage.of(result.bill),
            warnings=warnings,
        ),
    )


def _distinct(results: Sequence[Ranked], wanted: Wanted, grouping: Grouping, returned: int) -> list[Ranked]:
    """Return the best results that the grouping allows: so many or, if groups count, those of so many groups."""
    kept: list[Ranked] = []
    taken = Counter[object]()
    for ranked in results:
        if not grouping.counts_groups and len(kept) == returned:
            break
        [value] = grouping.value(wanted.document(ranked.index)) or [None]
        group: object = wanted.texts[ranked.index] if grouping.path is None else ranked.index
        if value is not None:
            group = group_key(value)
        if taken[group] < grouping.at_most and (taken[group] or len(taken) < returned):
            taken[group] += 1
            kept.append(replace(ranked, group=value))
    return kept


def _check(request: RerankRequest, wanted: Wanted, limits: Limits, field: str) -> None:
    if not wanted.texts:
        raise NoDocuments(f"{field}: the list is empty; give at least one")
    bound(field, len(wanted.texts), limits.pool, field)
    if not wanted.cut:
        bound("query", len(wanted.query), limits.query_characters, "characters")
    bound("instruction", len(request.instruction or ""), limits.query_characters, "characters")
    longest = max(map(len, wanted.texts))
    bound(field, longest, limits.text_characters, "characters each")
    bound("k", request.k or 0, limits.k, "documents")
    if isinstance(request.budget, int):
        bound("budget", request.budget, limits.budget, "calls")


def _budget(request: RerankRequest, count: int, settings: Settings) -> int:
    rerank, most = settings.rerank, settings.limits.budget
    match request.budget:
        case None if count <= min(rerank.full_documents, most):
            return count
        case None:
            return min(math.ceil(rerank.share * count), most)
        case "auto":
            return min(settings.auto_budget, most, count)
        case budget:
            return min(int(budget), count)
