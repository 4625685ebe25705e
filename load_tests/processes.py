"""Start the servers of benchmarks, of this version or of another commit."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.patience import until
from tests.ports import free_port

REPOSITORY = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Server:
    """A server process and its URL."""

    process: subprocess.Popen[bytes]
    url: str

    def processor_seconds(self) -> float:
        """Return the CPU seconds that it has used, on all cores."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def resident(self) -> int:
        """Return the resident MiB of the process itself, without mapped files."""
        memory = psutil.Process(self.process.pid).memory_info()
        return int(memory.rss - memory.shared) // 2**20


@contextmanager
def serving(
    command: Sequence[str], *, port: int | None = None, tree: Path | None = None, variables: Mapping[str, str] = {}
) -> Iterator[Server]:
    """Run `boundarymorph COMMAND`, yield it when it is ready, and stop it at the end.

    Args:
        command: The arguments.
        port: The port; by default a free one.
        tree: A checkout whose source it runs instead of this one.
        variables: Further environment variables.
    """
    port = port or free_port()
    arguments = [*command, "--port", str(port), "--log-level", "warning"]
    with ready(start(arguments, {**source(tree), **variables}), port, "readyz") as server:
        yield server


@contextmanager
def ready(started: subprocess.Popen[bytes], port: int, path: str) -> Iterator[Server]:
    """Yield a server once a path answers, and stop it at the end."""
    server = Server(started, f"http://127.0.0.1:{port}")

    def answers() -> bool:
        assert started.poll() is None, f"{started.args!r} has ended"
        try:
            return httpx.get(f"{server.url}/{path}", trust_env=False).is_success
        except httpx.TransportError:
            return False

    with started:
        try:
            until(answers)
            yield server
        finally:
            started.terminate()


def retriever(
    folder: Path, *, tree: Path | None = None, variables: Mapping[str, str] = {}
) -> AbstractContextManager[Server]:
    """Run `boundarymorph retriever` over a data directory, as `serving` does."""
    return serving(["retriever", "--data-directory", str(folder)], tree=tree, variables=variables)


def source(tree: Path | None) -> dict[str, str]:
    """Return the environment of a process for the version in a source tree, None for this one."""
    path = [str((tree or REPOSITORY) / "service"), str(REPOSITORY)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def start(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `boundarymorph ARGUMENTS`."""
    return subprocess.Popen([sys.executable, "-m", "boundarymorph.cli", *arguments], env=environment)


@contextmanager
def checkout(commit: str | None) -> Iterator[Path | None]:
    """Yield a temporary worktree of this repository at a commit, or an existing folder.

    It is None for None.
    """
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


async def stopped(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks that run for ever. Raises the error of one that has failed."""
    await asyncio.sleep(0)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
