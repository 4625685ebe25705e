"""How far texts are from what a cross-encoder was trained on, by their words.

A cross-encoder that has only seen web passages reads special texts, such as medical abstracts, worse than its retriever
does. Of their words the tokenizer has to cut many into pieces, so the pieces a word, its *fertility*, tell such texts
without a judgement (docs/evaluation.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from tokenizers import Tokenizer

from boundarymorph.errors import ModelUnavailable
from boundarymorph.inference.models import embedded_cross_encoder
from boundarymorph.selection.pool import READ_BY_WITNESSES

SAMPLE = 12  # documents whose words are counted
MOST_CHARACTERS = 500  # of each
OTHERS, THEIRS = (
    200,
    1.12,
)  # words of web passages, and their fertility, that count beside them, as few words tell little
FROM_THE_WEB = ("ms-marco", "msmarco")  # in the names of models that were trained on web passages alone
# The fertility of web passages at most, and of special texts at least, and what witnesses add for these.
USUAL, SPECIAL = 1.15, 1.28
MOST_BY_WITNESSES = 2.0
_WORD = re.compile(r"(?<![^\W_])[a-z]{2,}(?![^\W_])")  # names, which are capitalised, say nothing


def by_witnesses(scorer: str | None, texts: Sequence[str]) -> float:
    """Return what witnesses add to the log-odds of a scorer (`TrendPosterior`) where these are the first texts of a
    pool. scorer: its name, None if that is not known."""
    if scorer is None or not any(name in scorer.lower() for name in FROM_THE_WEB):
        return READ_BY_WITNESSES
    if (found := fertility(texts)) is None:
        return READ_BY_WITNESSES
    return float(np.interp(found, [USUAL, SPECIAL], [READ_BY_WITNESSES, MOST_BY_WITNESSES]))


def fertility(texts: Sequence[str]) -> float | None:
    """Return the mean number of pieces into which words of texts are cut by the tokenizer of the embedded
    cross-encoder, that of BERT. None if the embedded models are not installed."""
    if _tokenizer() is None:
        return None
    words = [word for text in texts[:SAMPLE] for word in _WORD.findall(text[:MOST_CHARACTERS])]
    return (sum(map(_pieces, words)) + OTHERS * THEIRS) / (len(words) + OTHERS)


@lru_cache(maxsize=2**16)
def _pieces(word: str) -> int:
    tokenizer = _tokenizer()
    assert tokenizer is not None
    return len(tokenizer.encode(word, add_special_tokens=False))


@lru_cache(maxsize=1)
def _tokenizer() -> Tokenizer | None:
    try:
        tokenizer = Tokenizer.from_file(str(embedded_cross_encoder().tokenizer))
    except ModelUnavailable:
        return None
    tokenizer.no_padding()
    return tokenizer
