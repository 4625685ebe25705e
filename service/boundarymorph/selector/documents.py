"""The documents of a task's candidates, as they are read, and what they have in common."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import LimitExceeded
from boundarymorph.inference.concurrency import Run, run_on_loop
from boundarymorph.reading import has_words
from boundarymorph.retrieval.boosts import Boosts
from boundarymorph.retrieval.candidates import Candidates
from boundarymorph.retrieval.document import Document, in_awaited_pieces, size_of_all
from boundarymorph.retrieval.filters import values_at
from boundarymorph.selection import Distinct, Limit, Pool
from boundarymorph.selection.process import alike


@dataclass(frozen=True, slots=True)
class Grouping:
    """A limit on the documents of a group. path: to the field of the metadata that names the group, None for the text;
    a document without the field is a group of its own. at_most: documents of a group in the set. counts_groups: whether
    k counts groups; the best document of each then counts, and up to `at_most` - 1 others come with it."""

    path: tuple[str, ...] | None = None
    at_most: int = 1
    counts_groups: bool = False

    def value(self, document: Document) -> list[object]:
        """Return a list of the document's value of the field, or an empty list if it has no value."""
        return [] if self.path is None else values_at(document.metadata, self.path)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The groups of a pool. numbers: (N,), equal within a group; None if documents of the same text are a group."""

    grouping: Grouping
    numbers: NDArray[np.intp] | None

    def limited(self, limit: Limit) -> Distinct:
        """Return a limit with a further one on each group."""
        if self.grouping.counts_groups:
            return Distinct(limit, self.numbers, 1, self.grouping.at_most)
        return Distinct(limit, self.numbers, self.grouping.at_most)


def group_key(value: object) -> str:
    """Return the same key for equal values of JSON, as for the numbers 1 and 1.0."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: object) -> object:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_with_whole_numbers(each) for each in value]
        case dict():
            return {name: _with_whole_numbers(each) for name, each in value.items()}
        case _:
            return value


def numbered(grouping: Grouping, ids: Sequence[str], documents: Mapping[str, Document]) -> NDArray[np.intp]:
    """Return (N,) numbers of the documents with these ids, equal for equal values of the field of the grouping."""
    first: dict[str, int] = {}
    groups = np.arange(len(ids))
    for position, document in enumerate(map(documents.get, ids)):
        for value in () if document is None else grouping.value(document):
            groups[position] = first.setdefault(group_key(value), position)
    return groups


def _ignore(amount: int) -> None:
    """Take nothing."""


class AnswerTooLarge(LimitExceeded):
    """The documents of an answer take more bytes than it may have."""

    slug = "limit-exceeded"


@dataclass(frozen=True, slots=True)
class Room:
    """Where the memory of a task is counted.

    charge: takes bytes for the documents that are read of an index and for the mathematics. It raises Overloaded if too
    few are left, and LimitExceeded if there would never be enough. answer: most bytes of the documents in an answer.
    """

    charge: Callable[[int], None] = _ignore
    answer: float = math.inf

    def check_answer(self, size: int) -> None:
        """Raises AnswerTooLarge for an answer of more bytes."""
        if size > self.answer:
            raise AnswerTooLarge(
                f"the answer would take more than {self.answer:,} bytes (limits.body_bytes): ask for fewer documents "
                "or leave out their texts; the scores are kept, so that takes no new calls"
            )


FREE = Room()


NOTHING = np.empty(0, dtype=np.intp)
LONG = 2**19  # characters that are looked at in a thread


def are_long(documents: Iterable[Document]) -> bool:
    """Return whether looking at the texts of documents would keep the event loop waiting."""
    return sum(len(document.text) for document in documents) > LONG


FEW_NUMBERS = 2**19  # in vectors that are grouped at once
SHORT = 64  # characters of a text that is its own key


class Documents:
    """The documents of a pool that were read so far.

    by_id: the documents that are kept. outlines: documents that were read without their texts, for their groups. texts:
    (N,) numbers, equal for documents that are known to have the same title and text. copies: the number of documents
    whose text another one already had.
    """

    def __init__(
        self,
        pool: Pool,
        candidates: Candidates,
        run: Run,
        documents: Mapping[str, Document] | None = None,
        room: Room = FREE,
    ) -> None:
        """run: runs slow functions in threads; documents: the documents of a pool that came with texts, by id; room:
        for the documents of an index that are kept. Raises the errors of the room."""
        self._room = room
        self.by_id: dict[str, Document] = {}
        self._keep(documents or {}, candidates.texts_at_hand)
        self.outlines: dict[str, Document] = {}
        self.texts: NDArray[np.intp] = np.arange(len(pool))
        self.copies = 0
        self._pool = pool
        self._candidates = candidates
        self._run = run
        self._first: dict[str | bytes, int] = {}
        self._seen = np.zeros(len(pool), dtype=np.bool_)
        self._there = np.zeros(len(pool), dtype=np.bool_)
        self._blank = np.zeros(len(pool), dtype=np.bool_)
        if blank := {id for id, document in self.by_id.items() if not has_words(document.content)}:
            self._blank[:] = [id in blank for id in pool.ids]
        self._alike: _Groups | None = None

    async def read(
        self,
        positions: NDArray[np.intp],
        likely: Callable[[], NDArray[np.intp]] | None = None,
        *,
        copies: bool = True,
        answer: bool = False,
    ) -> NDArray[np.intp]:
        """Read the documents at these positions and, with `copies`, look at those whose text may be the same. Returns
        the positions of all. Raises what the room for texts does.

        likely: returns the positions of documents that are read as well, if anything is. answer: whether their texts
        are for an answer; then raises LimitExceeded if they do not fit into one.
        """
        wanted, suspects = positions, NOTHING
        if copies and positions.size and not self._candidates.texts_at_hand:
            suspects = self._suspects(await self._groups(), positions)
            suspects = np.setdiff1d(suspects, positions) if suspects.size else suspects
        if self._missing(wanted) and likely is not None:
            wanted = np.concatenate([wanted, np.setdiff1d(likely(), wanted)])
        await self._look(wanted, keep=True, answer=answer)
        await self._look(suspects, keep=False)
        return np.concatenate([wanted, suspects])

    async def _look(self, positions: NDArray[np.intp], *, keep: bool, answer: bool = False) -> None:
        """Read the documents at these positions, a piece at a time, and note what their texts are. keep: whether they
        are kept, as far as they are there."""
        at_hand = self._candidates.texts_at_hand
        left = self._missing(positions)
        new = positions[~self._seen[positions]]
        there = zip(new.tolist(), self.at(new), strict=True)
        await self._note({place: document for place, document in there if document is not None})
        places = {self._pool.ids[place]: place for place in positions.tolist()}
        async for piece in in_awaited_pieces(self._candidates.documents, left):
            await self._note({places[id]: document for id, document in piece.items()})
            if keep or at_hand:
                self._keep(piece, at_hand)
            if answer:
                self._check_answer(positions)
        if answer:
            self._check_answer(positions)
        if keep and left:
            self._there[[places[id] for id in left if id not in self.by_id]] = False
        self._seen[positions] = True

    def _keep(self, documents: Mapping[str, Document], at_hand: bool) -> None:
        if documents and not at_hand:  # else they came with the body
            self._room.charge(size_of_all(documents.values()))
        self.by_id.update(documents)

    async def _note(self, there: Mapping[int, Document]) -> None:
        """Note what the texts of documents are, by position; in a thread if they are long."""
        if are_long(there.values()):
            await self._run(self._take_note, there)
        else:
            self._take_note(there)

    def _take_note(self, there: Mapping[int, Document]) -> None:
        for position, document in there.items():
            if not self._seen[position]:
                content = document.content
                first = self._first.setdefault(_key(content), position)
                self.texts[position] = first
                self.copies += int(first != position)
                self._blank[position] = not has_words(content)
            self._there[position] = self._seen[position] = True

    @property
    def read_so_far(self) -> dict[str, Document]:
        """The documents that are kept, and those that were read without their texts."""
        return self.outlines | self.by_id

    def at(self, positions: NDArray[np.intp]) -> list[Document | None]:
        """Return the documents at these positions, None for each that is deleted or is not kept."""
        return [self.by_id.get(self._pool.ids[position]) for position in positions.tolist()]

    def deleted(self, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of these positions, all of which were read, whose document is deleted."""
        return positions[~self._there[positions]]

    def without_content(self, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of these positions whose document was read and has nothing to read in it."""
        return positions[self._blank[positions]]

    def _check_answer(self, positions: NDArray[np.intp]) -> None:
        self._room.check_answer(sum(len(each.content) for each in self.at(positions) if each is not None))

    async def read_groups(self, grouping: Grouping) -> NDArray[np.intp] | None:
        """Read what decides the groups of all documents. Returns (N,) numbers, equal within a group; None if `texts`
        are the groups, of which more may become known."""
        everything = np.arange(len(self._pool))
        if grouping.path is None:
            at_hand = self._candidates.texts_at_hand
            await self._look(everything if at_hand else self._suspects(await self._groups(), everything), keep=False)
            return None
        return await self._run(numbered, grouping, self._pool.ids, await self.read_metadata())

    async def read_boosts(self, boosts: Boosts) -> tuple[NDArray[np.float64], list[str]]:
        """Return the (N,) boosts of all documents, and the fields that `Boosts.unread` names."""
        documents = await self.read_metadata() if boosts.rules else {}
        unread = await self._run(boosts.unread, documents.values())
        named = self._candidates.passages.document_id
        weights = {id: boosts.weights.get(named(id), 1.0) for id in self._pool.ids}
        return await self._run(replace(boosts, weights=weights).of, self._pool.ids, documents), unread

    async def read_metadata(self) -> Mapping[str, Document]:
        """Return all documents by id, read with their metadata if not with their texts."""
        if self._candidates.texts_at_hand:
            await self._look(np.arange(len(self._pool)), keep=True)
            return self.by_id
        if not self.outlines:
            async for piece in in_awaited_pieces(self._candidates.outlines, self._pool.ids):
                self._room.charge(size_of_all(piece.values()))
                self.outlines.update(piece)
        return self.outlines

    def _missing(self, positions: NDArray[np.intp]) -> list[str]:
        """Return the ids of the documents at these positions that were not read yet."""
        return [id for id in map(self._pool.ids.__getitem__, positions.tolist()) if id not in self.by_id]

    async def _groups(self) -> _Groups:
        if self._alike is None:
            run = run_on_loop if self._pool.embeddings.size <= FEW_NUMBERS else self._run
            self._alike = await run(_Groups.of, self._pool.embeddings)
        return self._alike

    def _suspects(self, groups: _Groups, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Positions that were not read and whose text may equal one of these, by their vectors."""
        left = groups.several[~self._seen[groups.several]]
        return left[np.isin(groups.numbers[left], groups.numbers[positions])] if left.size else left


class _Groups(NamedTuple):
    """Documents whose vectors are alike. numbers: (N,), equal within a group. several: the positions of documents in
    groups of two or more."""

    numbers: NDArray[np.intp]
    several: NDArray[np.intp]

    @classmethod
    def of(cls, embeddings: NDArray[np.floating]) -> _Groups:
        numbers = alike(embeddings)
        return cls(numbers, np.flatnonzero(np.bincount(numbers, minlength=len(numbers))[numbers] > 1))


def _key(content: str) -> str | bytes:
    """Return what stands for a text, so that long ones are not kept."""
    if len(content) <= SHORT:
        return content
    return hashlib.blake2b(content.encode(errors="surrogatepass"), digest_size=16).digest()


def texts_of(documents: Sequence[Document | None]) -> list[str]:
    """Return what the cross-encoder reads of documents that are there."""
    return [document.content for document in documents if document is not None]
