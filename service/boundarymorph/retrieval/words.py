"""Find words and compute BM25 (Robertson and Zaragoza 2009) for pools and indexes.

In an index, the words are columns of its rows, and a word is a number (`PoolWords.index_terms`).
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import check_awaited
from boundarymorph.reading import compose

WORDS_VERSION = 4  # version of the rules that make the words of an index
K1, B = 1.5, 0.75
STEM_LETTERS = 4  # truncation stems words well enough in alphabetic languages (McNamee and Mayfield 2004)
MOST_TERMS = 64  # terms of a query
MOST_CHARACTERS = 2**25  # characters of all texts of a pool; reading their words takes some eight times as many bytes
_SPACE = ord(" ")
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_IDEOGRAPHS = "\u2e80"  # from here on, a character without spaces around it is often a word
# Accents, the points of Hebrew and Arabic, the Arabic stretching line, and what Unicode calls default ignorable: soft
# hyphens, joiners, marks of direction, variation selectors and the like.
_DROPPED = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u0655\u0670\u00ad\u061c\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Arabic letters that keyboards of other languages type in another form, as in Lucene's analyzers.
_SAME_LETTERS = str.maketrans(
    "\u0649\u06cc\u06d2\u06a9\u06c1\u06be\u0629", "\u064a\u064a\u064a\u0643\u0647\u0647\u0647"
)
_SHORT = 32  # characters; shorter runs are likely to recur
_PIECE = 2**16  # words or characters per call of a built-in function, which no thread interrupts
_HEAD = 4  # first bytes of a word, by which it is found
_STEM_BYTES = 4 * STEM_LETTERS  # most bytes of a stem in UTF-8
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)
_FOLDING, _FOLDING_QUERIES = "boundarymorph.words", "boundarymorph.words.queries"
MOST_COUNTED = 65_535
_RANGES = 64  # ranges of words to write one after the other, so that memory holds few
_WORD = 2**32 - 1  # the half of a number for the word; the other is for its stem
_FILES = {"terms": "<u8", "ends": "<i8", "rows": "<u4", "counts": "<u2"}
_LENGTHS = "lengths"


def words(text: str, *, query: bool = False) -> list[bytes]:
    """Return the words of a text or query in order, as UTF-8.

    A word is a run of letters, marks, digits, and underscores, with full case folding, in compatibility form, without
    accents, points of vowels, and characters that are not drawn. Variants of an Arabic letter are the same. Text
    without spaces becomes overlapping pairs of characters. In Chinese, Japanese or Korean texts, but not queries, it
    also becomes single ones.
    """
    return _spaced(_folded(text, query)).split()


def query_terms(query: str) -> list[bytes]:
    """Return the first MOST_TERMS distinct terms of a query, by which documents match.

    A term is the first STEM_LETTERS letters of a word. The term of a shorter word ends with a space, so that it matches
    only the word itself.
    """
    return list(dict.fromkeys(_stem(word) for word in words(query, query=True)))[:MOST_TERMS]


def stem_numbers(terms: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return (w,) the 32-bit hashes of w `query_terms`."""
    padded = b"".join(term.ljust(_STEM_BYTES) for term in terms)
    return _hashed(np.frombuffer(padded, np.uint8).reshape(-1, _STEM_BYTES))


def weight(documents: int, frequency: int) -> float:
    """Return `ln(1 + (D - n + 1/2) / (n + 1/2))`, the weight of a word in n of D documents."""
    return float(np.log1p((documents - frequency + 0.5) / (frequency + 0.5)))


def saturation(lengths: NDArray[np.integer], mean: float) -> NDArray[np.float64]:
    """Return (n,) the count at which a word scores half of its maximum.

    `lengths` are the documents' lengths in words.
    """
    if mean <= 0:
        return np.full(len(lengths), K1)
    return K1 * (1 - B) + lengths.astype(np.float64) * (K1 * B / mean)


def contributions(weight: float, counts: NDArray[np.integer], saturation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n,) the scores that a word adds to documents that contain it this many times."""
    return weight * (K1 + 1) * counts / (counts + saturation)


@dataclass(frozen=True, eq=False)
class PoolWords:
    """The words of n texts.

    Attributes:
        content: All words, folded, with spaces.
        starts: (T,) where the words begin.
        ends: (n,) where the texts end.
    """

    content: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def from_texts(cls, texts: Iterable[str], *, query: bool = False) -> PoolWords:
        """Return the words of texts, or of queries; see `words`."""
        folded = []
        for text in texts:
            check_awaited()
            folded.append(_folded(text, query))
        content = np.frombuffer(_spaced(b"\n".join([b"", *folded, _STEM_BYTES * b" "])), dtype=np.uint8)
        edges = np.flatnonzero(np.diff(content != _SPACE)) + 1
        ends = np.cumsum([len(text) + 1 for text in folded], dtype=np.int64)
        return cls(content, edges[::2], ends)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) number of words of each text."""
        return np.diff(np.searchsorted(self.starts, self.ends), prepend=0)

    @cached_property
    def hashes(self) -> NDArray[np.uint32]:
        """(T,) the CRC-32 of all words.

        Of a million words, one in 4,000 has the hash of another and counts as the same.
        """
        hashes = np.empty(len(self.starts), np.uint32)
        for start in range(0, len(hashes), _PIECE):  # other threads run in between
            check_awaited()
            end = self.starts[start + _PIECE] if start + _PIECE < len(hashes) else None
            hashes[start : start + _PIECE] = [*map(crc32, self.content[self.starts[start] : end].tobytes().split())]
        return hashes

    def index_terms(self) -> NDArray[np.uint64]:
        """Return (T,) all words as numbers.

        The upper half is of the stem (`stem_numbers`), the lower half of the word.
        """
        return self._stems << np.uint64(32) | self.hashes.astype(np.uint64)

    def bm25(self, query: str) -> NDArray[np.float64]:
        """Return (n,) BM25 of each text, with the statistics of these texts.

        Repeated words of the query count.
        """
        documents = len(self.ends)
        scores = np.zeros(documents)
        saturations = saturation(self.lengths, float(self.lengths.mean()) if documents else 0.0)
        for word, times in Counter(words(query, query=True)).items():
            counts = self._counts(word + b" ")
            having = np.flatnonzero(counts)
            amount = times * weight(documents, len(having))
            scores[having] += contributions(amount, counts[having], saturations[having])
        return scores

    def terms(self, query: str) -> NDArray[np.bool_]:
        """Return (w, n) whether each text has each of the w `query_terms`."""
        counts = [self._counts(term) for term in query_terms(query)]
        return np.array(counts, dtype=np.bool_).reshape(len(counts), len(self.ends))

    @cached_property
    def _heads(self) -> NDArray[np.uint32]:
        """(T,) the first four bytes of each word and of the text after it."""
        anywhere = np.ndarray(len(self.content) - _HEAD + 1, "<u4", self.content.data, strides=(1,))
        return anywhere[self.starts]

    @property
    def _stems(self) -> NDArray[np.uint64]:
        """(T,) the number of each word's stem, as of `stem_numbers`."""
        padded = np.full((len(self.starts), _STEM_BYTES), _SPACE, np.uint8)
        letters = np.zeros(len(self.starts), np.uint8)
        inside = np.ones(len(self.starts), np.bool_)
        for offset in range(_STEM_BYTES):
            bytes_there = self.content[self.starts + offset]
            letters += bytes_there & 0xC0 != 0x80  # the first byte of a character
            inside &= (letters <= STEM_LETTERS) & (bytes_there != _SPACE)
            if not inside.any():
                break
            padded[inside, offset] = bytes_there[inside]
        return _hashed(padded)

    def _counts(self, beginning: bytes) -> NDArray[np.intp]:
        """Return (n,) the number of words of each text with this beginning.

        A beginning that ends with a space is a whole word.
        """
        head = beginning[:_HEAD]
        mask = np.uint32((1 << 8 * len(head)) - 1)
        places = self.starts[self._heads & mask == int.from_bytes(head, "little")]
        for offset, letter in enumerate(beginning[_HEAD:], start=_HEAD):
            places = places[self.content[places + offset] == letter]
        return np.bincount(np.searchsorted(self.ends, places), minlength=len(self.ends))


def _stem(word: bytes) -> bytes:
    letters = word.decode()
    return letters[:STEM_LETTERS].encode() if len(letters) >= STEM_LETTERS else word + b" "


def _hashed(padded: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return (w,) 32-bit hashes of (w, _STEM_BYTES) bytes.

    A hash is the sum of two halves, each times an odd number.
    """
    halves = padded.view("<u8")
    sums: NDArray[np.uint64] = halves[:, 0] * _FACTORS[0] + halves[:, 1] * _FACTORS[1]
    return sums >> np.uint64(32)


def _folded(text: str, query: bool) -> bytes:
    """Return UTF-8 with folded characters, and spaces for all that is not part of a word."""
    if not text.isascii() and len(text.encode(errors="replace")) > 1.2 * len(text):
        return _fold(text, query)  # the same result, faster if there is much to fold
    return text.encode("ascii", _FOLDING_QUERIES if query else _FOLDING)


def _spaced(folded: bytes) -> bytes:
    return folded.translate(_LOWER_AND_SPACES)


def _fold_run(error: UnicodeError, query: bool = False) -> tuple[bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    run = error.object[error.start : error.end]
    return (_fold_short if len(run) <= _SHORT else _fold)(run, query), error.end


def _fold(text: str, query: bool) -> bytes:
    whole = compose(text)
    folded = "".join(
        whole[start : start + _PIECE].translate(_FOLDED_CHARACTERS) for start in range(0, len(whole), _PIECE)
    )
    if _UNSPACED_RUN.search("".join(set(whole)).translate(_FOLDED_CHARACTERS)):  # a set is short
        folded = _UNSPACED_RUN.sub(_pairs if query else _pairs_and_singles, folded)
    return folded.encode()


_fold_short = lru_cache(maxsize=65_536)(_fold)


class _FoldedCharacters(dict[int, str]):
    def __missing__(self, code: int) -> str:
        parts = _DROPPED.sub("", unicodedata.normalize("NFKD", chr(code)).casefold()).translate(_SAME_LETTERS)
        kept = (part if part == "_" or unicodedata.category(part)[0] in "LMN" else " " for part in parts)
        self[code] = compose("".join(kept))
        return self[code]


def _pairs(run: re.Match[str]) -> str:
    text = run[0]
    return f" {' '.join(text[i : i + 2] for i in range(max(len(text) - 1, 1)))} "


def _pairs_and_singles(run: re.Match[str]) -> str:
    singles = (letter for letter in run[0] if letter >= _IDEOGRAPHS)
    return f"{_pairs(run)}{' '.join(singles)} " if len(run[0]) > 1 else _pairs(run)


_FOLDED_CHARACTERS = _FoldedCharacters()
_LOWER_AND_SPACES = bytes(
    byte if byte >= 128 or chr(byte).isalnum() or byte == ord("_") else _SPACE for byte in bytes(range(256)).lower()
)
codecs.register_error(_FOLDING, _fold_run)
codecs.register_error(_FOLDING_QUERIES, partial(_fold_run, query=True))


def truncate_texts(texts: Iterable[str], count: int, most: int = MOST_CHARACTERS) -> list[str]:
    """Return `count` texts, or the beginnings of all if they are too long.

    If they have more than `most` characters together, each is cut to most / count.
    """
    kept: list[str] = []
    longest, size = None, 0
    for text in texts:
        kept.append(text[:longest])
        size += len(kept[-1])
        if longest is None and size > most:
            longest = max(1, most // count)
            kept = [each[:longest] for each in kept]
    return kept


@dataclass(frozen=True, slots=True)
class WordColumns:
    """P (word, row) pairs of some rows, sorted by word and row.

    Attributes:
        terms: (T,) uint64, ascending.
        ends: (T,) int64, where the pairs of each term end.
        rows: (P,) uint32.
        counts: (P,) uint16, of the word in the row, at most MOST_COUNTED.
    """

    terms: NDArray[np.uint64]
    ends: NDArray[np.int64]
    rows: NDArray[np.uint32]
    counts: NDArray[np.uint16]

    @classmethod
    def from_words(cls, words: PoolWords, first: int) -> WordColumns:
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
        """Return the beginning and end of the words with numbers from `first` to `last`, inclusive."""
        start = np.searchsorted(self.terms, np.uint64(first))
        return int(start), int(np.searchsorted(self.terms, np.uint64(last), side="right"))

    def pair_slice(self, first: int, last: int) -> slice:
        start, end = self.span(first, last)
        return slice(int(self.ends[start - 1]) if start else 0, int(self.ends[end - 1]) if end else 0)

    def moved(self, places: NDArray[np.int64]) -> WordColumns:
        """Return the pairs of rows that move to other places in the same order; -1 removes a row."""
        rows = places[self.rows]
        kept = rows >= 0
        ends = np.concatenate([[0], np.cumsum(kept)])[self.ends]
        return WordColumns(self.terms, ends, rows[kept].astype(np.uint32), self.counts[kept])


def merge_columns(parts: Sequence[WordColumns]) -> WordColumns:
    """Return the columns of all parts, whose rows are in ascending order."""
    every = np.concatenate([np.repeat(part.terms, np.diff(part.ends, prepend=0)) for part in parts])
    order = np.argsort(every, kind="stable")
    terms, counts = np.unique(every, return_counts=True)
    rows, often = (np.concatenate([getattr(part, name) for part in parts])[order] for name in ("rows", "counts"))
    return WordColumns(terms, np.cumsum(counts), rows, often)


class ColumnWriter:
    """Writes the columns of a block, whose rows come in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pages: list[WordColumns] = []
        self._lengths: list[NDArray[np.uint32]] = []
        self.count = 0

    def add(self, texts: Iterable[str]) -> None:
        words = PoolWords.from_texts(texts)
        number, page = len(self._pages), WordColumns.from_words(words, self.count)
        for name in _FILES:
            np.save(self._folder / f"page-{number}-{name}.npy", getattr(page, name))
        self._pages.append(WordColumns(*(np.load(self._folder / f"page-{number}-{name}.npy", "r") for name in _FILES)))
        self._lengths.append(words.lengths.astype(np.uint32))
        self.count += len(words.lengths)

    def finish(self, checkpoint: Callable[[], None]) -> None:
        """Write the files that `read_columns` reads; `checkpoint` is called about every second."""
        end = 0
        with ExitStack() as opened:
            files = {name: opened.enter_context((self._folder / f"{name}.bin").open("wb")) for name in _FILES}
            for number in range(_RANGES):
                checkpoint()
                first, last = (number << 64) // _RANGES, ((number + 1 << 64) // _RANGES) - 1
                part = merge_columns([_part(page, first, last) for page in self._pages] or [EMPTY])
                for name, file in files.items():
                    column = getattr(part, name) + (end if name == "ends" else 0)
                    column.astype(_FILES[name], copy=False).tofile(file)
                end += len(part.rows)
        np.concatenate([EMPTY.rows, *self._lengths]).astype("<u4").tofile(self._folder / f"{_LENGTHS}.bin")
        self._pages.clear()
        for path in self._folder.glob("page-*.npy"):
            path.unlink()


def read_columns(folder: Path) -> tuple[WordColumns, NDArray[np.uint32]]:
    """Return the columns that `ColumnWriter` wrote, mapped, and (n,) words of each row.

    Raises OSError.
    """
    columns = WordColumns(*(_file(folder / f"{name}.bin", kind) for name, kind in _FILES.items()))
    return columns, np.fromfile(folder / f"{_LENGTHS}.bin", "<u4")


@dataclass(frozen=True)
class RowWords:
    """BM25 of all rows at one moment, with statistics of the living ones.

    Attributes:
        parts: Columns of consecutive rows.
        lengths: (n,) words of each row.
        alive: (n,) whether the row is in use.
    """

    parts: tuple[WordColumns, ...]
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
        """Return up to `depth` rows with the highest BM25 that have a word of the query, and scores.

        They are best first, ties in order of rows. The statistics are of all documents.

        Args:
            query: The query.
            depth: Most rows.
            among: (n,) the rows to consider.
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
        """Return (w, k) whether each of k rows has each of the w `query_terms`."""
        stems = stem_numbers(query_terms(query)).tolist()
        having = np.zeros((len(stems), len(rows)), np.bool_)
        for stem, row in zip(stems, having, strict=True):
            check_awaited()
            there = np.zeros(len(self.alive), np.bool_)
            for part in self.parts:
                there[part.rows[part.pair_slice(stem << 32, (stem << 32) | _WORD)]] = True
            row[:] = there[rows]
        return having

    @cached_property
    def _living(self) -> int:
        return int(np.count_nonzero(self.alive))

    @cached_property
    def _mean_length(self) -> float:
        return float(self.lengths[self.alive].sum(dtype=np.int64)) / self._living if self._living else 0.0

    def _weighted(self, query: str) -> list[tuple[float, list[tuple[NDArray[np.uint32], NDArray[np.uint16]]]]]:
        """Return each word's weight, and in every part the rows that have it and how often."""
        times = Counter(PoolWords.from_texts([query], query=True).index_terms().tolist())
        weighted = []
        for term in sorted(times):
            check_awaited()
            slices = [(part, part.pair_slice(term, term)) for part in self.parts]
            lists = [(part.rows[where], part.counts[where]) for part, where in slices]
            having = sum(len(rows) for rows, _ in lists)
            if self._living < len(self.alive):
                having = sum(int(np.count_nonzero(self.alive[rows])) for rows, _ in lists)
            if having:
                weighted.append((times[term] * weight(self._living, having), lists))
        return weighted


def _part(page: WordColumns, first: int, last: int) -> WordColumns:
    where = page.pair_slice(first, last)
    start, end = page.span(first, last)
    return WordColumns(page.terms[start:end], page.ends[start:end] - where.start, page.rows[where], page.counts[where])


def _file(path: Path, kind: str) -> Any:
    return np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)


EMPTY = WordColumns(np.empty(0, "u8"), np.empty(0, "i8"), np.empty(0, "u4"), np.empty(0, "u2"))
