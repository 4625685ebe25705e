"""A memory and its audits in real processes: told at the end, while nobody waits, and kept when a process is killed."""

import json
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.patience import until
from tests.system.service import Service, retriever, scorer, service

AUDITED = {"BOUNDARYMORPH_MEMORY__AUDITS": "1", "BOUNDARYMORPH_MEMORY__ENABLED": "true"}
DONE = 'boundarymorph_audits_total{outcome="done"}'
OBJECTIVE = {"lose_at_most": 0.5, "in": 0.8}


def gateway(folder: Path, behind: Service, model: Service) -> AbstractContextManager[Service]:
    folder.mkdir()
    return service(folder / "data", "--retriever-url", behind.url, "--scorer-url", model.url, environment=AUDITED)


def fill(running: Service) -> None:
    words = ["apple", "pear", "plum", "fig", "cherry", "date", "grape", "lemon", "lime", "melon"]
    running.fill(
        "fruit", ({"id": f"d{n}", "text": f"{words[n % 10]} {words[n // 10]} {n}"} for n in range(60)), encoder="none"
    )


def ask(running: Service, number: int, **fields: object) -> dict[str, object]:
    return running.select(query=f"fruit {number} apple lime", index="fruit", k=5, budget=8, **fields)


@pytest.mark.slow
def test_audits_wait_for_callers_and_outlive_a_kill(tmp_path: Path) -> None:
    with retriever(tmp_path / "data") as behind, scorer(tmp_path / "scorer.log") as model:
        with gateway(tmp_path / "one", behind, model) as one:
            fill(one)
            ended = threading.Event()

            def load() -> None:
                while not ended.is_set():
                    ask(one, 0)

            callers = [threading.Thread(target=load) for _ in range(3)]
            for caller in callers:
                caller.start()
            for number in range(5):
                ask(one, number)
            time.sleep(2.0)
            assert one.metric(DONE) == 0, "callers were there all the time"
            ended.set()
            for caller in callers:
                caller.join()
            until(lambda: one.metric(DONE) >= 12)
            one.process.kill()
        with gateway(tmp_path / "two", behind, model) as other:
            found = ask(other, 99, objective=OBJECTIVE)
            promise = found["promise"]
            assert isinstance(promise, dict) and promise["audits"] >= 12, "those of the process that was killed"
            assert len(found["documents"]) == 5  # type: ignore[arg-type]
            learned = other.client.get("/indexes/fruit/learned").json()["memories"]
            assert [one["audits"] for one in learned[0]["audited"]] == [promise["audits"]]
            assert "fruit" not in json.dumps(learned[0]["audited"])


@pytest.mark.slow
def test_what_a_gateway_knows_when_it_stops_is_told_and_kept(tmp_path: Path) -> None:
    """By a retriever that is killed then."""
    with scorer(tmp_path / "scorer.log") as model:
        with (
            retriever(tmp_path / "data") as behind,
            gateway(tmp_path / "one", behind, model) as one,
        ):
            fill(one)
            for number in range(11):
                ask(one, number, relevance="scorer")
            assert one.stop() == 0
            behind.process.kill()
        with retriever(tmp_path / "data") as behind, gateway(tmp_path / "two", behind, model) as two:
            (memory,) = two.client.get("/indexes/fruit/learned").json()["memories"]
            assert memory["requests"] == memory["remembered"] == 11
