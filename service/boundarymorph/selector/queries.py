"""Select for several queries: each gets a share of the budget, and one set has the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import Run, gather
from boundarymorph.remote.wire import Span, TokenCounts
from boundarymorph.retrieval.ranking import fuse
from boundarymorph.selection import Observation, Outlook, Pool, Selection, StopReason
from boundarymorph.selection.groups import best_of_each
from boundarymorph.selector.documents import number_groups
from boundarymorph.selector.observer import Observer
from boundarymorph.selector.result import QueryAnswers, SelectionResult, Status
from boundarymorph.selector.run import SelectionRun
from boundarymorph.selector.task import Report, SelectionTask


def parts_of(task: SelectionTask) -> list[SelectionTask]:
    """Return a task for each query, with an equal share of the budget.

    The first tasks get the remainder.
    """
    share, more = divmod(task.spending.budget, len(task.queries))
    return [
        replace(
            task,
            source=one.source,
            queries=(),
            spending=replace(task.spending, budget=share + (number < more)),
            report=Report(optional_texts=task.report.optional_texts),
        )
        for number, one in enumerate(task.queries)
    ]


async def select_for_all(
    task: SelectionTask, runs: Sequence[SelectionRun], observer: Observer, in_thread: Run
) -> SelectionResult:
    """Select for each query, side by side, and return the k documents that answer any best.

    Each selection spends its calls on an equal share of the set. The pool has the candidates of all queries, by
    reciprocal rank, without vectors. Documents that turn out to be deleted when texts are read are replaced by others.
    It raises the errors of the runs.

    Args:
        task: The task.
        runs: New runs of `parts_of(task)`.
        observer: The observer of the whole selection.
        in_thread: Runs functions in threads.
    """
    k = task.aim.k
    assert k is not None

    async def spend(run: SelectionRun, share: int) -> None:
        await run.look_up(share)
        if run.session is None and run.grouping is not None:
            await run.documents.read_groups(run.grouping)
        while run.batch.size:
            await run.score()

    await gather([run.retrieve() for run in runs])
    fused = fuse([run.pool.ids for run in runs])
    pool = Pool.from_ids(fused.ids, fused.scores) if fused.ids else runs[0].pool
    by_id = {id: place for place, id in enumerate(pool.ids)}
    places = [np.array([by_id[id] for id in run.pool.ids], dtype=np.intp) for run in runs]
    grouping = next((run.grouping for run in runs if run.grouping is not None), None)
    task = replace(task, aim=replace(task.aim, distinct=grouping))  # the default of the index, if it has one
    share = k if k >= len(pool) else -(-k // len(runs))
    await gather([spend(run, share) for run in runs])
    selection, answered = await in_thread(_best, task, pool, runs, places)
    while task.report.return_documents:
        leading = [selection.documents[answered.leading == number] for number in range(len(runs))]
        wanted = [np.flatnonzero(np.isin(own, chosen)) for own, chosen in zip(places, leading, strict=True)]
        if not any([await run.read_texts(positions) for run, positions in zip(runs, wanted, strict=True)]):
            break
        selection, answered = await in_thread(_best, task, pool, runs, places)

    parts = [await run.result() for run in runs]
    joined = _joined(task, parts, places, selection, answered)
    has_texts = task.report.return_documents and all(run.texts_fit for run in runs)
    result = replace(joined, pool=pool, seconds=observer.seconds(), has_texts=has_texts)
    observer.record(result, task, runs[0].scores.model)
    return result


def _joined(
    task: SelectionTask,
    parts: Sequence[SelectionResult],
    places: Sequence[NDArray[np.intp]],
    selection: Selection,
    answered: QueryAnswers,
) -> SelectionResult:
    """Return the result of all queries, without its pool, texts, and seconds.

    `places` are as for `_best`.
    """
    weights = np.array([query.weight for query in task.queries])
    calls, scores, spans = _calls(parts, places), dict[int, float](), dict[str, Sequence[Span]]()
    for number, (part, own) in enumerate(zip(parts, places, strict=True)):
        for column in np.flatnonzero(selection.scored & (answered.leading == number)).tolist():
            place = int(selection.documents[column])
            (position,) = np.flatnonzero(own == place).tolist()
            scores[place] = part.scores.get(position, float(answered.relevance[number, column]))
            if (document := part.documents.get(part.pool.ids[position])) and document.content in part.spans:
                spans[document.content] = part.spans[document.content]
    incomplete = [part for part in parts if part.status != Status.COMPLETE]
    only_retrieved = all(part.status == Status.RETRIEVAL_ONLY for part in parts)
    reasons = [part.stop_reason for part in incomplete or parts]
    losses, searched = [part.outlook.loss for part in parts], [float(len(part.pool) > 0) for part in parts]
    tokens = [part.tokens for part in parts if part.tokens is not None]
    return replace(
        parts[0],
        task=task,
        budget=sum(part.budget for part in parts),
        selection=selection,
        history=[seen for _, seen in calls],
        rounds=max(part.rounds for part in parts),
        status=Status.COMPLETE if not incomplete else Status.RETRIEVAL_ONLY if only_retrieved else Status.PARTIAL,
        stop_reason=StopReason.BUDGET if StopReason.BUDGET in reasons else reasons[0],
        outlook=Outlook(
            float(np.average(losses, weights=weights * searched)) if any(searched) else 0.0,
            {},
            answerable=max((one for part in parts if (one := part.outlook.answerable) is not None), default=None),
        ),
        calls=sum(part.calls for part in parts),
        cached=sum(part.cached for part in parts),
        reused=sum(part.reused for part in parts),
        documents={id: document for part in parts for id, document in part.documents.items()},
        truncated=sum(part.truncated for part in parts),
        scorer_requests=sum(part.scorer_requests for part in parts),
        tokens=reduce(TokenCounts.plus, tokens) if tokens else None,
        warnings=list(dict.fromkeys(warning for part in parts for warning in part.warnings)),
        scores=scores,
        spans=spans,
        answered=replace(answered, asked=[number for number, _ in calls]),
    )


def _calls(parts: Sequence[SelectionResult], places: Sequence[NDArray[np.intp]]) -> list[tuple[int, Observation]]:
    """Return all calls with the numbers of their queries, round by round.

    `places` are as for `_best`.
    """
    calls = []
    for number, (part, own) in enumerate(zip(parts, places, strict=True)):
        for seen in part.history:
            counterpart = None if seen.counterpart is None else int(own[seen.counterpart])
            calls.append((number, replace(seen, document=int(own[seen.document]), counterpart=counterpart)))
    return sorted(calls, key=lambda call: call[1].round)


def _best(
    task: SelectionTask, pool: Pool, runs: Sequence[SelectionRun], places: Sequence[NDArray[np.intp]]
) -> tuple[Selection, QueryAnswers]:
    """Return the k documents with the largest worth.

    The worth of a document is its largest relevance to a query, times the weight of the query and the boost. Without
    any belief, the order of the pool decides.

    Args:
        task: The task.
        pool: The candidates of all queries.
        runs: The run of each query.
        places: For each query, the positions of its candidates in the pool.
    """
    shape, boosts = (len(runs), len(pool)), np.ones(len(pool))
    relevance, std, scored = np.full(shape, np.nan), np.zeros(shape), np.zeros(shape, dtype=np.bool_)
    left = np.array([id not in task.aim.excluded_ids for id in pool.ids], dtype=np.bool_)
    for row, (run, own) in enumerate(zip(runs, places, strict=True)):
        if run.session is not None:
            ranking = run.calibrated.read(run.session.ranking())
            at = own[ranking.documents]
            relevance[row, at], std[row, at], scored[row, at] = ranking.relevance, ranking.std, ranking.scored
            left[np.setdiff1d(own, at)] = False
            boosts[own] = 1.0 if run.boosts is None else run.boosts
    weights = np.array([query.weight for query in task.queries])
    worth = np.nan_to_num(relevance) * weights[:, None] * boosts
    largest, there = worth.max(axis=0), np.flatnonzero(left)
    if task.aim.distinct is not None:
        read = {id: document for run in runs for id, document in run.documents.read_so_far.items()}
        groups = number_groups(task.aim.distinct, pool.ids, read)
        there = there[best_of_each(largest[there], groups[there], task.aim.distinct.at_most)]
    chosen = there[np.argsort(-largest[there], kind="stable")[: task.aim.k]]
    leading = worth[:, chosen].argmax(axis=0)
    best, spread = worth[leading, chosen] / boosts[chosen], std[leading, chosen] * weights[leading]
    value = None if task.relevance.boosts is None else worth[leading, chosen]
    if np.isnan(relevance).all():
        best, spread, value = np.full(len(chosen), 0.5), np.full(len(chosen), 0.5), None
    answers = QueryAnswers(leading, relevance[:, chosen], ())
    return Selection(chosen, best, spread, scored[leading, chosen], value), answers
