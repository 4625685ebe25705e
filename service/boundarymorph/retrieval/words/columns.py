"""The words of an index as columns of its rows: which documents have a word, and how often. No database.

A word is a number, as of `PoolWords.index_terms`: those of one stem are neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import check_awaited
from boundarymorph.retrieval.words.lexical import (
    PoolWords,
    contributions,
    query_terms,
    saturation,
    stem_numbers,
    weight,
)

MOST_COUNTED = 65_535
_RANGES = 64  # of words that are written one after the other, so that little of them is in memory
_WORD = 2**32 - 1  # the half of a number that is of the word, not of its stem
_FILES = {"terms": "<u8", "ends": "<i8", "rows": "<u4", "counts": "<u2"}
_LENGTHS = "lengths"


@dataclass(frozen=True, slots=True)
class Columns:
    """P (word, row) pairs of some rows, sorted by word and row.

    terms: (T,) uint64, ascending; ends: (T,) int64, where the pairs of each end. rows: (P,) uint32; counts: (P,)
    uint16, how often the document has the word, at most MOST_COUNTED.
    """

    terms: NDArray[np.uint64]
    ends: NDArray[np.int64]
    rows: NDArray[np.uint32]
    counts: NDArray[np.uint16]

    @classmethod
    def of(cls, words: PoolWords, first: int) -> Columns:
        """Return the columns of the texts that begin with row `first`."""
        terms, numbers = np.unique(words.index_terms(), return_inverse=True)
        size = np.uint64(max(1, len(words.lengths)))
        pairs = numbers.astype(np.uint64) * size
        pairs += np.repeat(np.arange(len(words.lengths), dtype=np.uint64), words.lengths)
        pairs, counts = np.unique(pairs, return_counts=True)
        ends = np.searchsorted(pairs, np.arange(1, len(terms) + 1, dtype=np.uint64) * size)
        rows = (pairs % size).astype(np.uint32) + np.uint32(first)
        return cls(terms, ends.astype(np.int64), rows, np.minimum(counts, MOST_COUNTED).astype(np.uint16))

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return where the words from one number to another, which is included, begin and end."""
        start = np.searchsorted(self.terms, np.uint64(first))
        return int(start), int(np.searchsorted(self.terms, np.uint64(last), side="right"))

    def between(self, first: int, last: int) -> slice:
        """Return where the pairs of these words are."""
        start, end = self.span(first, last)
        return slice(int(self.ends[start - 1]) if start else 0, int(self.ends[end - 1]) if end else 0)

    def moved(self, places: NDArray[np.int64]) -> Columns:
        """Return the pairs of rows that go to other places, in the same order; -1 for those that are gone."""
        rows = places[self.rows]
        kept = rows >= 0
        ends = np.concatenate([[0], np.cumsum(kept)])[self.ends]
        return Columns(self.terms, ends, rows[kept].astype(np.uint32), self.counts[kept])


def merged(parts: Sequence[Columns]) -> Columns:
    """Return the columns of all parts, whose rows are in ascending order."""
    every = np.concatenate([np.repeat(part.terms, np.diff(part.ends, prepend=0)) for part in parts])
    order = np.argsort(every, kind="stable")
    terms, counts = np.unique(every, return_counts=True)
    rows, often = (np.concatenate([getattr(part, name) for part in parts])[order] for name in ("rows", "counts"))
    return Columns(terms, np.cumsum(counts), rows, often)


class ColumnWriter:
    """Writes the columns of a block, for which pages of rows come in order. They are sorted in a file beside them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pages: list[Columns] = []
        self._lengths: list[NDArray[np.uint32]] = []
        self.count = 0

    def add(self, texts: Iterable[str]) -> None:
        """Add the next rows."""
        words = PoolWords.of(texts)
        number, page = len(self._pages), Columns.of(words, self.count)
        for name in _FILES:
            np.save(self._folder / f"page-{number}-{name}.npy", getattr(page, name))
        self._pages.append(_mapped(self._folder, f"page-{number}-"))
        self._lengths.append(words.lengths.astype(np.uint32))
        self.count += len(words.lengths)

    def finish(self, checkpoint: Callable[[], None]) -> None:
        """Write the files that `read` reads, and remove the others. checkpoint is called about every second."""
        end = 0
        with ExitStack() as opened:
            files = {name: opened.enter_context((self._folder / f"{name}.bin").open("wb")) for name in _FILES}
            for number in range(_RANGES):
                checkpoint()
                first, last = (number << 64) // _RANGES, ((number + 1 << 64) // _RANGES) - 1
                part = merged([_part(page, first, last) for page in self._pages] or [EMPTY])
                for name, file in files.items():
                    column = getattr(part, name) + (end if name == "ends" else 0)
                    column.astype(_FILES[name], copy=False).tofile(file)
                end += len(part.rows)
        np.concatenate([EMPTY.rows, *self._lengths]).astype("<u4").tofile(self._folder / f"{_LENGTHS}.bin")
        self._pages.clear()
        for path in self._folder.glob("page-*.npy"):
            path.unlink()


def read(folder: Path) -> tuple[Columns, NDArray[np.uint32]]:
    """Return what `ColumnWriter` wrote, mapped, and the (n,) number of words of each row. Raises OSError."""
    columns = Columns(*(_file(folder / f"{name}.bin", kind) for name, kind in _FILES.items()))
    return columns, np.fromfile(folder / f"{_LENGTHS}.bin", "<u4")


@dataclass(frozen=True)
class RowWords:
    """The words of all rows at one moment: BM25 with exact statistics of the living, and the query's words they have.

    parts: consecutive rows each; lengths: (n,) words of each row; alive: (n,).
    """

    parts: tuple[Columns, ...]
    lengths: NDArray[np.uint32]
    alive: NDArray[np.bool_]

    def scores(self, query: str, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (k,) BM25 of k living rows."""
        scores, saturations = np.zeros(len(rows)), saturation(self.lengths[rows], self._mean_length)
        order = np.argsort(rows)
        ascending = rows[order].astype(np.uint32)
        for amount, lists in self._weighted(query):
            for having, counts in lists:
                if len(having):
                    near = np.minimum(np.searchsorted(having, ascending), len(having) - 1)
                    there = having[near] == ascending
                    places = order[there]
                    scores[places] += contributions(amount, counts[near[there]], saturations[places])
        return scores

    def best(self, query: str, depth: int, among: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return up to `depth` rows with the highest BM25 that have a word of the query, best first, and their scores.

        among: (n,) the rows to consider; the statistics remain those of all documents. Ties are in order of rows.
        """
        totals = np.zeros(len(self.alive))
        for amount, lists in self._weighted(query):
            for having, counts in lists:
                saturations = saturation(self.lengths[having], self._mean_length)
                totals[having] += contributions(amount, counts, saturations)
        rows = np.flatnonzero((totals > 0) & among)
        scores = totals[rows]
        if depth < len(rows):
            last = np.partition(scores, len(scores) - depth)[len(scores) - depth]
            above, equal = np.flatnonzero(scores > last), np.flatnonzero(scores == last)
            kept = np.sort(np.concatenate([above, equal[: depth - len(above)]]))
            rows, scores = rows[kept], scores[kept]
        order = np.argsort(-scores, kind="stable")
        return rows[order], scores[order]

    def terms(self, query: str, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return (w, k) which of the w `query_terms` k rows have."""
        stems = stem_numbers(query_terms(query)).tolist()
        having = np.zeros((len(stems), len(rows)), np.bool_)
        for stem, row in zip(stems, having, strict=True):
            check_awaited()
            there = np.zeros(len(self.alive), np.bool_)
            for part in self.parts:
                there[part.rows[part.between(stem << 32, (stem << 32) | _WORD)]] = True
            row[:] = there[rows]
        return having

    @cached_property
    def _living(self) -> int:
        return int(np.count_nonzero(self.alive))

    @cached_property
    def _mean_length(self) -> float:
        return float(self.lengths[self.alive].sum(dtype=np.int64)) / self._living if self._living else 0.0

    def _weighted(self, query: str) -> list[tuple[float, list[tuple[NDArray[np.uint32], NDArray[np.uint16]]]]]:
        """Return for each word of the query its weight, and in every part the rows that have it and how often."""
        times = Counter(PoolWords.of([query], query=True).index_terms().tolist())
        weighted = []
        for term in sorted(times):
            check_awaited()
            slices = [(part, part.between(term, term)) for part in self.parts]
            lists = [(part.rows[where], part.counts[where]) for part, where in slices]
            having = sum(len(rows) for rows, _ in lists)
            if self._living < len(self.alive):
                having = sum(int(np.count_nonzero(self.alive[rows])) for rows, _ in lists)
            if having:
                weighted.append((times[term] * weight(self._living, having), lists))
        return weighted


def _part(page: Columns, first: int, last: int) -> Columns:
    """Return the pairs of the words from one number to another."""
    where = page.between(first, last)
    start, end = page.span(first, last)
    return Columns(page.terms[start:end], page.ends[start:end] - where.start, page.rows[where], page.counts[where])


def _mapped(folder: Path, prefix: str) -> Columns:
    return Columns(*(np.load(folder / f"{prefix}{name}.npy", mmap_mode="r") for name in _FILES))


def _file(path: Path, kind: str) -> Any:
    """Map a file, which may be empty."""
    return np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)


EMPTY = Columns(np.empty(0, "u8"), np.empty(0, "i8"), np.empty(0, "u4"), np.empty(0, "u2"))
