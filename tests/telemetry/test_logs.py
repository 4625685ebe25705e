"""Test log lines in their text and JSON forms."""

import logging
import os
import subprocess
import sys

import orjson
import pytest

from boundarymorph.telemetry import tracing

TIME = "1970-01-01 00:01:40"


def record(message: str, *arguments: object, fields: dict[str, object] | None = None) -> logging.LogRecord:
    made = logging.LogRecord("boundarymorph.test", logging.WARNING, __file__, 1, message, arguments, None)
    made.created = 100.0
    if fields is not None:
        made.fields = fields
    return made


def test_json_log_line_has_time_process_level_and_fields() -> None:
    line = orjson.loads(tracing.JsonLines().format(record("%d of %d\nlines", 1, 2, fields={"status": 200})))
    assert line.pop("time").endswith("+00:00")
    assert line.pop("process") == os.getpid()
    assert line == {"level": "warning", "logger": "boundarymorph.test", "message": "1 of 2\nlines", "status": 200}


@pytest.mark.strangers
def test_log_line_has_the_id_of_its_request() -> None:
    token = tracing.request_id.set("abc")
    try:
        assert orjson.loads(tracing.JsonLines().format(record("hello")))["request_id"] == "abc"
        assert tracing.Lines().format(record("hello")) == f"{TIME} WARNING:  hello [abc]"
    finally:
        tracing.request_id.reset(token)
    assert tracing.Lines().format(record("hello")) == f"{TIME} WARNING:  hello"


def test_log_line_includes_the_exception() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        failed = record("it failed")
        failed.exc_info = sys.exc_info()
    assert "ValueError: broken" in orjson.loads(tracing.JsonLines().format(failed))["exception"]
    assert tracing.JsonLines().format(failed).count("\n") == 0
    assert "ValueError: broken" in tracing.Lines().format(failed)


@pytest.mark.strangers
def test_log_message_stays_on_one_line() -> None:
    """Tabs and letters of any alphabet are printed unchanged."""
    forged = record("no index %s", "'x'\nINFO:     all is well\r\x1b[2K\u2028\x85\té\u20ac")
    assert tracing.Lines().format(forged) == (
        f"{TIME} WARNING:  no index 'x'\\nINFO:     all is well\\r\\x1b[2K\\u2028\\x85\té\u20ac"
    )


def test_other_libraries_log_in_the_same_form() -> None:
    """The handler of MCP's SDK needs a second for a traceback."""
    code = (
        "import logging; from boundarymorph.telemetry import tracing; tracing.configure_logs('info', 'json'); "
        "from boundarymorph.agents import tools; tools.server_of(None); logging.getLogger('mcp.server').error('broken')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    line = orjson.loads(done.stderr)
    assert (line["logger"], line["level"], line["message"]) == ("mcp.server", "error", "broken")
