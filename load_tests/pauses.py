"""Measure the longest pause of a real service, by route and kind of text.

This is how long `GET /livez` waited at most, beside the same number of bytes of plain prose in the same run.

Another process asks every 5 ms over one connection. The service has the embedded models and the default limits. On an
idle machine no pause should be longer than 250 ms; on a busy one, compare a line with its prose.

    python -m load_tests.pauses            # prints a line for each
    python -m load_tests.pauses --assert   # also exits with 1 if a pause is longer
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import httpx
import numpy as np

from load_tests.processes import serving
from tests.texts import KINDS, PROSE, repeated

CHARACTERS = 500_000  # characters of each text
MOST = 0.25  # seconds
EVERY = 0.005
JSON, LINES = "application/json", "application/x-ndjson"


def watch(port: int, control: Connection) -> None:
    """Call the service every few milliseconds.

    Answer each message of the control with the longest wait since the one before.
    """
    request = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    connection, longest = None, 0.0
    while True:
        begun = time.perf_counter()
        try:
            connection = connection or socket.create_connection(("127.0.0.1", port), timeout=120)
            connection.sendall(request)
            if not connection.recv(65_536):
                connection = None
        except OSError:
            connection = None
        longest = max(longest, time.perf_counter() - begun)
        if control.poll(EVERY):
            if control.recv() is None:
                return
            control.send(longest)
            longest = 0.0


class Pauses:
    """The watching process, and its observations."""

    def __init__(self, control: Connection, client: httpx.Client) -> None:
        self._control, self._client = control, client
        self.longest = 0.0

    def of(self, path: str, body: bytes, kind: str = JSON) -> tuple[float, httpx.Response]:
        """Send a request; return the longest pause of others until a moment later, and the answer."""
        self._reset()
        response = self._client.post(path, content=body, headers={"Content-Type": kind, "Accept": "*/*"})
        time.sleep(0.05)  # the memory of the answer is freed
        return self._reset(), response

    def _reset(self) -> float:
        self._control.send(True)
        seen: float = self._control.recv()
        return seen


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def mcp(text: str) -> bytes:
    call = {"name": "search", "arguments": {"query": text, "index": "texts"}}
    return encoded({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})


ROUTES: dict[str, tuple[str, Callable[[str], bytes], str]] = {
    "select, pool": (
        "/select",
        lambda text: encoded({"query": "sea", "pool": [text, text + " sea", "a sea"], "budget": 2, "k": 1}),
        JSON,
    ),
    "rerank": ("/v1/rerank", lambda text: encoded({"query": "sea", "documents": [text, "a sea"]}), JSON),
    "TEI": ("/rerank", lambda text: encoded({"query": "sea", "texts": [text, "a sea"], "truncate": True}), JSON),
    "upload": ("/indexes/texts/documents", lambda text: encoded({"id": "1", "text": text}), LINES),
    "select, index": (
        "/select",
        lambda text: encoded({"query": "sea", "index": "texts", "budget": 1, "k": 1}),
        JSON,
    ),
    "mcp": ("/mcp", lambda text: mcp(text[: 2**19 // len(text[-1].encode())]), JSON),
}


def bodies() -> Iterator[tuple[str, str, bytes, int]]:
    """Yield name, path, body, and expected status of whole bodies."""
    yield "escapes that are no JSON", "/select", b'{"query":"' + rb"\n" * 15_000_000, 422
    yield "half surrogates", "/select", b'{"query":"sea","pool":["' + rb"\ud83d" * 5_000_000 + b'"]}', 422
    numbers = b"[[" + b"1," * 30_000_000 + b"1]]"
    yield "60 MB of numbers in an unknown field", "/select", b'{"query":"sea","pool":["a"],"x":' + numbers + b"}", 422
    inside = b'{"query":"sea","budget":0,"pool":[{"text":"a","metadata":{"x":' + numbers + b"}}]}"
    yield "60 MB of numbers in metadata", "/select", inside, 422
    few = b'{"query":"sea","pool":["a"],"x":[' + b"[1,1]," * 10_000_000 + b"[]]}"
    yield "60 MB of short lists", "/select", few, 422
    texts = encoded({"query": "sea", "pool": ["a, b, 1, " * 6_000] * 1_000, "budget": 0, "k": 1})
    yield "54 MB of texts with commas", "/select", texts, 200
    yield "empty objects", "/select", b'{"query":"sea","pool":["a"],"x":[' + b"{}," * 500_000 + b"{}]}", 422
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((10_000, 384)).round(6).tolist()
    text = (PROSE * 10)[:1_000]
    pool = [{"text": f"{n} {text}", "embedding": vector} for n, vector in enumerate(vectors)]
    query = rng.standard_normal(384).tolist()
    whole = {"query": "sea", "query_embedding": query, "pool": pool, "budget": 10, "k": 5}
    yield "10,000 texts of 1 kB with 384-dimensional vectors", "/select", encoded(whole), 200


@contextmanager
def watched(url: str) -> Iterator[Pauses]:
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=watch, args=(httpx.URL(url).port, there), daemon=True)
    process.start()
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
        yield Pauses(here, client)
    here.send(None)
    process.join()


def measure(pauses: Pauses) -> tuple[int, int]:
    """Print a line for each route and kind, and for each body.

    Returns how many pauses were too long, and how many bodies got an unexpected answer.
    """
    print(f"{'route':15}{'text':50}{'pause':>8}{'prose':>8}  status")
    prose: dict[tuple[str, int], float] = {}
    long, wrong = 0, 0
    for path, body, content_type in ROUTES.values():  # loads models and modules
        pauses.of(path, body(PROSE), content_type)
    for kind, made in KINDS.items():
        text = made(CHARACTERS)
        size = len(text.encode()) // CHARACTERS
        for route, (path, body, content_type) in ROUTES.items():
            if (route, size) not in prose:
                plain = body(repeated(PROSE)(CHARACTERS * size if size < 3 else 10**6))
                prose[route, size] = pauses.of(path, plain, content_type)[0]
            pause, response = pauses.of(path, body(text), content_type)
            long += pause > MOST
            print(
                f"{route:15}{kind:50}{pause * 1e3:5.0f} ms{prose[route, size] * 1e3:5.0f} ms  {response.status_code}",
                flush=True,
            )
    for name, path, body_, status in bodies():
        pause, response = pauses.of(path, body_)
        long += pause > MOST
        wrong += response.status_code != status
        print(f"{'a body':15}{name:50}{pause * 1e3:5.0f} ms{'':8}  {response.status_code}", flush=True)
    return long, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assert", action="store_true", dest="exact", help="exit with 1 if a pause is too long")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(["serve", "--data-directory", folder]) as server:
        httpx.put(f"{server.url}/indexes/texts", trust_env=False).raise_for_status()
        with watched(server.url) as pauses:
            long, wrong = measure(pauses)
    print(f"{long} pauses were longer than {MOST * 1e3:.0f} ms; {wrong} bodies got another answer than they should")
    sys.exit(1 if wrong or (given.exact and long) else 0)


if __name__ == "__main__":
    main()
