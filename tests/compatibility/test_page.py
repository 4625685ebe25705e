"""What the page of `make compatibility` says of the checks."""

from __future__ import annotations

from tests.compatibility.__main__ import tried


def test_what_is_the_same_is_said_once_and_failures_are_seen() -> None:
    passed = [f"{part}{what}" for part in ("", "a/: ", "b/: ", "c/: ") for what in ("order", "budget")]
    checks = [{"what": what, "problem": "Traceback" if what == "c/: budget" else None} for what in passed]
    assert tried(checks) == "order; budget; a/, b/: order, budget; c/: order, budget **failed**"
