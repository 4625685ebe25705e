"""How every benchmark reports: a table on the terminal and the same numbers as build/bench/NAME.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

RESULTS = Path("build/bench")


def write(name: str, rows: Sequence[Mapping[str, Any]], ratios: Mapping[str, float]) -> None:
    """rows share their keys; ratios are the figures that a claim rests on, measured side by side in this run."""
    table = Table(title=name)
    for key in rows[0]:
        table.add_column(key, justify="right")
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    console = Console(width=max(80, 16 * len(rows[0])))
    console.print(table)
    for key, value in ratios.items():
        console.print(f"{key}: {value:.3g}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_bytes(orjson.dumps({"rows": rows, "ratios": ratios}, option=orjson.OPT_INDENT_2))
    console.print(f"written to {path}")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
