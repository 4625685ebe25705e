"""Test a language model as the scorer that is busy, slow, unreadable, or refuses."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.upstream import Behaviour, answer, hang, in_a_thread, slow, well
from tests.fakes.wires import Server
from tests.faults.scenario import (
    BUDGET,
    IDS,
    Role,
    Stopwatch,
    ask,
    calls_and_hits,
    check_answer,
    completes,
    gateway,
    new_query,
    repair_scorer,
)
from tests.faults.table import Table
from tests.patience import until
from tests.scoring.chat.scripted import MODEL, Chat, completion
from tests.system.load import outcome
from tests.system.service import Service


@pytest.fixture(scope="module")
def model() -> Iterator[Server]:
    with in_a_thread(Server(Chat())) as server:
        yield server


@pytest.fixture(scope="module")
def _judged(directory: Path, _indexes: Role, model: Server) -> Iterator[Role]:
    url = f"openai+http://127.0.0.1:{model.port}/v1?model={MODEL}"
    options = ("--retriever-url", _indexes.service.url, "--scorer-url", url)
    role = gateway(directory / "judged", "", *options)
    yield role
    role.kill()


@pytest.fixture
def judged(_judged: Role, model: Server) -> Iterator[Service]:
    """Yield a gateway with the retriever `indexes` and a language model as the scorer.

    Both work before and after each test.
    """
    until(lambda: completes(_judged.service))
    yield _judged.service
    model.behaviour, model.script = well, []
    assert "Traceback" not in _judged.service.log


def test_language_model_briefly_busy_is_retried(judged: Service, model: Server, table: Table) -> None:
    model.script = [answer({"error": {"message": "rate limit"}}, 429, retry_after="1")] * 2
    response = ask(judged)
    assert calls_and_hits(check_answer(response)) == (BUDGET, 0)
    table.add("a language model answers 429 for a moment", f"{outcome(response)}, after the pause", None)


def test_language_model_busy_gives_429_or_a_degraded_answer(judged: Service, model: Server, table: Table) -> None:
    model.behaviour = answer({"error": {"message": "rate limit"}}, 429, retry_after="20")
    refused = ask(judged, deadline_ms=5_000)
    assert refused.status_code == 429
    degraded = ask(judged, deadline_ms=5_000, on_failure="degrade")
    check_answer(degraded, "retrieval_only")
    recovery = repair_scorer(judged, model)
    saw = f"{outcome(refused)}; with `on_failure: degrade` {outcome(degraded)}"
    table.add("a language model answers 429 beyond the deadline", saw, recovery)


def test_language_model_too_slow_gives_a_partial_answer(judged: Service, model: Server, table: Table) -> None:
    model.behaviour = slow(2)
    response = ask(judged, deadline_ms=5_000)
    body = check_answer(response, "partial")
    assert body["stop_reason"] == "deadline" and 0 < calls_and_hits(body)[0] < BUDGET
    recovery = repair_scorer(judged, model)
    table.add("a language model too slow for the deadline", f"{outcome(response)} at the deadline", recovery)


def test_language_model_missing_answer_gives_the_other_grades(judged: Service, model: Server, table: Table) -> None:
    model.script = [*6 * [well], hang]
    response = ask(judged, deadline_ms=6_000, k=len(IDS))
    body = check_answer(response, "partial", k=len(IDS))
    calls, scored = calls_and_hits(body)[0], sum(each["source"] == "cross_encoder" for each in body["documents"])
    assert 6 <= scored == calls - 1 < BUDGET
    recovery = Stopwatch().until(lambda: completes(judged))
    table.add("one answer of a language model never comes", f"{outcome(response)} at the deadline", recovery)


WRONG: dict[str, Behaviour] = {
    "prose": answer(completion("It depends.")),
    "a grade of 7": answer(completion("7")),
    "nothing": answer(completion(None)),
    "no chat completion": answer({"choices": []}),
    "no JSON": answer(b"<html>Welcome to nginx!</html>"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_language_model_malformed_answers_are_not_cached(
    judged: Service, model: Server, table: Table, wrong: str
) -> None:
    query = new_query()
    model.behaviour = WRONG[wrong]
    degraded = ask(judged, query)
    check_answer(degraded, "retrieval_only")
    refused = ask(judged, query, on_failure="error")
    recovery = repair_scorer(judged, model)
    assert calls_and_hits(check_answer(ask(judged, query))) == (BUDGET, 0)  # nothing was cached
    saw = f"{outcome(degraded)}; with `on_failure: error` {outcome(refused)}"
    table.add(f"a language model answers wrongly: {wrong}", saw, recovery)


ONE: dict[str, Callable[[], Behaviour]] = {
    "a refusal": lambda: answer(completion(None, refusal="I cannot help with that.")),
    "prose": lambda: answer(completion("Hard to say.")),
    "a refused request (400)": lambda: answer({"error": {"message": "content filter"}}, 400),
}


@pytest.mark.parametrize("one", ONE)
def test_language_model_missing_grade_leaves_one_document_unscored(
    judged: Service, model: Server, table: Table, one: str
) -> None:
    model.script = [ONE[one]()]
    response = ask(judged, k=120)
    body = check_answer(response, k=120)
    assert calls_and_hits(body) == (BUDGET, 0)
    assert sum(document["source"] == "cross_encoder" for document in body["documents"]) == BUDGET - 1
    assert any(warning["slug"] == "documents-without-score" for warning in body["warnings"])
    saw = f"{outcome(response)}; a warning; the document has its expected score"
    table.add(f"a language model does not grade one document: {one}", saw, None)
