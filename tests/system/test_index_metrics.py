"""What /metrics says about the indexes on a machine's disk, over HTTP."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx

from tests.fakes.service import texts
from tests.patience import until
from tests.system.service import Service, retriever

SAMPLE = re.compile(r'^boundarymorph_(indexes|index_documents|index_bytes)\{kind="(\w+)"\} (\S+)$', re.MULTILINE)
INDEXES, DOCUMENTS, BYTES = "indexes", "index_documents", "index_bytes"
CLOSE = {"connection": "close"}  # so that the next request may go to another worker
KINDS = {"flat", "ivf", "words", "unreadable"}


def measured(running: Service) -> dict[str, dict[str, float]]:
    """Values by metric and kind of index, from whichever worker answers."""
    found: dict[str, dict[str, float]] = {INDEXES: {}, DOCUMENTS: {}, BYTES: {}}
    exposed = running.client.get("/metrics", headers=CLOSE).text
    for metric, kind, value in SAMPLE.findall(exposed):
        found[metric][kind] = float(value)
    return found


def done(ask: Callable[[], httpx.Response]) -> None:
    """Whichever worker is asked; one that is not ready yet answers 503."""
    until(lambda: ask().is_success)


def becomes(running: Service, indexes: dict[str, int], documents: dict[str, int]) -> None:
    """Every worker says so after a moment, with the bytes of GET /indexes, and 0 of any other kind."""
    zero = dict.fromkeys(KINDS, 0)

    def wanted() -> dict[str, dict[str, int]]:
        sizes = dict(zero)
        listed = running.client.get("/indexes")
        for index in listed.json()["indexes"] if listed.is_success else ():
            sizes[index["kind"]] += index["bytes"]
        return {INDEXES: zero | indexes, DOCUMENTS: zero | documents, BYTES: sizes}

    until(lambda: all(measured(running) == wanted() for _ in range(4)))


def test_uploads_deletions_and_a_restart(tmp_path: Path) -> None:
    (tmp_path / "boundarymorph.toml").write_text("ready_interval_seconds = 0.05")
    with retriever(tmp_path / "data") as running:
        client = running.client
        becomes(running, {}, {})
        for name, configuration in (("a", {}), ("b", {}), ("w", {"encoder": "none"})):
            done(partial(client.put, f"/indexes/{name}", json=configuration))
        done(partial(client.post, "/indexes/a/documents", json=texts(30)))
        done(partial(client.post, "/indexes/b/documents", json=texts(12)))
        done(partial(client.post, "/indexes/w/documents", json=texts(5)))
        becomes(running, {"flat": 2, "words": 1}, {"flat": 42, "words": 5})
        done(partial(client.post, "/indexes/a/documents", json=texts(31)))  # one is new
        done(partial(client.delete, "/indexes/b/documents/d3"))
        becomes(running, {"flat": 2, "words": 1}, {"flat": 42, "words": 5})
        done(partial(client.delete, "/indexes/a/documents/d3"))
        becomes(running, {"flat": 2, "words": 1}, {"flat": 41, "words": 5})
        done(partial(client.delete, "/indexes/b"))
        becomes(running, {"flat": 1, "words": 1}, {"flat": 30, "words": 5})
        assert running.stop() == 0
    with retriever(tmp_path / "data") as running:
        becomes(running, {"flat": 1, "words": 1}, {"flat": 30, "words": 5})
