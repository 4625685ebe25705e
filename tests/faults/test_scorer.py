"""Test a scorer that ends, hangs, is slow or busy, fails, or sends wrong answers."""

import asyncio
import gzip
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tests.fakes.upstream import Behaviour, Reply, answer, edited, hang, slow, well
from tests.fakes.wires import Server
from tests.faults.conftest import Deployment
from tests.faults.scenario import (
    BUDGET,
    Stopwatch,
    ask,
    calls_and_hits,
    check_answer,
    completes,
    ids,
    new_query,
    repair_scorer,
)
from tests.faults.table import Table, is_documented
from tests.patience import until
from tests.system.load import outcome
from tests.system.service import Service

SERVED = 'boundarymorph_http_request_duration_seconds_count{method="POST",route="/score",status="200"'


def test_one_of_two_scorers_killed_changes_no_answer(deployment: Deployment, table: Table) -> None:
    query = new_query()
    expected = ids(check_answer(ask(deployment.gateway.service, query)))
    deployment.redis.flush()
    deployment.second.kill()
    for _ in range(3):
        response = ask(deployment.gateway.service, query, on_failure="error", reuse=False)
        assert ids(check_answer(response)) == expected
        deployment.redis.flush()
    watch = Stopwatch()
    deployment.second.start()
    recovery = watch.until(
        lambda: completes(deployment.gateway.service) and deployment.second.service.metric(SERVED) > 0
    )
    table.add("one of two scorers killed", outcome(response), recovery)


def test_all_scorers_killed_degrades_answers(deployment: Deployment, table: Table) -> None:
    for role in (deployment.first, deployment.second):
        role.kill()
    degraded = ask(deployment.gateway.service)
    assert calls_and_hits(check_answer(degraded, "retrieval_only")) == (0, 0)
    refused = ask(deployment.gateway.service, on_failure="error")
    assert refused.status_code == 503
    watch = Stopwatch()
    for role in (deployment.first, deployment.second):
        role.start(ready=False)
    recovery = watch.until(lambda: completes(deployment.gateway.service))
    for role in (deployment.first, deployment.second):
        role.service.await_answer()
    table.add("all scorers killed", f"{outcome(degraded)}; with `on_failure: error` {outcome(refused)}", recovery)


def test_one_of_two_scorers_hanging_costs_no_answer(deployment: Deployment, table: Table) -> None:
    deployment.second.hang()
    try:
        for _ in range(4):
            response = ask(deployment.gateway.service)
            assert calls_and_hits(check_answer(response)) == (BUDGET, 0)
    finally:
        deployment.second.resume()
    before = deployment.second.service.metric(SERVED)
    recovery = Stopwatch().until(
        lambda: completes(deployment.gateway.service) and deployment.second.service.metric(SERVED) > before
    )
    table.add("one of two scorers hangs", f"{outcome(response)}, after `attempt_seconds` once", recovery)


def test_only_scorer_hanging_degrades_at_the_deadline(front: Service, rogue: Server, table: Table) -> None:
    """A caller waits until its deadline, or as long as an attempt may take."""
    rogue.behaviour = hang
    late = ask(front, deadline_ms=2_000)
    assert check_answer(late, "retrieval_only")["stop_reason"] == "deadline"
    given_up = ask(front)
    assert check_answer(given_up, "retrieval_only")["stop_reason"] == "scorer_unavailable"
    recovery = repair_scorer(front, rogue)
    saw = f"{outcome(late)} at the deadline, or {outcome(given_up)} after `attempt_seconds`"
    table.add("the only scorer hangs", saw, recovery)


def test_slow_scorer_gives_a_partial_answer_at_the_deadline(front: Service, rogue: Server, table: Table) -> None:
    rogue.behaviour = slow(0.4)
    answers = []

    def in_part() -> bool:  # on a busy machine there may be no score in time, and then the scorer rests
        answers.append(ask(front, deadline_ms=1_000))
        return (answers[-1].json()["stop_reason"], answers[-1].json()["status"]) == ("deadline", "partial")

    until(in_part)
    response = answers[-1]
    assert 0 < calls_and_hits(check_answer(response, "partial"))[0] < BUDGET
    assert response.json()["stop_reason"] == "deadline"
    recovery = repair_scorer(front, rogue)
    table.add("a scorer too slow for the deadline", f"{outcome(response)} at the deadline", recovery)


def _not_a_number(body: Any) -> Any:
    return body | {"scores": [None, *body["scores"][1:]]}  # orjson writes NaN as null


async def compressed(reply: Reply) -> Reply:
    """Return the right body after 16 million spaces, compressed to 16,000 bytes."""
    body = gzip.compress(bytes(b" " * 2**24) + orjson.dumps(reply.body))
    return Reply(body, headers={"content-encoding": "gzip"})


def cut_off(server: Server) -> Behaviour:
    """Send half of the announced body, and close the connection."""

    async def behaviour(reply: Reply) -> Reply:
        announced = reply.encoded().partition(b"\r\n\r\n")[2]
        asyncio.get_running_loop().call_later(0.05, server.drop_idle)
        half = announced[: len(announced) // 2]
        return Reply(half, headers={"content-length": str(len(announced))})

    return behaviour


WRONG: dict[str, Callable[[Server], Behaviour]] = {
    "scores out of [0, 1]": lambda server: answer(b'{"model": "stand-in", "scores": [7, -3, 0, 0, 1e308]}'),
    "too few scores": lambda server: edited(lambda body: body | {"scores": body["scores"][:-1]}),
    "no JSON": lambda server: answer(b"<html>Welcome to nginx!</html>"),
    "half a body": cut_off,
    "a body without end": lambda server: answer(b" " * 2**24, content_length=str(2**32)),
    "a compressed body": lambda server: compressed,
    "another model": lambda server: edited(lambda body: body | {"model": "another"}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_malformed_scorer_answers_degrade_the_selection(
    front: Service, rogue: Server, table: Table, wrong: str
) -> None:
    fault, query, saw = f"a scorer answers wrongly: {wrong}", new_query(), ""
    rogue.behaviour = WRONG[wrong](rogue)

    def noticed() -> bool:  # on a busy machine the scorer may rest after earlier failures
        nonlocal saw
        degraded, refused = ask(front, query), ask(front, query, on_failure="error")
        assert calls_and_hits(check_answer(degraded, "retrieval_only")) == (0, 0)
        saw = f"{outcome(degraded)}; with `on_failure: error` {outcome(refused)}"
        return is_documented(fault, saw)

    until(noticed)
    recovery = repair_scorer(front, rogue)
    assert calls_and_hits(check_answer(ask(front, query))) == (BUDGET, 0)  # nothing was cached
    table.add(fault, saw, recovery)


@pytest.mark.parametrize("wrong", ["null", "NaN"])
def test_one_missing_score_leaves_the_document_unscored(
    front: Service, rogue: Server, table: Table, wrong: str
) -> None:
    def without_the_first(body: Any) -> Any:
        return orjson.dumps(_not_a_number(body)).replace(b"null", wrong.encode())

    fault, query, saw = f"a scorer answers wrongly: `{wrong}` among the scores", new_query(), ""
    rogue.behaviour = edited(without_the_first)

    def noticed() -> bool:  # on a busy machine the scorer may rest after earlier failures
        nonlocal saw
        degraded = ask(front, query)
        saw = f"{outcome(degraded)}, with the other scores; with `on_failure: error` "
        saw += outcome(ask(front, new_query(), on_failure="error"))
        return is_documented(fault, saw)

    until(noticed)
    recovery = repair_scorer(front, rogue)
    calls, known = calls_and_hits(check_answer(ask(front, query)))
    assert calls + known == BUDGET and known > 0, "the other scores were kept"
    table.add(fault, saw, recovery)


def test_busy_scorer_gives_429_or_a_degraded_answer(front: Service, rogue: Server, table: Table) -> None:
    rogue.behaviour = answer({"detail": "too much to do"}, 429, retry_after="20")
    refused = ask(front, deadline_ms=5_000)
    assert refused.status_code == ask(front, deadline_ms=5_000, on_failure="error").status_code == 429
    degraded = ask(front, deadline_ms=5_000, on_failure="degrade")
    check_answer(degraded, "retrieval_only")
    recovery = repair_scorer(front, rogue)
    saw = f"{outcome(refused)}; with `on_failure: degrade` {outcome(degraded)}"
    table.add("a scorer answers 429 beyond the deadline", saw, recovery)


def test_scorer_briefly_busy_is_retried(front: Service, rogue: Server, table: Table) -> None:
    rogue.script = [answer({"detail": "too much to do"}, 429, retry_after="1")]
    response = ask(front)
    assert calls_and_hits(check_answer(response)) == (BUDGET, 0)
    table.add("a scorer answers 429 once", f"{outcome(response)}, after the pause", None)


def test_failing_scorer_degrades_or_gives_an_error(front: Service, rogue: Server, table: Table) -> None:
    rogue.behaviour = answer({"detail": "it broke"}, 500)
    degraded, refused = ask(front), ask(front, on_failure="error")
    assert calls_and_hits(check_answer(degraded, "retrieval_only")) == (0, 0)
    recovery = repair_scorer(front, rogue)
    saw = f"{outcome(degraded)}; with `on_failure: error` {outcome(refused)}"
    table.add("a scorer answers 500", saw, recovery)


def test_scorer_failing_midway_gives_a_partial_answer(front: Service, rogue: Server, table: Table) -> None:
    rogue.script = [well, answer({"detail": "it broke"}, 500)]
    response = ask(front)
    body = check_answer(response, "partial")
    assert calls_and_hits(body)[0] == 5
    assert sum(document["source"] == "cross_encoder" for document in body["documents"]) <= 5
    recovery = Stopwatch().until(lambda: completes(front))
    table.add("a scorer answers 500 in the middle of a selection", outcome(response), recovery)
