"""Record a request's time by stage and OpenTelemetry spans, and log with its id.

Trace contexts are received and passed on in the W3C header traceparent. Spans have no query, text, or document id
unless that is configured. The SDK follows the OTEL_* variables; without a configured export, the API does nothing.
"""

from __future__ import annotations

import logging
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import orjson
from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_stages: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)


@contextmanager
def collect_stages() -> Iterator[dict[str, float]]:
    """Yield a dictionary that collects the seconds by stage within the block and its tasks."""
    stages: dict[str, float] = {}
    token = _stages.set(stages)
    try:
        yield stages
    finally:
        _stages.reset(token)


def add_seconds(stage: str, seconds: float) -> None:
    """Add seconds to a stage of the current request; outside of a request, do nothing."""
    if (stages := _stages.get()) is not None:
        stages[stage] = stages.get(stage, 0.0) + seconds


def replace_stages(seconds: Mapping[str, float]) -> None:
    """Replace the seconds of all stages of the current request."""
    if (stages := _stages.get()) is not None:
        stages.clear()
        stages.update(seconds)


def header(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{stage};dur={value * 1e3:.3f}" for stage, value in seconds.items())


class Stopwatch:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = self._clock()
        try:
            yield
        finally:
            self._stages[name] = self._stages.get(name, 0.0) + self._clock() - start

    def read(self) -> dict[str, float]:
        """Return the seconds of every stage so far, and the total since the start."""
        return {**self._stages, "total": self._clock() - self._start}


EXPORT_TIMEOUT = 5.0  # seconds; an unreachable collector must not delay the exit of a process
NONE = trace.NoOpTracer()

_tracer: trace.Tracer = NONE  # one per process, like the metrics
_texts = False
_W3C = TraceContextTextMapPropagator()


def configure(url: str, service: str, *, texts: bool = False) -> Callable[[], None]:
    """Send spans to an OTLP/HTTP collector, and return a function that sends the rest and stops.

    Args:
        url: The address of the collector.
        service: The service name unless OTEL_SERVICE_NAME is set.
        texts: Whether spans may contain texts and ids.

    Raises:
        ModuleNotFoundError: If the SDK is not installed.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    global _tracer, _texts
    _texts = texts
    resource = Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url, timeout=EXPORT_TIMEOUT)))
    _tracer = provider.get_tracer("boundarymorph")

    def end() -> None:
        global _tracer
        _tracer = NONE
        provider.shutdown()

    return end


def describe(attributes: Callable[[bool], Mapping[str, Any]]) -> None:
    """Add attributes to the current span.

    `attributes` returns them; its argument allows texts and ids among them.
    """
    current = trace.get_current_span()
    if current.is_recording():
        current.set_attributes(attributes(_texts))


def trace_id() -> str | None:
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def headers() -> dict[str, str]:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return carrier


@contextmanager
def span(name: str, **options: Any) -> Iterator[trace.Span]:
    """Run the block in a child span, marked as failed, without a message, if the block raises."""
    if _tracer is NONE:
        yield trace.INVALID_SPAN
        return
    options |= {"record_exception": False, "set_status_on_exception": False}
    with _tracer.start_as_current_span(name, **options) as current:
        try:
            yield current
        except Exception as error:
            current.set_status(Status(StatusCode.ERROR))
            current.set_attribute("error.type", type(error).__name__)
            raise


@contextmanager
def client_span(method: str, url: str) -> Iterator[Mapping[str, str]]:
    """Run the block in the span of an outgoing request.

    Yields the headers with which the server continues the trace.
    """
    with span(method, kind=SpanKind.CLIENT, attributes={"http.request.method": method, "url.full": url}):
        yield headers()


@contextmanager
def server_span(method: str, headers: Mapping[str, str], request_id: str) -> Iterator[Callable[[str, int], None]]:
    """Run the block in the span of an incoming request, within any trace of its headers.

    Yields a function that takes the route and the status of the response.
    """
    if _tracer is NONE:  # their spans would pass on the caller's trace
        yield lambda route, status: None
        return
    attributes = {"http.request.method": method, "boundarymorph.request_id": request_id}
    with span(method, context=_W3C.extract(headers), kind=SpanKind.SERVER, attributes=attributes) as current:

        def answered(route: str, status: int) -> None:
            current.update_name(f"{method} {route}")
            current.set_attributes({"http.route": route, "http.response.status_code": status})
            if status >= 500:
                current.set_status(Status(StatusCode.ERROR))

        yield answered


@contextmanager
def without_trace() -> Iterator[None]:
    """Run the block without any trace, here and in the processes that it calls."""
    unsampled = SpanContext(random.getrandbits(128) or 1, random.getrandbits(64) or 1, is_remote=False)
    with trace.use_span(trace.INVALID_SPAN if _tracer is NONE else trace.NonRecordingSpan(unsampled)):
        yield


REQUEST_ID = "X-Request-ID"  # the header; passed on to servers that we call, so that all logs have the same id
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


class JsonLines(logging.Formatter):
    """A formatter that writes one JSON object per line.

    The object has the fields of `extra={"fields": {...}}`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if (request := request_id.get()) is not None:
            line["request_id"] = request
        if (trace := trace_id()) is not None:
            line["trace_id"] = trace
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class Lines(logging.Formatter):
    """A formatter that writes the time in UTC, level, message, and request id.

    Control characters are escaped, so a message is one line.
    """

    def format(self, record: logging.LogRecord) -> str:
        message = _CONTROL.sub(lambda found: repr(found[0])[1:-1], record.getMessage())
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S")
        text = f"{time} {record.levelname + ':':<9} {message}"
        if (request := request_id.get()) is not None:
            text += f" [{request}]"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure_logs(level: str, form: Literal["text", "json"]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Lines())
    logging.basicConfig(handlers=[handler])  # for all other libraries; the SDK of MCP would choose a slow one
    for name in ("boundarymorph", "uvicorn", "opentelemetry"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
