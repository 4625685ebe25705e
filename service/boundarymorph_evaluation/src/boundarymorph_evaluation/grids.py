"""Write tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def grid(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Return a table whose first `texts` columns hold text, and the others numbers."""
    rule = "---|" * texts + "---:|" * (len(head) - texts)
    return "\n".join([_line(head), f"|{rule}", *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
