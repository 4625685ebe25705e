"""What the evaluations on tables of known scores share: reading the tables, playing sessions, Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.evaluation import tables

Row = Mapping[str, Any]


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that each of them has: TABLES and --every."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tables", type=read_all, help="folder of .npz tables")
    options.add_argument("--every", type=int, default=1, help="only every so many queries")
    return options


def read_all(folder: str) -> list[tables.Table]:
    """Read the tables of a folder. Raises argparse.ArgumentTypeError if there are none."""
    found = [tables.read(path) for path in sorted(Path(folder).glob("*.npz"))]
    if not found:
        raise argparse.ArgumentTypeError(f"there is no .npz in {folder}")
    return found


def by_score(scores: NDArray[np.float64], scored: int) -> NDArray[np.intp]:
    """Return the positions of (N,) scores: the first `scored` of them by score, the others behind them as they came."""
    return np.concatenate([np.argsort(-scores[:scored], kind="stable"), np.arange(scored, len(scores))])


def markdown(rows: Sequence[Row]) -> str:
    """Return a table of rows with the same keys."""
    head = list(rows[0])
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join('---:' for _ in head)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(str(row[name]) for name in head)} |" for row in rows)])
