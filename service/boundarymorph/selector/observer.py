"""Record the metrics and spans of a selection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from boundarymorph.selector.result import SelectionResult
from boundarymorph.selector.task import SelectionTask
from boundarymorph.telemetry import metrics, tracing

SHOWN = 20  # most documents in a span
CHARACTERS = 1_000  # most characters of a text in a span


class Observer:
    """Observes one selection: each stage is a span and is timed."""

    def __init__(self, watch: tracing.Stopwatch, *, counts: bool = True) -> None:
        """Observe with a stopwatch.

        Args:
            watch: The stopwatch, which may already be running.
            counts: Whether the result goes into the metrics itself, or as a part of another result.
        """
        self._watch, self._counts = watch, counts

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record the block as a stage, or as a part of one."""
        with tracing.span(name), self._watch.stage(name):
            yield

    def seconds(self) -> dict[str, float]:
        """Return the seconds by stage and their total, and add them to the request's Server-Timing."""
        seconds = self._watch.read()
        tracing.replace_stages(seconds)
        return seconds

    def record(self, result: SelectionResult, task: SelectionTask, model: str | None) -> None:
        """Record a result in the metrics and in the span of its request.

        Args:
            result: The result.
            task: The task.
            model: The name of the scorer; None if unknown.
        """
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
        if result.budget:
            metrics.budget_used.observe(result.calls / result.budget)


def attributes(result: SelectionResult, task: SelectionTask, model: str | None, *, texts: bool) -> dict[str, Any]:
    """Return the attributes of a selection's span.

    Args:
        result: The result.
        task: The task.
        model: The name of the scorer; None if unknown.
        texts: Whether to include the query, and the ids and texts of documents.
    """
    found: dict[str, Any] = {
        "openinference.span.kind": "RERANKER",
        "gen_ai.operation.name": "retrieval",
        "gen_ai.provider.name": "boundarymorph",
        "boundarymorph.pool_size": len(result.pool),
        "boundarymorph.budget": result.budget,
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
    if task.aim.k is not None:
        found["reranker.top_k"] = task.aim.k
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
    """Return the id of a document and, if it was read, the beginning of its text."""
    id = result.pool.ids[position]
    document = result.documents.get(id)
    content = {} if document is None else {f"{name}.content": document.content[:CHARACTERS]}
    return {f"{name}.id": id, **content}
