"""A collection of Milvus, as far as any index needs it: searched, read by id, counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.retrieval.milvus.connection import Connection, NotLoaded

SEARCH_LIMIT = 16_384  # documents in one answer of Milvus; milvus-lite gives more, which is not relied on
IDS_AT_A_TIME = 1_000
TEXTS_AT_A_TIME = 256
ANSWER_BYTES = 64 * 2**20  # of vectors; a server sends 100 MB at most by default
REQUEST_BYTES = 32 * 2**20  # of rows; a server takes 64 MB
ROW_BYTES = 5 * 2**16  # of a document without its vector, at most: four strings and objects, and an array


@dataclass(frozen=True, slots=True)
class Found:
    """n documents as Milvus ranks them, with the other fields that were asked for, one row of them a document."""

    ids: list[str]
    rows: list[dict[str, Any]]


class Collection:
    """What is read is what was acknowledged before (consistency level Strong). Raises what `Connection` raises."""

    def __init__(self, connection: Connection, name: str, *, id: str = "id", vector: str = "vector") -> None:
        """id, vector: the fields that hold them."""
        self.name = name
        self._connection = connection
        self._id = id
        self._vector = vector
        described = connection.call("describe_collection", name)
        self.properties: dict[str, str] = described["properties"]
        fields = {field["name"]: field for field in described["fields"]}
        self.fields = fields.keys()
        self.dimension = int(fields[vector]["params"]["dim"]) if vector in fields else 0
        self._numbers = id in fields and fields[id]["type"].name == "INT64"

    def search(
        self, query: NDArray[np.float32], depth: int, fields: Sequence[str], filter: str = "", **parameters: Any
    ) -> Found:
        """The nearest to a (d,) query; parameters: of the search, as its kind of index takes them."""
        (hits,) = self._loaded(
            "search",
            data=[query],
            anns_field=self._vector,
            limit=depth,
            filter=filter,
            output_fields=list(fields),
            search_params={"params": parameters},
            consistency_level="Strong",
        )
        return Found([str(hit[self._id]) for hit in hits], [hit["entity"] for hit in hits])

    def read(
        self, ids: Iterable[str], fields: Sequence[str], at_a_time: int = IDS_AT_A_TIME
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """The documents of these ids with these fields, in no particular order; unknown ones are left out."""
        for expression in self._among(ids, at_a_time):
            for row in self._query(expression, [self._id, *fields]):
                yield str(row[self._id]), row

    def vectors(self, ids: Iterable[str], fields: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
        """As `read`, with the vectors, in answers of a bounded size."""
        at_a_time = max(1, min(IDS_AT_A_TIME, ANSWER_BYTES // (4 * self.dimension)))
        return self.read(ids, [*fields, self._vector], at_a_time)

    def count(self) -> int:
        """Documents in the collection."""
        (row,) = self._query("", ["count(*)"])
        return int(row["count(*)"])

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows, or replace those of the same id, in requests of a bounded size."""
        at_a_time = max(1, REQUEST_BYTES // (4 * self.dimension + ROW_BYTES))
        for start in range(0, len(rows), at_a_time):
            self._connection.call("upsert", self.name, list(rows[start : start + at_a_time]))

    def delete(self, ids: Iterable[str]) -> None:
        """Remove documents; unknown ids are ignored."""
        for expression in self._among(ids, IDS_AT_A_TIME):
            self._connection.call("delete", self.name, filter=expression)

    def _query(self, expression: str, fields: list[str]) -> Sequence[dict[str, Any]]:
        rows: Sequence[dict[str, Any]] = self._loaded(
            "query", filter=expression, output_fields=fields, consistency_level="Strong"
        )
        return rows

    def _loaded(self, method: str, **options: Any) -> Any:
        """Call a method of this collection, which a Milvus that has started anew must load first."""
        try:
            return self._connection.call(method, self.name, **options)
        except NotLoaded:
            self._connection.call("load_collection", self.name)
            return self._connection.call(method, self.name, **options)

    def _among(self, ids: Iterable[str], at_a_time: int) -> Iterator[str]:
        """Expressions that documents of these ids meet."""
        literals = [literal for id in dict.fromkeys(ids) if (literal := self._literal(id)) is not None]
        for start in range(0, len(literals), at_a_time):
            yield f"{self._id} in [{', '.join(literals[start : start + at_a_time])}]"

    def _literal(self, id: str) -> str | None:
        """An id in an expression; None where there can be no such one."""
        if not self._numbers:
            return quoted(id)
        return id if id.removeprefix("-").isdecimal() and id.isascii() else None


def quoted(text: str) -> str:
    """A string in an expression. Everything else stands for itself there."""
    return '"' + text.translate({ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n", ord("\r"): r"\r"}) + '"'
