"""Our own servers, as a benchmark starts them: of this version, or of another commit."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

PROGRAM = "boundarymorph.cli"
START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Server:
    """A process that serves, and where."""

    process: subprocess.Popen[bytes]
    url: str

    def resident(self, kind: str) -> int:
        """MiB of the process that are its own (RssAnon) or of mapped files (RssFile)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{kind}:")[1].split()[0]) // 1024


@contextmanager
def scorer(options: Sequence[str] = (), *, port: int | None = None, tree: Path | None = None) -> Iterator[Server]:
    """A ready `boundarymorph scorer`, on a free port unless one is given, stopped at the end."""
    with serving(["scorer", *options], port=port, tree=tree) as server:
        yield server


@contextmanager
def retriever(data_directory: Path, options: Sequence[str] = ()) -> Iterator[Server]:
    """A ready `boundarymorph retriever` on a free port, stopped at the end."""
    with serving(["retriever", "--data-directory", str(data_directory), *options]) as server:
        yield server


@contextmanager
def serving(command: Sequence[str], *, port: int | None = None, tree: Path | None = None) -> Iterator[Server]:
    """`boundarymorph COMMAND`, once it is ready, on a free port unless one is given, stopped at the end.

    tree: a checkout whose source it runs, in place of this one.
    """
    port = _free_port() if port is None else port
    options = ["--port", str(port), "--log-level", "warning"]
    source = {} if tree is None else {"PYTHONPATH": str(tree / "service")}
    with subprocess.Popen([sys.executable, "-m", PROGRAM, *command, *options], env=os.environ | source) as process:
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


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A work tree of this repository at a commit, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)


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
