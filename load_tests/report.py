"""Report benchmarks: each row when it is measured, then a table, and build/bench/NAME.json."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Column, Table

RESULTS = Path("build/bench")
STOPPED = 130  # the exit code after Ctrl-C, as in a shell


class Rows(list[Mapping[str, Any]]):
    """The rows of a benchmark.

    Each is printed and written as it is appended, so that a run may be stopped at any time. The file says `"complete":
    false` until `write` has written all of it.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def append(self, row: Mapping[str, Any]) -> None:
        super().append(row)
        self._save({}, complete=False)
        print("  ".join(f"{key} {_shown(value)}" for key, value in row.items() if value != ""), flush=True)

    def write(self, ratios: Mapping[str, float] = {}) -> None:
        """Write the report. `ratios` has the figures for claims, all measured in this run."""
        names = list(dict.fromkeys(key for row in self for key in row))
        table = Table(*(Column(name, justify="right") for name in names), title=self._name)
        for row in self:
            table.add_row(*(_shown(row.get(name, "")) for name in names))
        console = Console(width=max(80, 16 * len(names)))
        console.print(table)
        for key, value in ratios.items():
            console.print(f"{key}: {value:.3g}")
        console.print(f"written to {self._save(ratios, complete=True)}")

    def _save(self, ratios: Mapping[str, float], *, complete: bool) -> Path:
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{self._name}.json"
        results = {"complete": complete, "rows": list(self), "ratios": ratios}
        partial = path.with_suffix(".partial")  # an interrupted write must not leave a damaged file
        partial.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))
        return partial.replace(path)


def run(main: Callable[[], None]) -> None:
    """Run a benchmark; `Ctrl-C` stops it without a traceback."""
    try:
        main()
    except KeyboardInterrupt:
        print(f"stopped; what was measured by then is in {RESULTS}", flush=True)
        sys.exit(STOPPED)


def study(folder: Path, name: str, title: str, table: str, rows: object) -> None:
    """Print the table of a study, and write it and the rows behind it to NAME.md and NAME.json."""
    text = f"# {title}\n\n{table}\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_bytes(orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY))
    print(text)


def percentiles(seconds: Sequence[float], *, shares: Sequence[int] = (50, 99), of: str = "p{}_ms") -> dict[str, float]:
    """Return percentiles of seconds in milliseconds, or NaN without any.

    Their names are made of the share.
    """
    return {of.format(share): float(np.percentile(seconds, share)) * 1e3 if seconds else np.nan for share in shares}


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
