"""Words of texts, and BM25 (Robertson and Zaragoza 2009) over a pool of them."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

WORDS_VERSION = 1  # of `words` and of `hashes`: what an index was built with cannot be read by another
K1, B = 1.5, 0.75

_SPACE = ord(" ")
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_SHORT = 32  # characters of a run that is likely to come again
_FOLDING = "boundarymorph.retrieval.words.lexical"


def words(text: str) -> list[bytes]:
    """The words of a text in their order, as UTF-8.

    A word is a run of letters, marks, digits and underscores, in lower case (full case folding), in compatibility form
    and without the accents of U+0300 to U+036F. What is written without spaces (Chinese, Japanese, Thai ...) becomes
    overlapping pairs of characters. Nothing is stemmed or dropped.
    """
    return _spaced(_folded(text)).split()


def hashes(text: str) -> NDArray[np.uint32]:
    """(length,) CRC-32 of each word of a text, in their order.

    Of a vocabulary of a million words about one in 4,000 shares its hash with another, and counts as that one, too.
    """
    found = words(text)
    return np.fromiter(map(crc32, found), dtype=np.uint32, count=len(found))


def weight(documents: int, frequency: int) -> float:
    """How much a word counts that `frequency` of so many documents have: ln(1 + (D - n + 1/2) / (n + 1/2))."""
    return float(np.log1p((documents - frequency + 0.5) / (frequency + 0.5)))


def saturation(lengths: NDArray[np.integer], mean: float) -> NDArray[np.float64]:
    """(n,) the count at which a word gives half of what it can, in documents of these lengths in words."""
    if mean <= 0:
        return np.full(len(lengths), K1)
    return K1 * (1 - B) + lengths.astype(np.float64) * (K1 * B / mean)


def contributions(weight: float, counts: NDArray[np.integer], saturation: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) what a word adds to the scores of documents that have it so many times."""
    return weight * (K1 + 1) * counts / (counts + saturation)


def bm25(query: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """(n,) BM25 of n texts for a query, with the statistics of these texts; a word of the query counts each time."""
    scores = np.zeros(len(texts))
    folded = [_folded(text) for text in texts]
    buffer = _spaced(b"\n".join([b"", *folded, b""]))
    ends = np.cumsum([len(text) + 1 for text in folded], dtype=np.int64)
    content = np.frombuffer(buffer, dtype=np.uint8)
    edges = np.flatnonzero(np.diff(content != _SPACE)) + 1
    starts, sizes = edges[::2], edges[1::2] - edges[::2]
    lengths = np.diff(np.searchsorted(starts, ends), prepend=0)
    saturations = saturation(lengths, float(lengths.mean()) if len(texts) else 0.0)
    for word, times in Counter(words(query)).items():
        places = starts[sizes == len(word)]
        for offset, letter in enumerate(word):
            places = places[content[places + offset] == letter]
        counts = np.bincount(np.searchsorted(ends, places), minlength=len(texts))
        having = np.flatnonzero(counts)
        amount = times * weight(len(texts), len(having))
        scores[having] += contributions(amount, counts[having], saturations[having])
    return scores


def _folded(text: str) -> bytes:
    """UTF-8 in which everything but ASCII is folded, and everything else that is not of a word is a space."""
    if not text.isascii() and len(text.encode(errors="replace")) > 1.2 * len(text):
        return _fold(text)  # the same, and faster where there is much to fold
    return text.encode("ascii", _FOLDING)


def _spaced(folded: bytes) -> bytes:
    return folded.translate(_LOWER_AND_SPACES)


def _fold_run(error: UnicodeError) -> tuple[bytes, int]:
    """Called by the ASCII codec for each run of other characters: what stands in their place, and where to go on."""
    assert isinstance(error, UnicodeEncodeError)
    run = error.object[error.start : error.end]
    return (_fold_short if len(run) <= _SHORT else _fold)(run), error.end


def _fold(text: str) -> bytes:
    return _UNSPACED_RUN.sub(_pairs, unicodedata.normalize("NFC", text).translate(_FOLDED_CHARACTERS)).encode()


_fold_short = lru_cache(maxsize=65_536)(_fold)


class _FoldedCharacters(dict[int, str]):
    """What each character becomes, worked out when it is first met."""

    def __missing__(self, code: int) -> str:
        parts = unicodedata.normalize("NFKD", chr(code)).casefold()
        bare = "".join(part for part in parts if not "\u0300" <= part <= "\u036f")
        kept = (part if part == "_" or unicodedata.category(part)[0] in "LMN" else " " for part in bare)
        self[code] = unicodedata.normalize("NFC", "".join(kept))
        return self[code]


def _pairs(run: re.Match[str]) -> str:
    text = run[0]
    return f" {' '.join(text[i : i + 2] for i in range(max(len(text) - 1, 1)))} "


_FOLDED_CHARACTERS = _FoldedCharacters()
_LOWER_AND_SPACES = bytes(
    byte if byte >= 128 or chr(byte).isalnum() or byte == ord("_") else _SPACE for byte in bytes(range(256)).lower()
)
codecs.register_error(_FOLDING, _fold_run)
