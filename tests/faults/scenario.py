"""The processes of a service, which tests break, and the properties of every answer."""

import itertools
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.upstream import well
from tests.fakes.wires import Server
from tests.patience import until
from tests.ports import free_port
from tests.system.service import NDJSON as NDJSON
from tests.system.service import Service, service

SUBJECTS = ("violin", "tram", "bread", "harbour", "planet", "glacier", "letter", "engine")
DOCUMENTS = [
    {"id": f"{subject}-{n}", "text": f"The {subject} has {n} tales, and number {n * n % 17} is the best."}
    for subject in SUBJECTS
    for n in range(15)
]
IDS = {document["id"] for document in DOCUMENTS}
BUDGET, ROUNDS, K = 15, 3, 10

_numbers = itertools.count(1)


class Role:
    """A process that always starts at the same address and over the same data."""

    def __init__(self, start: Callable[[bool], AbstractContextManager[Service]]) -> None:
        self._start = start
        self._stack = ExitStack()
        self.service: Service
        self.start()

    def start(self, *, ready: bool = True) -> None:
        self.service = self._stack.enter_context(self._start(ready))

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._stack.close()

    def hang(self) -> None:
        """Stop the process: connections stay open, and nothing is answered."""
        self.service.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.service.process.send_signal(signal.SIGCONT)

    def repair(self) -> None:
        """Make the process run again after any failure."""
        self.resume()
        if self.service.process.poll() is not None:
            self.start()


def gateway(folder: Path, settings: str, *options: str) -> Role:
    """Run a gateway in a new folder with settings in TOML."""
    folder.mkdir()
    (folder / "boundarymorph.toml").write_text(settings)
    port = free_port()
    return Role(lambda ready: service(folder / "data", *options, port=port, ready=ready))


def fill(service: Service) -> None:
    """Fill the index `tales` with all documents."""
    service.fill("tales", DOCUMENTS)


def check_nothing_lost(service: Service) -> None:
    """Check that every acknowledged document is there."""
    assert service.client.get("/indexes/tales").json()["count"] == len(DOCUMENTS)
    body = check_answer(ask(service, budget=0, k=len(DOCUMENTS) + 1, return_documents=True), k=len(DOCUMENTS) + 1)
    assert {document["id"]: document["text"] for document in body["documents"]} == {
        document["id"]: document["text"] for document in DOCUMENTS
    }


def new_query() -> str:
    """Return a query that was not used before."""
    return f"tales of music, part {next(_numbers)}"


def selection(query: str | None = None, **options: Any) -> dict[str, Any]:
    """Return the body of POST /select on the index `tales`."""
    given = {"query": query or new_query(), "index": "tales", "budget": BUDGET, "rounds": ROUNDS, "k": K}
    return given | options


def ask(service: Service, query: str | None = None, **options: Any) -> httpx.Response:
    return service.client.post("/select", json=selection(query, **options))


def check_answer(
    response: httpx.Response, status: str = "complete", *, k: int = K, known: Sequence[str] | None = None
) -> dict[str, Any]:
    """Check an answer, which has k or all N documents even after failures; return its body.

    `known` are the ids of the N documents.
    """
    ids = IDS if known is None else set(known)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    assert (body["status"], response.headers["x-boundarymorph-status"]) == (status, status), body["warnings"]
    chosen = [document["id"] for document in body["documents"]]
    assert len(chosen) == len(set(chosen)) == min(k, len(ids))
    assert ids.issuperset(chosen)
    for rank, document in enumerate(body["documents"], start=1):
        assert document["rank"] == rank
        assert math.isfinite(document["relevance"]) and 0 <= document["relevance"] <= 1
    return body


def ids(body: dict[str, Any]) -> list[str]:
    return [document["id"] for document in body["documents"]]


def calls_and_hits(body: dict[str, Any]) -> tuple[int, int]:
    """Return the calls and the cached scores of an answer."""
    return body["usage"]["cross_encoder_calls"], body["usage"]["reused_scores"]


def descriptors(service: Service) -> int:
    """Return the number of open descriptors of a process."""
    return len(os.listdir(f"/proc/{service.process.pid}/fd"))


def completes(service: Service) -> bool:
    """Return whether a new query is answered completely."""
    response = ask(service)
    return response.is_success and response.json()["status"] == "complete"


def is_cached(service: Service, query: str) -> bool:
    """Return whether a repeated query costs nothing."""
    return calls_and_hits(check_answer(ask(service, query)))[0] == 0


def ask_and_cache(service: Service, query: str) -> dict[str, Any]:
    """Return the answer to a new query once all of its scores are cached."""
    written = 'boundarymorph_cache_writes_total{cache="scores",outcome="ok"}'
    before = service.metric(written)
    body = check_answer(ask(service, query))
    assert calls_and_hits(body) == (BUDGET, 0)
    until(lambda: service.metric(written) >= before + BUDGET)
    return body


def repair_scorer(service: Service, scorer: Server) -> float:
    """Make the stand-in scorer work again, and return the seconds until an answer is complete."""
    scorer.behaviour = well
    return Stopwatch().until(lambda: completes(service))


class Stopwatch:
    """Seconds since the cause of a fault ended."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def until(self, holds: Callable[[], bool]) -> float:
        until(holds)
        return self.seconds
