"""List the requests for selections and rankings that `load_tests.answers` records.

They are tables: a name, and fields.

A row has the fields in which a request differs from a base. Every option has a row, and many pairs of options have one.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import orjson

Fields = Mapping[str, Any]
ABSENT = object()  # the value of a field of the base that a row leaves out
INDEX = "python-docstrings"


@dataclass(frozen=True)
class Request:
    """A request to the process `role`. Its body is sent as JSON unless it is bytes."""

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    role: str = "service"


def rows(
    prefix: str, path: str, base: Fields, table: Mapping[str, Fields], headers: Mapping[str, str] | None = None
) -> Iterator[Request]:
    """Yield a request per row: the fields of the base, changed by those of the row."""
    for name, fields in table.items():
        body = {key: value for key, value in {**base, **fields}.items() if value is not ABSENT}
        yield Request(f"{prefix}/{name}", path, body, headers=headers or {})


def pairs(table: Mapping[str, Fields], share: float) -> dict[str, Fields]:
    """Return about this share of the pairs of rows.

    A pair is drawn by its name, independent of other rows.
    """
    drawn = [pair for pair in combinations(table, 2) if zlib.crc32(f"53 {pair}".encode()) < share * 2**32]
    return {f"{one} + {other}": {**table[one], **table[other]} for one, other in drawn}


def block(shape: tuple[int, ...], kind: str = "float16") -> Fields:
    """Return random vectors in one base64 string."""
    vectors = np.random.default_rng(53).standard_normal(shape).astype(np.dtype(kind).newbyteorder("<"))
    return {"data": base64.b64encode(vectors.tobytes()).decode(), "shape": list(shape), "dtype": kind}


def lines(*values: Any) -> bytes:
    """Return values as lines of JSON."""
    return b"".join(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE) for value in values)


EVENTS = {"Accept": "text/event-stream"}
NDJSON = {"Content-Type": "application/x-ndjson"}
QUERIES = (
    "sort a list",
    "read a file line by line",
    "run a command and capture its output",
    "parse command line arguments",
    "compress data",
    "how do I wait for a thread to finish?",
    "regular expression groups",
    "convert a date to a string",
)
LISTS = [f"builtins.list.{name}" for name in ("sort", "append", "reverse")]

# POST /select, with candidates of the index
OF_INDEX: Fields = {"query": QUERIES[0], "index": INDEX, "budget": 6, "k": 12}
INDEX_OPTIONS: dict[str, Fields] = {
    "k=3": {"k": 3},
    "k=400": {"k": 400},
    "B=3": {"budget": ABSENT, "B": 3},
    "budget=0": {"budget": 0},
    "budget=auto": {"budget": "auto", "depth": 200},
    "N=100": {"N": 100},
    "depth=6": {"depth": 6},
    "max_tokens": {"k": ABSENT, "max_tokens": 900},
    "min_relevance": {"min_relevance": 0.3},
    "find": {"k": ABSENT, "objective": {"find": 0.8, "in": 0.8, "next": 4}, "depth": 300},
    "known_scores": {"known_scores": dict(zip(LISTS, (0.9, 0.2, 0.0), strict=True))},
    "relevance=scorer": {"relevance": "scorer"},
    "relevance=people": {"relevance": "human"},
    "calibration=false": {"calibration": False},
    "instruction": {"instruction": "prefer methods"},
    "distinct=true": {"distinct": True},
    "distinct=module": {"distinct": "module"},
    "distinct=at_most": {"distinct": {"by": "module", "at_most": 2}},
    "distinct=groups": {"distinct": {"by": "module", "at_most": 2, "k_counts": "groups"}, "k": 4},
    "diversity": {"diversity": 0.4},
    "method=boundarymorph": {"method": "boundarymorph"},
    "exclude_ids": {"exclude_ids": LISTS},
    "filter=class": {"filter": {"kind": "class"}},
    "hybrid": {"hybrid": True},
    "spend=set": {"spend": "set"},
    "rounds=1": {"rounds": 1},
    "rounds=6": {"rounds": 6},
    "rounds=auto": {"rounds": "auto"},
    "query_embedding": {"query_embedding": block((384,))},
    "return_documents": {"return_documents": True, "k": 3},
    "explain": {"explain": True},
    "explain=pool": {"explain": "pool", "depth": 40},
    "deadline_ms": {"deadline_ms": 500_000},
    "reuse=false": {"reuse": False},
    "on_failure=error": {"on_failure": "error"},
    "on_failure=degrade": {"on_failure": "degrade"},
}
INDEX_VALUES: dict[str, Fields] = {
    "defaults": {"budget": ABSENT, "k": ABSENT},
    "min_relevance=1": {"min_relevance": 1.0},
    "min_relevance with max_tokens": {"min_relevance": 0.2, "max_tokens": 2_000, "k": ABSENT},
    "find, min_relevance": {"k": ABSENT, "objective": {"find": 0.9}, "min_relevance": 0.2, "depth": 150, "budget": 20},
    "find without calls": {
        "k": ABSENT, "objective": {"find": 0.9}, "depth": 150, "budget": 0, "known_scores": dict.fromkeys(LISTS, 1.0),
    },
    "paper": {"method": "boundarymorph", "rounds": 6, "reuse": False, "explain": True},
    "trend": {"method": "trend", "rounds": 3, "explain": True},
    "spend=set where all fit": {"spend": "set", "filter": {"module": "heapq"}, "k": 50},
    "spend=order where all fit": {"spend": "order", "filter": {"module": "heapq"}, "k": 50},
    "everything is scored": {"filter": {"module": "heapq"}, "budget": 50, "k": 4},
    "past deadline": {"deadline_ms": 0.001},
    "past deadline, error": {"deadline_ms": 0.001, "on_failure": "error"},
    "past deadline, degrade": {"deadline_ms": 0.001, "on_failure": "degrade"},
    "distinct=text": {"distinct": "text"},
    "distinct=false": {"distinct": False},
    "unknown field of distinct": {"distinct": "colour"},
    "unknown excluded": {"exclude_ids": ["nobody", 7]},
}  # fmt: skip
FILTERS: dict[str, Fields] = {
    "in": {"module": {"in": ["os", "io", "pathlib"]}},
    "nin": {"module": {"nin": ["os", "io", "pathlib"]}},
    "and, not": {"and": [{"kind": "function"}, {"not": {"module": "asyncio"}}]},
    "or": {"or": [{"module": "heapq"}, {"module": "bisect"}]},
    "range": {"module": {"gte": "m", "lt": "s"}},
    "gt, lte": {"module": {"gt": "m", "lte": "n"}},
    "ne": {"kind": {"ne": "class"}},
    "no match": {"module": "no such module"},
    "other type": {"kind": 3},
    "unknown field": {"colour": {"exists": True}},
    "empty": {},
    "unknown operator": {"kind": {"like": "x"}},
    "not an object": {"kind": {"in": "class"}},
}

# POST /select, with a pool of the request
TEXTS = [
    f"{verb} {adverb} the {thing}"
    for verb in ("sort", "read", "sum")
    for adverb in ("slowly", "at once")
    for thing in ("list", "file", "numbers", "words")
]
POOL: list[dict[str, Any]] = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]


def pool(name: str, values: Iterable[Any], documents: Iterable[Fields] = POOL) -> list[Fields]:
    """Return the documents with one more field."""
    return [{**document, name: value} for document, value in zip(documents, values, strict=False)]


LONG_TEXT = "\n\n".join(f"On page {page} we sort numbers into {page} lists." for page in range(150))
BOOST: list[Fields] = [
    {"field_value_factor": {"field": "page", "factor": 0.5, "modifier": "log1p", "missing": 1}},
    {"linear": {"field": "page", "origin": 0, "scale": 3}, "weight": 2},
]
DATED = pool("metadata", [{"page": number % 5, "day": f"2026-01-{number + 1:02}"} for number in range(24)])
OWN_QUERY: Fields = {"query_embedding": [1.0] + 15 * [0.25]}
VECTORS = {"documents": POOL, "embeddings": block((24, 16))}
OF_POOL: Fields = {"query": "sort numbers", "pool": POOL, "budget": 6, "k": 7}
POOL_OPTIONS: dict[str, Fields] = {
    "k=30": {"k": 30},
    "budget=0": {"budget": 0},
    "budget=30": {"budget": 30},
    "ranked": {"ranked": True},
    "vectors=encoder": {"vectors": "encoder"},
    "vectors=lexical": {"vectors": "lexical"},
    "relevance=scorer": {"relevance": "scorer"},
    "method=boundarymorph": {"method": "boundarymorph", "rounds": 6},
    "max_tokens": {"k": ABSENT, "max_tokens": 24},
    "min_relevance": {"min_relevance": 0.1},
    "find": {"k": ABSENT, "objective": {"find": 0.9, "in": 0.7, "next": 3}},
    "known_scores": {"known_scores": {"d0": 0.9, "d7": 0.1, "d23": 0.4}},
    "distinct": {"distinct": True},
    "diversity": {"diversity": 0.3},
    "exclude_ids": {"exclude_ids": ["d2", "d6"]},
    "explain=pool": {"explain": "pool"},
    "return_documents": {"return_documents": True},
    "on_failure=error": {"on_failure": "error"},
}
POOLS: dict[str, Fields] = {
    "texts": {"pool": TEXTS[:9]},
    "object of documents": {"pool": {"documents": TEXTS[:9]}},
    "one document": {"pool": TEXTS[:1], "return_documents": True},
    "titles, metadata": {
        "pool": pool("title", ["a", "b"] * 12, pool("metadata", [{"n": number} for number in range(24)])),
        "return_documents": True,
    },
    "_id": {"pool": [{"_id": "x", "text": "sort"}, {"_id": 8, "text": "read"}]},
    "integer ids": {"pool": [{"id": 2**63, "text": "sort"}, {"id": -5, "text": "read"}]},
    "scores": {"pool": pool("score", [float(-number) for number in range(24)])},
    "bm25": {"pool": pool("bm25", [number % 5 / 2 for number in range(24)]), "explain": True},
    "cross_encoder_score": {"pool": [*pool("cross_encoder_score", [0.25, 0.5, 0.75]), *POOL[3:]]},
    "tokens": {"pool": pool("tokens", [3 + number % 4 for number in range(24)]), "max_tokens": 30, "k": ABSENT},
    "embedding": {"pool": pool("embedding", [[1.0, number % 5, number % 3] for number in range(24)]),
                  "query_embedding": [1.0, 2.0, 0.5]},
    "boost": {"pool": DATED, "boost": BOOST, "explain": True},
    "boost by dates": {"pool": DATED, "boost": [
        {"gauss": {"field": "day", "origin": "2026-01-20", "scale": "4d", "offset": "1d", "decay": 0.3}},
        {"exp": {"day": {"origin": "2026-01-01", "scale": "9d"}}, "filter": {"page": {"lt": 3}}},
    ]},
    "weight": {
        "pool": pool("weight", [number % 4 + 0.5 for number in range(24)]), "explain": "pool", "explain_depth": 5,
    },
    "boost by a missing field": {"boost": BOOST},
    "passages": {"pool": [*TEXTS[:5], LONG_TEXT], "passages": True, "explain": True},
    "passages=false": {"pool": [*TEXTS[:5], LONG_TEXT], "passages": False},
    "block": {"pool": VECTORS, **OWN_QUERY},
    "block, float32": {"pool": VECTORS | {"embeddings": block((24, 16), "float32")}, **OWN_QUERY},
    "block, paper": {"pool": VECTORS, **OWN_QUERY, "method": "boundarymorph", "rounds": 6},
    "block, scores": {"pool": VECTORS | {"documents": pool("score", range(24))}, **OWN_QUERY, "explain": "pool"},
    "query as a block": {"pool": VECTORS, "query_embedding": block((16,))},
    "block without a query": {"pool": VECTORS},
    "features": {"pool": {"documents": POOL, "features": {"clicks": [number % 7 / 1 for number in range(24)]}}},
    "features with null": {"pool": {"documents": POOL, "features": {"clicks": [None, 2.0] * 12}}, "explain": True},
    "distinct metadata": {"pool": pool("metadata", [{"n": number % 4} for number in range(24)]), "distinct": "n"},
    "same texts": {"pool": ["sort", "read", "sort", "sum", "sort"], "k": 4},
    "same texts, distinct": {"pool": ["sort", "read", "sort", "sum", "sort"], "k": 4, "distinct": True},
    "blank texts": {"pool": ["sort", " ", "", "\u200b"], "k": 4},
    "unicode": {"pool": ["ordenar números", "並べ替え", "сортировка", "🔢 sort"], "k": 2, "query": "números"},
}  # fmt: skip

# POST /select, with several queries
SEVERAL: Fields = {**OF_INDEX, "query": ABSENT, "queries": [*QUERIES[:2]], "k": 8, "depth": 200}
SEVERAL_OPTIONS: dict[str, Fields] = {
    "plain": {},
    "weights": {"queries": [QUERIES[0], {"query": QUERIES[1], "weight": 0.5}]},
    "one": {"queries": [QUERIES[2]]},
    "pool": {"index": ABSENT, "depth": ABSENT, "pool": POOL},
    "pool with vectors": {"index": ABSENT, "depth": ABSENT, "pool": VECTORS},
    "explain": {"explain": True, "return_documents": True, "k": 3},
    "paper": {"method": "boundarymorph"},
    "relevance=scorer": {"relevance": "scorer", "rounds": 2},
    "filter, exclude, hybrid": {"filter": {"kind": "function"}, "exclude_ids": LISTS, "hybrid": True},
    "budget=0": {"budget": 0},
    "distinct": {"distinct": True},
    "same twice": {"queries": ["sort", "sort"]},
    "with query": {"query": "sort"},
    "none": {"queries": []},
    "boost": {"boost": [{"filter": {"kind": "class"}, "weight": 3}]},
    "min_relevance": {"min_relevance": 0.5},
    "budget=auto": {"budget": "auto"},
    "explain=pool": {"explain": "pool"},
}
STREAMS: dict[str, Fields] = {
    "rounds": {"rounds": 3},
    "explain": {"rounds": 2, "explain": True},
    "explain=pool": {"rounds": 2, "explain": "pool", "depth": 30},
    "budget=0": {"budget": 0},
    "find": {"k": ABSENT, "objective": {"find": 0.8}, "depth": 100, "budget": 12},
    "max_tokens": {"k": ABSENT, "max_tokens": 500},
    "return_documents": {"return_documents": True, "k": 2},
    "queries": {"query": ABSENT, "queries": [*QUERIES[:2]], "depth": 100, "explain": True},
    "pool": {"index": ABSENT, "pool": TEXTS},
    "past deadline": {"deadline_ms": 0.001},
    "missing index": {"index": "missing"},
    "unknown field": {"budgte": 1},
}

# Refusals of POST /select
REFUSED: dict[str, Fields] = {
    "unknown field": {"budgte": 5},
    "no query": {"query": ABSENT},
    "blank query": {"query": " "},
    "query=null": {"query": None},
    "no source": {"index": ABSENT},
    "two sources": {"pool": ["a"]},
    "missing index": {"index": "missing"},
    "bad name": {"index": "../Bad"},
    "k=0": {"k": 0},
    "k='5'": {"k": "5"},
    "k=true": {"k": True},
    "k and max_tokens": {"max_tokens": 5},
    "budget=-1": {"budget": -1},
    "budget=1.5": {"budget": 1.5},
    "B and budget": {"B": 5},
    "rounds=0": {"rounds": 0},
    "depth=0": {"depth": 0},
    "min_relevance=2": {"min_relevance": 2},
    "diversity=2": {"diversity": 2},
    "diversity with max_tokens": {"diversity": 0.2, "max_tokens": 9, "k": ABSENT},
    "method": {"method": "best"},
    "relevance": {"relevance": "judge"},
    "boost": {"boost": [{"gauss": {"field": "page", "origin": 0, "scale": "3d"}}]},
    "boost without a rule": {"boost": [{"filter": {"kind": "class"}}]},
    "passages of an index": {"passages": True},
    "explain_depth alone": {"explain_depth": 3},
    "people by the paper": {"relevance": "human", "method": "boundarymorph"},
    "explain": {"explain": "rounds"},
    "on_failure": {"on_failure": "shrug"},
    "deadline_ms=0": {"deadline_ms": 0},
    "spend": {"spend": "all"},
    "calibration=name": {"calibration": "name"},
    "distinct": {"distinct": {"by": "a..b"}},
    "objective without a goal": {"objective": {"in": 0.5}},
    "objective with k": {"objective": {"find": 0.5}},
    "query_embedding of 2": {"query_embedding": [1.0, 2.0]},
    "query_embedding of zeros": {"query_embedding": 384 * [0.0]},
    "ranked index": {"ranked": True},
    "depth of a pool": {"index": ABSENT, "pool": ["a"], "depth": 5},
    "empty pool": {"index": ABSENT, "pool": []},
    "same ids": {"index": ABSENT, "pool": [POOL[0], POOL[0]]},
    "some scores": {"index": ABSENT, "pool": [POOL[0], POOL[1] | {"score": 1}]},
    "unknown field of a document": {"index": ABSENT, "pool": [{"text": "a", "titel": "b"}]},
    "block of another shape": {"index": ABSENT, "pool": VECTORS | {"embeddings": block((3, 16))}},
    "features of another length": {"index": ABSENT, "pool": {"documents": ["a", "b"], "features": {"f": [1.0]}}},
    "over limits.depth": {"depth": 20_001},
    "over limits.budget": {"budget": 2_001},
    "over limits.k": {"k": 20_001},
    "over limits.rounds": {"rounds": 2_001},
    "over limits.max_tokens": {"k": ABSENT, "max_tokens": 10_000_001},
    "over limits.diverse": {"k": 1_001, "diversity": 0.1},
    "over limits.queries": {"query": ABSENT, "queries": [str(number) for number in range(11)]},
    "over limits.features": {
        "index": ABSENT, "pool": {"documents": ["a"], "features": {f"f{number}": [1.0] for number in range(17)}},
    },
    "over limits.known_scores": {"known_scores": {str(number): 0.5 for number in range(2_001)}},
    "over limits.query_characters": {"query": "x" * 10_001},
    "over limits.dimension": {"query_embedding": block((8_193,))},
}  # fmt: skip
WHOLE = orjson.dumps({"query": "sort", "pool": ["a", "b"]})
HTTP: list[Request] = [
    Request("http/no body", "/select", b""),
    Request("http/not JSON", "/select", b"{query: sort}"),
    Request("http/list", "/select", b"[1]"),
    Request("http/null", "/select", b"null"),
    Request("http/NaN", "/select", b'{"query": "q", "pool": ["a"], "min_relevance": NaN}'),
    Request("http/lone surrogate", "/select", b'{"query": "\\ud800", "pool": ["a"]}'),
    Request("http/latin-1", "/select", '{"query": "é", "pool": ["a"]}'.encode("latin-1")),
    Request("http/deep", "/select", b"[" * 9_000),
    Request("http/content type", "/select", WHOLE, headers={"Content-Type": "text/plain"}),
    Request("http/form", "/select", WHOLE, headers={"Content-Type": "application/x-www-form-urlencoded"}),
    Request("http/gzip", "/select", gzip.compress(WHOLE, mtime=0), headers={"Content-Encoding": "gzip"}),
    Request("http/host", "/select", WHOLE, headers={"Host": "example.org"}),
    Request("http/origin", "/select", WHOLE, headers={"Origin": "https://example.org"}),
    Request("http/long head", "/select", WHOLE, headers={"X-Long": "x" * 70_000}),
    Request("http/query parameter", "/select?explain=true", WHOLE),
    Request("http/method", "/select", method="GET"),
    Request("http/method of rerank", "/v1/rerank", method="PUT"),
    Request("http/path", "/selects", WHOLE),
    Request("http/path of rerank", "/v3/rerank", WHOLE),
    Request("http/slash", "/select/", WHOLE),
    Request("http/head", "/readyz", method="HEAD"),
    Request("http/browser", "/select", method="OPTIONS", headers={"Origin": "https://example.org"}),
]  # fmt: skip

# Policies
POLICIES: dict[str, Fields] = {
    "fast": {"budget": 0.25, "rounds": 1},
    "strict": {"budget": 5, "min_relevance": 0.2, "distinct": True, "relevance": "scorer", "calibration": False},
    "auto": {"budget": "auto", "deadline_ms": 400_000},
}
BY_PATH: dict[str, tuple[str, Fields]] = {
    "fast": ("fast", {}),
    "fast, index": ("fast", {"pool": ABSENT, "index": INDEX}),
    "fast@0.5": ("fast@0.5", {}),
    "fast@3": ("fast@3", {}),
    "strict": ("strict", {}),
    "strict, own fields": ("strict", {"budget": 2, "min_relevance": 0.0, "distinct": False}),
    "auto": ("auto", {}),
    "default@auto": ("default@auto", {}),
    "missing": ("missing", {}),
    "fast@many": ("fast@many", {}),
}

# Rerank routes: the path of each dialect, the name of its documents, and a request
DOCUMENTS = TEXTS[:10]
SORT: Fields = {"query": "sort numbers", "documents": DOCUMENTS}
DIALECTS: dict[str, tuple[str, str, Fields]] = {
    "cohere v1": ("/v1/rerank", "documents", SORT),
    "cohere v2": ("/v2/rerank", "documents", {"model": "rerank-v3.5", **SORT}),
    "jina": ("/rerank", "documents", {"model": "jina-reranker-v2", **SORT}),
    "tei": ("/rerank", "texts", {"query": "sort numbers", "texts": DOCUMENTS}),
    "weaviate": ("/weaviate/rerank", "documents", {**SORT, "property": ""}),
    "infinity": ("/infinity/rerank", "documents", SORT),
    "voyage": ("/voyage/v1/rerank", "documents", SORT),
    "nim": ("/v1/ranking", "passages", {
        "query": {"text": "sort numbers"}, "passages": [{"text": text} for text in DOCUMENTS],
    }),
    "mixedbread": ("/v1/reranking", "input", {"query": "sort numbers", "input": DOCUMENTS}),
    "alias": ("/reranking", "documents", SORT),
    "aliyun": ("/api/v1/services/rerank/text-rerank/text-rerank", "documents", {"model": "gte-rerank", "input": SORT}),
}  # fmt: skip
FORMATS = ("cohere v1", "tei", "weaviate", "nim", "mixedbread", "aliyun")  # formats of answers
EVERY_DIALECT: dict[str, Fields] = {
    "plain": {},
    "budget=3": {"budget": 3},
    "budget=0.4, rounds": {"budget": 0.4, "rounds": 2},
    "min_relevance, distinct": {"min_relevance": 0.05, "distinct": True, "budget": 5},
    "policy by model": {"model": "fast@0.2"},
    "unknown field, instruct": {"colour": "red", "instruct": "prefer verbs", "user": "me"},
    "bad budget": {"budget": 1.5},
    "no query": {"query": ABSENT},
}
OBJECTS = [{"text": text, "page": number % 3, "note": "n" * number} for number, text in enumerate(DOCUMENTS)]
LONG = "sort numbers " * 600
OWN_OPTIONS: dict[str, dict[str, Fields]] = {
    "cohere v1": {
        "budget=auto, k": {"budget": "auto", "k": 3},
        "relevance=people": {"relevance": "human", "calibration": False, "budget": 4},
        "on_failure=degrade": {"on_failure": "degrade"},
        "instruction": {"instruction": "prefer verbs"},
        "top_n": {"top_n": 3, "return_documents": True},
        "top_n=0": {"top_n": 0},
        "top_n='2'": {"top_n": "2"},
        "objects": {"documents": OBJECTS, "return_documents": True},
        "rank_fields": {"documents": OBJECTS, "rank_fields": ["note", "text"]},
        "missing rank field": {"documents": OBJECTS, "rank_fields": ["colour"]},
        "group_by": {"documents": OBJECTS, "group_by": "page"},
        "boost": {"documents": OBJECTS, "boost": BOOST},
        "passages": {"documents": [*DOCUMENTS, LONG_TEXT], "passages": True, "best_passages": 2},
        "groups": {"documents": OBJECTS, "distinct": {"by": "page", "at_most": 2, "k_counts": "groups"}, "top_n": 2},
        "max_tokens_per_doc": {"max_tokens_per_doc": 2},
        "voyage model": {"model": "rerank-2.5", "top_k": 2, "return_documents": True},
        "truncation=false": {"documents": [*DOCUMENTS, LONG], "truncation": False},
        "texts elsewhere": {"documents": ABSENT, "texts": DOCUMENTS},
        "null and numbers": {"documents": ["sort", None, 5, 2.5]},
        "blank query": {"query": ""},
        "empty list": {"documents": []},
        "no list": {"documents": "sort"},
        "one document": {"documents": ["sort"]},
        "same texts": {"documents": ["sort", "read", "sort"], "budget": 2},
        "past deadline": {"deadline_ms": 0.001},
    },
    "cohere v2": {
        "relevant_spans": {"relevant_spans": {"mode": "enabled", "threshold": 0.2, "max_spans": 2}},
        "raw_scores": {"raw_scores": True},
    },
    "jina": {"use_activation=false": {"use_activation": False}, "max_tokens_per_doc": {"max_tokens_per_doc": 3}},
    "tei": {
        "raw_scores, return_text": {"raw_scores": True, "return_text": True},
        "truncate=false": {"texts": [*DOCUMENTS, LONG], "truncate": False},
        "truncation_direction=Left": {"texts": [*DOCUMENTS, LONG], "truncation_direction": "Left"},
        "top_n": {"top_n": 2, "truncate": True},
        "empty list": {"texts": []},
        "objects": {"texts": OBJECTS},
        "past deadline": {"deadline_ms": 0.001},
    },
    "infinity": {"return_documents": {"return_documents": True, "raw_scores": True}, "top_n": {"top_n": 1}},
    "voyage": {"top_k": {"top_k": 2, "return_documents": True, "truncation": True}, "empty list": {"documents": []}},
    "nim": {
        "truncate=NONE": {"passages": [{"text": LONG}], "truncate": "NONE"},
        "top_n, END": {"top_n": 2, "truncate": "END"},
        "image": {"passages": [{"image": "x"}]},
        "empty list": {"passages": []},
    },
    "mixedbread": {
        "top_k, return_input": {"top_k": 2, "return_input": True},
        "objects": {"input": OBJECTS, "rank_fields": ["text"], "return_input": True},
        "empty list": {"input": []},
    },
    "aliyun": {
        "parameters": {"parameters": {"top_n": 2, "return_documents": True, "colour": 1}},
        "no query": {"input": {"documents": DOCUMENTS}},
    },
    "weaviate": {"empty list": {"documents": []}},
}  # fmt: skip


def reranking() -> Iterator[Request]:
    """Yield the requests to rerank routes."""
    for dialect, (path, _, base) in DIALECTS.items():
        yield from rows(f"rerank/{dialect}", path, base, EVERY_DIALECT | OWN_OPTIONS.get(dialect, {}))
        yield from rows(f"rerank/{dialect}", f"/p/strict@0.3{path}", base, {"policy by path": {}})
    yield Request("rerank/not an object", "/rerank", [1])
    yield Request("rerank/not JSON", "/v1/ranking", b"{")
    yield Request("rerank/missing policy", "/p/missing/v1/rerank", SORT)


def selections() -> Iterator[Request]:
    """Yield the requests to `POST /select`.

    Nearly all differ from others in one option or in two.
    """
    yield from rows("select", "/select", OF_INDEX, INDEX_OPTIONS | INDEX_VALUES | pairs(INDEX_OPTIONS, 0.05))
    yield from rows("select/query", "/select", {**OF_INDEX, "k": 30}, {query: {"query": query} for query in QUERIES})
    yield from rows(
        "select/filter", "/select", OF_INDEX, {name: {"filter": filter} for name, filter in FILTERS.items()}
    )
    yield from rows("pool", "/select", OF_POOL, POOL_OPTIONS | POOLS | pairs(POOL_OPTIONS, 0.1))
    yield from rows("queries", "/select", SEVERAL, SEVERAL_OPTIONS)
    yield from rows("stream", "/select", {**OF_INDEX, "k": 6}, STREAMS, EVENTS)
    for name, (policy, fields) in BY_PATH.items():
        yield from rows("policy", f"/p/{policy}/select", {"query": "sort", "pool": TEXTS}, {name: fields})
    yield from rows("refused", "/select", OF_INDEX, REFUSED)
    yield from HTTP
