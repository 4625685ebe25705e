"""A real service process for benchmarks."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


@contextmanager
def running(data_directory: Path, *options: str) -> Iterator[httpx.Client]:
    """A ready `boundarymorph serve` on a free port; stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "boundarymorph.cli", "serve", "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen([*command, "--data-directory", str(data_directory), *options])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            while not _ready(client):
                if process.poll() is not None:
                    raise RuntimeError(f"the service stopped with exit code {process.returncode}")
                time.sleep(0.05)
            yield client
    finally:
        process.terminate()
        process.wait(timeout=30)


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx.TransportError:
        return False
