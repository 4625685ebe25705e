"""Traces, metrics and Server-Timing of a selection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from boundarymorph.selector.result import SelectionResult
from boundarymorph.selector.spans import attributes
from boundarymorph.selector.task import SelectionTask
from boundarymorph.telemetry import metrics, timing, tracing


class Observer:
    """Observes one selection: each stage is a span and is timed by the watch, which may already be running."""

    def __init__(self, watch: timing.Stopwatch) -> None:
        self._watch = watch

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record the block as a stage, or as a part of one."""
        with tracing.span(name), self._watch.stage(name):
            yield

    def seconds(self) -> dict[str, float]:
        """Return the seconds by stage and their total, and put them into the request's Server-Timing."""
        seconds = self._watch.read()
        timing.tell(seconds)
        return seconds

    def finished(self, result: SelectionResult, task: SelectionTask, model: str | None) -> None:
        """Record a result in the metrics and in the span of its request. model: the scorer's."""
        tracing.describe(lambda texts: attributes(result, task, model, texts=texts))
        for stage, seconds in result.seconds.items():
            metrics.select_stage_seconds.labels(stage).observe(seconds)
        metrics.selections.labels(result.status.value, result.stop_reason.value).inc()
        metrics.select_vectors.labels(result.vectors).inc()
        metrics.cross_encoder_calls.inc(result.calls)
        metrics.select_calls.observe(result.calls)
        metrics.select_rounds.observe(result.rounds)
        metrics.expected_loss.observe(result.outlook.loss)
        metrics.truncated_pairs.inc(result.truncated)
        if task.budget:
            metrics.budget_used.observe(result.calls / task.budget)


class Quiet(Observer):
    """An observer of a part of a selection, which is counted with the whole."""

    def finished(self, result: SelectionResult, task: SelectionTask, model: str | None) -> None:
        pass
