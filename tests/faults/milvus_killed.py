"""`make test-stores STORE=milvus-killed`: kill -9 of a Milvus server under load, and its restart over the same data.

    python -m tests.faults.milvus_killed INTERPRETER

INTERPRETER: of an environment with the package `milvus`, which carries the server. Three of four requests are for an
index in Milvus, one brings its pool along. The row of the table in docs/monitoring.md goes to build/faults-milvus.md.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.scenario import DOCUMENTS, fill, nothing_is_lost, selection
from tests.faults.table import LOAD_HEAD, load_row
from tests.patience import until
from tests.ports import free_port
from tests.stores import milvus
from tests.system.load import COMPLETE, load
from tests.system.service import scorer, service

RESULT = Path("build/faults-milvus.md")
RECOVERY_SECONDS = 240.0
POOL = [document | {"embedding": [1.0, number / 120]} for number, document in enumerate(DOCUMENTS)]
ALLOWED = {
    COMPLETE,
    "200 `partial` (`retriever_unavailable`)",
    "200 `retrieval_only` (`retriever_unavailable`)",
    "503 `retriever-unavailable`, `Retry-After`",
}


def request(number: int) -> dict[str, Any]:
    if number % 4:
        return selection()
    return selection(index=None, pool=POOL, query_embedding=[1.0, 0.5])


def is_free(port: int) -> bool:
    """Milvus takes another port while this one has connections that are still being closed."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreter")
    interpreter = parser.parse_args().interpreter
    RESULT.parent.mkdir(exist_ok=True)
    port = free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "milvus").mkdir()
        running = partial(milvus.server, interpreter, folder / "milvus", port)
        options = ["--scorer-url", stack.enter_context(scorer(folder / "scorer.log")).url]
        with running() as server:
            options += ["--store", f"milvus://127.0.0.1:{port}", "--index-store", "milvus"]
            gateway = stack.enter_context(service(folder / "data", *options))
            fill(gateway)
            seen = stack.enter_context(load(gateway.url, request))
            until(lambda: seen.is_normal(0.0))
            server.kill()
            killed = time.monotonic()
        until(lambda: seen.goes_on(killed) and is_free(port), RECOVERY_SECONDS)
        with running():
            restarted = time.monotonic()
            until(lambda: seen.is_normal(restarted), RECOVERY_SECONDS)
            nothing_is_lost(gateway)
            row = load_row("Milvus", "make test-stores STORE=milvus-killed", seen, killed, restarted)
            undeclared = set(seen.outcomes()) - ALLOWED
            assert not undeclared, seen.outcomes()
            assert "Traceback" not in gateway.log
            stack.close()
    RESULT.write_text(f"{LOAD_HEAD}{row}\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
