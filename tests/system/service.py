"""`boundarymorph serve` as a process, and a client for it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

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

    process: subprocess.Popen[bytes]
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
        return self.process.wait(timeout=30)


@contextmanager
def service(data: Path, *, port: int | None = None, ready: bool = True) -> Iterator[Service]:
    """A service over a data directory, killed at the end if it still runs."""
    port = free_port() if port is None else port
    log_file = data.parent / f"{data.name}.log"
    command = [sys.executable, "-m", "boundarymorph.cli", "serve", "--port", str(port), "--data-directory", str(data)]
    with (
        log_file.open("ab") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT, cwd=data.parent) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        running = Service(process, client, port, log_file)
        try:
            if ready:
                running.await_answer()
            yield running
        finally:
            process.kill()
