"""Test a gateway with the scorer in a separate process: answers, draining, disconnections."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.patience import PATIENCE, until
from tests.system.service import Service, scorer, service

QUERY = "string instruments"
PASSAGE = "A violin has four strings, tuned in fifths, and is played with a bow; there are {} of them. "
TEXTS = [PASSAGE.format(number) * (1 + number % 5) for number in range(40)]
POOL = [{"id": str(number), "text": text, "embedding": [1.0, number / 40]} for number, text in enumerate(TEXTS)]
SELECT = {"query": QUERY, "query_embedding": [1.0, 0.3], "pool": POOL, "budget": 20, "rounds": 4, "k": 5}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory without a cache, so that every round reaches the scorer."""
    directory = tmp_path_factory.mktemp("scorers")
    (directory / "boundarymorph.toml").write_text("[cache]\nenabled = false")
    return directory


@pytest.fixture(scope="module")
def alone(directory: Path) -> Iterator[Service]:
    with scorer(directory / "alone.log", embedded=True) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(directory: Path, alone: Service) -> Iterator[Service]:
    with service(directory / "gateway", "--scorer-url", alone.url) as running:
        yield running


def select(running: Service, **options: Any) -> dict[str, Any]:
    return running.select(**SELECT | options)


def test_gateway_with_a_scorer_answers_like_one_process(gateway: Service, directory: Path) -> None:
    with service(directory / "whole", embedded=True) as whole:
        here, there = select(whole), select(gateway)
    for body in (here, there):
        del body["id"], body["timings_ms"]
    assert here == there
    maps = Path(f"/proc/{gateway.process.pid}/maps").read_text()
    assert "libtorch" not in maps and "onnxruntime" in maps  # the gateway has an encoder
    assert gateway.metric('boundarymorph_scorer_attempt_duration_seconds_count{endpoint="http://127') >= 4


def test_scorer_finishes_its_requests_after_sigterm(tmp_path: Path) -> None:
    texts = TEXTS * 3
    (tmp_path / "boundarymorph.toml").write_text(f"grace_seconds = {PATIENCE:.0f}")
    with scorer(tmp_path / "drained.log", embedded=True) as running, ThreadPoolExecutor(1) as threads:
        request: Future[httpx.Response] = threads.submit(
            httpx.post, f"{running.url}/score", json={"query": QUERY, "texts": texts}, timeout=PATIENCE
        )
        until(lambda: running.metric("boundarymorph_scorer_queue_pairs") > 0)
        assert running.stop() == 0
        assert len(request.result().json()["scores"]) == len(texts)


def test_draining_scorer_is_unready_but_answers_requests(tmp_path: Path) -> None:
    (tmp_path / "boundarymorph.toml").write_text("drain_seconds = 30")
    with scorer(tmp_path / "draining.log") as running:
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.client.get("/readyz").status_code == 503)
        assert running.client.get("/readyz").json()["status"] == "draining"
        time.sleep(0.5)
        assert running.client.post("/score", json={"query": QUERY, "texts": ["open"]}).is_success
        assert running.stop() == 128 + signal.SIGTERM  # a second signal does not wait
