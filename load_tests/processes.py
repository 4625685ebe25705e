"""Starts servers for benchmarks, of this version or of another commit."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.ports import free_port

START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server process and its URL."""

    process: subprocess.Popen[bytes]
    url: str

    def processor_seconds(self) -> float:
        """That its process has used so far, on all cores."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system

    def resident(self, kind: str) -> int:
        """Return the resident MiB of the process itself (RssAnon) or of mapped files (RssFile)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{kind}:")[1].split()[0]) // 1024


@contextmanager
def scorer(options: Sequence[str] = (), *, port: int | None = None, tree: Path | None = None) -> Iterator[Server]:
    """Run `boundarymorph scorer`, by default on a free port, yield it when it is ready, and stop it at the end."""
    with serving(["scorer", *options], port=port, tree=tree) as server:
        yield server


@contextmanager
def retriever(data_directory: Path, options: Sequence[str] = (), *, tree: Path | None = None) -> Iterator[Server]:
    """Run `boundarymorph retriever` on a free port, yield it when it is ready, and stop it at the end."""
    with serving(["retriever", "--data-directory", str(data_directory), *options], tree=tree) as server:
        yield server


@contextmanager
def serving(command: Sequence[str], *, port: int | None = None, tree: Path | None = None) -> Iterator[Server]:
    """Run `boundarymorph COMMAND`, by default on a free port, yield it when it is ready, and stop it at the end.

    tree: a checkout whose source it runs instead of this one.
    """
    port = free_port() if port is None else port
    options = ["--port", str(port), "--log-level", "warning"]
    source = {} if tree is None else {"PYTHONPATH": str(tree / "service")}
    with start([*command, *options], os.environ | source) as process:
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


def start(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `boundarymorph ARGUMENTS`."""
    return subprocess.Popen([sys.executable, "-m", "boundarymorph.cli", *arguments], env=environment)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yield a temporary work tree of this repository at a commit, or the folder of one that is there."""
    if Path(commit).is_dir():
        yield Path(commit)
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
