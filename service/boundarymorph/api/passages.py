"""Long texts cut into passages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from boundarymorph.retrieval.document import Document

LongTexts = Literal["first"]
OF = "passage_of"  # in the metadata of a passage: the place of its document
DESCRIPTION = "of a long text the beginning is read ('first'), as far as the model reads"
_LAST_WORD = re.compile(r"\s+\S*\Z")


def passages(text: str, length: int, most: int | None = None) -> list[str]:
    """Cut a text into parts of at most `length` characters, between words where there are any in the second half of a
    part. most: parts, from the beginning."""
    parts: list[str] = []
    start = 0
    while start < len(text) and len(parts) != most:
        end = start + length
        if end < len(text) and (between := _LAST_WORD.search(text, start + length // 2, end + 1)) is not None:
            end = between.start()
        parts.append(text[start:end])
        start = end + len(text[end:]) - len(text[end:].lstrip()) if end < len(text) else len(text)
    return parts or [text]


def cut(documents: Sequence[Document], length: int, most: int | None = None) -> list[Document]:
    """Return the passages of documents, with numbered ids where there are several of one."""
    found = []
    for place, document in enumerate(documents):
        parts = passages(document.text, length, most)
        for number, part in enumerate(parts):
            id = document.id if len(parts) == 1 else f"{document.id}#{number}"
            found.append(Document(id, part, document.title, {OF: place}))
    return found
