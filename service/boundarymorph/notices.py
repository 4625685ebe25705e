"""Define the warnings in answers.

Each has a slug, as errors have, so that no program needs to read its sentence.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Slug: TypeAlias = Literal[  # docs/api.md says when each is sent
    "all-scores-low",
    "approximate-search",
    "boost-not-used",
    "budget-by-settings",
    "budget-not-spent",
    "calibration-not-used",
    "documents-deleted",
    "documents-without-score",
    "documents-without-text",
    "embedding-truncated",
    "field-not-found",
    "filter-not-exhaustive",
    "filter-type-mismatch",
    "harmful-scorer",
    "harmful-scorer-not-called",
    "hybrid-of-pool",
    "known-scores-not-used",
    "min-relevance-not-reached",
    "min-relevance-not-used",
    "no-call-made",
    "no-document-passes-filter",
    "no-effect",
    "no-word-found",
    "nothing-scored",
    "passages-left-out",
    "query-truncated",
    "rows-without-id",
    "scoring-truncated",
    "search-device-not-used",
    "search-incomplete",
    "shared-ids",
    "texts-left-out",
    "texts-not-read",
    "unfamiliar-script",
    "unreadable-artifacts",
    "vectors-without-direction",
]


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning.

    Attributes:
        slug: The kind of warning. A user's own retriever may send others than `Slug` lists.
        message: A sentence for people that says what happened.
    """

    slug: Slug
    message: str


TEXTS_LEFT_OUT = Notice(
    "texts-left-out",
    "the texts would take more bytes than an answer may have (limits.body_bytes), so they were left out; ask for fewer "
    "documents, or read them at GET /indexes/NAME/documents/ID",
)
