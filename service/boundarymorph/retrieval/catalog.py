"""Named indexes: what the retriever, ingestion and the routes know of them, wherever they are kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import IndexConflict, InvalidIndexName, UnknownIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import Filter
from boundarymorph.retrieval.retriever import Retrieved, Search

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
WORDS = "words"  # the kind of an index without vectors


@dataclass(frozen=True, slots=True)
class IndexConfiguration:
    """What an index was created with.

    encoder: None when its users bring their own vectors, or when it has none; dimension: of its vectors, 0 where it has
    none; created: UTC, ISO 8601; kind: of its search structure; lexical: whether it has an inverted index of its words,
    as of when it was opened.
    """

    encoder: str | None
    dimension: int
    created: str
    kind: str = "flat"
    lexical: bool = True


def check_name(name: str) -> None:
    """Raises InvalidIndexName for what is no name of an index."""
    if not NAME.fullmatch(name):
        raise InvalidIndexName(
            f"{name!r} cannot name an index; use 1 to 64 of a-z, 0-9, '.', '_', '-', a letter or digit first"
        )


def check_same(name: str, info: IndexConfiguration, *, encoder: str | None, dimension: int, kind: str | None) -> None:
    """Raises IndexConflict unless an index is as `Catalog.ensure` is asked for it."""
    wanted = kind or info.kind
    if (info.encoder, info.dimension, info.kind) != (encoder, dimension, wanted):
        raise IndexConflict(
            f"the index {name!r} exists {_with(info.encoder, info.dimension)} and of kind {info.kind!r}, not "
            f"{_with(encoder, dimension)} and of kind {wanted!r}; choose another name or delete it first"
        )


def _with(encoder: str | None, dimension: int) -> str:
    if not dimension:
        return "without vectors"
    vectors = "its users' own vectors" if encoder is None else f"the encoder {encoder!r}"
    return f"with {vectors} of {dimension} dimensions"


def unknown(name: str) -> UnknownIndex:
    """What is raised where there is no index of a name."""
    return UnknownIndex(f"there is no index {name!r}")


@dataclass(frozen=True, slots=True)
class StructureInfo:
    """What an index of kind ivf was trained with.

    count: documents; sequence: of the store's last change before it; recall: by depth, the share of the nearest that
    was found for a sample of its own vectors.
    """

    count: int
    sequence: int
    clusters: int
    recall: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index at a glance.

    encoder, dimension: as in `IndexConfiguration`; created: UTC, ISO 8601; bytes: its files on this disk; kind: how it
    is searched; structure: None where it is exhaustive; metric: what is nearest, the same for all.
    """

    name: str
    count: int
    dimension: int
    encoder: str | None
    created: str
    bytes: int
    kind: str = "flat"
    structure: StructureInfo | None = None
    metric: str = "cosine"


class Index(Protocol):
    """One index. All calls block, may come from any thread, and raise UnknownIndex once the index is gone."""

    @property
    def name(self) -> str: ...

    @property
    def info(self) -> IndexConfiguration: ...

    def count(self) -> int:
        """Documents in the index."""

    def retrieve(self, search: Search) -> Retrieved:
        """As `Retriever.retrieve`, for a search with an embedding."""

    def check(self, document: Document) -> None:
        """Raises InvalidInput or LimitExceeded for a document that this index cannot hold."""

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: NDArray[np.floating],
        digests: Sequence[bytes] | None = None,
    ) -> None:
        """Write n documents with their (n, d) embeddings; durable and visible to every later search on return.

        digests: what `digests` is to answer for them, by default fingerprints of the documents and these embeddings.
        Raises InvalidEmbeddings or InvalidInput, and then nothing is written.
        """

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents, durably and at once; how many of the ids were there."""

    def delete_matching(self, filter: Filter) -> int:
        """Remove the documents whose metadata pass a filter, durably and at once; how many there were."""

    def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """The documents of these ids, by id and in their order; unknown ones are left out."""

    def characters(self, ids: Sequence[str]) -> Mapping[str, int]:
        """How long title and text of these ids are together, by id; unknown ones are left out."""

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """Fingerprints of what is stored under these ids; unknown ones are left out."""


class Catalog(Protocol):
    """Indexes by name. Calls block and may come from any thread."""

    def check(self) -> None:
        """Raises what keeps all indexes from being reached."""

    def exists(self, name: str) -> bool:
        """Whether there is an index of this name. Raises InvalidIndexName."""

    def ensure(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> bool:
        """Make an index unless there is one with the same configuration; whether this call made it.

        encoder: the name of the encoder that its text queries go through; None for an index of own vectors, and for one
        of kind "words", which has none and a dimension of 0: its documents are found by BM25 alone.
        kind: of its search structure; None takes what is there, and "flat" for a new one. lexical: whether a new one
        keeps its words, where that is possible. Raises InvalidIndexName, InvalidInput, or IndexConflict when the name
        is taken by another configuration.
        """

    def create(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> Index:
        """The same, and the index."""

    def get(self, name: str) -> Index:
        """The index of this name. Raises InvalidIndexName or UnknownIndex."""

    def describe(self, name: str) -> IndexInfo:
        """An index at a glance. Raises InvalidIndexName or UnknownIndex."""

    def list(self) -> Sequence[IndexInfo]:
        """All indexes by name. One that cannot be read is left out, with a warning in the log."""

    def delete(self, name: str) -> None:
        """Remove an index with its documents. Raises InvalidIndexName or UnknownIndex."""

    def close(self) -> None:
        """Release files and connections."""
