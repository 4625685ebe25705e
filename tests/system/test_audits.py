"""Audits in real processes: while nobody waits, not under load, and kept when a process is killed."""

import json
import threading
import time
from pathlib import Path

import pytest

from tests.patience import until
from tests.system.service import Service, retriever, scorer, service

AUDITED = {"BOUNDARYMORPH_MEMORY__AUDITS": "1", "BOUNDARYMORPH_MEMORY__ENABLED": "true"}
DONE = 'boundarymorph_audits_total{outcome="done"}'
OBJECTIVE = {"lose_at_most": 0.5, "in": 0.8}


def fill(running: Service) -> None:
    words = ["apple", "pear", "plum", "fig", "cherry", "date", "grape", "lemon", "lime", "melon"]
    running.fill(
        "fruit", ({"id": f"d{n}", "text": f"{words[n % 10]} {words[n // 10]} {n}"} for n in range(60)), encoder="none"
    )


def ask(running: Service, number: int, **fields: object) -> dict[str, object]:
    return running.select(query=f"fruit {number} apple lime", index="fruit", k=5, budget=8, **fields)


@pytest.mark.slow
def test_audits_wait_for_callers_and_outlive_a_kill(tmp_path: Path) -> None:
    (tmp_path / "front").mkdir()
    with (
        retriever(tmp_path / "data") as behind,
        scorer(tmp_path / "scorer.log") as model,
    ):
        options = ("--retriever-url", behind.url, "--scorer-url", model.url)
        with service(tmp_path / "front" / "data", *options, environment=AUDITED) as one:
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
        with service(tmp_path / "front" / "again", *options, environment=AUDITED) as other:
            found = ask(other, 99, objective=OBJECTIVE)
            promise = found["promise"]
            assert isinstance(promise, dict) and promise["audits"] >= 12, "those of the process that was killed"
            assert len(found["documents"]) == 5  # type: ignore[arg-type]
            learned = other.client.get("/indexes/fruit/learned").json()["memories"]
            assert [one["audits"] for one in learned[0]["audited"]] == [promise["audits"]]
            assert "fruit" not in json.dumps(learned[0]["audited"])
