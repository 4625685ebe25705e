"""Define the contract of a store, and the parts that stores share.

`StoreIndex` and `StoreCatalog` do the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import RetrieverFailed
from boundarymorph.notices import Notice
from boundarymorph.retrieval.document import Document, canonical
from boundarymorph.retrieval.filters import Language
from boundarymorph.settings import AttachedTable

EXACT = 100_000  # documents up to which every search of a store is exact, unless `search` says otherwise
_IDS = ("id", "_id", "langchain_id", "uuid", "pk", "doc_id")
_TEXTS = ("text", "document", "content", "page_content", "body", "chunk", "passage", "_node_content")
_METADATA = ("metadata", "cmetadata", "metadata_", "langchain_metadata", "meta")


class FoundRows(NamedTuple):
    """n rows in any order.

    Attributes:
        ids: None for a row without an id; several rows may share one.
        vectors: (n, d) of any length, if requested.
        documents: The document of the first row with each id, if requested.
        warnings: Warnings for the answer.
        exact: Whether all vectors were compared; None if unknown.
    """

    ids: Sequence[str | None]
    vectors: NDArray[np.floating] | None
    documents: Mapping[str, Document] = {}
    warnings: Sequence[Notice] = ()
    exact: bool | None = True


class Table(Language[Any], Protocol):
    """A table or collection of documents with vectors, and the language of its filters.

    All methods block, are thread-safe, and raise RetrieverUnavailable, RetrieverFailed, or UnknownIndex if the table is
    gone.

    Attributes:
        attached: Its name and columns.
        dimension: The length of the vectors.
        words: Whether `best` finds documents by words.
        stale: Whether the table should be opened again.
        about: The text that `Store.create` received.
        at_a_time: Most ids per call.
    """

    attached: AttachedTable
    dimension: int
    words: bool = False
    stale: bool = False
    about: str = ""
    at_a_time: int = 1_000

    def count(self) -> int:
        """Number of documents with a vector."""

    def search(
        self, query: NDArray[np.float32], depth: int, where: Any, *, vectors: bool = True, documents: bool = False
    ) -> FoundRows:
        """Return the `depth` documents nearest to a (d,) unit vector, or all if there are fewer.

        Args:
            query: The vector.
            depth: The number of documents.
            where: An expression of `filters.bounds`, or True.
            vectors: Whether to return vectors besides the ids.
            documents: Whether to return documents besides the ids.
        """

    def best(self, query: str, depth: int, where: Any) -> Mapping[str, float]:
        """Return the documents that match the words of a query best, best first, with scores."""
        return {}

    def rows(self, ids: Sequence[str], *, vectors: bool = False, documents: bool = False) -> FoundRows:
        """Return the rows with these ids, without unknown ones.

        `vectors` and `documents` are as in `search`.
        """

    def characters(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the lengths of title and text together by id, without unknown ones."""
        found = self.rows(ids, documents=True).documents
        return {id: len(document.text) + len(document.title or "") for id, document in found.items()}

    def check(self, document: Document) -> None:
        """Raise InvalidInput or LimitExceeded if the table cannot hold the document."""
        canonical(document, dict(document.metadata))

    def upsert(self, documents: Sequence[Document], vectors: NDArray[np.floating], digests: Sequence[bytes]) -> None:
        """Write n documents that passed `check`, durably and visibly to later searches.

        `vectors` are (n, d) unit rows.
        """

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents, and return how many there were."""

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return the fingerprints with which documents were written, by id.

        A table without a column of fingerprints has none.
        """


def check_columns(
    attached: AttachedTable, columns: Iterable[str], store: str, kind: str = "table", part: str = "column"
) -> None:
    """Raise RetrieverFailed unless a table has all columns that the settings name."""
    there, it = list(columns), attached
    for name in (it.id, it.vector, it.text, it.title, it.full_text, it.digest, *(it.metadata or ())):
        if name is not None and name not in there:
            raise RetrieverFailed(
                f"the {kind} {attached.table!r} in {store} has no {part} {name!r}; its {part}s are "
                f"{', '.join(there) or 'none'}"
            )


class Store(Protocol):
    """A server or folder with tables; thread-safe. Its methods raise the errors of `Table`.

    Attributes:
        name: The name of the engine.
        id: The column of ids in tables made here.
        own_id: The column of ids in other tables, if any.
        kinds: The kinds of tables made here, the default first.
        dimensions: The range of allowed dimensions.
    """

    name: str
    id: str = "id"
    own_id: str | None = None
    kinds: Sequence[str] = ("flat",)
    dimensions: range = range(1, 2**16)

    def names(self) -> Iterable[str]:
        """Return the names of all tables."""

    def columns(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield each table with the kinds of its columns.

        A kind is "vector", "json", "object" (JSON that cannot be written), or another word.
        """

    def reference(self, name: str) -> str:
        """Return the name of the table in a description."""
        return name

    def open(self, attached: AttachedTable) -> Table:
        """Return a table as it is now. Raises RetrieverFailed if it lacks a column."""

    def create(self, table: str, dimension: int, kind: str, about: str, *, lexical: bool) -> None:
        """Make a table with the columns of `created_table`; this may fail if there is one.

        Args:
            table: The name of the table.
            dimension: The length of the vectors.
            kind: One of `kinds`.
            about: A text to keep with the table.
            lexical: Whether to index words, where the store does that for new tables.
        """

    def drop(self, table: str) -> None: ...

    def close(self) -> None: ...


def created_table(store: Store, table: str) -> AttachedTable:
    """Return the description of a table that `Store.create` makes."""
    return AttachedTable(
        table=table, id=store.id, title="title", metadata=("metadata",), writable=True, digest="digest"
    )


def guess_columns(table: str, columns: Mapping[str, str], own_id: str | None = None) -> AttachedTable | None:
    """Return the roles of the columns of a table, by their kinds, or None if they are not clear.

    `own_id` is as in `Store`.
    """
    vectors = [name for name, kind in columns.items() if kind == "vector"]
    ids = ("node_id", *_IDS) if "metadata_" in columns else _IDS  # LlamaIndex's "id" is its own number
    id = own_id or next((name for name in ids if name in columns), None)
    text = next((name for name in _TEXTS if name in columns), None)
    if len(vectors) != 1 or id is None or text is None:
        return None
    title = "title" if "title" in columns else None
    metadata = next((name for name in _METADATA if columns.get(name) in ("json", "object")), None)
    return AttachedTable(
        table=table, id=id, text=text, vector=vectors[0], title=title, metadata=(metadata,) if metadata else None
    )


def is_integer(id: str) -> bool:
    """Return whether an id is written as an integer of at most 20 digits."""
    digits = id.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= 20 and str(int(id)) == id


def is_uuid(id: str) -> bool:
    """Return whether an id is written as a UUID."""
    try:
        return str(UUID(id)) == id
    except ValueError:
        return False


class Payload:
    """The place of text, title, and metadata in the columns of a table, or in a JSON object.

    Attributes:
        texts: The columns of text and title.
        whole: The column with all metadata; None if each of their fields is a column.
    """

    def __init__(
        self, attached: AttachedTable, store: str, kinds: Mapping[str, str] | None = None, hidden: Iterable[str] = ()
    ) -> None:
        """Find the columns.

        Args:
            attached: The table.
            store: The name of the engine, for messages.
            kinds: The kinds of all columns, as for `guess_columns`. None if any but the hidden may be JSON metadata.
            hidden: Columns that are never metadata.

        Raises:
            RetrieverFailed: If a writable table has no place for metadata.
        """
        self._text, self._title, self._digest = attached.text, attached.title, attached.digest
        self.texts = [attached.text, *([attached.title] if attached.title else [])]
        self._given = attached.metadata
        self._taken = {*self.texts, attached.digest, attached.full_text, *hidden}
        if kinds is not None:
            self._taken |= {attached.id, *(name for name, kind in kinds.items() if kind == "vector")}
        alone = self._given[0] if self._given is not None and len(self._given) == 1 else None
        kind = "" if alone is None else "json" if kinds is None else kinds.get(alone, "")
        self.whole = alone if kind in ("json", "object") else None
        if attached.writable and kind != "json":
            raise RetrieverFailed(
                f"{attached.table!r} in {store} cannot be writable: it needs one column of JSON for all metadata, "
                "named by metadata"
            )

    def columns(self, there: Iterable[str]) -> list[str]:
        return [name for name in there if self.is_metadata(name)] if self._given is None else list(self._given)

    def path(self, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the place of a field of the metadata, or None if no field has that name."""
        if self.whole is not None:
            return (self.whole, *path)
        return path if self.is_metadata(path[0]) else None

    def document(self, id: str, payload: Mapping[str, Any]) -> Document:
        """Return a document, with an empty text if the object has none."""
        text, title = payload.get(self._text), payload.get(self._title) if self._title else None
        if self.whole is not None:
            whole = payload.get(self.whole)
            metadata = whole if isinstance(whole, dict) else {}
        else:
            metadata = {name: value for name, value in payload.items() if self.is_metadata(name)}
        return Document(id, text if isinstance(text, str) else "", title if isinstance(title, str) else None, metadata)

    def written(self, document: Document, digest: bytes) -> dict[str, Any]:
        metadata = orjson.loads(canonical(document, dict(document.metadata)))
        fields = {self._text: document.text, self._title: document.title, self.whole: metadata}
        return {name: value for name, value in (fields | {self._digest: digest.hex()}).items() if name is not None}

    def is_metadata(self, name: str) -> bool:
        return name not in self._taken if self._given is None else name in self._given
