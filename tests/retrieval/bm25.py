"""BM25 by its textbook formula, one document and one word at a time."""

import math
import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

K1, B = 1.5, 0.75
POINTS = "[\u00ad\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u064b-\u0652\u0670]"


def plain_words(text: str, query: bool = False) -> list[str]:
    """Return the words of a text in Latin, Greek, Cyrillic, Hebrew, Arabic, or Han characters."""
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    found = []
    for run in re.findall(r"[\u4e00-\u9fff]+|[^\W\u4e00-\u9fff]+", re.sub(POINTS, "", decomposed)):
        if "\u4e00" <= run[0] <= "\u9fff" and len(run) > 1:
            found += [first + second for first, second in pairwise(run)] + ([] if query else list(run))
        else:
            found.append(run)
    return found


def literal_bm25(query: str, texts: Sequence[str]) -> list[float]:
    documents = [plain_words(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents) if documents else 0
    scores = []
    for words in documents:
        score = 0.0
        for term in plain_words(query, query=True):
            having = sum(term in other for other in documents)
            count = words.count(term)
            if count:
                idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
                score += idf * count * (K1 + 1) / (count + K1 * (1 - B + B * len(words) / mean))
        scores.append(score)
    return scores
