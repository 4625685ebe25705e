"""Logs as text lines or JSON lines, each with the id of its request."""

from __future__ import annotations

import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

import orjson

from boundarymorph.telemetry import tracing

REQUEST_ID = "X-Request-ID"  # the header; passed on to servers that we call, so that all logs have the same id
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_OURS = ("boundarymorph", "uvicorn", "opentelemetry")


class JsonLines(logging.Formatter):
    """One object per line: time, level, logger, process, message, request_id, trace_id, the fields of
    `extra={"fields": {...}}`, exception."""

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
        if (trace := tracing.trace_id()) is not None:
            line["trace_id"] = trace
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class Lines(logging.Formatter):
    """Time in UTC, LEVEL, message, and the request's id at the end. Control characters are escaped, so a message is one
    line."""

    def format(self, record: logging.LogRecord) -> str:
        message = _CONTROL.sub(lambda found: repr(found[0])[1:-1], record.getMessage())
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S")
        text = f"{time} {record.levelname + ':':<9} {message}"
        if (request := request_id.get()) is not None:
            text += f" [{request}]"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Send the logs of this service and its server to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Lines())
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
