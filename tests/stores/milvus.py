"""Run Milvus for tests: milvus-lite as a server, in this process or in one of its own.

With MILVUS_URL, the server at that URL takes the place of the one in this process, as in `make test-stores
STORE=milvus`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pymilvus import MilvusClient

from boundarymorph.errors import RetrieverUnavailable
from boundarymorph_stores.milvus_connection import MilvusConnection
from tests.patience import PATIENCE
from tests.ports import free_port


def fill(
    url: str, name: str, schema: Any, rows: list[dict[str, Any]], vector: str = "vector", metric: str = "COSINE"
) -> None:
    """Make a collection as another program would."""
    client = MilvusClient(url)
    wanted = MilvusClient.prepare_index_params()
    wanted.add_index(vector, index_type="FLAT", metric_type=metric)
    client.create_collection(name, schema=schema, index_params=wanted)
    client.insert(name, rows)
    client.close()


_PROGRAM = Path(__file__).with_name("milvus_server.py")


@contextmanager
def embedded(directory: Path) -> Iterator[str]:
    """Yield the store URL of an empty embedded server."""
    if url := os.environ.get("MILVUS_URL"):
        connection = MilvusConnection(url.replace("milvus:", "http:"))
        for collection in connection.call("list_collections"):
            connection.call("drop_collection", collection)
        connection.close()
        yield url
        return
    from milvus_lite.adapter.grpc.server import start_server_in_thread

    server, database, port = start_server_in_thread(str(directory))
    try:
        yield f"milvus://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
        database.close()


@contextmanager
def process(directory: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in its own process, and kill it at the end."""
    command = [sys.executable, "-c", "from milvus_lite.cmdline import main; main()", "server"]
    options = ["--data-dir", str(directory), "--host", "127.0.0.1", "--port", str(port)]
    with _answering([*command, *options], port, subprocess.DEVNULL) as running:
        yield running


@contextmanager
def server(interpreter: str, directory: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server of the package `milvus` with an interpreter that has this package.

    It is killed at the end.
    """
    command = [interpreter, "-P", str(_PROGRAM), str(directory), str(port), str(free_port())]
    with (directory / "log").open("ab") as log, _answering(command, port, log) as running:
        yield running


@contextmanager
def _answering(command: list[str], port: int, output: int | IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT if output != subprocess.DEVNULL else None
    ) as running:
        try:
            _await(f"http://127.0.0.1:{port}", running)
            yield running
        finally:
            running.kill()


def _await(url: str, running: subprocess.Popen[bytes]) -> None:
    connection, deadline = MilvusConnection(url, timeout=1.0), time.monotonic() + PATIENCE
    while True:
        assert running.poll() is None
        try:
            connection.call("list_collections")
            return connection.close()
        except RetrieverUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)
