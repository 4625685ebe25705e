"""Milvus for tests: milvus-lite as a server, in this process or in one of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boundarymorph.errors import RetrieverUnavailable
from boundarymorph.retrieval.milvus.connection import Connection
from boundarymorph.settings import MilvusSettings

PREFIX = MilvusSettings().prefix
UP_TO = 60.0  # seconds that a server may take to start on a busy machine


@contextmanager
def embedded(directory: Path) -> Iterator[str]:
    """The URL of a server in this process."""
    from milvus_lite.adapter.grpc.server import start_server_in_thread

    server, database, port = start_server_in_thread(str(directory))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
        database.close()


@contextmanager
def process(directory: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process of its own, which answers, and is killed at the end if it still runs."""
    command = [sys.executable, "-c", "from milvus_lite.cmdline import main; main()", "server"]
    options = ["--data-dir", str(directory), "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, env=dict(os.environ)) as running:
        try:
            _await(f"http://127.0.0.1:{port}", running)
            yield running
        finally:
            running.kill()


def _await(url: str, running: subprocess.Popen[bytes]) -> None:
    connection, deadline = Connection(url, timeout=1.0), time.monotonic() + UP_TO
    while True:
        assert running.poll() is None
        try:
            connection.call("list_collections")
            return connection.close()
        except RetrieverUnavailable:
            assert time.monotonic() < deadline
