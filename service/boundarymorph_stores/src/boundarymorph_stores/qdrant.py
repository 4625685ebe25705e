"""Search collections of Qdrant."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from uuid import NAMESPACE_OID, uuid5

import grpc
import httpx
import numpy as np
import orjson
from numpy.typing import NDArray
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from boundarymorph.errors import InvalidInput, RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import NEVER, UNKNOWN, Bounds, Compare, Exists
from boundarymorph.retrieval.stores.table import EXACT, FoundRows, Payload, Store, Table, is_integer, is_uuid
from boundarymorph.settings import AttachedTable, StoreSettings, secret

ABOUT = "boundarymorph"
NODE = "_node_content"  # field in which LlamaIndex stores texts, in JSON
ANSWER_BYTES = 512 * 2**20  # bytes of a pool of vectors; gRPC's own limit is 4 MiB
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class QdrantStore(Store):
    """A `Store`: the collections of a server, or of a folder in this process."""

    name = "Qdrant"
    id, own_id = "key", "id"  # any text; and that of a point, which is a number or a UUID
    kinds = ("hnsw", "flat")

    def __init__(self, client: QdrantClient) -> None:
        self.client = client

    @classmethod
    def connect(cls, chosen: StoreSettings) -> QdrantStore:
        """Return the store at qdrant://HOST:PORT, qdrants:// (TLS) or qdrant:///PATH for a folder."""
        scheme, _, address = chosen.url.get_secret_value().partition("://")
        with errors():
            if address.startswith("/"):
                return cls(QdrantClient(path=address))
            return cls(
                QdrantClient(
                    url=f"{'https' if scheme == 'qdrants' else 'http'}://{address}",
                    prefer_grpc=True,
                    grpc_options={"grpc.max_receive_message_length": ANSWER_BYTES},
                    api_key=secret(chosen.api_key),
                    timeout=max(1, int(chosen.timeout_seconds)),
                    check_compatibility=False,
                )
            )

    def names(self) -> Sequence[str]:
        with errors():
            return [described.name for described in self.client.get_collections().collections]

    def columns(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield as `Store.columns` does. The fields of a collection are those of one of its points."""
        with errors():
            for name in self.names():
                points, _ = self.client.scroll(name, limit=1, with_vectors=True)
                for point in points:
                    vectors = list(point.vector) if isinstance(point.vector, dict) else ["vector"]
                    fields = {
                        name: "json" if isinstance(of, dict) else "" for name, of in (point.payload or {}).items()
                    }
                    yield name, fields | dict.fromkeys(vectors, "vector")

    def open(self, attached: AttachedTable) -> QdrantTable:
        with errors():
            collection = self.client.get_collection(attached.table)
        described = collection.config.params.vectors
        if isinstance(described, dict) and "" in described:  # LangChain gives the only vector this name
            described = described[""]
        named: Mapping[str, Any] = described if isinstance(described, dict) else {"vector": described}
        parameters = named.get(attached.vector)
        if parameters is None:
            raise RetrieverFailed(
                f"the collection {attached.table!r} in Qdrant has no vector {attached.vector!r}; it has "
                f"{', '.join(named) or 'none'}"
            )
        using = attached.vector if isinstance(described, dict) else None
        about = (collection.config.metadata or {}).get(ABOUT, "")
        if parameters.hnsw_config is not None and parameters.hnsw_config.m == 0:  # there is no index
            attached = attached.model_copy(update={"search": {**attached.search, "exact_up_to": sys.maxsize}})
        return QdrantTable(self.client, attached, parameters.size, using, about)

    def create(self, table: str, dimension: int, kind: str, about: str, *, lexical: bool) -> None:
        vectors = models.VectorParams(
            size=dimension,
            distance=models.Distance.COSINE,
            datatype=models.Datatype.FLOAT16,
            hnsw_config=models.HnswConfigDiff(m=0) if kind == "flat" else None,
        )
        with errors():
            self.client.create_collection(table, vectors, metadata={ABOUT: about})

    def drop(self, table: str) -> None:
        with errors():
            self.client.delete_collection(table)

    def close(self) -> None:
        self.client.close()


class QdrantTable(Table):
    """A `Table`, exact up to `search.exact_up_to` points (EXACT) and under filters.

    An attached id of "id" is the id of the point; any other is a field of the payload.
    """

    def __init__(
        self, client: QdrantClient, attached: AttachedTable, dimension: int, using: str | None, about: str = ""
    ) -> None:
        self.about = about
        self._client, self.attached, self.dimension, self._using = client, attached, dimension, using
        self._key = None if attached.id == "id" else attached.id
        self._own = self._key is not None and attached.digest is not None  # so that the points are found by their keys
        if attached.writable and not self._own and self._key is not None:
            raise RetrieverFailed(f"{attached.table!r} in Qdrant cannot be writable: its id must be that of the point")
        self._payload = Payload(attached, "Qdrant", hidden=(self._key or "", NODE))
        self._search: dict[str, Any] = {"exact_up_to": EXACT, **attached.search}

    def count(self) -> int:
        with errors():
            return int(self._client.count(self.attached.table, exact=True).count)

    def search(
        self, query: NDArray[np.float32], depth: int, where: Any, *, vectors: bool = True, documents: bool = False
    ) -> FoundRows:
        with errors():
            large = where is True and self.count() > int(self._search["exact_up_to"])
            points = self._client.query_points(
                self.attached.table,
                query=query.tolist(),
                using=self._using,
                query_filter=None if where is True else models.Filter(must=[where]),
                limit=depth,
                search_params=models.SearchParams(exact=not large, hnsw_ef=self._search.get("hnsw_ef", 2 * depth)),
                with_vectors=([self._using] if self._using else True) if vectors else False,
                with_payload=True if documents else [self._key] if self._key else False,
            ).points
        return self._found(points, vectors, documents)._replace(exact=not large)

    def rows(self, ids: Sequence[str], *, vectors: bool = False, documents: bool = False) -> FoundRows:
        return self._found(self._points(ids, vectors=vectors), vectors, documents)

    def check(self, document: Document) -> None:
        """Check as `Table.check` does: ids of points are numbers or UUIDs."""
        if self._point(document.id) is None:
            raise InvalidInput(f"{document.id!r} cannot be the id of a point in Qdrant, which is a number or a UUID")

    def upsert(self, documents: Sequence[Document], vectors: NDArray[np.floating], digests: Sequence[bytes]) -> None:
        attached, points = self.attached, []
        for document, vector, digest in zip(documents, vectors.tolist(), digests, strict=True):
            payload = self._payload.written(document, digest) | ({self._key: document.id} if self._key else {})
            of_point: Any = {"vector": {self._using: vector} if self._using else vector, "payload": payload}
            points.append(models.PointStruct(id=self._point(document.id), **of_point))
        with errors():
            self._client.upsert(attached.table, points, wait=True)

    def delete(self, ids: Sequence[str]) -> int:
        there = [point.id for point in self._points(ids)]
        if there:
            with errors():
                self._client.delete(self.attached.table, models.PointIdsList(points=there), wait=True)
        return len(there)

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        points = self._points(ids)
        return {str(self._id(point)): bytes.fromhex(point.payload[self.attached.digest]) for point in points}

    def join(self, by: Literal["and", "or"], parts: Sequence[Any]) -> Any:
        return models.Filter(must=list(parts)) if by == "and" else models.Filter(should=list(parts))

    def negate(self, part: Any) -> Any:
        return models.Filter(must_not=[part])

    def leaf(self, condition: Exists | Compare) -> Bounds[Any]:
        """Translate as `Language.leaf` does.

        Strings have no order there, and a null is the same as a missing field.
        """
        path = self._payload.path(condition.path)
        if path is None:
            return NEVER
        if not all(map(_PLAIN.fullmatch, path)):
            return UNKNOWN
        key = _key(path)
        if isinstance(condition, Exists):
            empty = models.IsEmptyCondition(is_empty=models.PayloadField(key=key))
            return Bounds(True, models.Filter(must_not=[empty]))
        values: list[Any] = list(condition.values)
        match condition.type, condition.comparison:
            case "text", "in":
                return Bounds.from_expression(models.FieldCondition(key=key, match=models.MatchAny(any=values)))
            case "true" | "false", _:
                return Bounds.from_expression(models.FieldCondition(key=key, match=models.MatchValue(value=values[0])))
            case "number", "in":
                ranges = [models.FieldCondition(key=key, range=models.Range(gte=each, lte=each)) for each in values]
                return Bounds.from_expression(models.Filter(should=list(ranges)))
            case "number", comparison:
                return Bounds.from_expression(
                    models.FieldCondition(key=key, range=models.Range(**{comparison: values[0]}))
                )
        return UNKNOWN

    def _points(self, ids: Sequence[str], *, vectors: bool = False) -> list[Any]:
        wanted: bool | list[str] = ([self._using] if self._using else True) if vectors else False
        with errors():
            if self._key is not None and not self._own:
                return list(self._among(self._key, list(ids), wanted)) if ids else []
            known = [point for id in ids if (point := self._point(id)) is not None]
            return self._client.retrieve(self.attached.table, known, with_vectors=wanted) if known else []

    def _point(self, id: str) -> int | str | None:
        """Return the id of the point of a document, or None if no point can have it."""
        if self._own:
            return str(uuid5(NAMESPACE_OID, id))
        return int(id) if is_integer(id) and 0 <= int(id) < 2**64 else id if is_uuid(id) else None

    def _among(self, key: str, ids: list[str], vectors: bool | list[str]) -> Iterator[Any]:
        """Yield the points with these ids in a field of the payload, which several points may share."""
        numbers = [int(id) for id in ids if is_integer(id) and abs(int(id)) < 2**63]
        either: list[Any] = [models.FieldCondition(key=key, match=models.MatchAny(any=ids))]
        either += [models.FieldCondition(key=key, match=models.MatchAny(any=numbers))] if numbers else []
        offset = None
        while True:
            found, offset = self._client.scroll(
                self.attached.table, models.Filter(should=either), limit=len(ids), offset=offset, with_vectors=vectors
            )
            yield from found
            if offset is None:
                return

    def _shown(self, payload: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return a payload with its text, which LlamaIndex keeps in JSON."""
        node = (payload or {}).get(NODE) if self.attached.text == NODE else None
        return {**(payload or {}), NODE: orjson.loads(node).get("text")} if isinstance(node, str) else payload or {}

    def _found(self, points: Sequence[Any], vectors: bool, documents: bool) -> FoundRows:
        rows = [(self._id(point), point) for point in points if not vectors or self._vector(point) is not None]
        matrix = None
        if vectors:
            parts = [self._vector(point) for _, point in rows]
            matrix = np.array(parts, np.float32).reshape(-1, self.dimension)
        read = {
            id: self._payload.document(id, self._shown(point.payload))
            for id, point in (reversed(rows) if documents else ())
            if id is not None
        }
        return FoundRows([id for id, _ in rows], matrix, read)

    def _vector(self, point: Any) -> Any:
        """Return the vector of a point, or None if it has no vector of this name."""
        return point.vector if self._using is None else (point.vector or {}).get(self._using)

    def _id(self, point: Any) -> str | None:
        """Return the id of a point, or None if its payload has none."""
        id = point.id if self._key is None else (point.payload or {}).get(self._key)
        return None if id is None else str(id)


@contextmanager
def errors() -> Iterator[None]:
    """Raise our own errors instead of those of the client, over HTTP, gRPC or in this process."""
    try:
        yield
    except UnexpectedResponse as error:
        kind = {404: UnknownIndex, 401: RetrieverFailed, 403: RetrieverFailed}.get(error.status_code or 0)
        raise (kind or RetrieverUnavailable)(f"Qdrant answered {error.status_code}: {error.reason_phrase}") from error
    except grpc.RpcError as error:
        code, details = (error.code(), error.details()) if isinstance(error, grpc.Call) else (None, str(error))
        if code == grpc.StatusCode.NOT_FOUND:
            raise UnknownIndex(f"the collection is gone: {details}") from error
        refused = RetrieverFailed if code in _REFUSED else RetrieverUnavailable
        raise refused(f"Qdrant does not work now: {details}") from error
    except (ApiException, ResponseHandlingException, httpx.HTTPError, RuntimeError, OSError) as error:
        raise RetrieverUnavailable(f"Qdrant does not work now: {error}") from error
    except ValueError as error:  # in this process
        missing = UnknownIndex if "not found" in str(error) else RetrieverFailed
        raise missing(f"Qdrant: {error}") from error


def _key(path: Sequence[str]) -> str:
    """Return the key of a field at a path, whose names contain no quotes."""
    return ".".join(f'"{name}"' if "." in name else name for name in path)
