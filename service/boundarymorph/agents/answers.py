"""The answers of the tools: described for the language models that read them, and cut to a number of tokens."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any

from pydantic import BaseModel, Field


class SelectedText(BaseModel):
    id: str = Field(description="For fetch, and to cite.")
    title: str | None = Field(None, description="If it has one.")
    text: str = Field(description="All of it, or its beginning if cut.")
    cut: bool | None = Field(None, description="True if the text is cut; use fetch to read all of it.")
    relevance: float = Field(description="From 0 to 1.")
    url: str | None = Field(None, description="Where a person can read it. Detailed answers only.")
    judged: bool = Field(
        description="Whether the relevance is the accurate model's judgement, or inferred from others."
    )
    uncertainty: float | None = Field(
        None, description="Standard deviation of an inferred relevance. Detailed answers only."
    )
    retrieval_rank: int | None = Field(None, description="Its rank in plain retrieval. Detailed answers only.")
    metadata: dict[str, Any] | None = Field(None, description="Fields to filter by. Detailed answers only.")


class Costs(BaseModel):
    budget: int = Field(description="The most judgements allowed.")
    judgements: int = Field(description="Judgements made for this call.")
    reused: int = Field(description="Judgements known from earlier calls with the same query, at no cost.")
    expected_loss: float = Field(description="Share of relevance that a larger budget may still gain.")


class SelectedTexts(BaseModel):
    documents: list[SelectedText] = Field(description="The most relevant first.")
    notes: list[str] = Field(description="What to know about this answer, and what to do about it.")
    answerable: float | None = Field(
        None, description="Probability that anything that was searched, returned or not, answers the query."
    )
    costs: Costs | None = Field(None, description="Detailed answers only.")


class Extended(BaseModel):
    id: str = Field(description="The id in the arguments, or the position of the text, from 0.")
    relevance: float = Field(description="From 0 to 1.")
    judged: bool = Field(description="Whether it has a score of yours, or its relevance is inferred from your scores.")
    uncertainty: float | None = Field(None, description="Standard deviation of an inferred relevance.")


class ExtendedScores(BaseModel):
    documents: list[Extended] = Field(description="The most relevant first.")
    notes: list[str] = Field(description="What to know about this answer.")
    answerable: float | None = Field(None, description="Probability that any of the texts answers the query.")


class ListedField(BaseModel):
    type: str = Field(description="Of its values: string, number, boolean, array, object, null.")
    examples: list[Any] = Field(description="Some of its values.")


class ListedIndex(BaseModel):
    name: str = Field(description="Value for the argument index.")
    description: str | None = Field(
        None, description="What its documents are. Not there: nobody has said it, or the list is long."
    )
    documents: int = Field(description="Number of documents.")
    fields: dict[str, ListedField] | None = Field(
        None, description="Fields of the metadata in a sample, for filter and distinct. Not there: not looked at."
    )


class ListedIndexes(BaseModel):
    indexes: list[ListedIndex] = Field(description="The indexes that you may use.")
    notes: list[str] = Field(description="What to know about this answer.")


class Hit(BaseModel):
    id: str = Field(description="For fetch.")
    title: str = Field(description="Of the document, or the beginning of its text.")
    url: str = Field(description="For citations.")


class Hits(BaseModel):
    results: list[Hit] = Field(description="The most relevant first.")


class FetchedDocument(BaseModel):
    id: str = Field(description="The id in the arguments.")
    title: str = Field(description="Of the document, or the beginning of its text.")
    text: str = Field(description="The text from the offset on.")
    url: str = Field(description="For citations.")
    metadata: dict[str, Any] = Field(description="Fields of the document.")
    next_offset: int | None = Field(None, description="If there is more: call fetch again with this offset.")


# Up to four letters, three digits or eight spaces count as one token, and so does every other ASCII sign. A character
# of another script counts as many as it has bytes beyond the first, and one that JSON escapes as many as its escape
# has. Tokenizers of language models make fewer tokens of all but rare words.
_TOKEN = re.compile(r"[A-Za-z]{1,4}|\d{1,3}| {2,8}|[!-/:-@\[-`{-~]|[\x00-\x1f\x7f]|[\u0080-\U0010ffff]")
MARK = " …"
TITLE = 60  # tokens
LEAST = 40  # tokens of the text of each document, if it is that long
LEAST_WEIGHT = 0.02  # of a text, relative to the most relevant one
NOTHING_FITS = "none of the {count} documents fits into {most} tokens; ask for more tokens"
LEFT_OUT = "{count} more documents were selected but do not fit into this answer; ask for fewer, or narrow the query"
NOT_LISTED = "{count} more are not listed here"
CUT = "{count} texts are cut to fit into this answer; use fetch to read all of them"


def count(text: str, most: float = inf) -> int:
    """Estimate the tokens of a text, rather too high than too low. Counting ends soon after `most`."""
    total = 0
    for found in _TOKEN.finditer(text):
        total += _weight(found[0])
        if total > most:
            break
    return total


def size(answer: BaseModel, most: float = inf) -> int:
    """Return the number of tokens of an answer as it is sent. Counting ends soon after `most`."""
    return count(answer.model_dump_json(exclude_none=True), most)


def fitting(items: Iterable[BaseModel], most: int) -> int:
    """Count the leading items that fit into a list of at most `most` tokens. The work depends on `most` alone."""
    kept = 0
    for item in items:
        most -= size(item, most) + 1  # and a comma
        if most < 0:
            break
        kept += 1
    return kept


def cut(text: str, most: int) -> str:
    """Cut a text to at most `most` tokens, at the end of a word, and append MARK. A text that fits is unchanged. Only a
    blank beginning ends with a blank."""
    spent, end = 0, 0
    for found in _TOKEN.finditer(text):
        spent += _weight(found[0])
        if spent > most:
            break
        end = found.end()
    else:
        return text
    head = text[:end]
    if end < len(text) and text[end].isalnum() and (space := max(head.rfind(" "), head.rfind("\n"))) > end // 2:
        head = head[:space]
    return (head.rstrip() or head) + MARK


def fitted(answer: SelectedTexts, most: int) -> SelectedTexts:
    """Fit an answer into `most` tokens. Texts are cut to lengths in proportion to their relevances, but to at least
    LEAST tokens. If even these do not fit, the last documents are left out. Notes say what was cut."""
    notes = [cut(note, most // (10 * len(answer.notes))) for note in answer.notes]
    documents = [_shorter(document, most) for document in answer.documents]
    whole = answer.model_copy(update={"documents": documents, "notes": notes})
    room = most - size(whole.model_copy(update={"documents": []}))
    if documents == answer.documents and fitting(documents, room) == len(documents):
        return whole
    room -= sum(count(note.format(count=len(documents))) + 5 for note in (CUT, LEFT_OUT))  # quotes and a comma
    longest = int(most / LEAST_WEIGHT)

    def fits(kept: int, tokens: int) -> bool:
        return fitting(_shortened(documents[:kept], tokens, most), room) == kept

    kept = fitting(_shortened(documents, 0, most), room)
    if not kept:
        return SelectedTexts(documents=[], notes=[*notes, NOTHING_FITS.format(count=len(documents), most=most)])
    shorter = list(_shortened(documents[:kept], _largest(longest, lambda tokens: fits(kept, tokens)), most))
    if shortened := sum(bool(document.cut) for document in shorter):
        notes.append(CUT.format(count=shortened))
    if left_out := len(documents) - kept:
        notes.append(LEFT_OUT.format(count=left_out))
    return whole.model_copy(update={"documents": shorter, "notes": notes})


def fitted_list(listed: ListedIndexes, most: int) -> ListedIndexes:
    """Fit a list of indexes into `most` tokens. The last indexes lose their fields first, then their descriptions. If
    even their names do not fit, they are left out, and a note says how many."""
    room, indexes = most - size(ListedIndexes(indexes=[], notes=listed.notes)), listed.indexes
    for lost in ("fields", "description"):
        bare = [index.model_copy(update={lost: None}) for index in indexes]
        sizes = [size(index) for index in bare]
        room_left = room - sum(sizes) - len(sizes)
        if room_left >= 0:
            kept = 0
            for index, without in zip(indexes, sizes, strict=True):
                room_left -= size(index, room) - without
                if room_left < 0:
                    break
                kept += 1
            return ListedIndexes(indexes=[*indexes[:kept], *bare[kept:]], notes=listed.notes)
        indexes = bare
    kept = fitting(indexes, room - count(NOT_LISTED.format(count=len(indexes))) - 5)
    return ListedIndexes(indexes=indexes[:kept], notes=[*listed.notes, NOT_LISTED.format(count=len(indexes) - kept)])


def fitted_document(document: FetchedDocument, most: int) -> FetchedDocument:
    """Fit a document into `most` tokens. `next_offset` is the length of the text that was kept, or None if all was."""

    def part(tokens: int, title: str, metadata: dict[str, object]) -> FetchedDocument:
        text = cut(document.text, tokens)
        end = None if text == document.text else len(text.removesuffix(MARK))
        return document.model_copy(update={"text": text, "title": title, "metadata": metadata, "next_offset": end})

    if (whole := part(most, document.title, document.metadata)).next_offset is None and size(whole, most) <= most:
        return whole
    title = cut(document.title, TITLE)
    metadata = document.metadata if size(part(0, title, document.metadata), most) <= most // 2 else {}
    return part(_largest(most, lambda tokens: size(part(tokens, title, metadata), most) <= most), title, metadata)


def _shorter(document: SelectedText, most: int) -> SelectedText:
    """Shorten the title of a document, and drop metadata that would take more than an eighth of `most` tokens."""
    there = document.metadata is not None and count(str(document.metadata)[: 9 * most]) <= most // 8
    update = {
        "title": None if document.title is None else cut(document.title, TITLE),
        "metadata": document.metadata if there else None,
    }
    return document.model_copy(update=update)


def _shortened(documents: Sequence[SelectedText], tokens: int, most: int) -> Iterator[SelectedText]:
    """Yield the documents with shorter texts. tokens: of the text of the most relevant one; most: of any text."""
    best = max((document.relevance for document in documents), default=0.0) or 1.0
    for document in documents:
        weight = max(document.relevance / best, LEAST_WEIGHT)
        text = cut(document.text, min(most, max(LEAST, int(tokens * weight))))
        shorter = text != document.text
        yield document.model_copy(update={"text": text, "cut": True}) if shorter else document


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` that fits, if smaller ones fit, too; 0 if none does."""
    return bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))


def _weight(token: str) -> int:
    first = token[0]
    if first in '"\\\n\t\r\b\f':
        return 2
    return 5 if first < " " else max(1, len(first.encode()) - 1)
