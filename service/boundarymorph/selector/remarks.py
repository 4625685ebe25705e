"""What an answer says in words: why no call was made, that nothing relevant was found, and where the paper's method
departed from its algorithm."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from unicodedata import name

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection import SelectionSession, StopReason
from boundarymorph.selection.methods import PAPER
from boundarymorph.selector.task import SelectionTask
from boundarymorph.text import counted

ENOUGH = 10  # scores from which on it is said that all are low
ENGLISH = ("cross-encoder/ms-marco-MiniLM", "BAAI/bge-small-en")  # what the names of the embedded models begin with
LOW = 0.05  # on pools with relevant documents, the first ten nearly always have one above


def unfamiliar(query: str, *models: str | None) -> str | None:
    """Describe a query most of whose letters are in a script that the embedded models were not trained on; None if it
    is Latin or a model is another. models: the names of the scorer and the encoder, None if unknown or not in use."""
    letters = [name(letter, "").partition(" ")[0] for letter in query if letter.isalpha()]
    if sum(script != "LATIN" for script in letters) * 2 <= len(letters):
        return None
    english = [model.partition("@")[0] for model in models if model is not None and model.startswith(ENGLISH)]
    if not english:
        return None
    script = Counter(letters).most_common(1)[0][0].capitalize()
    return (
        f"the query is in another script ({script}) than {' and '.join(english)} were trained on, so the answer says "
        "little; use models for its language (scorer.model, encoder.model)"
    )


def departure(task: SelectionTask, session: SelectionSession, reused: int) -> str | None:
    """Describe what made the calls differ from the paper's, and which options avoid it; None if they do not differ or
    the task uses another method. reused: the number of scores known from earlier tasks."""
    if task.method != PAPER:
        return None
    brought = session.given - reused
    largest = max(Counter(observation.round for observation in session.history).values(), default=0)
    found = []
    if largest > 1:
        found.append(f'calls went out in rounds of up to {largest} ("batch_size": 1 makes them one by one)')
    if reused:
        known = counted(reused, "score was", "scores were")
        found.append(f'{known} known from earlier requests ("reuse": false starts from none)')
    if brought:
        found.append(counted(brought, "score came with the pool", "scores came with the pool"))
    if task.min_relevance is not None:
        found.append('calls went to where "min_relevance" is in doubt')
    if session.orders and session.history:
        found.append('calls went to the order, as every document fits ("spend": "set" makes none)')
    return f"{PAPER!r} departed from the paper's algorithm: {'; '.join(found)}" if found else None


def no_call(stop_reason: StopReason | None, returned: int) -> str:
    """Describe why no call was made although some were allowed and no score was known from earlier requests. returned:
    the number of documents in the answer."""
    match stop_reason:
        case StopReason.POOL_EXHAUSTED:
            why = "all scores were known already"
        case StopReason.SETTLED:
            why = "by the scores known already, little is expected to be lost"
        case _ if returned:
            why = 'every document fits, and none can change that; with "spend": "order" calls go to the order'
        case _:
            why = "no document is left that fits"
    return f"no call was made: {why}"


def none_reached(least: float | None, relevance: NDArray[np.float64], scored: bool) -> list[str]:
    """Say why the answer is empty, if no document reaches the minimum relevance. relevance: of the candidates."""
    if least is None or not relevance.size:
        return []
    seen = "the best was" if scored else "the best was expected to have"
    return [f"no document reached {least:g}; {seen} {math.floor(1000 * relevance.max()) / 1000:g}; lower min_relevance"]


def nothing_found(scores: Collection[float]) -> str | None:
    """Say that enough documents were scored and all scores are low; None if it is not so."""
    if len(scores) < ENOUGH or max(scores) >= LOW:
        return None
    return (
        f"the best of {len(scores)} scores is {max(scores):.2g}: either no document is relevant, or the cross-encoder "
        "does not understand this domain"
    )


def remarks(deleted: int, scores: Collection[float], ungraded: int, truncated: int, blank: int = 0) -> list[str]:
    """Say what was deleted meanwhile, that all scores are low, what got no score, what was cut, and what has no
    content."""
    found = []
    if blank:
        one = "has no text to read, so no call was spent on it and its score is 0"
        found.append(_documents(blank, one, "have no text to read, so no call was spent on them and their score is 0"))
    if deleted:
        did = "deleted from the index meanwhile and left out"
        found.append(_documents(deleted, f"was {did}", f"were {did}"))
    if (said := nothing_found(scores)) is not None:
        found.append(said)
    if ungraded:
        got = "got no score of the language model, only an expected one"
        found.append(_documents(ungraded, got, got))
    if truncated:
        cut = "cut to the cross-encoder's maximum length to be scored"
        found.append(_documents(truncated, f"was {cut}", f"were {cut}"))
    return found


def _documents(count: int, one: str, many: str) -> str:
    return f"1 document {one}" if count == 1 else f"{count} documents {many}"
