"""A collection of Milvus, with the operations that all indexes need: search, reading by id, counting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import BoundaryMorphError, RetrieverFailed
from boundarymorph.retrieval.milvus.connection import MilvusConnection, NotLoaded

Consistency = Literal["strong", "session", "bounded", "eventually"]

SEARCH_LIMIT = 16_384  # documents per answer of Milvus; milvus-lite allows more, which is not used
IDS_AT_A_TIME = 10_000
TEXTS_AT_A_TIME = 256
ANSWER_BYTES = 64 * 2**20  # of vectors or texts; the server's default limit is 100 MB
REQUEST_BYTES = 32 * 2**20  # of rows; the server's limit is 64 MB
ROW_BYTES = 5 * 2**16  # largest document without its vector: four strings and objects, and an array
_STRONG = "Strong"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a schema. type, element: Milvus's names, such as VARCHAR; element: type of an array's elements."""

    type: str
    element: str = ""
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class FoundRows:
    """n documents in Milvus's order, and one row per document with the other requested fields."""

    ids: list[str]
    rows: list[dict[str, Any]]


class MilvusCollection:
    """A collection with the schema it had when it was opened; `stale` after a failed call, as that may have changed.

    Raises the errors of `MilvusConnection`.
    """

    def __init__(
        self,
        connection: MilvusConnection,
        name: str,
        *,
        id: str = "id",
        vector: str = "vector",
        consistency: Consistency = "strong",
    ) -> None:
        """id, vector: names of these fields. consistency: of searches, and of reading their results."""
        self.name = name
        self.stale = False
        self._connection = connection
        self._id = id
        self._vector = vector
        self._consistency = consistency.capitalize()
        described = connection.call("describe_collection", name)
        self.properties: dict[str, str] = described["properties"]
        self.dynamic: bool = described["enable_dynamic_field"]
        self.fields: Mapping[str, Field] = {field["name"]: _field(field) for field in described["fields"]}
        parameters = {field["name"]: field["params"] for field in described["fields"]}
        self.dimension = int(parameters.get(vector, {}).get("dim", 0))
        self._numbers = id in self.fields and self.fields[id].type == "INT64"

    @property
    def halves(self) -> bool:
        """Whether the vectors are float16."""
        return self.fields[self._vector].type == "FLOAT16_VECTOR"

    def search(
        self, query: NDArray[np.float32], depth: int, fields: Sequence[str], filter: str = "", **parameters: Any
    ) -> FoundRows:
        """Return the nearest to a (d,) query. parameters: search parameters of the kind of index.

        More than SEARCH_LIMIT are fetched in pages or, if they are most of the collection, as all of it, unordered.
        """
        if depth <= SEARCH_LIMIT:
            data = [self._as_stored(query)]
            return self._found(self._hits(data, self._vector, depth, filter, {"params": parameters}, fields))
        there = self.count(filter)
        if there <= SEARCH_LIMIT:
            return self.search(query, there, fields, filter, **parameters) if there else FoundRows([], [])
        if there <= 2 * depth:
            return self._everything(fields, filter)
        return self._pages(query, depth, fields, filter, parameters)

    def search_words(self, field: str, query: str, depth: int, filter: str = "") -> dict[str, float]:
        """Return the best documents' BM25 for a field of words, by id and best first."""
        hits = self._hits([query], field, min(depth, SEARCH_LIMIT), filter, {"metric_type": "BM25", "params": {}})
        return {str(hit.id): float(hit.distance) for hit in hits}

    def word_scores(self, field: str, query: str, ids: Sequence[str]) -> dict[str, float]:
        """Return the BM25 of these ids, by id, without those that share no word with the query."""
        scores = {}
        for expression in self._among(ids, min(IDS_AT_A_TIME, SEARCH_LIMIT)):
            scores.update(self.search_words(field, query, SEARCH_LIMIT, expression))
        return scores

    def read(
        self, ids: Iterable[str], fields: Sequence[str], at_a_time: int = IDS_AT_A_TIME, *, strong: bool = False
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield these fields of the documents with these ids, unordered, without unknown ids.

        strong: read the latest state, whatever the collection's consistency.
        """
        for expression in self._among(ids, at_a_time):
            for row in self._query(expression, [self._id, *fields], _STRONG if strong else self._consistency):
                yield str(row[self._id]), row

    def vectors(self, ids: Iterable[str], fields: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
        """See `read`; also yields the vectors, with answers of a bounded size."""
        at_a_time = max(1, min(IDS_AT_A_TIME, ANSWER_BYTES // (4 * self.dimension)))
        return self.read(ids, [*fields, self._vector], at_a_time)

    def matrix(self, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """Return the (n, d) vectors of n rows that include them."""
        values = [row[self._vector] for row in rows]
        if self.halves:
            parts = [value[0] if isinstance(value, list) else value for value in values]
            return np.frombuffer(b"".join(parts), "<f2").reshape(-1, self.dimension).astype(np.float32)
        return np.array(values, np.float32).reshape(-1, self.dimension)

    def count(self, filter: str = "") -> int:
        """Return the number of documents in the collection, or of those that match a filter."""
        (row,) = self._query(filter, ["count(*)"], _STRONG)
        return int(row["count(*)"])

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add or replace rows, in requests of a bounded size."""
        at_a_time = max(1, REQUEST_BYTES // (4 * self.dimension + ROW_BYTES))
        for start in range(0, len(rows), at_a_time):
            self._call("upsert", data=list(rows[start : start + at_a_time]))

    def delete(self, ids: Iterable[str]) -> None:
        """Remove documents; unknown ids are ignored."""
        for expression in self._among(ids, IDS_AT_A_TIME):
            self._call("delete", filter=expression)

    def delete_matching(self, filter: str) -> int:
        """Remove the documents that match a filter; return how many there were."""
        there = self.count(filter)
        if there:
            self._loaded("delete", filter=filter)
        return there

    def _as_stored(self, query: NDArray[np.float32]) -> NDArray[np.floating]:
        match self.fields[self._vector].type:
            case "FLOAT_VECTOR":
                return query
            case "FLOAT16_VECTOR":
                return query.astype(np.float16)
            case other:
                raise RetrieverFailed(
                    f"the vectors of the collection {self.name!r} in Milvus are {other}; FLOAT_VECTOR and "
                    "FLOAT16_VECTOR can be searched"
                )

    def _hits(
        self,
        data: Sequence[object],
        field: str,
        depth: int,
        filter: str,
        search_params: Mapping[str, object],
        fields: Sequence[str] = (),
    ) -> Iterable[Any]:
        (hits,) = self._loaded(
            "search",
            data=data,
            anns_field=field,
            limit=depth,
            filter=filter,
            output_fields=list(fields),
            search_params=search_params,
            consistency_level=self._consistency,
        )
        found: Iterable[Any] = hits
        return found

    def _pages(
        self, query: NDArray[np.float32], depth: int, fields: Sequence[str], filter: str, parameters: Mapping[str, Any]
    ) -> FoundRows:
        found = FoundRows([], [])
        metric = self._call("describe_index", index_name=self._call("list_indexes", field_name=self._vector)[0])
        for page in self._connection.pages(
            "search_iterator",
            self.name,
            data=[self._as_stored(query)],
            anns_field=self._vector,
            batch_size=self._page_size(fields),
            limit=depth,
            filter=filter,
            output_fields=list(fields),
            search_params={"metric_type": metric["metric_type"], "params": dict(parameters)},
            consistency_level=self._consistency,
        ):
            more = self._found(page)
            found.ids.extend(more.ids)
            found.rows.extend(more.rows)
        return found

    def _everything(self, fields: Sequence[str], filter: str) -> FoundRows:
        rows = [
            row
            for page in self._connection.pages(
                "query_iterator",
                self.name,
                batch_size=self._page_size(fields),
                filter=filter,
                output_fields=[self._id, *fields],
                consistency_level=self._consistency,
            )
            for row in page
        ]
        return FoundRows([str(row[self._id]) for row in rows], rows)

    def _page_size(self, fields: Sequence[str]) -> int:
        return min(SEARCH_LIMIT, ANSWER_BYTES // (4 * self.dimension)) if self._vector in fields else SEARCH_LIMIT

    def _found(self, hits: Iterable[Any]) -> FoundRows:
        hits = list(hits)
        return FoundRows([str(hit.id) for hit in hits], [hit["entity"] for hit in hits])

    def _query(self, expression: str, fields: list[str], consistency: str) -> Sequence[dict[str, Any]]:
        rows: Sequence[dict[str, Any]] = self._loaded(
            "query", filter=expression, output_fields=fields, consistency_level=consistency
        )
        return rows

    def _loaded(self, method: str, **options: Any) -> Any:
        """Call a method of this collection, after loading it if Milvus was restarted."""
        try:
            return self._call(method, **options)
        except NotLoaded:
            self._connection.call("load_collection", self.name)
            return self._call(method, **options)

    def _call(self, method: str, **options: Any) -> Any:
        try:
            return self._connection.call(method, self.name, **options)
        except NotLoaded:
            raise
        except BoundaryMorphError:
            self.stale = True
            raise

    def _among(self, ids: Iterable[str], at_a_time: int) -> Iterator[str]:
        """Yield expressions that match the documents with these ids."""
        literals = [literal for id in dict.fromkeys(ids) if (literal := self._literal(id)) is not None]
        for start in range(0, len(literals), at_a_time):
            yield f"{self._id} in [{', '.join(literals[start : start + at_a_time])}]"

    def _literal(self, id: str) -> str | None:
        """Return an id as an expression; None if no document can have this id."""
        if not self._numbers:
            return quoted(id)
        return id if id.removeprefix("-").isdecimal() and id.isascii() else None


def quoted(text: str) -> str:
    """Quote a string for an expression, in which no other characters need escaping."""
    return '"' + text.translate({ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n", ord("\r"): r"\r"}) + '"'


def _field(described: Mapping[str, Any]) -> Field:
    element = described.get("element_type")
    return Field(described["type"].name, element.name if element else "", bool(described.get("nullable")))
