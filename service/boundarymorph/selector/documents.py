"""Read the documents of a task's candidates, and find their copies and groups."""

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
from boundarymorph.selection import GroupLimit, Limit, Pool
from boundarymorph.selection.process import group_alike


@dataclass(frozen=True, slots=True)
class Grouping:
    """A limit on the documents of a group.

    Attributes:
        path: The path of the metadata field that names the group; None groups by text. A document without the field, or
            with null in it, is a group of its own.
        at_most: The most documents of a group in the set.
        counts_groups: Whether k counts groups. The best document of each group then counts, and up to `at_most` - 1
            others come with it.
    """

    path: tuple[str, ...] | None = None
    at_most: int = 1
    counts_groups: bool = False

    def value(self, document: Document) -> list[object]:
        """Return the document's value of the field in a list, empty if it is null or missing."""
        found = [] if self.path is None else values_at(document.metadata, self.path)
        return [value for value in found if value is not None]

    def restrict(self, limit: Limit, groups: NDArray[np.intp] | None) -> GroupLimit:
        """Return a limit with a further one on each group.

        Args:
            limit: The limit.
            groups: (N,) numbers, equal within a group; None if documents of the same text are a group.
        """
        if self.counts_groups:
            return GroupLimit(limit, groups, 1, self.at_most)
        return GroupLimit(limit, groups, self.at_most)


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


def number_groups(grouping: Grouping, ids: Sequence[str], documents: Mapping[str, Document]) -> NDArray[np.intp]:
    """Number the documents with these ids, equally for equal values of the grouping's field."""
    first: dict[str, int] = {}
    groups = np.arange(len(ids))
    for position, document in enumerate(map(documents.get, ids)):
        for value in () if document is None else grouping.value(document):
            groups[position] = first.setdefault(group_key(value), position)
    return groups


class AnswerTooLarge(LimitExceeded):
    """The documents of an answer take more bytes than an answer may have."""

    slug = "limit-exceeded"


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The limits on the memory of a task.

    Attributes:
        charge: Counts bytes for documents read from an index and for the mathematics. It raises Overloaded if too few
            are left, and LimitExceeded if there would never be enough.
        answer: The most bytes of the documents in an answer.
    """

    charge: Callable[[int], None] = lambda amount: None
    answer: float = math.inf

    def check_answer(self, size: int) -> None:
        """Check the size of an answer in bytes.

        Raises:
            AnswerTooLarge: If the size exceeds the limit.
        """
        if size > self.answer:
            raise AnswerTooLarge(
                f"the answer would take more than {self.answer:,} bytes (limits.body_bytes): ask for fewer documents "
                "or leave out their texts; the scores are kept, so that takes no new calls"
            )


UNLIMITED = MemoryLimits()


NOTHING = np.empty(0, dtype=np.intp)
LONG = 2**19  # with more characters, texts are examined in a thread
FIXED_COST = 2**8  # characters whose examination takes as long as everything else about a document


def are_long(documents: Iterable[Document]) -> bool:
    """Return whether examining the texts of documents would keep the event loop waiting."""
    return sum(FIXED_COST + len(document.text) for document in documents) > LONG


FEW_NUMBERS = 2**19  # with more numbers, vectors are grouped in a thread
SHORT = 64  # most characters of a text that is its own key


class Documents:
    """The documents of a pool that were read so far.

    Attributes:
        by_id: The documents that are kept.
        outlines: Documents that were read without their texts, for their groups.
        texts: (N,) numbers, equal for documents that are known to have the same title and text.
        copies: The number of documents whose text another one already had.
    """

    def __init__(
        self,
        pool: Pool,
        candidates: Candidates,
        run: Run,
        documents: Mapping[str, Document] | None = None,
        memory: MemoryLimits = UNLIMITED,
    ) -> None:
        """Start with the documents that came with a pool.

        Args:
            pool: The N candidates.
            candidates: The source of their documents.
            run: Runs slow functions in threads.
            documents: The documents that came with texts, by id.
            memory: Counts the bytes of documents that are kept.

        Raises:
            Overloaded: If too few bytes are left.
            LimitExceeded: If there would never be enough bytes.
        """
        self._memory = memory
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
        """Read the documents at these positions.

        Args:
            positions: The positions.
            likely: Returns the positions of documents to read as well, if anything is read.
            copies: Whether to examine documents whose text may be the same.
            answer: Whether the texts are for an answer.

        Returns:
            The positions of all documents that were read.

        Raises:
            Overloaded: If too few bytes are left.
            LimitExceeded: If there would never be enough bytes, or the texts do not fit into an answer.
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
        """Read the documents at these positions, a piece at a time, and note their texts.

        With `keep`, documents that exist are kept.
        """
        at_hand = self._candidates.texts_at_hand
        left = self._missing(positions)
        new = positions[~self._seen[positions]]
        there = zip(new.tolist(), self.get(new), strict=True)
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
        if documents and not at_hand:  # the others came with the body
            self._memory.charge(size_of_all(documents.values()))
        self.by_id.update(documents)

    async def _note(self, there: Mapping[int, Document]) -> None:
        """Note the texts of documents by position; in a thread if they are long."""
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

    def get(self, positions: NDArray[np.intp]) -> list[Document | None]:
        """Return the documents at these positions; None for each that is deleted or not kept."""
        return [self.by_id.get(self._pool.ids[position]) for position in positions.tolist()]

    def deleted(self, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of these positions whose document is deleted; all must have been read."""
        return positions[~self._there[positions]]

    def without_content(self, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of these positions whose document was read and has no words."""
        return positions[self._blank[positions]]

    def _check_answer(self, positions: NDArray[np.intp]) -> None:
        self._memory.check_answer(sum(len(each.content) for each in self.get(positions) if each is not None))

    async def read_groups(self, grouping: Grouping) -> NDArray[np.intp] | None:
        """Read the groups of all documents.

        Returns:
            (N,) numbers, equal within a group; None if `texts` are the groups, which may still grow.
        """
        everything = np.arange(len(self._pool))
        if grouping.path is None:
            at_hand = self._candidates.texts_at_hand
            await self._look(everything if at_hand else self._suspects(await self._groups(), everything), keep=False)
            return None
        return await self._run(number_groups, grouping, self._pool.ids, await self.read_metadata())

    async def read_boosts(self, boosts: Boosts) -> tuple[NDArray[np.float64], list[str]]:
        """Return the (N,) boosts of all documents, and the fields that `Boosts.unread` names."""
        documents = await self.read_metadata() if boosts.rules else {}
        unread = await self._run(boosts.unread, documents.values())
        named = self._candidates.passages.document_id
        weights = {id: boosts.weights.get(named(id), 1.0) for id in self._pool.ids}
        return await self._run(replace(boosts, weights=weights).factors, self._pool.ids, documents), unread

    async def read_metadata(self) -> Mapping[str, Document]:
        """Return all documents by id, read with their metadata if not with their texts."""
        if self._candidates.texts_at_hand:
            await self._look(np.arange(len(self._pool)), keep=True)
            return self.by_id
        if not self.outlines:
            async for piece in in_awaited_pieces(self._candidates.outlines, self._pool.ids):
                self._memory.charge(size_of_all(piece.values()))
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
        """Return unread positions whose text may equal one of these, by their vectors."""
        left = groups.several[~self._seen[groups.several]]
        return left[np.isin(groups.numbers[left], groups.numbers[positions])] if left.size else left


class _Groups(NamedTuple):
    """Groups of documents whose vectors are alike.

    Attributes:
        numbers: (N,) numbers, equal within a group.
        several: The positions of documents in groups of two or more.
    """

    numbers: NDArray[np.intp]
    several: NDArray[np.intp]

    @classmethod
    def of(cls, embeddings: NDArray[np.floating]) -> _Groups:
        numbers = group_alike(embeddings)
        return cls(numbers, np.flatnonzero(np.bincount(numbers, minlength=len(numbers))[numbers] > 1))


def _key(content: str) -> str | bytes:
    """Return a short key that stands for a text, so that long texts are not kept."""
    if len(content) <= SHORT:
        return content
    return hashlib.blake2b(content.encode(errors="surrogatepass"), digest_size=16).digest()


def texts_of(documents: Sequence[Document | None]) -> list[str]:
    """Return the texts that the cross-encoder reads, of the documents that exist."""
    return [document.content for document in documents if document is not None]
