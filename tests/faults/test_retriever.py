"""Test a retriever that ends or hangs before or during a selection."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.upstream import slow, well
from tests.fakes.wires import Server
from tests.faults.scenario import (
    BUDGET,
    DOCUMENTS,
    K,
    Role,
    Stopwatch,
    ask,
    calls_and_hits,
    check_answer,
    completes,
    ids,
    new_query,
)
from tests.faults.table import Table
from tests.patience import until
from tests.ports import free_port
from tests.system.load import outcome
from tests.system.service import Service, retriever, service

POOL = [document | {"embedding": [1.0, number / 120]} for number, document in enumerate(DOCUMENTS)]


def test_retriever_killed_fails_only_requests_for_indexes(front: Service, indexes: Role, table: Table) -> None:
    indexes.kill()
    refused = ask(front)
    assert refused.status_code == 503
    given = ask(front, index=None, pool=POOL, query_embedding=[1.0, 0.5])
    check_answer(given)
    check_answer(ask(front, index=None, pool=list(DOCUMENTS)))  # the gateway computes lexical vectors
    ranked = [document | {"score": -float(number)} for number, document in enumerate(POOL)]
    ordered = ask(front, index=None, pool=ranked)  # the retriever would encode the query
    assert ids(check_answer(ordered, "retrieval_only")) == [document["id"] for document in DOCUMENTS[:K]]
    watch = Stopwatch()
    indexes.start(ready=False)
    recovery = watch.until(lambda: completes(front))
    own = f"with a pool and embeddings of its own {outcome(given)}, with its scores alone {outcome(ordered)}"
    saw = f"{outcome(refused)}; {own}"
    table.add("retriever killed", saw, recovery)


@pytest.mark.parametrize(("fault", "saw"), [("killed", ""), ("hangs", ", after `attempt_seconds` once")])
def test_one_of_two_retrievers_lost_fails_no_request(
    directory: Path, indexes: Role, rogue: Server, table: Table, fault: str, saw: str
) -> None:
    """Both retrievers share one directory."""
    port, folder = free_port(), directory / fault
    second = Role(lambda ready: retriever(directory / "data", port=port, ready=ready))
    folder.mkdir()
    (folder / "boundarymorph.toml").write_text("[retriever]\nattempt_seconds = 3")
    options = ("--retriever-url", indexes.service.url, "--retriever-url", second.service.url)
    works = f'boundarymorph_replica_up{{endpoint="{second.service.url}",role="retriever"}}'
    with service(folder / "data", *options, "--scorer-url", rogue.endpoint().base) as gateway:
        expected = ids(check_answer(ask(gateway, query := new_query())))
        assert gateway.metric(works) == 1
        second.kill() if fault == "killed" else second.hang()

        def noticed() -> bool:
            assert ids(check_answer(ask(gateway, query, on_failure="error", reuse=False))) == expected
            return gateway.metric(works) == 0

        until(noticed)
        response = ask(gateway, query, on_failure="error", reuse=False)
        watch = Stopwatch()
        second.repair() if fault == "hangs" else second.start()
        recovery = watch.until(lambda: completes(gateway) and gateway.metric(works) == 1)
        second.kill()
    table.add(f"one of two retrievers {fault}", f"{outcome(response)}{saw}", recovery)


def test_retriever_killed_midway_lets_the_selection_finish(
    front: Service, rogue: Server, indexes: Role, table: Table
) -> None:
    query = new_query()
    rogue.behaviour = slow(0.5)
    with ThreadPoolExecutor(1) as thread:
        request = thread.submit(ask, front, query)
        until(lambda: any(asked["query"] == query for asked in rogue.asked))
        indexes.kill()
        response = request.result()
    assert calls_and_hits(check_answer(response, "complete"))[0] == BUDGET  # the first documents came with the pool
    rogue.behaviour = well
    watch = Stopwatch()
    indexes.start(ready=False)
    recovery = watch.until(lambda: completes(front))
    table.add("retriever killed in the middle of a selection", outcome(response), recovery)


def test_retriever_that_hangs_gives_504_at_the_deadline(front: Service, indexes: Role, table: Table) -> None:
    indexes.hang()
    try:
        refused = ask(front, deadline_ms=500)
        assert refused.status_code == 504
    finally:
        indexes.resume()
    recovery = Stopwatch().until(lambda: completes(front))
    assert len(check_answer(ask(front))["documents"]) == K
    table.add("retriever hangs", f"{outcome(refused)} at the deadline", recovery)
