"""Test a gateway that is killed or stopped, callers that leave, and a clock that jumps."""

import random
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path

import httpx
import libfaketime  # type: ignore[import-untyped]
import orjson

from tests.fakes.upstream import hang, slow, well
from tests.fakes.wires import Server
from tests.faults.conftest import Deployment, StartGateway
from tests.faults.scenario import (
    BUDGET,
    Stopwatch,
    ask,
    ask_and_cache,
    calls_and_hits,
    check_answer,
    completes,
    descriptors,
    ids,
    new_query,
    repair_scorer,
    selection,
)
from tests.faults.table import Table
from tests.patience import PATIENCE, until
from tests.system.load import outcome
from tests.system.service import Service

DAY = 86_400


def test_killed_gateway_loses_no_cached_scores(deployment: Deployment, table: Table) -> None:
    """Scores are in Redis, so a new process repeats answers without a call."""
    query = new_query()
    first = ask_and_cache(deployment.gateway.service, query)
    with ThreadPoolExecutor(4) as threads:
        under_way = [threads.submit(ask, deployment.gateway.service) for _ in range(4)]
        before = deployment.calls
        until(lambda: deployment.calls > before)
        deployment.gateway.kill()
        for request in under_way:
            try:
                check_answer(request.result())
            except httpx.TransportError:
                continue
    watch = Stopwatch()
    deployment.gateway.start(ready=False)
    deployment.gateway.service.await_answer()
    calls = deployment.calls
    repeated = check_answer(ask(deployment.gateway.service, query))
    recovery = watch.seconds
    assert (calls_and_hits(repeated), ids(repeated)) == ((0, BUDGET), ids(first))
    assert deployment.calls == calls
    more = check_answer(ask(deployment.gateway.service, query, budget=BUDGET + 5, rounds=1))
    assert calls_and_hits(more) == (5, BUDGET)
    assert deployment.calls == calls + 1
    again = outcome(ask(deployment.gateway.service, query))
    saw = f"the connection breaks; the same request again, {again} without a call"
    table.add("gateway killed", saw, recovery)


def test_gateway_finishes_requests_after_sigterm_under_load(
    another_gateway: StartGateway, rogue: Server, table: Table
) -> None:
    """Requests in progress are answered; later connections are refused."""

    def caller(gateway: Service) -> tuple[list[httpx.Response], str]:
        """Send requests until one fails; return the answers and the query of the failed one."""
        answered = []
        while True:
            request = selection()
            try:
                answered.append(httpx.post(f"{gateway.url}/select", json=request, timeout=PATIENCE))
            except httpx.TransportError:
                return answered, str(request["query"])

    with another_gateway() as gateway, ThreadPoolExecutor(8) as threads:
        rogue.behaviour = slow(0.3)
        before = len(rogue.asked)
        callers = [threads.submit(caller, gateway) for _ in range(8)]
        until(lambda: len({body["query"] for body in rogue.asked[before:]}) > 12)
        assert gateway.stop() == 0
        rogue.behaviour = well
        inside = {body["query"] for body in rogue.asked[before:]}
        for one in callers:
            answered, unanswered = one.result()
            assert unanswered not in inside
            for response in answered:
                check_answer(response)
        assert "Traceback" not in gateway.log
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", gateway.port))
    table.add("SIGTERM under load", f"{outcome(response)} for requests in progress; new connections are refused", None)


def test_client_that_leaves_ends_its_scorer_request(front: Service, rogue: Server, table: Table) -> None:
    rogue.behaviour = hang
    body = orjson.dumps(selection())
    head = f"POST /select HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    left, before = rogue.left, len(rogue.asked)
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        connection.sendall(head + body)
        until(lambda: len(rogue.asked) > before)
    watch = Stopwatch()
    watch.until(lambda: rogue.left > left)
    rogue.behaviour = well
    recovery = watch.until(lambda: completes(front))
    assert front.metric('boundarymorph_http_request_duration_seconds_count{method="POST",route="/select",status="400"}')
    table.add("client gone", "the work is cancelled, and the scorer is free again", recovery)


def test_clients_that_leave_their_streams_leak_nothing(front: Service, rogue: Server, table: Table) -> None:
    """More clients than the pool has connections leave after random bytes, as the scorer works."""
    chance = random.Random(0)
    check_answer(ask(front))
    before = descriptors(front)
    rogue.behaviour = slow(0.02)
    for _ in range(100):
        body = orjson.dumps(selection(rounds=15))
        head = f"POST /select HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", front.port), timeout=PATIENCE) as connection:
            connection.sendall(head.encode() + body)
            connection.recv(chance.choice((1, 200, 4_000)))
    recovery = repair_scorer(front, rogue)
    until(lambda: descriptors(front) <= before + 2)  # the test's own connections may be open
    saw = "the work is cancelled, and the scorer is free again"
    table.add("100 clients leave their streams", saw, recovery)


def test_unfinished_request_heads_do_not_block_the_gateway(another_gateway: StartGateway, table: Table) -> None:
    """The heads have no key, and their connections exceed the limit of the process."""
    few = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
    with another_gateway(wrapper=few) as gateway, ExitStack() as held:
        for _ in range(300):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE))
            with suppress(OSError):  # the gateway may have closed it already
                connection.sendall(b"POST /select HTTP/1.1\r\nHost: x\r\nX-A: ")
        for _ in range(20):
            with httpx.Client(base_url=gateway.url, timeout=PATIENCE) as client:
                assert client.get("/livez").is_success
        check_answer(ask(gateway))
        assert gateway.metric('boundarymorph_connections_closed_total{reason="full"}') >= 100
        assert "Too many open files" not in gateway.log
        saw = "probes and requests are answered; a new connection closes the one that has waited longest"
        table.add("300 heads that never end, in a process with 256 descriptors", saw, 0.0)


def _is_off_by(running: Service, days: int) -> bool:
    there = parsedate_to_datetime(running.client.get("/livez").headers["date"]).timestamp()
    return abs(there - time.time() - days * DAY) < DAY


def test_wall_clock_jump_does_not_disturb_the_gateway(
    tmp_path: Path, another_gateway: StartGateway, rogue: Server, table: Table
) -> None:
    """The clock jumps during a selection, by more than any deadline or time to live."""
    offset = tmp_path / "offset"  # the file with the offset of the gateway's wall clock in seconds
    offset.write_text("+0\n")
    library = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"
    environment = {
        "LD_PRELOAD": str(shutil.copy(library, tmp_path)),  # a copy, since the loader splits paths at spaces
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_CACHE_DURATION": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    with another_gateway(environment=environment) as gateway, ThreadPoolExecutor(1) as thread:
        query = new_query()
        expected = ids(ask_and_cache(gateway, query))
        for direction, days in (("forward", 30), ("back", -30)):
            rogue.behaviour = slow(1.5)
            request = thread.submit(ask, gateway, deadline_ms=30_000)
            offset.write_text(f"{days * DAY:+d}\n")
            until(partial(_is_off_by, gateway, days))
            assert not request.done()
            response = request.result()
            assert calls_and_hits(check_answer(response)) == (BUDGET, 0)
            for seconds in (3, 10, 30):  # on a busy machine the first may pass before anything is scored
                rogue.script, rogue.behaviour = [well], slow(seconds)
                late = ask(gateway, deadline_ms=1_000 * seconds)
                if late.headers.get("x-boundarymorph-status") == "partial":
                    break
            assert check_answer(late, "partial")["stop_reason"] == "deadline"
            rogue.behaviour = well
            until(lambda: completes(gateway))
            again = check_answer(ask(gateway, query))
            assert (calls_and_hits(again), ids(again)) == ((0, BUDGET), expected)
            saw = f"{outcome(response)}; deadlines and caches hold"
            table.add(f"wall clock jumps by 30 days: {direction}", saw, None)
        assert gateway.stop() == 0
