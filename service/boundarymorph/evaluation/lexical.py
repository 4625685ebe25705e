"""BM25 with statistics of the whole collection, of only those documents that are asked for (k1 = 1.5, b = 0.75)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

K1, B = 1.5, 0.75
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Lower-case runs of letters, digits and underscores; nothing is stemmed or dropped."""
    return _WORD.findall(text.lower())


class Bm25Index:
    """Postings of the words of known queries; other words of the collection are counted for its lengths alone."""

    def __init__(self, documents: Sequence[str], queries: Sequence[str]) -> None:
        wanted = {word for query in queries for word in words(query)}
        postings: dict[str, tuple[list[int], list[int]]] = {word: ([], []) for word in wanted}
        lengths = np.empty(len(documents))
        for number, text in enumerate(documents):
            tokens = words(text)
            lengths[number] = len(tokens)
            for word, count in Counter(token for token in tokens if token in wanted).items():
                rows, counts = postings[word]
                rows.append(number)
                counts.append(count)
        mean = lengths.mean() if lengths.any() else 1.0
        self._saturation = K1 * (1 - B + B * lengths / mean)
        self._postings: Mapping[str, tuple[NDArray[np.intp], NDArray[np.float64]]] = {
            word: (np.array(rows, dtype=np.intp), np.array(counts, dtype=np.float64))
            for word, (rows, counts) in postings.items()
        }

    def scores(self, query: str) -> NDArray[np.float64]:
        """(D,) score of every document, with ln(1 + (D - n + 1/2) / (n + 1/2)) as the weight of a word in n of them."""
        total = len(self._saturation)
        scores = np.zeros(total)
        for word, times in Counter(words(query)).items():
            rows, counts = self._postings[word]
            weight = np.log1p((total - len(rows) + 0.5) / (len(rows) + 0.5))
            scores[rows] += times * weight * counts * (K1 + 1) / (counts + self._saturation[rows])
        return scores
