"""`boundarymorph serve`, `boundarymorph scorer` and `boundarymorph retriever` as processes, with a client for each."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx

from tests.system.forked import Forked, start

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("BOUNDARYMORPH_")}
READY_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def boundarymorph(*arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, to its end."""
    command = [sys.executable, "-m", "boundarymorph.cli", *arguments, "--data-directory", str(data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, check=False)


@dataclass(frozen=True, slots=True)
class Service:
    """A running service; its log is on disk."""

    process: subprocess.Popen[bytes] | Forked
    client: httpx.Client
    port: int
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def await_answer(self, path: str = "/readyz") -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            try:
                if self.client.get(path).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def metric(self, sample: str) -> float:
        """The value of a sample, named with its labels in alphabetical order; 0 if it is not there."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample))


@contextmanager
def service(
    data: Path,
    *options: str,
    port: int | None = None,
    ready: bool = True,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Service]:
    """A service over a data directory, killed at the end if it still runs. environment: what is added to it."""
    with _process(
        "serve", data.parent / f"{data.name}.log", [*options, "--data-directory", str(data)], port, environment
    ) as running:
        if ready:
            running.await_answer()
        yield running


@contextmanager
def scorer(log_file: Path, *options: str, port: int | None = None, ready: bool = True) -> Iterator[Service]:
    """A scorer, killed at the end if it still runs."""
    with _process("scorer", log_file, options, port) as running:
        if ready:
            running.await_answer()
        yield running


@contextmanager
def retriever(
    data: Path, *options: str, port: int | None = None, ready: bool = True, through: Sequence[str] = ()
) -> Iterator[Service]:
    """A retriever over a data directory, killed at the end if it still runs. through: a command that runs another."""
    with _process(
        "retriever",
        data.parent / f"{data.name}-retriever.log",
        [*options, "--data-directory", str(data)],
        port,
        through=through,
    ) as running:
        if ready:
            running.await_answer()
        yield running


@contextmanager
def _process(
    role: str,
    log_file: Path,
    options: Sequence[str],
    port: int | None,
    environment: Mapping[str, str] = MappingProxyType({}),
    through: Sequence[str] = (),
) -> Iterator[Service]:
    port = free_port() if port is None else port
    arguments = [role, "--port", str(port), *options]
    variables = {**ENVIRONMENT, **environment}
    with (
        log_file.open("ab") as log,
        _started(arguments, log.fileno(), variables, log_file.parent, through) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        try:
            yield Service(process, client, port, log_file)
        finally:
            process.kill()


def _started(
    arguments: Sequence[str], output: int, environment: Mapping[str, str], directory: Path, through: Sequence[str]
) -> subprocess.Popen[bytes] | Forked:
    """A process by itself where something is to come before its imports, or where it starts others; else a fork."""
    if not (through or "LD_PRELOAD" in environment or "--workers" in arguments):
        return start(arguments, output=output, environment=environment, directory=directory)
    command = [*through, sys.executable, "-m", "boundarymorph.cli", *arguments]
    return subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=directory)
