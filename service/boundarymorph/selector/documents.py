"""The documents of a task's candidates, as they are read, and what they have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.executors import Run
from boundarymorph.retrieval.candidates import Candidates
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import reach
from boundarymorph.selection import Pool
from boundarymorph.selection.copies import alike
from boundarymorph.text import has_content


@dataclass(frozen=True, slots=True)
class Grouping:
    """A limit on the documents of a group. path: to the field of the metadata that names the group, None for the text;
    a document without the field is a group of its own. at_most, counts_groups: as in `selection.Distinct`."""

    path: tuple[str, ...] | None = None
    at_most: int = 1
    counts_groups: bool = False

    def value(self, document: Document) -> list[object]:
        """Return the document's value of the field in a list, which is empty if there is none."""
        return [] if self.path is None else reach(document.metadata, self.path)


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


class Documents:
    """The documents of a pool that were read so far.

    by_id: these documents. texts: (N,) numbers, equal for documents that are known to have the same title and text.
    copies: the number of documents whose text another one already had.
    """

    def __init__(
        self, pool: Pool, candidates: Candidates, run: Run, documents: Mapping[str, Document] | None = None
    ) -> None:
        """run: runs what is slow in threads; documents: those that came with the pool, by id."""
        self.by_id = dict(documents or {})
        self.texts: NDArray[np.intp] = np.arange(len(pool))
        self.copies = 0
        self._pool = pool
        self._candidates = candidates
        self._run = run
        self._first: dict[str, int] = {}
        self._seen = np.zeros(len(pool), dtype=np.bool_)
        self._alike: _Groups | None = None

    async def read(
        self,
        positions: NDArray[np.intp],
        likely: Callable[[], NDArray[np.intp]] | None = None,
        *,
        copies: bool = True,
    ) -> NDArray[np.intp]:
        """Read the documents at these positions, and with `copies` those whose text may be the same. Returns the
        positions of all.

        likely: returns the positions of documents that are read as well, if anything is.
        """
        if copies and positions.size and not self._candidates.texts_at_hand:
            suspects = self._suspects(await self._groups(), positions)
            if suspects.size:
                positions = np.concatenate([positions, np.setdiff1d(suspects, positions)])
        if missing := self._missing(positions):
            if likely is not None:
                missing = list(dict.fromkeys([*missing, *self._missing(likely())]))
            self.by_id.update(await self._candidates.documents(missing))
        for position, document in zip(positions.tolist(), self.at(positions), strict=True):
            if document is not None and not self._seen[position]:
                self.texts[position] = self._first.setdefault(document.content, position)
                self.copies += int(self.texts[position] != position)
        self._seen[positions] = True
        return positions

    def at(self, positions: NDArray[np.intp]) -> list[Document | None]:
        """Return the documents at these positions, None for each that is deleted or was not read."""
        return [self.by_id.get(self._pool.ids[position]) for position in positions.tolist()]

    def deleted(self, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of these positions, all of which were read, whose document is deleted."""
        return positions[[document is None for document in self.at(positions)]]

    def without_content(self, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of these positions whose document was read and has nothing to read in it."""
        there = zip(positions.tolist(), self.at(positions), strict=True)
        empty = [place for place, document in there if document is not None and not has_content(document.content)]
        return np.array(empty, dtype=np.intp)

    async def read_groups(self, grouping: Grouping) -> NDArray[np.intp] | None:
        """Read what decides the groups of all documents. Returns (N,) numbers, equal within a group; None if `texts`
        are the groups, of which more may become known."""
        everything = np.arange(len(self._pool))
        if grouping.path is None:
            at_hand = self._candidates.texts_at_hand
            await self.read(everything if at_hand else self._suspects(await self._groups(), everything))
            return None
        await self.read(everything)
        return await self._run(self._numbered, grouping)

    def _missing(self, positions: NDArray[np.intp]) -> list[str]:
        """Return the ids of the documents at these positions that were not read yet."""
        return [id for id in map(self._pool.ids.__getitem__, positions.tolist()) if id not in self.by_id]

    def _numbered(self, grouping: Grouping) -> NDArray[np.intp]:
        first: dict[str, int] = {}
        groups = np.arange(len(self._pool))
        for position, document in enumerate(self.at(groups)):
            for value in () if document is None else grouping.value(document):
                groups[position] = first.setdefault(group_key(value), position)
        return groups

    async def _groups(self) -> _Groups:
        if self._alike is None:
            self._alike = await self._run(_Groups.of, self._pool.embeddings)
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


def texts_of(documents: Sequence[Document | None]) -> list[str]:
    """Return what the cross-encoder reads of documents, all of which are there."""
    return [document.content for document in documents if document is not None]
