"""The contract of a store, what stores share, and times of their columns. One that implements it gets ranking, words,
filters, warnings and deletion by filters from `StoreIndex`, and names and descriptions from `StoreCatalog`.

Times are in one form, RFC 3339 in UTC, so that the order of the texts is that of the times:

timestamp   2025-03-05T00:00:00+00:00, 2025-03-05T00:00:00.25+00:00    one without a zone is in UTC
date        2025-03-05                                                 compares as the beginning of that day
time        13:45:00, 13:45:00.5                                       of a day
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Protocol, cast
from uuid import UUID

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import RetrieverFailed
from boundarymorph.retrieval.document import Document, canonical, fingerprint
from boundarymorph.retrieval.filters import (
    AllOf,
    AnyOf,
    Bounds,
    Compare,
    Condition,
    Exists,
    Language,
    Not,
    bounds,
    spellings,
)
from boundarymorph.settings import Attached

Kind = Literal["timestamp", "date", "time"]
KindOf = Callable[[tuple[str, ...]], Kind | None]
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400
_CLOCK = r"(?P<minute>\d\d:\d\d)(?::(?P<second>[0-5]\d|60)(?:[.,](?P<fraction>\d+))?)?"
_ZONE = r" ?(?:[Zz]|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?)?"
_MOMENT = re.compile(rf"(?P<date>\d{{4}}-\d\d-\d\d)(?:[Tt ]{_CLOCK}{_ZONE})?", re.ASCII)
_TIME = re.compile(_CLOCK + _ZONE, re.ASCII)
EXACT = 100_000  # documents up to which every search of a store is exact, unless `search` says otherwise
_IDS = ("id", "_id", "langchain_id", "uuid", "pk", "doc_id")
_TEXTS = ("text", "document", "content", "page_content", "body", "chunk", "passage", "_node_content")
_METADATA = ("metadata", "cmetadata", "metadata_", "langchain_metadata", "meta")


class Moment(NamedTuple):
    """Whole seconds since 1970 in UTC, or of a day, and the digits of a fraction of a second, without zeros at its
    end."""

    seconds: int
    fraction: str = ""

    @classmethod
    def read(cls, text: str, kind: Kind) -> Moment | None:
        """Return the time that a text means where times of a kind are; None if it means none.

        A date is the beginning of its day. A zone may be left out, and a space may stand for the T.
        """
        found = (_TIME if kind == "time" else _MOMENT).fullmatch(text)
        if found is None:
            return None
        parts = found.groupdict()
        east = timedelta(hours=int(parts["hours"] or 0), minutes=int(parts["minutes"] or 0))
        try:
            local = datetime.fromisoformat(f"{parts.get('date', '1970-01-01')}T{parts['minute'] or '00:00'}")
            moment = local + timedelta(seconds=int(parts["second"] or 0)) + (east if parts["sign"] == "-" else -east)
        except (ValueError, OverflowError):
            return None
        seconds = (moment - _EPOCH) // timedelta(seconds=1)
        return cls(seconds % _DAY if kind == "time" else seconds, (parts["fraction"] or "").rstrip("0"))

    def text(self, kind: Kind) -> str:
        """Return the one form; of a date, that of its day."""
        moment, fraction = _EPOCH + timedelta(seconds=self.seconds), f".{self.fraction}" if self.fraction else ""
        match kind:
            case "date":
                return moment.date().isoformat()
            case "time":
                return moment.time().isoformat() + fraction
            case _:
                return f"{moment.isoformat()}{fraction}+00:00"

    def ticks(self, in_second: Fraction) -> Fraction:
        """Return the time in units, of which a second has this many."""
        return in_second * (self.seconds + Fraction(int(self.fraction or 0), 10 ** len(self.fraction)))


def are_times(values: Iterable[object], digits: int) -> bool:
    """Whether all values are times with at most so many digits of a fraction of a second."""
    moments = [Moment.read(str(value), "timestamp") for value in values]
    return all(moment is not None and len(moment.fraction) <= digits for moment in moments)


def in_one_form(value: Any, kind: Kind = "timestamp") -> Any:
    """Return a value of JSON with its times, alone or in lists, in the one form, and everything else unchanged."""
    match value:
        case str():
            return value if (moment := Moment.read(value, kind)) is None else moment.text(kind)
        case list():
            return [in_one_form(each, kind) for each in value]
        case _:
            return value


def with_times(condition: Condition, kind_of: KindOf) -> Condition:
    """Return a filter whose times, where a field holds times, are in the one form, so that comparing texts decides.

    kind_of: returns what times a field holds, None for another field. Texts that are no times are left as they are.
    """
    match condition:
        case AllOf(parts):
            return AllOf(frozenset(with_times(part, kind_of) for part in parts))
        case AnyOf(parts):
            return AnyOf(frozenset(with_times(part, kind_of) for part in parts))
        case Not(part):
            return Not(with_times(part, kind_of))
        case Compare(path, "text"):
            kind = next((kind for names in spellings(path) if (kind := kind_of(names)) is not None), None)
            return condition if kind is None else _compared(condition, kind)
        case Exists() | Compare():
            return condition


def _compared(condition: Compare, kind: Kind) -> Condition:
    read = {str(value): Moment.read(str(value), kind) for value in condition.values}
    comparison = condition.comparison
    within_a_day = {
        text
        for text, moment in read.items()
        if kind == "date" and moment and moment.ticks(Fraction(1, _DAY)).denominator > 1
    }
    if comparison == "in":  # no date is a time within a day
        read = {text: moment for text, moment in read.items() if text not in within_a_day}
    elif within_a_day:
        comparison = {"gte": "gt", "lt": "lte"}.get(comparison, comparison)
    values = dict.fromkeys(text if moment is None else moment.text(kind) for text, moment in read.items())
    return Compare(condition.path, "text", comparison, tuple(values)) if values else AnyOf(frozenset())


class Found(NamedTuple):
    """n rows in any order: their ids and (n, d) vectors of any length, float16 where the store keeps such.

    ids: None for a row without one; several rows may share one. vectors: None if none were wanted; documents: by id, if
    they were wanted, of rows that share one that of the first; warnings: about the search; exact: whether the store
    compared all vectors that have a direction.
    """

    ids: Sequence[str | None]
    vectors: NDArray[np.floating] | None
    documents: Mapping[str, Document] = {}
    warnings: Sequence[str] = ()
    exact: bool = True


class Table(Protocol):
    """A table or collection of documents with vectors. All methods block and are thread-safe. They raise
    RetrieverUnavailable, RetrieverFailed, or UnknownIndex if the table is gone.

    dimension: of its vectors. words: whether `best` finds documents by words. stale: whether a call failed, so that the
    table should be opened again. writable: whether documents may be written. about: what `Store.create` was told.
    at_a_time: how many ids it is asked for at most.
    """

    dimension: int
    words: bool = False
    stale: bool = False
    writable: bool = False
    about: str = ""
    at_a_time: int = 1_000

    def count(self) -> int:
        """Number of documents with a vector."""

    def time(self, path: tuple[str, ...]) -> Kind | None:
        """Return what times the field at a path of the metadata holds, None if it holds something else.

        `documents` and `search` return them in the one form of `stores.times`, and filters of `bounds` have it.
        """
        return None

    def bounds(self, condition: Condition) -> Bounds[Any]:
        """Translate a filter. Where the store has no expression with the same meaning, two that enclose it.

        By default by the table's own methods of `Language`.
        """
        return bounds(condition, cast(Language[Any], self))

    def search(
        self, query: NDArray[np.float32], depth: int, where: Any, *, vectors: bool = True, documents: bool = False
    ) -> Found:
        """Return the `depth` documents nearest to a (d,) unit vector, or all if there are fewer.

        where: an expression of `bounds`, or True. vectors, documents: what to return besides the ids.
        """

    def best(self, query: str, depth: int, where: Any) -> Mapping[str, float]:
        """Return the documents that match the words of a query best, best first, with their scores."""
        return {}

    def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Return documents by id, without unknown ones."""

    def characters(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the lengths of title and text together by id, without unknown ones."""
        return {id: len(document.text) + len(document.title or "") for id, document in self.documents(ids).items()}

    def vectors(self, ids: Sequence[str]) -> Found:
        """Return the vectors of these documents, without unknown ones."""

    def check(self, document: Document) -> None:
        """Raise InvalidInput or LimitExceeded if the table cannot hold the document."""
        canonical(document, dict(document.metadata))

    def upsert(self, documents: Sequence[Document], vectors: NDArray[np.floating], digests: Sequence[bytes]) -> None:
        """Write n documents, which have passed `check`, with their (n, d) unit vectors and fingerprints, durably and
        visibly to later searches."""

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents; return how many there were."""

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return fingerprints of documents by id: those that they were written with, or of what is there."""
        return {id: fingerprint(document) for id, document in self.documents(ids).items()}


def check_columns(
    attached: Attached, columns: Iterable[str], store: str, kind: str = "table", part: str = "column"
) -> None:
    """Raise RetrieverFailed unless these columns of a table include all that the settings name."""
    there = list(columns)
    for name in (
        attached.id,
        attached.vector,
        attached.text,
        attached.title,
        attached.full_text,
        attached.digest,
        *(attached.metadata or ()),
    ):
        if name is not None and name not in there:
            raise RetrieverFailed(
                f"the {kind} {attached.table!r} in {store} has no {part} {name!r}; its {part}s are "
                f"{', '.join(there) or 'none'}"
            )


def metadata_columns(attached: Attached, kinds: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """Return the column of JSON that has all metadata, or None and the columns that have a field each.

    kinds: of all columns, as for `guessed`.
    """
    given = attached.metadata
    taken = (attached.id, attached.vector, attached.text, attached.title, attached.full_text, attached.digest)
    if given is not None and len(given) == 1 and kinds[given[0]] == "json":
        return given[0], []
    others = [name for name, kind in kinds.items() if name not in taken and kind != "vector"]
    return None, others if given is None else list(given)


def check_writable(attached: Attached, store: str, *, whole: bool) -> None:
    """Raise RetrieverFailed if a table should be written to, and has no place for any metadata.

    whole: whether a single column has all metadata as JSON.
    """
    if attached.writable and not whole:
        raise RetrieverFailed(
            f"{attached.table!r} in {store} cannot be writable: it needs one column of JSON for all metadata, named by "
            "metadata"
        )


class Store(Protocol):
    """A server or folder with tables. All methods block, are thread-safe, and raise as those of `Table`.

    name: of the engine, for messages. id: the column of the ids of tables that `create` makes; own_id: that of all
    others, if there is one. kinds: of made tables, the default first. dimensions: that their vectors may have.
    """

    name: str
    id: str = "id"
    own_id: str | None = None
    kinds: Sequence[str] = ("flat",)
    dimensions: range = range(1, 2**16)

    def names(self) -> Iterable[str]:
        """Return the names of all tables."""

    def columns(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield the name of each table, and the kind of each of its columns: "vector", "json" or another."""

    def reference(self, name: str) -> str:
        """Return what a description of the table of this name calls it."""
        return name

    def open(self, attached: Attached) -> Table:
        """Return a table as it is now. Raises RetrieverFailed if it lacks a column."""

    def create(self, table: str, dimension: int, kind: str, about: str, *, lexical: bool) -> None:
        """Make a table with the columns of `made`. May fail if there is one.

        about: kept with the table. lexical: whether to index words, where the store does that for new tables.
        """

    def drop(self, table: str) -> None:
        """Remove a table."""

    def close(self) -> None:
        """Close connections."""


def made(store: Store, table: str) -> Attached:
    """Return the description of a table that `Store.create` makes."""
    return Attached(table=table, id=store.id, title="title", metadata=("metadata",), writable=True, digest="digest")


def guessed(table: str, columns: Mapping[str, str], own_id: str | None = None) -> Attached | None:
    """Return what the columns of a table are, given their kinds; None if that is not clear. own_id: see `Store`."""
    vectors = [name for name, kind in columns.items() if kind == "vector"]
    ids = ("node_id", *_IDS) if "metadata_" in columns else _IDS  # LlamaIndex's "id" is a number of its own
    id = own_id or next((name for name in ids if name in columns), None)
    text = next((name for name in _TEXTS if name in columns), None)
    if len(vectors) != 1 or id is None or text is None:
        return None
    title = "title" if "title" in columns else None
    metadata = next((name for name in _METADATA if columns.get(name) == "json"), None)
    return Attached(
        table=table, id=id, text=text, vector=vectors[0], title=title, metadata=(metadata,) if metadata else None
    )


def is_integer(id: str) -> bool:
    """Whether an id is an integer of at most 20 digits as it is written."""
    digits = id.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= 20 and str(int(id)) == id


def is_uuid(id: str) -> bool:
    """Whether an id is a UUID as it is written."""
    try:
        return str(UUID(id)) == id
    except ValueError:
        return False


def converted(
    payload: Mapping[str, Any], convert: Callable[[tuple[str, ...], Any], Any], above: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return an object of JSON with what `convert` makes of each value in it that is no object, given its path."""
    inner = ((name, value, (*above, name)) for name, value in payload.items())
    return {
        name: converted(value, convert, path) if isinstance(value, dict) else convert(path, value)
        for name, value, path in inner
    }


class Payload:
    """Where text, title and metadata are in a JSON object.

    hidden: names of fields that are nothing of these; whole: whether a single field named as metadata has all of them.
    """

    def __init__(self, attached: Attached, hidden: Collection[str], *, whole: bool = True) -> None:
        self._text, self._title, self._digest = attached.text, attached.title, attached.digest
        given = attached.metadata
        self._whole = given[0] if whole and given is not None and len(given) == 1 else None
        self._given, self._taken = given, {attached.text, attached.title, *hidden}

    def path(self, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return where a field of the metadata is; None if there is none of that name."""
        if self._whole is not None:
            return (self._whole, *path)
        return path if self.is_metadata(path[0]) else None

    def document(self, id: str, payload: Mapping[str, Any]) -> Document:
        """Return a document, with an empty text if the object has none."""
        text, title = payload.get(self._text), payload.get(self._title) if self._title else None
        if self._whole is not None:
            whole = payload.get(self._whole)
            metadata = whole if isinstance(whole, dict) else {}
        else:
            metadata = {name: value for name, value in payload.items() if self.is_metadata(name)}
        return Document(id, text if isinstance(text, str) else "", title if isinstance(title, str) else None, metadata)

    def written(self, document: Document, digest: bytes) -> dict[str, Any]:
        """Return the object of a document, where all metadata are in one field."""
        metadata = orjson.loads(canonical(document, dict(document.metadata)))
        fields = {self._text: document.text, self._title: document.title, self._whole: metadata}
        return {name: value for name, value in (fields | {self._digest: digest.hex()}).items() if name is not None}

    def is_metadata(self, name: str) -> bool:
        """Whether a field is one of the metadata."""
        return name not in self._taken if self._given is None else name in self._given
