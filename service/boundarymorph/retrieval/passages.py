"""Cut long documents into passages, so that a selection scores the ones that matter."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import check_awaited
from boundarymorph.reading import has_content
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.words import PoolWords
from boundarymorph.selection import GroupLimit, Limit, Selection

BYTES_PER_TOKEN = 4  # bytes of UTF-8 per token, about, with the tokenizers of current models
MARGIN = 0.75  # share of the window that a passage fills, because a text may have more tokens than estimated
LEAST_ROOM = 64  # tokens for a passage beside a query and a title
SPECIAL_TOKENS = 4
OVERLAP = 1 / 8  # share of a passage that the next one repeats
Borders = Sequence[tuple[str, int]]
BORDERS: Borders = (("\n#", 0), ("\n\n", 0), ("\n", 0), (". ", 1), ("。", 1), (" ", 0))


@dataclass(frozen=True, slots=True)
class Cut:
    """How long documents become passages that fit into the scorer's window.

    Attributes:
        long: The positions of the long documents.
        room: The bytes of UTF-8 that fit into the window beside the query.
        per_document: The most passages of a document.
        in_all: The most candidates.
    """

    long: Set[int]
    room: int
    per_document: int
    in_all: int

    @classmethod
    def plan(
        cls,
        documents: Sequence[Document],
        query: str,
        window: int,
        *,
        per_document: int,
        in_all: int,
        known: Container[str] = (),
    ) -> Cut | None:
        """Return how these documents become passages.

        It is None if all fit into the scorer's window of tokens. Documents with `known` ids stay whole, as their scores
        are known.
        """
        tokens = window - SPECIAL_TOKENS - len(query.encode(errors="replace")) // BYTES_PER_TOKEN
        room = BYTES_PER_TOKEN * max(LEAST_ROOM, tokens)
        unknown = ((place, document) for place, document in enumerate(documents) if document.id not in known)
        long = {place for place, document in unknown if is_long(document, room)}
        return cls(long, room, per_document, in_all) if long else None


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document, at the characters [start, end) of its text."""

    document: Document
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.document.text[self.start : self.end]


@dataclass(frozen=True, slots=True, eq=False)
class Passages:
    """The passages among the candidates of a selection, by the id of the candidate.

    Other candidates are whole documents.
    """

    by_id: Mapping[str, Passage] = field(default_factory=dict)

    def document_id(self, candidate: str) -> str:
        """Return the id of a candidate's document."""
        passage = self.by_id.get(candidate)
        return candidate if passage is None else passage.document.id

    def restrict(self, limit: Limit, ids: Sequence[str]) -> Limit:
        """Return a limit by which at most one passage of each document counts.

        `ids` are the ids of all candidates.
        """
        return GroupLimit(limit, self._parents(ids)) if self.by_id else limit

    def best(self, selection: Selection, ids: Sequence[str]) -> Selection:
        """Return the selection with only the first passage of each document."""
        if not self.by_id:
            return selection
        return selection.subset(np.sort(np.unique(self._parents(ids)[selection.documents], return_index=True)[1]))

    def _parents(self, ids: Sequence[str]) -> NDArray[np.intp]:
        """Return (N,) numbers from 0 to N - 1, equal for the passages of a document."""
        first: dict[str, int] = {}
        return np.array([first.setdefault(self.document_id(id), place) for place, id in enumerate(ids)], dtype=np.intp)


class DividedDocuments(NamedTuple):
    """Candidates made of documents.

    Attributes:
        candidates: The documents and passages.
        parents: (N,) the position of each candidate's document.
        passages: The passages by id.
        left_out: Number of passages that are not candidates.
    """

    candidates: list[Document]
    parents: NDArray[np.intp]
    passages: Passages
    left_out: int


def is_long(document: Document, room: int) -> bool:
    """Return whether a document has content and more than `room` bytes of UTF-8."""
    content = document.content
    if len(content) * 4 <= room:  # the most bytes of a character
        return False
    return len(content.encode(errors="replace")) > room and has_content(document.text)


def divide(documents: Sequence[Document], query: str, cut: Cut) -> DividedDocuments | None:
    """Return the candidates that documents become, or None if all stay whole. Raises CallerGone.

    A passage has the title and the metadata of its document. The first has the document's id, and the others append a
    mark and their number. Of a document with too many passages, the first stays, and those that match the words of the
    query best.
    """
    most = min(cut.per_document, (cut.in_all - len(documents) + len(cut.long)) // len(cut.long))
    if most < 1:
        return None
    mark = _mark(documents)
    candidates, parents, passages, left_out = list[Document](), list[int](), dict[str, Passage](), 0
    for place, document in enumerate(documents):
        if place not in cut.long:
            candidates.append(document)
            parents.append(place)
            continue
        check_awaited()
        spans = list(_spans(document, cut.room))
        kept = _matching([document.text[start:end] for start, end in spans], query, most)
        left_out += len(spans) - len(kept)
        for number in kept:
            start, end = spans[number]
            id = f"{document.id}{mark}{number + 1}" if number else document.id
            candidates.append(Document(id, document.text[start:end], document.title, document.metadata))
            passages[id] = Passage(document, start, end)
        parents += [place] * len(kept)
    return DividedDocuments(candidates, np.array(parents, dtype=np.intp), Passages(passages), left_out)


def blocks(text: str, most: int, overlap: int = 0, borders: Borders = BORDERS) -> Iterator[tuple[int, int]]:
    """Yield the beginnings and ends of the parts of a text.

    A part has at most `most` characters, and ends at a border if it has one.

    Args:
        text: The text.
        most: Most characters of a part.
        overlap: Characters of a part that the next one repeats, from a word on; less than half of `most`.
        borders: The best first, each with the number of its characters that belong to the part before it.
    """
    start = 0
    while len(text) - start > most:
        found = ((text.rfind(border, start + most // 2, start + most), inside) for border, inside in borders)
        end = next((at + inside for at, inside in found if at > start), start + most)
        yield start, end
        again = text.find(" ", end - overlap, end)
        start = end - overlap if again < 0 else again + 1
    yield start, len(text)


def _spans(document: Document, room: int) -> Iterator[tuple[int, int]]:
    """Yield the beginnings and ends of a long document's passages that have content."""
    text, title = document.text, len((document.title or "").encode(errors="replace"))
    size = max(BYTES_PER_TOKEN * LEAST_ROOM, room - title) * MARGIN
    most = max(1, int(size * len(text) / len(text.encode(errors="replace"))))
    for start, end in blocks(text, most, int(OVERLAP * most)):
        if has_content(text[start:end]):
            yield start, end


def _matching(texts: Sequence[str], query: str, most: int) -> list[int]:
    """Return the numbers of the first text and of those with the highest BM25, in order."""
    if len(texts) <= most:
        return list(range(len(texts)))
    order = 1 + np.argsort(-PoolWords.from_texts(texts).bm25(query)[1:], kind="stable")
    return sorted([0, *order[: most - 1].tolist()])


def _mark(documents: Sequence[Document]) -> str:
    """Return a mark between a document's id and a passage's number that makes ids unique."""
    mark, ids = "#", {document.id for document in documents}
    while any(mark in id for id in ids):
        mark += "#"
    return mark
