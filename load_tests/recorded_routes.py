"""List the processes and requests that `load_tests.answers` records, for all routes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from load_tests.recorded_selections import (
    ABSENT,
    DIALECTS,
    EVENTS,
    FORMATS,
    INDEX,
    INDEX_OPTIONS,
    LISTS,
    LONG,
    NDJSON,
    OF_INDEX,
    POLICIES,
    POOL,
    QUERIES,
    SORT,
    TEXTS,
    Fields,
    Request,
    lines,
    reranking,
    rows,
    selections,
)


@dataclass(frozen=True)
class Kill:
    """The end of a process, with SIGKILL, between two requests."""

    role: str


@dataclass(frozen=True)
class Scene:
    """Processes, and the events of a recording in order.

    Attributes:
        processes: The arguments of `boundarymorph` by role, in the order of their start; `{data}` stands for the copied
            folder, `{empty}` for an empty one, and `{ROLE}` for the URL of an earlier process.
        variables: Their environment variables; values that are not strings become JSON.
        events: The events.
    """

    processes: Mapping[str, str]
    variables: Mapping[str, Any]
    events: list[Request | Kill]


# MCP
TOOLS = {"Accept": "application/json, text/event-stream"}


def rpc(name: str, method: str, params: Fields) -> Request:
    """Return a request of the Model Context Protocol."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return Request(f"mcp/{name}", "/mcp", body, headers=TOOLS)


def tool(name: str, called: str, arguments: Mapping[str, object]) -> Request:
    """Return a call of a tool."""
    return rpc(name, "tools/call", {"name": called, "arguments": arguments})


ASKED: Fields = {"query": "sort a list", "index": INDEX, "budget": 4, "k": 3}
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "recorder", "version": "1"}}
LIST, SELECT = tool("list_indexes", "list_indexes", {}), tool("select", "select_documents", ASKED)
SELECTED: dict[str, Fields] = {
    "max_tokens": {"k": None, "max_tokens": 300},
    "min_relevance": {"min_relevance": 0.9},
    "filter": {"filter": {"kind": "class"}, "distinct": "module"},
    "exclude": {"exclude_ids": [f"{INDEX}/{LISTS[0]}", LISTS[1]]},
    "auto": {"budget": "auto", "k": 2},
    "unknown argument": {"colour": "red"},
    "bad k": {"k": 0},
    "missing index": {"index": "missing"},
    "unknown field": {"filter": {"colour": "red"}},
}
MCP: list[Request] = [
    rpc("initialize", "initialize", CLIENT),
    rpc("ping", "ping", {}),
    rpc("tools", "tools/list", {}),
    rpc("prompts", "prompts/list", {}),
    rpc("unknown method", "tools/burn", {}),
    rpc("unknown tool", "tools/call", {"name": "burn", "arguments": {}}),
    Request("mcp/not JSON", "/mcp", b"{", headers=TOOLS),
    Request("mcp/accept", "/mcp", rpc("", "ping", {}).body, headers={"Accept": "text/html"}),
    Request("mcp/get", "/mcp", method="GET"),
    LIST,
    SELECT,
    tool("search", "search", {"query": "sort a list", "index": INDEX}),
    tool("search, missing index", "search", {"query": "sort a list", "index": "missing"}),
    tool("fetch", "fetch", {"id": f"{INDEX}/{LISTS[0]}"}),
    tool("fetch, offset", "fetch", {"id": f"{INDEX}/{LISTS[0]}", "offset": 20}),
    tool("fetch, offset at the end", "fetch", {"id": f"{INDEX}/{LISTS[0]}", "offset": 100_000}),
    tool("fetch, missing", "fetch", {"id": f"{INDEX}/missing"}),
    *(tool(f"select, {name}", "select_documents", {**ASKED, **arguments}) for name, arguments in SELECTED.items()),
]

# Indexes and batches
ROWS = [
    {
        "id": number,
        "text": f"row {number}",
        "embedding": [1, number, number * number % 7, number % 3],
        "metadata": {"n": number},
    }
    for number in range(40)
]
OF_OWN: Fields = {"query": "row", "index": "own", "query_embedding": [1.0, 2.0, 3.0, 1.0], "budget": 4, "k": 8}
WORDS = [
    {"_id": f"w{number}", "title": text.split()[0], "text": text, "colour": 1} for number, text in enumerate(TEXTS)
]
OWN, OWN_DOCUMENTS, WORDS_DOCUMENTS = "/indexes/own", "/indexes/own/documents", "/indexes/words/documents"
OF_WORDS: Fields = {"index": "words", "query_embedding": ABSENT}
CREATED: dict[str, tuple[str, Any]] = {  # a name, and the body
    "own": ("own", {"dimension": 4}),
    "own again": ("own", {"dimension": 4}),
    "own otherwise": ("own", {"dimension": 5}),
    "words": ("words", {"encoder": "none"}),
    "encoded": ("encoded", {}),
    "without a body": ("plain", None),
    "not lexical": ("silent", {"dimension": 4, "lexical": False, "kind": "flat", "metric": "cosine"}),
    "ivf": ("fast", {"dimension": 4, "kind": "ivf"}),
    "other kind": ("new", {"kind": "tree"}),
    "other metric": ("new", {"metric": "l2"}),
    "other encoder": ("new", {"encoder": "another"}),
    "two kinds": ("new", {"encoder": "none", "dimension": 4}),
    "unknown field": ("new", {"dimensions": 4}),
    "over limits.dimension": ("new", {"dimension": 8_193}),
    "bad name": ("New", {}),
}
READ = ("own", "words", "plain", "missing", "No", "own/stats", f"{INDEX}/stats", "missing/stats",
        f"{INDEX}/documents?limit=3", f"{INDEX}/documents?limit=2&after=bisect",
        "own/documents?after=9", "own/documents?limit=0", "own/documents?offset=3", "own/documents/7",
        "own/documents/missing", "missing/documents/7", f"{INDEX}/documents/{LISTS[0]}")  # fmt: skip
INDEXES: list[Request] = [
    *(Request(f"create/{name}", f"/indexes/{index}", body, "PUT") for name, (index, body) in CREATED.items()),
    Request("upload/array", OWN_DOCUMENTS, ROWS),
    Request("upload/again", OWN_DOCUMENTS, [*ROWS[:5], {**ROWS[5], "text": "another"}]),
    Request("upload/not lexical", "/indexes/silent/documents", ROWS[:9]),
    Request("upload/lines", WORDS_DOCUMENTS, WORDS, headers=NDJSON),
    Request("upload/progress", "/indexes/encoded/documents", POOL[:4],
            headers={**NDJSON, "Accept": "application/x-ndjson"}),
    Request("upload/broken lines", WORDS_DOCUMENTS, lines(WORDS[0], {"id": "y"}, 7) + b"{", headers=NDJSON),
    Request("upload/strict", f"{WORDS_DOCUMENTS}?strict=true", [WORDS[0], {"id": "y"}], headers=NDJSON),
    Request("upload/nothing usable", WORDS_DOCUMENTS, [{"id": "y"}]),
    Request("upload/other vectors", OWN_DOCUMENTS, [{"id": "x", "text": "x", "embedding": [1.0]}]),
    Request("upload/text", OWN_DOCUMENTS, b"row", headers={"Content-Type": "text/plain"}),
    Request("upload/object", OWN_DOCUMENTS, {"id": "x"}),
    Request("upload/missing index", "/indexes/missing/documents", ROWS[:1]),
    Request("describe/own", f"{OWN}/description", {"description": "Rows of numbers."}, "PUT"),
    Request("describe/too long", f"{OWN}/description", {"description": "x" * 2_001}, "PUT"),
    *(Request(f"read/{path}", f"/indexes/{path}", method="GET") for path in READ),
    *rows("own", "/select", OF_OWN, {
        "vectors": {},
        "filter, hybrid": {"filter": {"n": {"lt": 20}}, "hybrid": True},
        "explain=pool": {"explain": "pool", "k": 4},
        "no query_embedding": {"query_embedding": ABSENT},
        "two queries": {"query": ABSENT, "queries": ["a", "b"]},
        "words": {**OF_WORDS, "query": "sort numbers"},
        "words, hybrid": {**OF_WORDS, "hybrid": True},
        "encoded": {**OF_WORDS, "index": "encoded"},
        "empty": {**OF_WORDS, "index": "plain"},
        "not lexical": {"index": "silent"},
        "not lexical, hybrid": {"index": "silent", "hybrid": True},
    }),
    Request("delete/document", f"{OWN_DOCUMENTS}/7", method="DELETE"),
    Request("delete/document again", f"{OWN_DOCUMENTS}/7", method="DELETE"),
    Request("delete/ids", OWN_DOCUMENTS, {"ids": [8, "9", "missing"]}, "DELETE"),
    Request("delete/filter", OWN_DOCUMENTS, {"filter": {"n": {"gte": 30}}}, "DELETE"),
    Request("delete/two ways", OWN_DOCUMENTS, {"ids": [], "filter": {}}, "DELETE"),
    Request("delete/bad filter", OWN_DOCUMENTS, {"filter": {"n": {"over": 1}}}, "DELETE"),
    *rows("own", "/select", OF_OWN, {"after deletions": {"k": 50, "budget": 0}}),
    Request("delete/index", "/indexes/encoded", method="DELETE"),
    Request("delete/missing index", "/indexes/encoded", method="DELETE"),
]  # fmt: skip
PAGES = ("/livez", "/readyz", "/health", "/metrics", "/v1/models", "/models", "/info", "/weaviate/meta",
         "/weaviate/.well-known/ready", "/p/fast/info", "/p/fast/weaviate/meta", "/p/fast/v1/models",
         "/p/fast/weaviate/.well-known/ready", "/", "/playground",
         "/playground/", "/playground/missing.js", "/docs", "/docs/", "/docs/missing.js", "/indexes")  # fmt: skip

# Keys, small limits and a cache
SCOPES = {"admin": "select,write,admin,metrics", "reader": "select", "writer": "write",
          "few": "select,write", "tenant": "select", "rated": "select", "chat": "select"}  # fmt: skip
BEHIND = {"few": ":own*", "tenant": "::acme"}  # the hash: the indexes of a key, and its tenant
HASHES = {name: hashlib.sha256(f"bm_{name}".encode()).hexdigest() for name in SCOPES}
KEYS = " ".join(f"{name}:{scopes}:{HASHES[name]}{BEHIND.get(name, '')}" for name, scopes in SCOPES.items())


def keyed(key: str, request: Request) -> Request:
    """Return a request with a key."""
    return replace(
        request, name=f"keys/{request.name}", headers={"Authorization": f"Bearer bm_{key}", **request.headers}
    )


SMALL: Fields = {"query": "sort numbers", "pool": TEXTS[:6], "budget": 2, "k": 3}
CACHED: Fields = {"query": "tail of a file", "index": INDEX, "k": 5}
WITH_KEYS: list[Request | Kill] = [
    Request("keys/none, select", "/select", SMALL),
    *(Request(f"keys/none, {dialect}", DIALECTS[dialect][0], DIALECTS[dialect][2]) for dialect in FORMATS),
    replace(LIST, name="keys/none, tool"),
    Request("keys/none, readyz", "/readyz", method="GET"),
    Request("keys/basic", "/select", SMALL, headers={"Authorization": "Basic eDp5"}),
    keyed("nobody", Request("unknown key", "/select", SMALL)),
    keyed("reader", Request("reader selects", "/select", SMALL)),
    keyed("reader", Request("reader lists", "/indexes", method="GET")),
    keyed("reader", Request("reader creates", OWN, {"dimension": 4}, "PUT")),
    keyed("reader", Request("reader deletes", f"/indexes/{INDEX}", method="DELETE")),
    keyed("writer", Request("writer selects", "/select", SMALL)),
    keyed("writer", Request("writer creates", OWN, {"dimension": 4}, "PUT")),
    keyed("writer", Request("writer fills", OWN_DOCUMENTS, ROWS[:9])),
    keyed("writer", Request("long line", OWN_DOCUMENTS, [{"id": 1, "text": "x" * 3_000}], headers=NDJSON)),
    keyed("few", Request("few lists", "/indexes", method="GET")),
    keyed("few", Request("few selects", "/select", {**OF_OWN, "k": 2})),
    keyed("few", Request("few selects elsewhere", "/select", CACHED)),
    keyed("few", replace(LIST, name="few asks tools")),
    keyed("admin", Request("admin, readyz", "/readyz", method="GET")),
    keyed("rated", Request("first of two", "/select", SMALL)),
    keyed("rated", Request("second of two", "/v1/rerank", SORT)),
    keyed("rated", Request("third of two", "/select", SMALL)),
    keyed("rated", Request("third of two, tei", "/rerank", DIALECTS["tei"][2])),
    keyed("rated", Request("third of two, stream", "/select", SMALL, headers=EVENTS)),
    keyed("rated", replace(LIST, name="third of two, tool")),
    keyed("chat", Request("policy by key", "/select", {"query": "sort", "pool": TEXTS[:6]})),
    keyed("chat", Request("policy by key, rerank", "/v1/rerank", {"query": "sort", "documents": TEXTS[:6]})),
    keyed("chat", Request("policy by path", "/p/default/select", {"query": "sort", "pool": TEXTS[:6]})),
    *(
        keyed("admin", Request(f"over limits.{name}", path, body))
        for name, path, body in (
            ("pool", "/select", {**SMALL, "pool": TEXTS[:13]}),
            ("pool, rerank", "/v1/rerank", {"query": "sort", "documents": TEXTS[:13]}),
            ("pool, tei", "/rerank", {"query": "sort", "texts": TEXTS[:13]}),
            ("text_characters", "/select", {**SMALL, "pool": ["x" * 301]}),
            ("text_characters, rerank", "/v2/rerank", {"query": "sort", "documents": ["x" * 301]}),
            ("query_characters", "/select", {**SMALL, "query": "x" * 101}),
            ("query_characters, rerank", "/v1/rerank", {"query": "x " * 101, "documents": ["sort"]}),
            ("instruction", "/select", {**SMALL, "instruction": "x" * 101}),
            ("exclude_ids", "/select", {**SMALL, "exclude_ids": [str(number) for number in range(13)]}),
            ("dimension", "/select", {**SMALL, "exclude_ids": list(range(9_000))}),
            ("body_bytes", "/select", {**SMALL, "query": "x" * 70_000}),
            ("k, next", "/select", {**SMALL, "k": None, "objective": {"find": 0.9, "next": 13}}),
            ("k, at_most", "/select", {**SMALL, "distinct": {"at_most": 13}}),
            ("tools", "/mcp", b" " * 2_000),
        )
    ),
    *(
        keyed(key, Request(f"cache, {name}", "/select", {**CACHED, **fields}))
        for name, key, fields in (
            ("first", "admin", {"budget": 4}),
            ("again", "admin", {"budget": 4}),
            ("more calls", "admin", {"budget": 8, "k": 8}),
            ("fewer calls", "admin", {"budget": 2}),
            ("no calls", "admin", {"budget": 0}),
            ("no reuse", "admin", {"budget": 4, "reuse": False}),
            ("explain", "admin", {"budget": 6, "explain": True}),
            ("another key", "reader", {"budget": 4}),
            ("a tenant", "tenant", {"budget": 4}),
            ("several", "admin", {"query": None, "queries": ["tail of a file", "head of a file"], "budget": 6}),
        )
    ),
    keyed("admin", Request("cache, rerank", "/v1/rerank", {**SORT, "query": "tail", "budget": 3})),
    keyed("admin", Request("cache, rerank again", "/v1/rerank", {**SORT, "query": "tail", "budget": 5})),
    keyed("admin", Request("cache, stream", "/select", {**CACHED, "budget": 4}, headers=EVENTS)),
]  # fmt: skip

# A gateway, its scorer and its retriever, and the gateway's answers when these fail
CALIBRATION = {
    "scorer": "cross-encoder/ms-marco-MiniLM-L-12-v2@1225ccd6afd0/int8/512", "encoder": None, "version": 2,
    "maps": {kind: {"slope": 0.4, "intercept": 0.5, "clip": 1e-6} for kind in ("human", "scorer")},
    "queries": 20, "judgments": 90, "created": "2026-11-28T10:00:00+00:00", "report": {},
}  # fmt: skip
SCORED: dict[str, Fields] = {
    "plain": {},
    "no texts": {"texts": []},
    "long": {"texts": [LONG]},
    "long, truncate=false": {"texts": [LONG], "truncate": False},
    "deadline_ms": {"deadline_ms": 60_000},
    "past deadline": {"deadline_ms": 0.001},
    "instruction": {"instruction": "prefer verbs"},
    "blank query": {"query": " "},
    "unknown field": {"texst": []},
    "over limits.texts": {"texts": ["x"] * 513},
}
RETRIEVED: dict[str, Fields] = {
    "plain": {},
    "hybrid, documents": {"hybrid": True, "documents": 3},
    "filter": {"filter": {"kind": "class"}, "directions": True},
    "query_embedding": {"query_embedding": [1.0] * 384, "query_precision": "float32"},
    "missing index": {"index": "missing"},
    "no depth": {"depth": 0},
    "over limits.pool": {"depth": 20_001},
}
OF_IDS: Fields = {"index": INDEX, "ids": [*LISTS, "missing"]}
OF_RETRIEVER: dict[str, tuple[str, Fields]] = {
    "documents": ("/documents", OF_IDS),
    "documents without texts": ("/documents", {**OF_IDS, "texts": False}),
    "documents of a missing index": ("/documents", {**OF_IDS, "index": "missing"}),
    "characters": ("/characters", OF_IDS),
    "embed query": ("/embed/query", {"query": "sort"}),
    "embed query, unknown field": ("/embed/query", {"q": "sort"}),
    "embed documents": ("/embed/documents", {"texts": TEXTS[:2]}),
}
BY_GATEWAY = ("k=3", "budget=0", "max_tokens", "min_relevance", "find", "known_scores", "relevance=scorer",
              "distinct=module", "diversity", "method=boundarymorph", "exclude_ids", "hybrid", "query_embedding",
              "return_documents", "explain", "on_failure=error")  # fmt: skip
OTHERS_BY_GATEWAY: dict[str, Fields] = {
    "calibration": {"calibration": True},
    "calibration, min_relevance": {"min_relevance": 0.4},
    "calibration=false": {"calibration": False},
    "missing index": {"index": "missing"},
    "pool": {"index": ABSENT, "pool": TEXTS},
    "pool, encoder": {"index": ABSENT, "pool": TEXTS, "vectors": "encoder"},
    "queries": {"query": ABSENT, "queries": [*QUERIES[:2]]},
}
FORWARDED = ("create/own", "create/own otherwise", "upload/array", "upload/missing index", "describe/own",
             "read/own/stats", "read/own/documents/7", "read/missing", "own/vectors",
             "delete/document", "delete/ids")  # fmt: skip
FAILURES: dict[str, Fields] = {
    "default": {},
    "degrade": {"on_failure": "degrade"},
    "error": {"on_failure": "error"},
    "budget=0": {"budget": 0},
    "pool": {"index": ABSENT, "pool": TEXTS},
    "pool, error": {"index": ABSENT, "pool": TEXTS, "on_failure": "error"},
    "queries": {"query": ABSENT, "queries": [*QUERIES[:2]]},
}


def failures(name: str) -> list[Request]:
    """Return requests whose answers show that a process has failed."""
    degrading = {dialect: (DIALECTS[dialect][0], DIALECTS[dialect][2]) for dialect in FORMATS}
    return [
        *rows(f"{name}/select", "/select", {**OF_INDEX, "k": 4}, FAILURES),
        *rows(f"{name}/stream", "/select", {**OF_INDEX, "k": 2}, FAILURES, EVENTS),
        *(Request(f"{name}/{dialect}", path, body) for dialect, (path, body) in degrading.items()),
        Request(f"{name}/cohere v1, degrade", "/v1/rerank", {**SORT, "on_failure": "degrade"}),
        Request(f"{name}/tei, degrade", "/rerank", {**DIALECTS["tei"][2], "on_failure": "degrade"}),
        Request(f"{name}/indexes", "/indexes", method="GET"),
        Request(f"{name}/livez", "/livez", method="GET"),
        replace(SELECT, name=f"{name}/tool"),
    ]


def apart() -> Iterator[Request | Kill]:
    """Yield the events of a gateway, its scorer, and its retriever."""
    for request in rows("scorer", "/score", {"query": "sort numbers", "texts": TEXTS[:5]}, SCORED):
        yield replace(request, role="scorer")
    for request in rows("retriever", "/retrieve", {"index": INDEX, "query": "sort a list", "depth": 5}, RETRIEVED):
        yield replace(request, role="retriever")
    for name, (path, body) in OF_RETRIEVER.items():
        yield Request(f"retriever/{name}", path, body, role="retriever")
    for role in ("scorer", "retriever"):
        for path in ("/info", "/indexes", "/livez", "/readyz", "/select"):
            yield Request(f"{role}{path}", path, method="GET", role=role)
    artifacts = f"/indexes/{INDEX}/artifacts"
    yield Request("gateway/change artifacts", artifacts, {"calibration": CALIBRATION, "distinct": None}, "PATCH")
    yield Request("gateway/change artifacts, a bad calibration", artifacts, {"calibration": {"version": 1}}, "PATCH")
    yield Request("gateway/read artifacts", artifacts, method="GET")
    gateway = {name: INDEX_OPTIONS[name] for name in BY_GATEWAY} | OTHERS_BY_GATEWAY
    yield from rows("gateway/select", "/select", OF_INDEX, gateway)
    yield from rows("gateway/stream", "/select", OF_INDEX, {"plain": {}, "explain": {"explain": True}}, EVENTS)
    for dialect in FORMATS:
        yield from rows(
            f"gateway/{dialect}", DIALECTS[dialect][0], DIALECTS[dialect][2], {"plain": {}, "budget": {"budget": 4}}
        )
    yield replace(SELECT, name="gateway/tool")
    yield from (replace(request, name=f"gateway/{request.name}") for request in INDEXES if request.name in FORWARDED)
    yield Request("gateway/delete", OWN, method="DELETE")
    for path in ("/indexes", "/info", "/v1/models", "/readyz"):
        yield Request(f"gateway{path}", path, method="GET")
    yield Kill("scorer")
    yield from failures("no scorer")
    yield Kill("retriever")
    yield from failures("neither")


ONE_PROCESS = {"service": "serve --data-directory {data}"}
THREE_PROCESSES = {
    "scorer": "scorer",
    "retriever": "retriever --data-directory {data}",
    "service": "serve --scorer-url {scorer} --retriever-url {retriever} --data-directory {empty}",
}
# A deadline that is far away does not change the rounds.
STEADY = {"BOUNDARYMORPH_DEADLINE_SECONDS": "600"}
# With a cache an answer would depend on earlier requests, and on whether they are left out.
SETTINGS: dict[str, Any] = {
    **STEADY,
    "BOUNDARYMORPH_CACHE__ENABLED": "false",
    "BOUNDARYMORPH_BUDGET": "6",
    "BOUNDARYMORPH_AUTO_BUDGET": "24",
    "BOUNDARYMORPH_POLICIES": POLICIES,
}
SMALL_LIMITS = {"pool": 12, "k": 12, "budget": 10, "query_characters": 100, "text_characters": 300, "line_bytes": 2_048,
                "body_bytes": 65_536, "texts": 12}  # fmt: skip
WITH_LIMITS: dict[str, Any] = {
    **STEADY,
    **{f"BOUNDARYMORPH_LIMITS__{name.upper()}": str(most) for name, most in SMALL_LIMITS.items()},
    **{f"BOUNDARYMORPH_{name}": str(value) for name, value in (("DEPTH", 12), ("K", 5), ("BUDGET", 4))},
    "BOUNDARYMORPH_AGENTS__BODY_BYTES": "1024",
    "BOUNDARYMORPH_KEYS": KEYS,
    "BOUNDARYMORPH_POLICIES": {"talk": {**POLICIES["fast"], "for_keys": ["chat"]}},
    "BOUNDARYMORPH_RATE_LIMITS__KEYS": {"rated": "2/year"},
}
# The default number of rounds depends on how fast a scorer elsewhere is, and probes of the parts on time.
WITH_PARTS: dict[str, Any] = {
    **SETTINGS,
    "BOUNDARYMORPH_ROUNDS": "2",
    "BOUNDARYMORPH_READY_INTERVAL_SECONDS": "3600",
}


def requests() -> Iterator[Request]:
    """Yield the requests to a service in one process."""
    yield from selections()
    yield from reranking()
    yield from INDEXES
    yield from MCP
    yield from (Request(f"get{path}", path, method="GET") for path in PAGES)


def scenes() -> dict[str, Scene]:
    """Return everything that is recorded."""
    return {
        "one process": Scene(ONE_PROCESS, SETTINGS, [*requests()]),
        "keys": Scene(ONE_PROCESS, WITH_LIMITS, WITH_KEYS),
        "apart": Scene(THREE_PROCESSES, WITH_PARTS, [*apart()]),
    }
