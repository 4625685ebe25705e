"""Warn about queries, scores, and documents."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.notices import Notice, Slug
from boundarymorph.reading import quantity
from boundarymorph.scoring import rerankers
from boundarymorph.selection import StopReason

ENOUGH, LOW = 10, 0.05  # fewest scores for the warning that all are low, and their bound; relevant ones rarely are
ENGLISH = ("BAAI/bge-small-en", *rerankers.ENGLISH)  # prefixes of the names of models that only read English
FORMS = {"was": ("was", "were"), "has": ("has", "have"), "it": ("it", "them"), "its": ("its", "their")}  # one, many


def script_notices(query: str, *models: str | None) -> list[Notice]:
    """Warn about a query whose letters are mostly in a script unknown to the models.

    There is no warning for Latin letters, or for models that are not English ones.

    Args:
        query: The query.
        models: The names of the scorer and the encoder; None if unknown or not in use.
    """
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


def no_call_notice(stop_reason: StopReason | None, returned: int) -> Notice:
    """Say why no call was made, although the budget allows calls and nothing was reused.

    Args:
        stop_reason: The reason of the session.
        returned: The number of documents in the answer.
    """
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


def min_relevance_notices(least: float | None, relevance: NDArray[np.float64], scored: bool) -> list[Notice]:
    """Say why the answer is empty, if no document reaches the minimum relevance.

    Args:
        least: The minimum relevance; None without one.
        relevance: (N,) relevance of the candidates.
        scored: Whether any of them is scored.
    """
    if least is None or not relevance.size:
        return []
    seen = "the best was" if scored else "the best was expected to have"
    best = math.floor(1000 * relevance.max()) / 1000
    said = f"no document reached {least:g}, as {seen} {best:g}; lower min_relevance"
    return [Notice("min-relevance-not-reached", said)]


def boost_notices(names: Sequence[str]) -> list[Notice]:
    """Warn about fields of which no candidate has a value that a boost can use."""
    said = "no candidate has a value of the field {!r} that 'boost' can read, so its function gives 1"
    return [Notice("field-not-found", said.format(name)) for name in names]


def low_score_notices(scores: Collection[float]) -> list[Notice]:
    """Warn if there are enough scores and all of them are low."""
    if len(scores) < ENOUGH or max(scores) >= LOW:
        return []
    said = (
        f"the best of {len(scores)} scores is {max(scores):.2g}: either no document is relevant, or the cross-encoder "
        "does not understand this domain"
    )
    return [Notice("all-scores-low", said)]


def document_notices(
    *, blank: int, deleted: int, scores: Collection[float], unanswered: int, truncated: int
) -> list[Notice]:
    """Warn about documents that were not scored as expected.

    Args:
        blank: The number of documents without text.
        deleted: The number of documents that were deleted from the index meanwhile.
        scores: The scorer's scores.
        unanswered: The number of documents without a score of the scorer.
        truncated: The number of documents that the scorer cut.
    """
    no_text = "{has} no text to read, so no call was spent on {it} and {its} score is 0"
    cut = "{was} cut to the cross-encoder's maximum length to be scored"
    return [
        *_counted("documents-without-text", blank, no_text),
        *_counted("documents-deleted", deleted, "{was} deleted from the index meanwhile and left out"),
        *low_score_notices(scores),
        *_counted("documents-without-score", unanswered, "got no score of the scorer, only an expected one"),
        *_counted("scoring-truncated", truncated, cut),
    ]


def _counted(slug: Slug, count: int, said: str) -> list[Notice]:
    """Return a warning about `count` documents, if there are any.

    Args:
        slug: The slug of the warning.
        count: The number of documents.
        said: The predicate, with names of `FORMS`.
    """
    forms = {name: one if count == 1 else many for name, (one, many) in FORMS.items()}
    return [Notice(slug, f"{quantity(count, 'document', 'documents')} {said.format(**forms)}")] if count else []
