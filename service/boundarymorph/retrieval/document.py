"""A document, as it is stored, encoded, scored and returned; and reading documents piece by piece, so that many large
ones are never in memory at the same time."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import InvalidInput

STOP = 2**24  # bytes of documents after which a read stops
FULL = STOP // 2  # bytes from which a read may have stopped: less, as two sides may measure differently
FEW, MANY = 4, 16  # documents that are read at once, before they are measured: large ones, small ones
WIDEST = 4  # bytes of a character in memory, unless all are ASCII


@dataclass(frozen=True, slots=True)
class Document:
    """One retrievable unit of text. `id` is unique within an index or a pool; `metadata` is any JSON object."""

    id: str
    text: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The text that the encoder and the cross-encoder read."""
        return f"{self.title}\n{self.text}" if self.title else self.text


def fingerprint(document: Document, embedding: NDArray[np.floating] | None = None) -> bytes:
    """Return 16 bytes that identify a document and any embedding given with it. Raises InvalidInput."""
    content = [document.title, document.text, dict(document.metadata)]
    state = hashlib.blake2b(canonical(document, content), digest_size=16)
    if embedding is not None:
        state.update(np.asarray(embedding, dtype="<f4").tobytes())
    return state.digest()


def canonical(document: Document, value: object) -> bytes:
    """Encode part of a document as JSON with sorted keys. Raises InvalidInput if that is not possible."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise InvalidInput(f"the document {document.id!r} cannot be written as JSON: {error}") from error


Read = Callable[[Sequence[str]], Mapping[str, Document]]


def size_of(document: Document) -> int:
    """Return about how many bytes a document takes in memory, rather too many than too few."""
    size = memory_of(document.text)
    if document.title:
        size += memory_of(document.title)
    return size + _of_metadata(document.metadata) if document.metadata else size


def memory_of(text: str) -> int:
    """Return the most bytes that a text takes in memory."""
    return len(text) * (1 if text.isascii() else WIDEST)


def size_of_all(documents: Iterable[Document]) -> int:
    """Return about how many bytes documents take in memory."""
    return sum(map(size_of, documents))


def first_piece(read: Read, ids: Sequence[str], few: int = FEW, many: int = MANY) -> dict[str, Document]:
    """Return the first of the documents with these ids, in their order, until they take STOP bytes. read: reads a few
    documents at once, or many if those before were small."""
    found: dict[str, Document] = {}
    left, size, together = iter(dict.fromkeys(ids)), 0, few
    while size < STOP and (part := list(islice(left, together))):
        there = read(part)
        found |= {id: there[id] for id in part if id in there}
        added = size_of_all(there.values())
        size, together = size + added, many if added * many < STOP else few
    return found


def left_of(ids: Sequence[str], found: Mapping[str, Document]) -> list[str]:
    """Return the ids that a read may have left out: those after the last one that it found, if these are large."""
    if not found or size_of_all(found.values()) < FULL:
        return []
    last = max(place for place, id in enumerate(ids) if id in found)
    return [id for id in ids[last + 1 :] if id not in found]


def in_pieces(read: Read, ids: Sequence[str]) -> Iterator[Mapping[str, Document]]:
    """Yield the documents with these ids, in their order, a piece at a time. read: as `Index.documents`."""
    left = list(ids)
    while left:
        found = read(left)
        yield found
        left = left_of(left, found)


async def in_awaited_pieces(
    read: Callable[[Sequence[str]], Awaitable[Mapping[str, Document]]], ids: Sequence[str]
) -> AsyncIterator[Mapping[str, Document]]:
    """Yield the documents with these ids, a piece at a time. read: as `Retriever.documents`."""
    left = list(ids)
    while left:
        found = await read(left)
        yield found
        left = left_of(left, found)


def _of_metadata(metadata: Mapping[str, object]) -> int:
    try:
        return WIDEST * len(orjson.dumps(dict(metadata), default=str, option=orjson.OPT_NON_STR_KEYS))
    except TypeError:  # an integer of more than 64 bits
        return WIDEST * len(str(metadata))
