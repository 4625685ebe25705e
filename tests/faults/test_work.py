"""Test work that continues after its request, and work that does not end."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.faults.scenario import Stopwatch
from tests.faults.table import Table
from tests.patience import PATIENCE
from tests.system.service import service
from tests.system.test_exit import running_a_request
from tests.system.test_neighbours import COSTLY, DOCUMENTS

SEARCH = {"query": "common", "index": "i", "budget": 0, "k": 1}


def test_costly_filters_end_at_their_deadlines(tmp_path: Path, table: Table) -> None:
    """There is a request for each search thread, and each would take seconds.

    Without keys, all of them have the same caller.
    """
    costly = {**SEARCH, "deadline_ms": 250}
    with service(tmp_path / "data") as running:
        running.fill("i", DOCUMENTS, encoder="none")
        running.select(**SEARCH)

        def left(number: int) -> httpx.Response:
            filter = {"or": [*COSTLY["or"], {"tags": {"gt": f"y{number}"}}]}
            return running.client.post("/select", json={**costly, "filter": filter})

        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(left, range(16)))
        assert {(answer.status_code, answer.json()["type"]) for answer in answers} <= {
            (504, "urn:boundarymorph:problem:deadline-exceeded"),
            (429, "urn:boundarymorph:problem:overloaded"),
        }
        assert 504 in {answer.status_code for answer in answers}
        watch = Stopwatch()
        assert running.select(**SEARCH, deadline_ms=60_000)["status"] == "complete"
        seconds = watch.seconds
        assert running.stop() == 0
    saw = "504 `deadline-exceeded`, or 429 `overloaded`; 200 `complete` to the next search"
    table.add("slow filters in all search threads", saw, seconds)


def test_thread_that_never_ends_does_not_block_shutdown(tmp_path: Path, table: Table) -> None:
    with running_a_request(tmp_path, 2 * PATIENCE, "stuck", grace_seconds=1) as process:
        process.terminate()
        assert process.wait(timeout=PATIENCE) == 1
    assert "exiting although this does not end: search_0" in (tmp_path / "log").read_text()
    saw = (
        "the connection breaks after `grace_seconds`; the process exits with 1 ten seconds later, and its log names "
        "the thread"
    )
    table.add("SIGTERM while a thread does not end", saw, None)
