"""The services that clients are tried against, as processes, and stand-ins for scorers in trouble."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from tests.compatibility.check import Servers
from tests.system.service import service

DEADLINE_SECONDS = "1"  # of a request to the service whose scorer is late


class SlowScorer(ThreadingHTTPServer):
    """A scorer that answers probes, and nothing else before it is closed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: SlowScorer

    def do_GET(self) -> None:
        self._answer({"model": "slow", "max_texts": 512})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["query"] != "probe":
            self.server.closing.wait()
            return
        self._answer({"model": "slow", "scores": [0.5] * len(body["texts"]), "truncated": 0})

    def _answer(self, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def servers(directory: Path, *, embedded: bool) -> Iterator[Servers]:
    """The services, ready. embedded: with the embedded weights, or with tiny ones in their place."""
    secret, key = callers.make_key("client", [Scope.SELECT])
    environment = {"BOUNDARYMORPH_KEYS": str(key), "BOUNDARYMORPH_LIMITS__POOL": "50", "BOUNDARYMORPH_DEPTH": "50"}
    late = environment | {"BOUNDARYMORPH_DEADLINE_SECONDS": DEADLINE_SECONDS}
    with ExitStack() as stack:
        slow, gone = SlowScorer(), SlowScorer()
        stack.callback(slow.close)

        def start(name: str, *options: str, environment: dict[str, str] = environment) -> str:
            running = service(directory / name, *options, environment=environment, embedded=embedded)
            return stack.enter_context(running).url

        try:
            whole = start("whole")
            slowed = start("late", "--scorer-url", slow.url, environment=late)
            away = start("away", "--scorer-url", gone.url)
        finally:
            gone.close()
        yield Servers(whole, away, slowed, secret)
