"""What the evaluations on tables of known scores share: reading the tables, pools without words, Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.evaluation import datasets, tables
from boundarymorph.evaluation.grids import grid
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection import Pool

Row = Mapping[str, Any]


def normalised_discounted_gain(chosen: NDArray[np.intp], gains: NDArray[np.float64]) -> float:
    """nDCG (Jarvelin and Kekalainen 2002) of the chosen positions in their order, over that of the best `gains` (N,):
    each divided by log2(1 + rank)."""
    discounts = 1 / np.log2(np.arange(2, len(chosen) + 2))
    best = np.sort(gains)[::-1][: len(chosen)]
    ideal = float(best @ discounts[: len(best)])
    return float(gains[chosen] @ discounts) / ideal if ideal > 0 else float("nan")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that each of them has: TABLES, --collections and --every."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tables", type=read_all, help="folder of .npz tables")
    options.add_argument("--collections", type=Path, help="folder of BEIR folders with their texts")
    options.add_argument("--every", type=int, default=1, help="only every so many queries")
    return options


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line; of its tables, those have texts whose texts are in --collections."""
    given = parser.parse_args()
    if given.collections is not None:
        given.tables = with_texts(given.tables, given.collections)
    for table in given.tables:
        if "terms" not in table.provides:
            print(f"{table.name}: without its texts (--collections), which words of a query a document has is unknown")
    return given


def read_all(folder: str) -> list[ScoreTable]:
    """Read the tables of a folder. Raises argparse.ArgumentTypeError if there are none."""
    found = [tables.read(path) for path in sorted(Path(folder).glob("*.npz"))]
    if not found:
        raise argparse.ArgumentTypeError(f"there is no .npz in {folder}")
    return found


def with_texts(found: Sequence[ScoreTable], folder: Path) -> list[ScoreTable]:
    """Return the tables, with texts and terms where a BEIR folder in `folder` has all of them."""
    collections = [datasets.load(str(path.parent)) for path in sorted(folder.glob("*/corpus.jsonl*"))]
    return [tables.with_texts_of(table, collections) for table in found]


def without_words(pool: Pool) -> Pool:
    """Return the pool without BM25 and without terms."""
    others = {name: signal for name, signal in pool.features.items() if name != "bm25"}
    return replace(without_terms(pool), features=others)


def without_terms(pool: Pool) -> Pool:
    """Return the pool without what is known of the words of the query that each document has."""
    return replace(pool, terms=None)


def by_score(scores: NDArray[np.float64], scored: int) -> NDArray[np.intp]:
    """Return the positions of (N,) scores: the first `scored` of them by score, the others behind them as they came."""
    return np.concatenate([np.argsort(-scores[:scored], kind="stable"), np.arange(scored, len(scores))])


def markdown(rows: Sequence[Row]) -> str:
    """Return a table of rows with the same keys."""
    head = list(rows[0])
    return grid(head, ([str(row[name]) for name in head] for row in rows), texts=0)
