"""Make the response to a request from the result of its selection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from boundarymorph.access.callers import DEFAULT_POLICY
from boundarymorph.api.schemas import AnswerWarning, LanguageModelUsage, RelevantSpan, ScorerInUse
from boundarymorph.api.select_answers import (
    ExpectedRecall,
    ExplainedCall,
    ExplainedPool,
    ExplainedRound,
    NextDocument,
    PassageOfDocument,
    RoundEvent,
    SelectedDocument,
    SelectResponse,
    Usage,
)
from boundarymorph.remote.wire import TokenCounts
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.passages import Passage
from boundarymorph.selection import Observation, Outlook, Pool, Selection
from boundarymorph.selector.result import Progress, SelectionResult
from boundarymorph.selector.task import SelectionTask

DECIMALS = 5  # decimals of the numbers about a whole pool


def response_of(result: SelectionResult, *, explain: bool = False, policy: str = DEFAULT_POLICY) -> SelectResponse:
    """Convert the result of a selection to the response; `policy` names the policy in force."""
    task = result.task
    return SelectResponse(
        id=uuid4().hex,
        documents=_documents(result, task),
        pool_size=len(result.pool),
        k=None if task.aim.target else task.aim.k,
        max_tokens=task.aim.max_tokens,
        min_relevance=task.aim.min_relevance,
        relevance="human" if result.human else "scorer",
        calibration=result.calibration,
        scorer=ScorerInUse(model=result.model, trust=result.trust),
        policy=policy,
        method=task.relevance.method,
        vectors=result.vectors,
        usage=Usage(
            budget=result.budget,
            cross_encoder_calls=result.calls,
            cached_scores=result.cached,
            rounds=result.rounds,
            scorer_requests=result.scorer_requests,
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
        pool=_pool(result) if task.report.explain_pool else None,
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
        ids=[progress.passages.document_id(progress.pool.ids[position]) for position in progress.selected],
        language_model=usage_of(progress.tokens),
        calls=_calls(progress.history, progress.pool) if explain else None,
    )


def usage_of(tokens: TokenCounts | None) -> LanguageModelUsage | None:
    """Return the tokens of a language model, or None if no language model was asked."""
    return None if tokens is None else LanguageModelUsage(input_tokens=tokens.read, output_tokens=tokens.written)


def _gains(outlook: Outlook) -> dict[str, float]:
    return {str(calls): gain for calls, gain in outlook.gains.items()}


def _next(result: SelectionResult, task: SelectionTask) -> list[NextDocument] | None:
    if task.aim.target is None or result.proposals is None:
        return None
    found = []
    for position, probability in zip(result.proposals.documents, result.proposals.relevance.tolist(), strict=True):
        id = result.pool.ids[position]
        read = result.documents.get(id) if result.has_texts else None
        content = {"text": read.text, "title": read.title, "metadata": dict(read.metadata)} if read else {}
        found.append(NextDocument(id=id, probability=probability, **content))
    return found


def _documents(result: SelectionResult, task: SelectionTask) -> list[SelectedDocument]:
    answered = result.answered
    selection, pool, with_text = result.selection, result.pool, result.has_texts
    chosen = []
    for rank, position in enumerate(selection.documents.tolist(), start=1):
        scored, relevance = bool(selection.scored[rank - 1]), float(selection.relevance[rank - 1])
        worth = None if selection.value is None else float(selection.value[rank - 1])
        read, passage = result.documents.get(pool.ids[position]), result.passages.by_id.get(pool.ids[position])
        document = (read if passage is None else passage.document) if with_text else None
        value = [] if task.aim.distinct is None or read is None else task.aim.distinct.value(read)
        chosen.append(
            SelectedDocument(
                id=result.passages.document_id(pool.ids[position]),
                rank=rank,
                relevance=relevance,
                std=float(selection.std[rank - 1]),
                value=worth,
                source="cross_encoder" if scored else "posterior",
                cross_encoder_score=result.scores.get(position, relevance) if scored else None,
                retrieval_rank=position + 1,
                retrieval_score=float(pool.scores[position]),
                query=None if answered is None else int(answered.leading[rank - 1]),
                relevances=None if answered is None else _nullable(answered.relevance[:, rank - 1]),
                group=value[0] if value else None,
                passage=passage_of(passage),
                text=document.text if document else None,
                title=document.title if document else None,
                metadata=dict(document.metadata) if document else None,
                relevant_spans=_spans(result, read) if read and scored else None,
            )
        )
    return chosen


def passage_of(passage: Passage | None) -> PassageOfDocument | None:
    """Convert a passage to the wire format."""
    return None if passage is None else PassageOfDocument.model_validate(passage, from_attributes=True)


def _spans(result: SelectionResult, document: Document) -> list[RelevantSpan] | None:
    spans = result.spans_in(document)
    return None if spans is None else list(map(RelevantSpan.model_validate, spans))


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
    """Convert the calls of a selection; `asked` has the query's position of each call."""
    queries: Sequence[int | None] = asked or [None] * len(history)
    return [
        ExplainedCall(
            id=pool.ids[call.document],
            query=query,
            retrieval_rank=call.document + 1,
            counterpart=None if call.counterpart is None else pool.ids[call.counterpart],
            gap=None if call.counterpart is None else call.value,
            value=call.value if call.counterpart is None else None,
            score=call.score,
        )
        for call, query in zip(history, queries, strict=True)
    ]


def _pool(result: SelectionResult) -> ExplainedPool:
    first, last = (None, None) if result.explained is None else (result.explained.first, result.explained.last)
    first_relevance, first_std = _beliefs(first, result.pool)
    relevance, std = _beliefs(last, result.pool)
    depth = result.task.report.explain_depth
    return ExplainedPool(
        ids=list(result.pool.ids)[:depth],
        retrieval_scores=_rounded(result.pool.scores[:depth]),
        first_relevance=first_relevance[:depth],
        first_std=first_std[:depth],
        relevance=relevance[:depth],
        std=std[:depth],
    )


def _beliefs(believed: Selection | None, pool: Pool) -> tuple[list[float | None], list[float | None]]:
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
