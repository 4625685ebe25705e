"""Stand in for Elasticsearch and OpenSearch.

`osmem` has their mappings, filters, BM25 and ids. The server here adds searches by vectors and scrolls to it. As
Elasticsearch since 9.2 it leaves vectors out of `_source`, and has dense_vector in place of knn_vector.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from osmem_server import resolve_binary

from tests.fakes.upstream import Reply, Upstream, in_a_thread
from tests.fakes.upstream import Request as HttpRequest

MOST = 10_000


def request_json(url: str, method: str, path: str, body: Any = None) -> Any:
    """Return the answer of a server."""
    lines = isinstance(body, list)
    content = "".join(json.dumps(each) + "\n" for each in body) if lines else None if body is None else json.dumps(body)
    headers = {"Content-Type": "application/x-ndjson" if lines else "application/json"}
    data = None if content is None else content.encode()
    with urlopen(Request(url + path, data, headers, method=method)) as answer:
        return json.load(answer)


def nested(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as osmem returns them: names with dots become objects."""
    rest = {name: value for name, value in metadata.items() if name not in ("loc.page", "loc")}
    if "loc.page" in metadata:
        return rest | {"loc": {"page": metadata["loc.page"]}}
    return dict(metadata)


class Cluster(Upstream):
    """A server in front of `osmem`, which records the bodies of searches."""

    def __init__(self, behind: str, *, opensearch: bool) -> None:
        super().__init__(self._replied_by)
        self.behind, self.opensearch = behind, opensearch
        self.bodies: list[Any] = []
        self.scrolls: dict[str, list[Any]] = {}
        self.about: dict[str, Any] = {}  # the `_meta` of mappings, which osmem drops
        self._kept: dict[str, Mapping[str, Mapping[str, Any]]] = {}

    @property
    def url(self) -> str:
        return f"{'opensearch' if self.opensearch else 'elasticsearch'}://127.0.0.1:{self.port}"

    def _replied_by(self, request: HttpRequest) -> Reply:
        lines = [json.loads(line) for line in request.body.splitlines()]
        body = lines if request.path.startswith("/_bulk") else next(iter(lines), None)
        try:
            return Reply(self.answer(request.method, request.path, body))
        except HTTPError as error:
            return Reply(json.load(error), error.code)

    def answer(self, method: str, path: str, body: Any) -> Any:
        place, _, parameters = path.partition("?")
        if place == "/_search/scroll":
            assert set(body) <= {"scroll", "scroll_id"}
            rest = self.scrolls.pop(body["scroll_id"])
            return {} if method == "DELETE" else self.scroll_page(rest, len(rest))
        if place.endswith("/_search"):
            assert "allow_partial_search_results=false" in parameters
            self.bodies.append(body)
            return self.search(place, body, scroll="scroll=" in parameters)
        if method != "GET":
            self._kept.clear()
        if method == "PUT":
            self.about[place.strip("/")] = body["mappings"].pop("_meta")
            for field in body["mappings"]["properties"].values() if not self.opensearch else ():
                if field["type"] == "dense_vector":
                    dimension = field["dims"]
                    field.clear()
                    field.update(type="knn_vector", dimension=dimension)
        found = request_json(self.behind, method, path, body)
        if place.endswith("_mapping"):
            for name, index in found.items():
                index["mappings"] |= {"_meta": self.about[name]} if name in self.about else {}
            for index in found.values() if not self.opensearch else ():
                for field in index["mappings"].get("properties", {}).values():
                    if field.get("type") == "knn_vector":
                        dimension = field["dimension"]
                        field.clear()
                        field.update(type="dense_vector", dims=dimension, index=True, similarity="cosine")
        return found

    def search(self, place: str, body: Any, *, scroll: bool) -> Any:
        """Return the hits of a search; a search by a vector orders them by their cosine with it."""
        assert set(body) <= {"query", "knn", "size", "_source", "fields"}
        size, query = body["size"], body.get("query")
        assert size <= MOST
        field, vector, inner = self.vector_search(body)
        fields = body.get("fields", [])
        assert not (fields and self.opensearch)  # OpenSearch cannot do that
        kept = self.stored_vectors(place)
        hits = request_json(self.behind, "POST", place, {"query": inner, "size": MOST, "_source": body["_source"]})[
            "hits"
        ]["hits"]
        for hit in hits:
            own = kept[hit["_id"]]
            if vector is not None:
                hit["_score"] = float(np.float32(1 + own[field] @ vector / np.linalg.norm(own[field])))
            if fields:
                hit["fields"] = {name: own[name].tolist() for name in fields}
            if not self.opensearch and "_source" in hit:
                hit["_source"] = {name: each for name, each in hit["_source"].items() if name not in own}
        if vector is not None:
            hits.sort(key=lambda hit: -hit["_score"])
        if "knn" in body:
            hits = hits[: body["knn"]["k"]]
        elif "knn" in query:
            hits = hits[: query["knn"][field]["k"]]
        return self.scroll_page(hits, size) if scroll else {"hits": {"hits": hits[:size]}}

    def vector_search(self, body: Any) -> tuple[str, Any, Any]:
        """Return the field, the vector, and the query of a search, with None for no vector."""
        if "knn" in body:
            knn = body["knn"]
            assert set(knn) == {"field", "query_vector", "k", "num_candidates"} and not self.opensearch
            assert knn["k"] <= knn["num_candidates"] <= MOST
            return knn["field"], np.array(knn["query_vector"]), {"exists": {"field": knn["field"]}}
        query = body["query"]
        if "knn" in query:
            ((field, knn),) = query["knn"].items()
            assert set(knn) == {"vector", "k"} and self.opensearch
            return field, np.array(knn["vector"]), {"exists": {"field": field}}
        if "script_score" not in query:
            return "", None, query
        script = query["script_score"]["script"]
        if self.opensearch:
            assert (script["lang"], script["source"], script["params"]["space_type"]) == (
                "knn",
                "knn_score",
                "cosinesimil",
            )
            return script["params"]["field"], np.array(script["params"]["query_value"]), query["script_score"]["query"]
        field = script["source"].removeprefix('cosineSimilarity(params.query, "').removesuffix('") + 1.0')
        return field, np.array(script["params"]["query"]), query["script_score"]["query"]

    def stored_vectors(self, place: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the stored vectors of an index by id and field."""
        if place not in self._kept:
            (index,) = request_json(self.behind, "GET", place.removesuffix("_search") + "_mapping").values()
            names = [name for name, of in index["mappings"]["properties"].items() if of.get("type") == "knn_vector"]
            hits = request_json(self.behind, "POST", place, {"size": MOST})["hits"]["hits"]
            rows = {hit["_id"]: hit["_source"] for hit in hits}
            self._kept[place] = {id: {name: np.array(row[name]) for name in names} for id, row in rows.items()}
        return self._kept[place]

    def scroll_page(self, hits: list[Any], size: int) -> Any:
        identity = f"scroll-{len(self.bodies)}-{len(hits)}"
        self.scrolls[identity] = hits[size:]
        return {"hits": {"hits": hits[:size]}, "_scroll_id": identity}


@contextmanager
def cluster(*, opensearch: bool) -> Iterator[Cluster]:
    command = [resolve_binary(), "--no-ja"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as behind:
        assert behind.stdout is not None
        url = json.loads(behind.stdout.readline())["url"]  # osmem ends when its input ends
        with in_a_thread(Cluster(url, opensearch=opensearch)) as server:
            yield server


def fill(url: str, name: str, properties: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Make an index in `osmem` with documents by id."""
    request_json(url, "PUT", f"/{name}", {"settings": {"index": {"knn": True}}, "mappings": {"properties": properties}})
    lines = [line for id, row in rows.items() for line in ({"index": {"_index": name, "_id": id}}, row)]
    if lines:
        assert not request_json(url, "POST", "/_bulk?refresh=true", lines)["errors"]
