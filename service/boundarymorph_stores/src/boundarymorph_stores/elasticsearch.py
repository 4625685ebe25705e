"""Search indexes of Elasticsearch and OpenSearch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import quote

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.errors import RetrieverFailed, RetrieverUnavailable, UnknownIndex
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import NEVER, UNKNOWN, Bounds, Compare, Exists
from boundarymorph.retrieval.stores.table import EXACT, FoundRows, Payload, Store, Table, check_columns
from boundarymorph.settings import AttachedTable, StoreSettings, secret

ABOUT = "boundarymorph"
WINDOW = 10_000  # hits of one answer, by default the most that a server gives; also the most neighbours of its index
_WIDER = {"gt": "gte", "lt": "lte", "gte": "gte", "lte": "lte"}
_NARROWER = {"gt": "gt", "lt": "lt", "gte": "gt", "lte": "lt"}
_OPAQUE = {"flattened", "flat_object", "nested", "join"}  # types whose fields a query reaches differently or not at all


class ElasticsearchStore(Store):
    """A `Store`: the indexes of a cluster.

    `opensearch` says whether it is OpenSearch, whose vector searches differ.
    """

    id = own_id = "_id"
    kinds = ("hnsw", "flat")
    dimensions = range(1, 4_097)

    def __init__(self, client: httpx.Client, *, opensearch: bool) -> None:
        self._client, self.opensearch = client, opensearch
        self.name = "OpenSearch" if opensearch else "Elasticsearch"

    @classmethod
    def connect(cls, chosen: StoreSettings) -> ElasticsearchStore:
        """Return the store at elasticsearch://[USER:PASSWORD@]HOST:PORT or opensearch://.

        The scheme elasticsearchs:// uses TLS.
        """
        scheme, _, address = chosen.url.get_secret_value().partition("://")
        product = scheme.removesuffix("s")
        key = secret(chosen.api_key)
        client = httpx.Client(
            base_url=f"{'http' if scheme == product else 'https'}://{address}",
            headers={"Authorization": f"ApiKey {key}"} if key else None,
            timeout=chosen.timeout_seconds,
            limits=httpx.Limits(max_connections=chosen.connections),
        )
        return cls(client, opensearch=product == "opensearch")

    def names(self) -> Sequence[str]:
        return list(self.ask("GET", "/_mapping"))

    def columns(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        for name, described in self.ask("GET", "/_mapping").items():
            fields = described["mappings"].get("properties", {})
            if not name.startswith("."):
                yield name, {field: _kind(given) for field, given in fields.items()}

    def open(self, attached: AttachedTable) -> ElasticsearchTable:
        described = self.ask("GET", f"/{quote(attached.table, safe='')}/_mapping")
        mapping = next(iter(described.values()))["mappings"]  # an alias stands for its first index
        fields = mapping.get("properties", {})
        check_columns(attached, ["_id", "id", *fields], self.name, "index", "field")
        vector = fields.get(attached.vector, {})
        dimension = vector.get("dims", vector.get("dimension"))
        numbers = vector.get("element_type", vector.get("data_type", "float"))
        if _kind(vector) != "vector" or dimension is None or numbers not in ("float", "bfloat16"):
            raise RetrieverFailed(
                f"the field {attached.vector!r} of {attached.table!r} in {self.name} holds no vectors"
            )
        if fields.get(attached.text, {}).get("type", "object") in ("object", *_OPAQUE):
            raise RetrieverFailed(
                f"the field {attached.text!r} of {attached.table!r} in {self.name} holds no text; set text to the name "
                "of a field that does"
            )
        return ElasticsearchTable(self, attached, mapping, int(dimension))

    def create(self, table: str, dimension: int, kind: str, about: str, *, lexical: bool) -> None:
        vector: dict[str, Any] = {"type": "dense_vector", "dims": dimension, "index": kind == "hnsw"}
        vector |= {"similarity": "cosine"} if kind == "hnsw" else {}
        settings: dict[str, Any] = {}
        if self.opensearch:
            method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
            vector = {"type": "knn_vector", "dimension": dimension, **({"method": method} if kind == "hnsw" else {})}
            settings = {"index": {"knn": kind == "hnsw"}}
        text = {"type": "text"} if lexical else {"type": "text", "index": False}
        fields = {"vector": vector, "text": text, "title": text, "metadata": {"type": "object", "enabled": False}}
        fields["digest"] = {"type": "keyword"}
        mappings = {"dynamic": "strict", "_meta": {ABOUT: about}, "properties": fields}
        self.ask("PUT", f"/{quote(table, safe='')}", {"settings": settings, "mappings": mappings})

    def drop(self, table: str) -> None:
        self.ask("DELETE", f"/{quote(table, safe='')}")

    def write(self, lines: Sequence[Any]) -> list[Mapping[str, Any]]:
        """Write the lines of a bulk request, visibly to later searches.

        Returns the outcome of each document.
        """
        answer = self.ask("POST", "/_bulk", b"\n".join([*map(orjson.dumps, lines), b""]), refresh="true")
        done = [result for item in answer["items"] for result in item.values()]
        for result in done:
            if (error := result.get("error")) is not None:
                kind = RetrieverFailed if result["status"] < HTTPStatus.TOO_MANY_REQUESTS else RetrieverUnavailable
                raise kind(f"{self.name} did not write {result['_id']!r}: {error}")
        return done

    def ask(self, method: str, path: str, body: Any = None, **parameters: str) -> Any:
        """Return the server's answer. Raises RetrieverUnavailable, RetrieverFailed and UnknownIndex."""
        lines = isinstance(body, bytes)
        content = body if body is None or lines else orjson.dumps(body)
        headers = {"Content-Type": "application/x-ndjson" if lines else "application/json"}
        try:
            try:
                answer = self._client.request(method, path, content=content, params=parameters, headers=headers)
            except (
                httpx.RemoteProtocolError,
                httpx.ReadError,
            ):  # the error of an idle connection that the server has closed
                answer = self._client.request(method, path, content=content, params=parameters, headers=headers)
        except httpx.TransportError as error:
            raise RetrieverUnavailable(f"{self.name} does not work now: {error!r}") from error
        if answer.is_success:
            return orjson.loads(answer.content)
        said = f"{self.name} answered {answer.status_code}: {answer.text[:500]}"
        if answer.status_code == 404:
            raise UnknownIndex(said)
        raise (RetrieverFailed if answer.status_code in (400, 401, 403) else RetrieverUnavailable)(said)

    def close(self) -> None:
        self._client.close()


class ElasticsearchTable(Table):
    """A `Table`, searched exactly or by an index of its vectors.

    The search is exact up to `search.exact_up_to` documents (EXACT), under filters, and beyond `search.window` hits.
    """

    def __init__(
        self, store: ElasticsearchStore, attached: AttachedTable, mapping: Mapping[str, Any], dimension: int
    ) -> None:
        self._store, self.attached, self._mapping, self.dimension = store, attached, mapping, dimension
        fields = mapping["properties"]
        self._vectors = [name for name, given in fields.items() if _kind(given) == "vector"]
        self.about = mapping.get("_meta", {}).get(ABOUT, "")
        self._payload = Payload(attached, store.name, hidden=self._vectors)
        self._path = f"/{quote(attached.table, safe='')}"
        self._search: dict[str, Any] = {"exact_up_to": EXACT, "window": WINDOW, **attached.search}
        of_text = fields[attached.text]["type"]
        self.words = "text" in of_text and fields[attached.text].get("index", True)
        self._indexed = fields[attached.vector].get("index", True)
        self._there = {"exists": {"field": attached.vector}}

    def count(self) -> int:
        return int(self._store.ask("POST", f"{self._path}/_count", {"query": self._there})["count"])

    def search(
        self, query: NDArray[np.float32], depth: int, where: Any, *, vectors: bool = True, documents: bool = False
    ) -> FoundRows:
        small = depth <= min(WINDOW, int(self._search["window"]))
        large = where is True and small and self._indexed and self.count() > int(self._search["exact_up_to"])
        body = (self._near if large else self._nearest)(query.tolist(), depth, where)
        return self._found(self._hits(body, depth, vectors, documents), vectors, documents)._replace(exact=not large)

    def best(self, query: str, depth: int, where: Any) -> Mapping[str, float]:
        """Rank as `Table.best` does, by the BM25 of the server."""
        asked = {"bool": {"must": [{"match": {self.attached.text: query}}], "filter": self._filters(where)}}
        return {hit["_id"]: hit["_score"] for hit in self._hits({"query": asked}, depth, False, False)}

    def rows(self, ids: Sequence[str], *, vectors: bool = False, documents: bool = False) -> FoundRows:
        return self._found(self._by_id(ids, vectors, documents), vectors, documents)

    def upsert(self, documents: Sequence[Document], vectors: NDArray[np.floating], digests: Sequence[bytes]) -> None:
        attached, lines = self.attached, []
        for document, vector, digest in zip(documents, vectors.tolist(), digests, strict=True):
            row = {attached.vector: vector, **self._payload.written(document, digest)}
            lines += [{"index": {"_index": attached.table, "_id": document.id}}, row]
        self._store.write(lines)

    def delete(self, ids: Sequence[str]) -> int:
        done = self._store.write([{"delete": {"_index": self.attached.table, "_id": id}} for id in ids])
        return sum(result["status"] == HTTPStatus.OK for result in done)

    def digests(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        hits = self._by_id(ids, False, True)
        return {hit["_id"]: bytes.fromhex(hit["_source"][self.attached.digest]) for hit in hits}

    def join(self, by: Literal["and", "or"], parts: Sequence[Any]) -> Any:
        return {"bool": {"filter" if by == "and" else "should": list(parts)}}

    def negate(self, part: Any) -> Any:
        return {"bool": {"must_not": [part]}}

    def leaf(self, condition: Exists | Compare) -> Bounds[Any]:
        """Translate as `Language.leaf` does, depending on the type of the field.

        Nulls are not indexed, and values of objects in lists are as if they were in one object.
        """
        path = self._payload.path(condition.path)
        field = {} if path is None else self._field(path)
        if path is None or field is None or any("*" in name for name in path):
            return UNKNOWN if path else NEVER
        name = ".".join(path)
        alone = "." not in ".".join(condition.path)
        if isinstance(condition, Exists):
            return Bounds(True, {"exists": {"field": name}} if alone and field else False)
        if not field or condition.type == "null":
            return NEVER if condition.type != "null" else UNKNOWN
        possible, certain = _compared(name, field, condition)
        return Bounds(possible, certain if alone else False)

    def _near(self, query: list[float], depth: int, where: Any) -> Any:
        """Return a search of the index of the vectors."""
        field = self.attached.vector
        if self._store.opensearch:
            return {"query": {"knn": {field: {"vector": query, "k": depth}}}}
        among = min(WINDOW, max(depth, int(self._search.get("num_candidates", 2 * depth))))
        return {"knn": {"field": field, "query_vector": query, "k": depth, "num_candidates": among}}

    def _nearest(self, query: list[float], depth: int, where: Any) -> Any:
        """Return an exact search."""
        field = self.attached.vector
        script: dict[str, Any] = {
            "source": f"cosineSimilarity(params.query, {orjson.dumps(field).decode()}) + 1.0",
            "params": {"query": query},
        }
        if self._store.opensearch:
            parameters = {"field": field, "query_value": query, "space_type": "cosinesimil"}
            script = {"lang": "knn", "source": "knn_score", "params": parameters}
        return {"query": {"script_score": {"query": {"bool": {"filter": self._filters(where)}}, "script": script}}}

    def _filters(self, where: Any) -> list[Any]:
        return [self._there] if where is True else [self._there, where]

    def _by_id(self, ids: Sequence[str], vectors: bool, documents: bool) -> Iterator[Any]:
        asked = {"bool": {"filter": [{"ids": {"values": list(ids)}}, *([self._there] if vectors else [])]}}
        return self._hits({"query": asked}, WINDOW, vectors, documents)  # in an alias, ids need not be unique

    def _hits(self, body: Mapping[str, Any], depth: int, vectors: bool, documents: bool) -> Iterator[Any]:
        """Yield the first hits of a search, which scrolls beyond the window.

        Every shard must answer.
        """
        field, window = self.attached.vector, int(self._search["window"])
        hidden = [name for name in self._vectors if not (vectors and self._store.opensearch and name == field)]
        wanted: Any = {"excludes": hidden} if documents else [field] if vectors and self._store.opensearch else False
        more: dict[str, Any] = {"size": min(depth, window), "_source": wanted}
        if vectors and not self._store.opensearch:
            more["fields"] = [field]  # Elasticsearch leaves vectors out of _source since 9.2
        scroll = {"scroll": "1m"} if depth > window else {}
        answer = self._store.ask(
            "POST", f"{self._path}/_search", {**body, **more}, allow_partial_search_results="false", **scroll
        )
        given = 0
        while hits := answer["hits"]["hits"]:
            yield from hits[: depth - given]
            given += len(hits)
            if not scroll or given >= depth or len(hits) < window:
                break
            answer = self._store.ask("POST", "/_search/scroll", {**scroll, "scroll_id": answer["_scroll_id"]})
        if scroll:
            self._store.ask("DELETE", "/_search/scroll", {"scroll_id": answer["_scroll_id"]})

    def _found(self, hits: Iterator[Any], vectors: bool, documents: bool) -> FoundRows:
        rows, field = list(hits), self.attached.vector
        matrix: NDArray[np.floating] | None = None
        if vectors:
            parts = [hit["_source"][field] if self._store.opensearch else hit["fields"][field] for hit in rows]
            read_as: type[np.floating] = np.float16 if self.about else np.float32
            matrix = np.array(parts, read_as).reshape(-1, self.dimension)
        read = {
            hit["_id"]: self._payload.document(hit["_id"], hit["_source"])
            for hit in (reversed(rows) if documents else ())
        }
        return FoundRows([hit["_id"] for hit in rows], matrix, read)

    def _field(self, path: Sequence[str]) -> Mapping[str, Any] | None:
        """Return the mapping of a field; a name with dots is a path, too.

        It is {} if no document has the field, and None if a query cannot tell.
        """
        given: Mapping[str, Any] = self._mapping
        whole = ".".join(path)
        for name in [whole] if whole in given.get("properties", {}) else whole.split("."):
            there = given.get("properties", {})
            if given.get("type") in _OPAQUE or given.get("enabled") is False:
                return None
            if name not in there:
                dynamic = str(given.get("dynamic", self._mapping.get("dynamic", True))).lower()
                return {} if dynamic in ("true", "strict") else None
            given = there[name]
        return None if given.get("type") in _OPAQUE or given.get("enabled") is False else given


def _kind(field: Mapping[str, Any]) -> str:
    type = field.get("type", "object")
    return {"dense_vector": "vector", "knn_vector": "vector", "object": "json", "flattened": "json"}.get(type, "")


def _compared(name: str, field: Mapping[str, Any], condition: Compare) -> Bounds[Any]:
    """Return expressions for a field of the mapping."""
    values: list[Any] = list(condition.values)
    comparison, type = condition.comparison, field.get("type", "object")
    if type == "object":
        return NEVER
    match condition.type, type:
        case "true" | "false", "boolean":
            return Bounds.from_expression({"term": {name: condition.type == "true"}})
        case "text", "text" | "keyword":
            return _words(name, field, comparison, values)
        case "number", "long" | "integer" | "short" | "byte" | "double" | "float" | "half_float":
            if any(abs(value) > 2**53 for value in values) or set(field) != {"type"}:
                return UNKNOWN
            rounded = type in ("float", "half_float")  # the server knows fewer digits than there are
            if comparison == "in":
                listed = {"terms": {name: values}}
                return Bounds(listed, False) if rounded else Bounds.from_expression(listed)
            if not rounded:
                return Bounds.from_expression({"range": {name: {comparison: values[0]}}})
            wider, narrower = _WIDER[comparison], _NARROWER[comparison]
            return Bounds({"range": {name: {wider: values[0]}}}, {"range": {name: {narrower: values[0]}}})
    return UNKNOWN


def _words(name: str, field: Mapping[str, Any], comparison: str, values: list[str]) -> Bounds[Any]:
    """Return expressions for a field of strings, by its keyword.

    A string that is longer than `ignore_above` is in no index.
    """
    keywords = {name: field} | {f"{name}.{of}": given for of, given in field.get("fields", {}).items()}
    for keyword, given in keywords.items():
        if given.get("type") == "keyword" and set(given) <= {"type", "ignore_above"}:
            longest = given.get("ignore_above")
            if comparison != "in":
                met = {"range": {keyword: {comparison: values[0]}}}
                return Bounds.from_expression(met) if longest is None else Bounds(True, met)
            if longest is None or all(len(value.encode("utf-16-le")) <= 2 * longest for value in values):
                return Bounds.from_expression({"terms": {keyword: values}})
    return UNKNOWN
