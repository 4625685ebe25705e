"""The retriever ends or hangs, before a selection and in the middle of one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.scenario import (
    BUDGET,
    DOCUMENTS,
    K,
    Role,
    Stopwatch,
    ask,
    completes,
    ids,
    new_query,
    spent,
    whole,
)
from tests.faults.table import Table
from tests.patience import until
from tests.ports import free_port
from tests.scoring.remote.servers import Server, slow, well
from tests.system.load import outcome
from tests.system.service import Service, retriever, service

RETRIEVED = 'boundarymorph_http_request_duration_seconds_count{method="POST",route="/retrieve"'
POOL = [document | {"embedding": [1.0, number / 120]} for number, document in enumerate(DOCUMENTS)]


def test_killed(front: Service, indexes: Role, table: Table) -> None:
    indexes.kill()
    refused = ask(front)
    assert refused.status_code == 503
    given = ask(front, index=None, pool=POOL, query_embedding=[1.0, 0.5])
    whole(given)
    whole(ask(front, index=None, pool=list(DOCUMENTS)))  # vectors of the words are made in the gateway
    ranked = [document | {"score": -float(number)} for number, document in enumerate(POOL)]
    ordered = ask(front, index=None, pool=ranked)  # whose query the retriever would encode
    assert ids(whole(ordered, "retrieval_only")) == [document["id"] for document in DOCUMENTS[:K]]
    watch = Stopwatch()
    indexes.start(ready=False)
    recovery = watch.until(lambda: completes(front))
    own = f"with a pool and embeddings of its own {outcome(given)}, with its scores alone {outcome(ordered)}"
    saw = f"{outcome(refused)}; {own}"
    table.add("retriever killed", saw, recovery)


def test_one_of_two_is_killed(directory: Path, indexes: Role, rogue: Server, table: Table) -> None:
    """Both over one directory."""
    port = free_port()
    second = Role(lambda ready: retriever(directory / "data", port=port, ready=ready))
    folder = directory / "two"
    folder.mkdir()
    (folder / "boundarymorph.toml").write_text("[memory]\nenabled = false")
    options = ("--retriever-url", indexes.service.url, "--retriever-url", second.service.url)
    with service(folder / "data", *options, "--scorer-url", rogue.endpoint().base) as gateway:
        expected = ids(whole(ask(gateway, query := new_query())))
        second.kill()
        for _ in range(4):
            response = ask(gateway, query, on_failure="error", reuse=False)
            assert ids(whole(response)) == expected
        watch = Stopwatch()
        second.start()
        recovery = watch.until(lambda: completes(gateway) and second.service.metric(RETRIEVED) > 0)
        second.kill()
    table.add("one of two retrievers killed", outcome(response), recovery)


def test_one_of_two_hangs(directory: Path, indexes: Role, rogue: Server, table: Table) -> None:
    """Both over one directory."""
    port, folder = free_port(), directory / "hanging"
    second = Role(lambda ready: retriever(directory / "data", port=port, ready=ready))
    folder.mkdir()
    (folder / "boundarymorph.toml").write_text("[retriever]\nattempt_seconds = 3\n[memory]\nenabled = false")
    options = ("--retriever-url", indexes.service.url, "--retriever-url", second.service.url)
    works = f'boundarymorph_replica_up{{endpoint="{second.service.url}",role="retriever"}}'
    with service(folder / "data", *options, "--scorer-url", rogue.endpoint().base) as gateway:
        expected = ids(whole(ask(gateway, query := new_query())))
        assert gateway.metric(works) == 1
        second.hang()

        def noticed() -> bool:
            assert ids(whole(ask(gateway, query, on_failure="error", reuse=False))) == expected
            return gateway.metric(works) == 0

        until(noticed)
        response = ask(gateway, query, on_failure="error", reuse=False)
        second.go_on()
        recovery = Stopwatch().until(lambda: completes(gateway) and gateway.metric(works) == 1)
        second.kill()
    saw = f"{outcome(response)}, after `retriever.attempt_seconds` once"
    table.add("one of two retrievers hangs", saw, recovery)


def test_killed_in_the_middle(front: Service, rogue: Server, indexes: Role, table: Table) -> None:
    query = new_query()
    rogue.behaviour = slow(0.5)
    with ThreadPoolExecutor(1) as thread:
        request = thread.submit(ask, front, query)
        until(lambda: any(asked["query"] == query for asked in rogue.asked))
        indexes.kill()
        response = request.result()
    assert spent(whole(response, "complete"))[0] == BUDGET  # the first documents came with the pool
    rogue.behaviour = well
    watch = Stopwatch()
    indexes.start(ready=False)
    recovery = watch.until(lambda: completes(front))
    table.add("retriever killed in the middle of a selection", outcome(response), recovery)


def test_hangs(front: Service, indexes: Role, table: Table) -> None:
    indexes.hang()
    try:
        refused = ask(front, deadline_ms=500)
        assert refused.status_code == 504
    finally:
        indexes.go_on()
    recovery = Stopwatch().until(lambda: completes(front))
    assert len(whole(ask(front))["documents"]) == K
    table.add("retriever hangs", f"{outcome(refused)} at the deadline", recovery)
