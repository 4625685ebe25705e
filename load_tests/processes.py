"""Our own servers, as a benchmark starts them."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Server:
    """A process that serves, and where."""

    process: subprocess.Popen[bytes]
    url: str


@contextmanager
def scorer(options: Sequence[str] = (), *, port: int | None = None) -> Iterator[Server]:
    """A ready `boundarymorph scorer`, on a free port unless one is given, stopped at the end."""
    port = _free_port() if port is None else port
    command = [sys.executable, "-m", "boundarymorph.cli", "scorer", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen([*command, *options]) as process:
        server = Server(process, f"http://127.0.0.1:{port}")
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _ready(server.url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the scorer did not become ready")
                time.sleep(0.1)
            yield server
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False
