"""Traces, metrics and Server-Timing of retrievers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from boundarymorph.errors import BoundaryMorphError
from boundarymorph.telemetry import metrics, timing, tracing

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def observed(method: Callable[Given, Awaitable[Answer]]) -> Callable[Given, Coroutine[Any, Any, Answer]]:
    """Make each call of a retriever's method a span and an observation; its outcome is ok, the slug of an error, or
    other."""
    name = method.__name__

    @wraps(method)
    async def call(*given: Given.args, **named: Given.kwargs) -> Answer:
        start, outcome = time.perf_counter(), "other"
        try:
            with tracing.span(f"retriever.{name}"):
                answer = await method(*given, **named)
            outcome = "ok"
            return answer
        except BoundaryMorphError as error:
            outcome = error.slug
            raise
        finally:
            seconds = time.perf_counter() - start
            metrics.retriever_seconds.labels(name, outcome).observe(seconds)
            timing.add(name, seconds)

    return call
