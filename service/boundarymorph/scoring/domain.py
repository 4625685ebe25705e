"""How far texts are from what a cross-encoder was trained on, by the length of their words.

A cross-encoder that has only seen web passages reads scientific texts worse than its retriever does. Their words are
longer, which tells them from others without a judgement (docs/evaluation.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from boundarymorph.selection.pool import READ_BY_WITNESSES

SAMPLE = 12  # documents whose words are measured
MOST_CHARACTERS = 500  # of each
OTHERS, THEIRS = 100, 4.9  # words of web passages, and their mean length, that count beside them: few words tell little
FROM_THE_WEB = ("ms-marco", "msmarco")  # in the names of models that were trained on web passages alone
# The mean length of words in other texts at most, and in scientific ones at least, and what witnesses add for these.
USUAL, SCIENTIFIC = 5.2, 5.6
MOST_BY_WITNESSES = 3.0
_WORD = re.compile(r"(?<![^\W_])[a-z]{2,}(?![^\W_])")  # names, which are capitalised, say nothing


def by_witnesses(scorer: str | None, texts: Sequence[str]) -> float:
    """Return what witnesses add to the log-odds of a scorer (`TrendPosterior`) where these are the first texts of a
    pool. scorer: its name, None if that is not known."""
    if scorer is None or not any(name in scorer.lower() for name in FROM_THE_WEB):
        return READ_BY_WITNESSES
    return float(np.interp(word_length(texts), [USUAL, SCIENTIFIC], [READ_BY_WITNESSES, MOST_BY_WITNESSES]))


def word_length(texts: Sequence[str]) -> float:
    """Return the mean number of letters of the words at the beginning of the first texts, and of some of the web."""
    words = [word for text in texts[:SAMPLE] for word in _WORD.findall(text[:MOST_CHARACTERS])]
    return (sum(map(len, words)) + OTHERS * THEIRS) / (len(words) + OTHERS)
