"""Cuts answers to a limit of tokens, the texts of the least relevant documents most."""

from __future__ import annotations

from boundarymorph.agents import tokens
from boundarymorph.agents.schemas import FetchedDocument, SelectedText, SelectedTexts

TITLE_TOKENS = 60
TEXT_TOKENS = 40  # the least room for the text of each document, if it is that long
FRAME = 5  # one in so many tokens of an answer is reserved for its notes
LEAST_WEIGHT = 0.02  # of a text, relative to the most relevant one, so that none is cut to nothing
NOTHING_FITS = "none of the {count} documents fits into {most} tokens; ask for more tokens"
LEFT_OUT = "{count} more documents were selected but do not fit into this answer; ask for fewer, or narrow the query"
CUT = "{count} texts are cut to fit into this answer; use fetch to read all of them"


def size(answer: SelectedTexts | FetchedDocument) -> int:
    """Return the number of tokens of an answer as it is sent."""
    return tokens.count(answer.model_dump_json(exclude_none=True))


def fitted(answer: SelectedTexts, most: int) -> SelectedTexts:
    """Return the answer with at most so many tokens: whole if it fits, else with shorter texts, and if even short texts
    do not fit, with fewer documents. Notes say so."""
    notes = [tokens.cut(note, most // (2 * FRAME * len(answer.notes))) for note in answer.notes]
    documents = [_brief(document, most) for document in answer.documents]
    whole = SelectedTexts(documents=documents, notes=notes, costs=answer.costs)
    if size(whole) <= most:
        return whole
    bare = [tokens.count(_with_text(document, "").model_dump_json(exclude_none=True)) for document in documents]
    least = [min(TEXT_TOKENS, tokens.count(document.text)) for document in documents]
    for count in range(len(documents), 0, -1):
        room = most - sum(bare[:count])
        if sum(least[:count]) > room - most // FRAME:
            continue
        while room > 0:
            shorter = _shortened(whole, count, room)
            if size(shorter) <= most:
                return shorter
            room -= max(room // 16, 1)
    return SelectedTexts(documents=[], notes=[*notes, NOTHING_FITS.format(count=len(documents), most=most)])


def fitted_document(document: FetchedDocument, most: int) -> FetchedDocument:
    """Return a single document with at most so many tokens. `next_offset` is the length of the text that was kept,
    None if that is all of it."""
    if not tokens.exceeds(document.text, most) and size(document) <= most:
        return document
    title = tokens.cut(document.title, TITLE_TOKENS)
    metadata = document.metadata if size(_with(document, "", title, document.metadata)) <= most // 2 else {}
    for room in range(most, 0, -max(1, most // 32)):
        shorter = _with(document, tokens.cut(document.text, room), title, metadata)
        if size(shorter) <= most:
            break
    return shorter


def _with(document: FetchedDocument, text: str, title: str, metadata: dict[str, object]) -> FetchedDocument:
    end = None if text == document.text else len(text.removesuffix(tokens.MARK))
    return document.model_copy(update={"text": text, "title": title, "metadata": metadata, "next_offset": end})


def _brief(document: SelectedText, most: int) -> SelectedText:
    """Return the document with a short title, and without its metadata if they take more than an eighth of the tokens
    of an answer. Of a text that is longer than the answer, no more is left than shows that."""
    title = None if document.title is None else tokens.cut(document.title, TITLE_TOKENS)
    there = document.metadata is not None and not tokens.exceeds(str(document.metadata), most // 8)
    update = {
        "title": title,
        "metadata": document.metadata if there else None,
        "text": document.text[: tokens.LONGEST * (most + 1)],
    }
    return document.model_copy(update=update)


def _shortened(answer: SelectedTexts, count: int, room: int) -> SelectedTexts:
    documents = answer.documents[:count]
    lengths = [tokens.count(document.text) for document in documents]
    least = LEAST_WEIGHT * max(document.relevance for document in documents) + 1e-9
    shares = tokens.shares(lengths, [max(document.relevance, least) for document in documents], max(0, room))
    shortened = [
        document if share >= length else _with_text(document, tokens.cut(document.text, share))
        for document, length, share in zip(documents, lengths, shares, strict=True)
    ]
    notes = list(answer.notes)
    if cut := sum(bool(document.cut) for document in shortened):
        notes.append(CUT.format(count=cut))
    if left_out := len(answer.documents) - count:
        notes.append(LEFT_OUT.format(count=left_out))
    return SelectedTexts(documents=shortened, notes=notes, costs=answer.costs)


def _with_text(document: SelectedText, text: str) -> SelectedText:
    return document.model_copy(update={"text": text, "cut": True})
