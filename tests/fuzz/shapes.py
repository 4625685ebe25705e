"""Bodies drawn by their structure, and what reading them takes: memory, and the longest pause of the event loop.

`python -m tests.fuzz.shapes` serves each application in this process and prints a line of JSON for each body. With
`--minutes`, that is `make soak NAME=shapes`.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import ctypes
import gc
import http.client
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from boundarymorph.settings import AgentSettings
from tests.fuzz.services import APPS, SECRET, App, serving
from tests.patience import PATIENCE

HERE = "\0here"  # marks a place in a body
THINGS = (b"{}", b"[]", b'""', b"1", b"0.5", b"null", b'{"a":1}', b"[1]", b'"ab"', b"[[]]", b'{"":{}}', b'"\\u00e9"')
Route = tuple[str, str, str, Any]  # method, path, content type, and a good body
TIMES, LEAST_BYTES, PAUSE = 25, 64 * 2**20, 0.3
JSON, NDJSON = "application/json", "application/x-ndjson"
DOCUMENT: dict[str, Any] = {"id": "a", "text": "t", "metadata": {"m": 1}}
BEGIN = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
SELECTING: list[Route] = [
    ("POST", "/select", JSON, {"query": "q", "pool": [DOCUMENT, "t"], "budget": 1, "k": 1}),
    ("POST", "/select", JSON, {"query": "q", "pool": {"documents": [{"text": "t"}], "features": {"f": [1]}}, "k": 1}),
    ("POST", "/select", JSON, {"query": "q", "index": "texts", "filter": {"from": {"in": ["index"]}}, "budget": 0}),
    ("POST", "/select", JSON, {"query": "q", "index": "own", "query_embedding": [1, 0, 0, 0], "budget": 0}),
    ("POST", "/rerank", JSON, {"query": "q", "documents": ["a", {"text": "b"}], "rank_fields": ["text"]}),
    ("POST", "/rerank", JSON, {"query": "q", "texts": ["a", "b"]}),
    *(("POST", path, JSON, {"query": "q", "documents": ["a"]}) for path in ("/v1/rerank", "/v2/rerank")),
    ("POST", "/infinity/rerank", JSON, {"query": "q", "documents": ["a"], "return_documents": True}),
    ("POST", "/voyage/v1/rerank", JSON, {"query": "q", "documents": ["a"], "top_k": 1, "distinct": {"by": "a"}}),
    ("POST", "/v1/reranking", JSON, {"query": "q", "input": ["a", {"text": "b"}], "rank_fields": ["text"]}),
    ("POST", "/v1/ranking", JSON, {"query": {"text": "q"}, "passages": [{"text": "a"}]}),
    ("POST", "/tools/select_documents", JSON, {"query": "q", "index": "texts", "filter": {"from": "x"}, "budget": 0}),
    ("POST", "/tools/search", JSON, {"query": "q", "index": "texts"}),
    ("POST", "/tools/list_indexes", JSON, {}),
    ("POST", "/tools/fetch", JSON, {"id": "texts/d0", "offset": 0}),
    ("POST", "/judgments", JSON, {"query": "q", "index": "texts", "judgments": [{"document": "d0", "grade": 1}]}),
    ("POST", "/mcp", JSON, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": BEGIN}),
]
INDEXES: list[Route] = [
    ("PUT", "/indexes/new", JSON, {"dimension": 4, "kind": "flat"}),
    ("DELETE", "/indexes/texts/documents", JSON, {"ids": ["x"]}),
    ("DELETE", "/indexes/texts/documents", JSON, {"filter": {"from": {"in": ["nowhere"]}}}),
    ("POST", "/indexes/own/documents", JSON, [DOCUMENT | {"embedding": [1, 0, 0, 0]}]),
    ("POST", "/indexes/own/documents", NDJSON, DOCUMENT | {"embedding": [1, 0, 0, 0]}),
]
ROUTES: dict[App, list[Route]] = {
    "whole": [*SELECTING, *INDEXES],
    "gateway": SELECTING[:1],
    "retriever": [
        ("POST", "/retrieve", JSON, {"index": "own", "query": "q", "depth": 1, "query_embedding": [1, 0, 0, 0]}),
        ("POST", "/documents", JSON, {"index": "own", "ids": ["e0"]}),
        ("POST", "/characters", JSON, {"index": "own", "ids": ["e0"]}),
        ("POST", "/embed/query", JSON, {"query": "q"}),
        ("POST", "/embed/documents", JSON, {"texts": ["t"]}),
        ("POST", "/calibrations", JSON, {"name": "a", "index": "own"}),
        ("POST", "/calibrations/keep", JSON, {"calibration": {"name": "a", "index": "own"}}),
        ("POST", "/judgments/events", JSON, {"index": "own", "after": 0}),
    ],
    "scorer": [("POST", "/score", JSON, {"query": "q", "texts": ["t"]})],
}
Draw = random.Random
Shape = Callable[[Draw, int], bytes]


def many(draw: Draw, size: int) -> bytes:
    thing = draw.choice(THINGS)
    return b"[" + b",".join([thing] * (size // (len(thing) + 1))) + b"]"


def names(draw: Draw, size: int) -> bytes:
    thing = draw.choice(THINGS)
    return b"{" + b",".join(b'"k%d":%s' % (number, thing) for number in range(size // (10 + len(thing)))) + b"}"


def one_name(draw: Draw, size: int) -> bytes:
    member = b'"%s":%s' % (draw.choice((b"text", b"a", b"documents", b"query")), draw.choice(THINGS))
    return b"{" + b",".join([member] * (size // (len(member) + 1))) + b"}"


def deep(draw: Draw, size: int) -> bytes:
    opening, closing = draw.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"[1,", b"]"), (b'[{"not":', b"}]")))
    levels = draw.choice((50, 150, 190, 260, 1_100, size // len(opening)))
    nested = opening * levels + b"1" + closing * (levels if draw.random() < 0.7 else levels - 1)
    return b"[" + b",".join([nested] * max(1, size // len(nested))) + b"]"


def long(draw: Draw, size: int) -> bytes:
    piece = draw.choice((b"a", b" ", b"\\n", b"\\u00e9", b'\\"', "\u00e9".encode(), b"\\\\", b"[{,"))
    ending = draw.choice((b'"', b'"', b"", b'\\"'))
    return draw.choice((b'"' + piece * (size // len(piece)) + ending, b"1" * size, b"0." + b"1" * size, b"\xff" * size))


SHAPES: tuple[Shape, ...] = (many, names, one_name, deep, long)
ALL = len(SHAPES) + 3  # with the copies of a good element


def bodies(template: Any, draw: Draw, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield a name and a body for each shape at a drawn place, then for copies of a good element, all right, or with
    a wrong one at the beginning or at the end."""
    places = list(_places(template))
    for shape in SHAPES:
        yield shape.__name__, _with(template, draw.choice(places), shape(draw, size))
    elements = [place for place in places if place and isinstance(place[-1], int)] or places
    for name, first, last in (("right", b"", b""), ("wrong first", b"[],", b""), ("wrong last", b"", b",[]")):
        place = draw.choice(elements)
        element = json.dumps(_at(template, place)).encode()
        copies = b",".join([element] * (size // (len(element) + 1)))
        yield name, _with(template, place, first + copies + last)


def _places(value: Any, here: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield here
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield from _places(member, (*here, name))


def _at(value: Any, place: tuple[str | int, ...]) -> Any:
    for name in place:
        value = value[name]
    return value


def _with(template: Any, place: tuple[str | int, ...], filling: bytes) -> bytes:
    if not place:
        return filling
    changed = copy.deepcopy(template)
    _at(changed, place[:-1])[place[-1]] = HERE
    return json.dumps(changed).encode().replace(json.dumps(HERE).encode(), filling)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a body took. grown: bytes at the peak; pause: seconds of CPU of this process between two steps of the loop,
    which other processes do not add to."""

    route: str
    shape: str
    size: int
    status: int
    grown: int
    pause: float
    body: str

    @property
    def holds(self) -> bool:
        return self.grown <= max(TIMES * self.size, LEAST_BYTES) and self.pause <= PAUSE and self.status < 500


def send(port: int, method: str, path: str, kind: str, body: bytes) -> int:
    headers = {"Content-Type": kind, "Authorization": f"Bearer {SECRET}", "Accept": f"{JSON}, text/event-stream"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # it is refused before all has been sent
            connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status


def memory_of_this_process(field: str) -> int:
    """Bytes, as the kernel counts them."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith(field)))


def begin_the_peak_anew() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


async def measured(port: int, route: Route, shape: str, body: bytes) -> Taken:
    """Send a body and measure what it takes."""
    method, path, kind, _ = route
    begin_the_peak_anew()
    before, longest = memory_of_this_process("VmRSS"), 0.0
    sending = asyncio.ensure_future(asyncio.to_thread(send, port, method, path, kind, body))
    while not sending.done():
        begun = time.process_time()
        await asyncio.sleep(0.001)
        longest = max(longest, time.process_time() - begun)
    grown = max(0, memory_of_this_process("VmHWM") - before)
    shown = body[:300].decode(errors="replace")
    return Taken(f"{method} {path}", shape, len(body), await sending, grown, longest, shown)


async def taken_by(app: App, draw: Draw, size: int, shapes: int) -> AsyncIterator[Taken]:
    """Send so many of the shapes to each route of an application."""
    with TemporaryDirectory() as folder:
        async with serving(app, Path(folder), embedded=False) as client:
            port = client.base_url.port
            assert port is not None
            for route in ROUTES[app]:
                _, path, _, template = route
                await measured(port, route, "warm", json.dumps(template).encode())
                most = size if not path.startswith(("/tools", "/mcp")) else min(size, AgentSettings().body_bytes // 2)
                drawn = draw.sample(range(ALL), shapes)
                for shape, body in (found for n, found in enumerate(bodies(template, draw, most)) if n in drawn):
                    yield await measured(port, route, shape, body)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apps", nargs="+", choices=APPS, default=APPS)
    parser.add_argument("--size", type=int, help="bytes of a body; by default drawn up to 32 MiB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shapes", type=int, default=ALL, help="drawn for each route")
    parser.add_argument("--minutes", type=float, default=0.0, help="once, or for so long with other seeds")
    chosen = parser.parse_args()
    until, seed, bad = time.monotonic() + 60 * chosen.minutes, chosen.seed, 0
    while True:
        draw = random.Random(seed)
        for app in chosen.apps:
            async for taken in taken_by(app, draw, chosen.size or int(2 ** draw.uniform(18, 25)), chosen.shapes):
                bad += not taken.holds
                print(json.dumps(asdict(taken) | {"app": app, "seed": seed, "holds": taken.holds}), flush=True)
        seed += 1
        if time.monotonic() >= until:
            return min(bad, 1)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
