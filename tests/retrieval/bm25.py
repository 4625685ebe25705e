"""BM25 as it is written in a textbook, one document and one word at a time."""

import math
import re
import unicodedata
from collections.abc import Sequence

K1, B = 1.5, 0.75


def plain_words(text: str) -> list[str]:
    """Words of a text in Latin, Greek or Cyrillic letters."""
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return re.findall(r"\w+", re.sub("[\u0300-\u036f]", "", decomposed))


def literal_bm25(query: str, texts: Sequence[str]) -> list[float]:
    documents = [plain_words(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents) if documents else 0
    scores = []
    for words in documents:
        score = 0.0
        for term in plain_words(query):
            having = sum(term in other for other in documents)
            count = words.count(term)
            if count:
                idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
                score += idf * count * (K1 + 1) / (count + K1 * (1 - B + B * len(words) / mean))
        scores.append(score)
    return scores
