"""Records the answers to a hundred requests, and compares those of two versions of the service.

    python -m load_tests.answers record --data data before.json     # a copy of the folder of `make demo` is used
    python -m load_tests.answers compare before.json after.json

Requests go to a real process; what differs from run to run (ids, timings) is left out.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson

from load_tests.processes import serving

INDEX = "python-docstrings"
VOLATILE = {"id", "timings_ms", "created", "bytes", "snapshot", "structure"}
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
OPTIONS: tuple[dict[str, Any], ...] = (
    {"budget": 30, "k": 50, "explain": True},  # finds known scores
    {"budget": 10, "k": 20, "reuse": False, "return_documents": True},
    {"budget": 8, "k": 30, "method": "boundarymorph", "rounds": 8},
    {"budget": 12, "k": 40, "method": "boundarymorph", "rounds": 3},
    {"budget": 12, "k": 25, "hybrid": True, "depth": 500},
    {"budget": 0, "k": 10},
    {"budget": 15, "max_tokens": 2000, "depth": 2000},
)
FILTERS: tuple[dict[str, Any], ...] = (
    {"kind": "class"},
    {"module": {"in": ["os", "io", "pathlib"]}},
    {"and": [{"kind": "function"}, {"not": {"module": "asyncio"}}]},
    {"module": {"gte": "m", "lt": "s"}},
    {"module": "there is none"},
    {"kind": 3},
    {"colour": {"exists": True}},
)
STREAM = {"Accept": "text/event-stream"}
Request = tuple[str, str, dict[str, Any] | None, dict[str, str]]


def selections() -> Iterator[dict[str, Any]]:
    """Yield bodies of POST /select in the order of sending: some find scores of earlier ones."""
    for number, query in enumerate(QUERIES):
        yield {"query": query, "index": INDEX, "budget": 10 + 5 * (number % 3), "k": 5 + 20 * (number % 4)}
    for query, options in product(QUERIES[:5], OPTIONS):
        yield {"query": query, "index": INDEX, **options}
    for filter in FILTERS:
        yield {"query": QUERIES[1], "index": INDEX, "filter": filter, "budget": 6, "k": 12}
        yield {"query": QUERIES[5], "index": INDEX, "filter": filter, "budget": 6, "k": 12, "hybrid": True}
    yield {"query": QUERIES[0], "index": INDEX, "budget": "auto", "k": 10, "depth": 300}
    yield from pools()


def pools() -> Iterator[dict[str, Any]]:
    """Yield bodies with pools, with and without vectors, scores and lengths."""
    texts = [f"{verb} {adverb} the {thing}" for verb in ("sort", "read", "sum") for adverb in ("slowly", "at once")
             for thing in ("list", "file", "numbers", "words")]  # fmt: skip
    documents: list[dict[str, Any]] = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    vectors = np.random.default_rng(0).standard_normal((len(texts), 16)).astype("<f2")
    block = {"data": base64.b64encode(vectors.tobytes()).decode(), "shape": list(vectors.shape)}
    own = {"query_embedding": [1.0] + 15 * [0.25]}
    base = {"query": "sort numbers", "budget": 8, "k": 6}
    scored = [document | {"score": -float(i)} for i, document in enumerate(documents)]
    yield base | {"pool": documents}
    yield base | {"pool": scored}
    yield base | {"pool": {"documents": documents, "embeddings": block}} | own
    yield base | {"pool": {"documents": scored, "embeddings": block}, "method": "boundarymorph"} | own
    yield base | {"pool": [d | {"bm25": i % 5 / 2} for i, d in enumerate(documents)], "explain": True}
    yield base | {"pool": [d | {"tokens": 3 + i % 4} for i, d in enumerate(documents)], "max_tokens": 30, "k": None}
    yield base | {"pool": [d | ({"cross_encoder_score": 0.25} if i < 4 else {}) for i, d in enumerate(documents)]}
    yield base | {"pool": documents, "k": 24}
    yield base | {"pool": documents[:3], "return_documents": True}
    yield base | {"pool": documents, "budget": 24, "k": 12}
    yield base | {"pool": {"documents": documents, "embeddings": block}}  # no query embedding of 16 numbers
    yield base | {"pool": [documents[0], documents[0]]}
    yield base | {"pool": []}
    yield base
    yield base | {"index": INDEX, "filter": {"kind": {"like": "x"}}}
    yield base | {"index": INDEX, "budgte": 5}
    yield base | {"index": INDEX, "k": 0}
    yield base | {"index": INDEX, "depth": 1_000_000}
    yield base | {"index": "missing"}
    yield base | {"index": INDEX, "query": " "}
    yield base | {"index": INDEX, "query_embedding": [1.0, 2.0]}


def requests() -> Iterator[Request]:
    """Yield requests: method, path, body and headers."""
    for body in selections():
        yield "POST", "/select", body, {}
    for query in QUERIES[:6]:
        asked = {"query": query, "index": INDEX, "budget": 9, "k": 7, "rounds": 3, "depth": 1000}
        yield "POST", "/select", asked, STREAM
    yield "POST", "/select", {"query": "sort", "index": "missing"}, STREAM
    yield "GET", f"/indexes/{INDEX}/documents/builtins.list.sort", None, {}
    yield "PUT", "/indexes/own", {"dimension": 4}, {}
    vectors = [[1, i, i * i % 7, i % 3] for i in range(40)]
    rows = [{"id": i, "text": f"row {i}", "embedding": row, "metadata": {"n": i}} for i, row in enumerate(vectors)]
    yield "POST", "/indexes/own/documents", {"": rows}, {}
    select = {"query": "row", "index": "own", "query_embedding": [1.0, 2.0, 3.0, 1.0], "budget": 4, "k": 8}
    yield "POST", "/select", select, {}
    yield "POST", "/select", select | {"filter": {"n": {"lt": 20}}, "hybrid": True}, {}
    yield "DELETE", "/indexes/own/documents/7", None, {}
    yield "POST", "/select", select | {"reuse": False}, {}


def record(data: Path) -> list[dict[str, Any]]:
    """Return every answer of a service over a copy of `data`, and of one whose scorer is down."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "data"
        shutil.copytree(data, copy)
        with service(copy) as client:
            answers = [answer(client, request) for request in requests()]
        with serving(["scorer"]) as alone, service(copy, "--scorer-url", alone.url) as client:
            alone.process.kill()
            for query, more in product(QUERIES[:3], ({}, {"on_failure": "error"})):
                body = {"query": query, "index": INDEX, "budget": 10, "k": 10, **more}
                answers.append(answer(client, ("POST", "/select", body, {})))
            answers.append(answer(client, ("POST", "/select", {"query": "sort", "index": INDEX, "k": 4}, STREAM)))
    return answers


@contextmanager
def service(data: Path, *arguments: str) -> Iterator[httpx.Client]:
    """Start a service that learns nothing, as that depends on time; wait until it is ready, and yield a client."""
    command, variables = ["serve", "--data-directory", str(data), *arguments], {"BOUNDARYMORPH_MEMORY__FROZEN": "true"}
    with serving(command, variables=variables) as server, httpx.Client(base_url=server.url, timeout=300) as client:
        yield client


def answer(client: httpx.Client, request: Request) -> dict[str, Any]:
    """Return the answer without what differs from run to run."""
    method, path, body, headers = request
    content = None if body is None else orjson.dumps(body.get("", body))
    kind = {"Content-Type": "application/json"} if body is not None else {}
    response = client.request(method, path, content=content, headers=kind | headers)
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        lines = filter(None, response.text.splitlines())
        said: Any = [stable(orjson.loads(line[6:])) if line.startswith("data: ") else line for line in lines]
    else:
        said = stable(orjson.loads(response.content)) if response.content else None
    summary = {name: value for name, value in (body or {}).items() if name not in ("pool", "")}
    return {"request": f"{method} {path} {summary} {headers}", "status": response.status_code, "answer": said}


def stable(value: Any) -> Any:
    """Remove ids and timings of requests; documents keep their ids."""
    return {name: inner for name, inner in value.items() if name not in VOLATILE} if isinstance(value, dict) else value


def compare(before: Path, after: Path) -> int:
    """Print every request that is answered differently, and return their number."""
    pairs = list(zip_longest(*(orjson.loads(path.read_bytes()) for path in (before, after)), fillvalue={}))
    different = [(old, new) for old, new in pairs if old != new]
    for old, new in different:
        print((old or new)["request"])
        for when, found in (("before", old), ("after ", new)):
            print(f"  {when} {found.get('status')} {orjson.dumps(found.get('answer')).decode()[:1500]}")
    print(f"{len(pairs)} requests, {len(different)} answered differently")
    return len(different)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("files", nargs="+", type=Path, help="to write, or the two to compare")
    parser.add_argument("--data", type=Path, default=Path("data"))
    given = parser.parse_args()
    if given.command == "compare":
        sys.exit(bool(compare(*given.files)))
    given.files[0].parent.mkdir(parents=True, exist_ok=True)
    given.files[0].write_bytes(orjson.dumps(record(given.data), option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
