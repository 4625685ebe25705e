"""Define the interfaces of retrieval: indexes, wherever they are stored, and their catalogs."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from boundarymorph.calibration.trust import Choice
from boundarymorph.errors import BoundaryMorphError, IndexConflict, InvalidIndexName, StorageUnavailable, UnknownIndex
from boundarymorph.retrieval.artifacts import ArtifactFile, Artifacts
from boundarymorph.retrieval.document import STOP, Document, Retrieval, Search
from boundarymorph.retrieval.filters import Filter
from boundarymorph.telemetry import metrics, tracing

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_log = logging.getLogger(__name__)
WORDS = "words"  # the kind of an index without vectors
UNREADABLE = "unreadable"  # replaces a kind that cannot be read


def instrument(method: Callable[Parameters, Awaitable[Answer]]) -> Callable[Parameters, Coroutine[Any, Any, Answer]]:
    name = method.__name__

    @wraps(method)
    async def call(*given: Parameters.args, **named: Parameters.kwargs) -> Answer:
        start, outcome = time.perf_counter(), "other"
        try:
            with tracing.span(f"retriever.{name}"):
                answer = await method(*given, **named)
            outcome = "ok"
            return answer
        except BoundaryMorphError as error:
            outcome = error.slug
            raise
        finally:
            seconds = time.perf_counter() - start
            metrics.retriever_seconds.labels(name, outcome).observe(seconds)
            tracing.add_seconds(name, seconds)

    return call


@dataclass(frozen=True, slots=True)
class IndexConfiguration:
    """The configuration with which an index was created.

    Attributes:
        encoder: None for the users' own vectors, or none.
        dimension: The length of the vectors; 0 without vectors.
        created: UTC, ISO 8601.
        kind: The kind of its search structure.
        lexical: Whether it had words when it was opened.
    """

    encoder: str | None
    dimension: int
    created: str
    kind: str = "flat"
    lexical: bool = True

    def describe(self, name: str, count: int, file: ArtifactFile, **others: Any) -> IndexDescription:
        """Return the description of an index, with its artifacts and further fields."""
        artifacts = file.read_if_sound() or Artifacts()
        given = asdict(self) | {"created": self.created or None, "bytes": None} | others
        measured = None if artifacts.calibration is None else artifacts.calibration.trust
        given |= {"description": artifacts.description, "distinct": artifacts.distinct, "trust": measured}
        return IndexDescription(name=name, count=count, **given)


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidIndexName(
            f"{name!r} cannot name an index; use 1 to 64 of a-z, 0-9, '.', '_', '-', a letter or digit first"
        )


def check_same(name: str, info: IndexConfiguration, *, encoder: str | None, dimension: int, kind: str | None) -> None:
    """Raise IndexConflict unless an index has the configuration of a call of `Catalog.ensure`."""
    wanted = kind or info.kind
    if (info.encoder, info.dimension, info.kind) != (encoder, dimension, wanted):
        raise IndexConflict(
            f"the index {name!r} exists {_vector_phrase(info.encoder, info.dimension)} and of kind {info.kind!r}, not "
            f"{_vector_phrase(encoder, dimension)} and of kind {wanted!r}; choose another name or delete it first"
        )


def _vector_phrase(encoder: str | None, dimension: int) -> str:
    if not dimension:
        return "without vectors"
    vectors = "its users' own vectors" if encoder is None else f"the encoder {encoder!r}"
    return f"with {vectors} of {dimension} dimensions"


def unknown(name: str) -> UnknownIndex:
    return UnknownIndex(f"there is no index {name!r}")


class StructureDescription(BaseModel):
    """The last training of an index of kind `ivf`."""

    count: int = Field(description="documents")
    sequence: int = Field(description="sequence number of the last change before the training")
    clusters: int = Field(description="number of lists of vectors")
    recall: dict[int, float] = Field(description="by depth, measured on the index's own vectors")


class IndexDescription(BaseModel):
    """The description of an index."""

    name: str = Field(description="as in the URLs of its routes")
    description: str | None = Field(None, description="what its documents are, if somebody has said it")
    distinct: str | None = Field(
        None, description="selections have one document for each value of this field unless a request says otherwise"
    )
    trust: Choice | None = Field(
        None, description="how far the scorer is trusted by the judgements of its calibration; null if that is unknown"
    )
    count: int = Field(description="documents")
    dimension: int = Field(description="of its vectors; 0 if it has none")
    encoder: str | None = Field(description="null for an index with vectors of your own, or without vectors")
    created: str | None = Field(description="UTC, ISO 8601; null for a table that was not made here")
    bytes: int | None = Field(description="on the disk of this machine; null for an index in a store")
    kind: str = Field(description="how it is searched: flat, ivf, words; in a store flat or hnsw")
    metric: Literal["cosine"] = Field("cosine", description="vectors are normalised to unit length")
    structure: StructureDescription | None = Field(None, description="null if it is searched exactly")


def accept_all(name: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class IndexTotals:
    """The number of indexes of one kind on this machine's disk, their documents, and bytes."""

    indexes: int = 0
    documents: int = 0
    bytes: int = 0


@dataclass(slots=True)
class UnreadableIndex:
    """An index that exists and cannot be described."""

    name: str
    error: BoundaryMorphError


IndexListing = Sequence[IndexDescription | UnreadableIndex]


def describe_indexes(
    names: Iterable[str], describe: Callable[[str], IndexDescription], *, named: bool = False
) -> IndexListing:
    """Describe indexes, and log those that cannot be read.

    With `named`, indexes that are gone are listed as well.
    """
    found: list[IndexDescription | UnreadableIndex] = []
    for name in names:
        try:
            found.append(describe(name))
        except (BoundaryMorphError, OSError) as error:
            if isinstance(error, (UnknownIndex, FileNotFoundError)) and not named:
                continue
            _log.warning("the index %r cannot be read: %s", name, error)
            known = error if isinstance(error, BoundaryMorphError) else StorageUnavailable(str(error))
            found.append(UnreadableIndex(name, known))
    return found


class Index(Protocol):
    """One index.

    All methods block, are thread-safe, and raise UnknownIndex once the index is deleted.
    """

    @property
    def name(self) -> str: ...

    @property
    def info(self) -> IndexConfiguration: ...

    def count(self) -> int:
        """Number of documents in the index."""

    def retrieve(self, search: Search) -> Retrieval:
        """Search as `Retriever.retrieve` does; the search must have an embedding."""

    def check(self, document: Document) -> None:
        """Raise InvalidInput or LimitExceeded if this index cannot store the document."""

    def upsert(
        self, documents: Sequence[Document], embeddings: NDArray[np.floating], digests: Sequence[bytes] | None = None
    ) -> None:
        """Write n documents, durably and visibly to later searches; the last one of an id wins.

        Args:
            documents: The n documents.
            embeddings: (n, d) vectors.
            digests: By default the fingerprints of documents and embeddings.

        Raises:
            InvalidEmbeddings: Before any write, if a vector does not fit.
            InvalidInput: Before any write, if a document does not fit.
        """

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents, durably and at once, and return how many of the ids existed."""

    def delete_matching(self, filter: Filter) -> int:
        """Remove the documents that match a filter, durably and at once, and return their number."""

    def documents(self, ids: Sequence[str], *, texts: bool = True) -> Mapping[str, Document]:
        """Return the first of these documents, in order, until they take much memory.

        Unknown ids are skipped. `in_pieces` reads all documents.

        Args:
            ids: The ids.
            texts: Whether to read text and title; otherwise they may be empty.
        """

    def characters(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the length in characters of title and text together, by id, without unknown ids."""

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return fingerprints of the documents with these ids, without unknown ids."""

    def outlines(self, most: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        """Return the characters and metadata of at most `most` documents, fewer if they are large."""

    def page(self, after: str, most: int, size: int = STOP) -> Sequence[Document]:
        """Return documents after an id, in order of ids, until they take `size` bytes.

        Raises:
            InvalidInput: If the index has no order.
        """


class Catalog(Protocol):
    """Indexes by name. All methods block and are thread-safe."""

    def check(self) -> None:
        """Raise an error if there are indexes and none can be read."""

    def exists(self, name: str) -> bool:
        """Return whether an index of this name exists. Raises InvalidIndexName."""

    def ensure(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> bool:
        """Create an index unless one with the same configuration exists.

        Args:
            name: The name of the index.
            encoder: None for the users' own vectors, and for kind "words", whose dimension is 0.
            dimension: The length of the vectors.
            kind: The kind of search structure. None accepts that of an existing index, and means "flat" for a new one.
            lexical: Whether a new index indexes its words, if possible.

        Returns:
            Whether the index was created.

        Raises:
            InvalidIndexName: If the name is malformed.
            InvalidInput: If the configuration is impossible.
            IndexConflict: If the index has another configuration.
        """

    def create(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> Index:
        """Create or find an index as `ensure` does, and return it."""
        self.ensure(name, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)
        return self.get(name)

    def get(self, name: str, caller: str = "") -> Index:
        """Return the index of this name for a caller.

        The files of the caller that uses most indexes are closed first.

        Raises:
            InvalidIndexName: If the name is malformed.
            UnknownIndex: If there is no such index.
        """

    def describe(self, name: str) -> IndexDescription:
        """Return a summary of an index. Raises InvalidIndexName or UnknownIndex."""

    def list(self, wanted: Callable[[str], bool] = accept_all) -> IndexListing:
        """Return summaries of the indexes with wanted names, by name."""

    def totals(self) -> Mapping[str, IndexTotals]:
        """Return the totals of the indexes on this machine's disk by kind, or `UNREADABLE`.

        Not thread-safe.
        """
        return {}

    def delete(self, name: str) -> None:
        """Remove an index with its artifacts, or nothing. Raises InvalidIndexName or UnknownIndex."""

    def artifacts(self, name: str) -> ArtifactFile:
        """Return the file of the artifacts of an index. Raises InvalidIndexName or UnknownIndex."""

    def close(self) -> None:
        """Close files and connections."""
