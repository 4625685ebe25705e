"""The warnings about queries, scores and documents."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.notices import Notice, Slug
from boundarymorph.reading import counted
from boundarymorph.scoring import rerankers
from boundarymorph.selection import StopReason

ENOUGH, LOW = 10, 0.05  # scores from which on it is said that all are below this; of relevant documents few are
ENGLISH = ("BAAI/bge-small-en", *rerankers.ENGLISH)  # what the names of models that read English alone begin with
FORMS = {"was": ("was", "were"), "has": ("has", "have"), "it": ("it", "them"), "its": ("its", "their")}  # one, many


def unfamiliar(query: str, *models: str | None) -> list[Notice]:
    """Describe a query most of whose letters are in a script that the embedded models were not trained on; nothing if
    it is Latin or a model is another. models: of the scorer and the encoder, None if unknown or not in use."""
    letters = [unicodedata.name(letter, "").partition(" ")[0] for letter in query if letter.isalpha()]
    english = [model.partition("@")[0] for model in models if model is not None and model.startswith(ENGLISH)]
    if sum(script != "LATIN" for script in letters) * 2 <= len(letters) or not english:
        return []
    script = Counter(letters).most_common(1)[0][0].capitalize()
    trained = "was trained" if len(english) == 1 else "were trained"
    said = (
        f"the query is in another script ({script}) than {' and '.join(english)} {trained} on, so the answer says "
        "little; use models for its language (scorer.model, encoder.model)"
    )
    return [Notice("unfamiliar-script", said)]


def no_call(stop_reason: StopReason | None, returned: int) -> Notice:
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
    return Notice("no-call-made", f"no call was made: {why}")


def none_reached(least: float | None, relevance: NDArray[np.float64], scored: bool) -> list[Notice]:
    """Say why the answer is empty, if no document reaches the minimum relevance. relevance: of the candidates."""
    if least is None or not relevance.size:
        return []
    seen = "the best was" if scored else "the best was expected to have"
    best = math.floor(1000 * relevance.max()) / 1000
    said = f"no document reached {least:g}, as {seen} {best:g}; lower min_relevance"
    return [Notice("min-relevance-not-reached", said)]


def fields_unread(names: Sequence[str]) -> list[Notice]:
    """Say of these fields that no candidate has a value that a boost can follow."""
    said = "no candidate has a value of the field {!r} that 'boost' can read, so its function gives 1"
    return [Notice("field-not-found", said.format(name)) for name in names]


def nothing_found(scores: Collection[float]) -> list[Notice]:
    """Say that enough documents were scored and all scores are low, if it is so."""
    if len(scores) < ENOUGH or max(scores) >= LOW:
        return []
    said = (
        f"the best of {len(scores)} scores is {max(scores):.2g}: either no document is relevant, or the cross-encoder "
        "does not understand this domain"
    )
    return [Notice("all-scores-low", said)]


def of_documents(slug: Slug, count: int, said: str) -> list[Notice]:
    """Return a warning about `count` documents, if there are any. said: the predicate, with names of FORMS."""
    forms = {name: one if count == 1 else many for name, (one, many) in FORMS.items()}
    return [Notice(slug, f"{counted(count, 'document', 'documents')} {said.format(**forms)}")] if count else []
