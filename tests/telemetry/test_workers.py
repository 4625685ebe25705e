"""Several workers on one port: what they count adds up, and none of them is missed."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.server import process
from boundarymorph.settings import Settings
from tests.patience import PATIENCE, until
from tests.system.service import Service, retriever, scorer, service

POOL = [{"text": f"the number {n}"} for n in range(6)]
REQUEST = {"query": "numbers", "pool": POOL, "vectors": "encoder", "k": 2, "budget": 2, "rounds": 1, "reuse": False}
SELECTED = 'boundarymorph_http_request_duration_seconds_count{method="POST",route="/select",status="200"}'


def ready_workers(running: Service) -> set[object]:
    """The processes that have become ready, of those that still run."""
    ready = {line["process"] for line in running.lines if line["message"] == "ready"}
    return {process for process in ready if Path(f"/proc/{process}/fd").exists()}


def served(running: Service) -> dict[object, int]:
    """Selections by the process that answered them, as the logs have it."""
    counts: dict[object, int] = {}
    for line in running.lines:
        if line.get("path") == "/select":
            counts[line["process"]] = counts.get(line["process"], 0) + 1
    return counts


def shared_directories(running: Service) -> list[str]:
    environments = (Path(f"/proc/{process}/environ").read_bytes() for process in ready_workers(running))
    return [
        found[1].decode()
        for found in (re.search(rb"PROMETHEUS_MULTIPROC_DIR=([^\0]+)", e) for e in environments)
        if found
    ]


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Where a scorer and a retriever are, for the gateways of all tests."""
    directory = tmp_path_factory.mktemp("behind")
    with scorer(directory / "scorer.log") as scores, retriever(directory / "data") as pools:
        yield scores.url, pools.url


@pytest.fixture
def gateway(tmp_path: Path, behind: tuple[str, str]) -> Iterator[Service]:
    """Two workers, in front of a scorer and a retriever."""
    (tmp_path / "boundarymorph.toml").write_text('log_format = "json"\ngrace_seconds = 600\ncache.enabled = false')
    scores, pools = behind
    options = ("--workers", "2", "--scorer-url", scores, "--retriever-url", pools)
    with service(tmp_path / "data", *options) as front:
        until(lambda: len(ready_workers(front)) == 2)
        yield front


def ask(running: Service, count: int) -> None:
    """So many selections, each over a connection of its own, a few side by side."""

    def one(_: int) -> int:
        return running.client.post("/select", json=REQUEST, headers={"connection": "close"}).status_code

    with ThreadPoolExecutor(6) as threads:
        assert set(threads.map(one, range(count))) == {200}


def scraped(running: Service) -> str:
    """/metrics, over a connection of its own."""
    return running.client.get("/metrics", headers={"connection": "close"}).text


@pytest.mark.servers
def test_what_two_workers_count_adds_up_and_one_may_die(gateway: Service) -> None:
    asked = 0
    while len(served(gateway)) < 2:
        ask(gateway, 12)
        asked += 12
        assert asked < 1_000
    until(lambda: sum(served(gateway).values()) == asked)
    # Whichever worker answers the scrape.
    for _ in range(8):
        exposed = scraped(gateway)
        assert f"{SELECTED} {asked}.0" in exposed
        assert f"boundarymorph_cross_encoder_calls_total {2 * asked}.0" in exposed
        assert 'boundarymorph_part_up{part="scorer"} 1.0' in exposed
        assert "pid=" not in exposed

    victim = max(served(gateway), key=lambda process: served(gateway)[process])
    assert isinstance(victim, int)
    os.kill(victim, signal.SIGKILL)
    ask(gateway, 24)
    until(lambda: len(ready_workers(gateway) - {victim}) == 2)
    ask(gateway, 24)
    until(lambda: f"{SELECTED} {asked + 48}.0" in scraped(gateway))
    assert f"Child process [{victim}] died" in gateway.log

    directory = Path(shared_directories(gateway)[0])
    assert any(directory.iterdir())
    sigterm_lets_all_finish(gateway)
    assert not directory.exists()
    assert "Traceback" not in gateway.log and "Warning" not in gateway.log


def sigterm_lets_all_finish(gateway: Service) -> None:
    """All that run when it comes; what has not been taken in by then is refused or not connected."""
    slow = REQUEST | {"pool": [{"text": f"the number {n} " * 60} for n in range(200)], "budget": 150, "rounds": 75}

    def status(number: int) -> int | None:
        try:
            body = slow | {"query": f"numbers {number}"}
            return httpx.post(f"{gateway.url}/select", json=body, timeout=PATIENCE).status_code
        except httpx.TransportError:
            return None

    def running() -> float:
        return gateway.metric("boundarymorph_select_running")

    until(lambda: running() == 0)  # a scrape has other workers' gauges as they were up to a second ago
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(status, number) for number in range(4)]
        until(lambda: running() >= 1)
        seen = running()
        assert gateway.stop() == 0
        statuses = [answer.result() for answer in answers]
        assert statuses.count(200) >= max(1, seen)
        assert set(statuses) <= {200, 429, 503, None}
    assert ready_workers(gateway) == set()


def test_what_waits_in_any_worker_is_seen_and_a_second_sigterm_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "boundarymorph.toml").write_text('drain_seconds = 300\nlog_format = "json"\nthreads = 1')
    slow = REQUEST | {"pool": [{"text": f"the number {n} " * 99} for n in range(16)], "budget": 16, "rounds": 1}

    def waiting() -> float:
        exposed = scraped(running)
        samples = re.findall(r"^boundarymorph_scorer_queue_pairs{([^}]*)} (\S+)$", exposed, re.MULTILINE)
        assert all("pid" not in labels for labels, _ in samples)
        return sum(float(value) for _, value in samples)

    with service(tmp_path / "data", "--workers", "2", embedded=True) as running, ThreadPoolExecutor(1) as threads:
        until(lambda: len(ready_workers(running)) == 2)
        in_flight = threads.submit(httpx.post, f"{running.url}/select", json=slow, timeout=PATIENCE)
        until(lambda: all(waiting() > 0 for _ in range(6)))
        assert in_flight.result().status_code == 200
        until(lambda: all(waiting() == 0 for _ in range(6)))
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.client.get("/readyz").status_code == 503)
        assert running.client.get("/readyz").json()["status"] == "draining"
        assert running.stop() == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ('keys = ["nonsense:select"]', "the key 'nonsense' is not"),
        ('[rate_limits]\nkeys = { nobody = "1/second" }', "there is no key named 'nobody'"),
    ],
)
def test_a_mistake_in_the_settings_is_told_once(tmp_path: Path, text: str, mistake: str) -> None:
    (tmp_path / "boundarymorph.toml").write_text(text)
    with service(tmp_path / "data", "--workers", "2", ready=False) as broken:
        assert broken.process.wait(timeout=PATIENCE) == 1
        (line,) = broken.log.splitlines()
        assert line.startswith("error: ") and mistake in line


def test_no_worker_outlives_its_supervisor(gateway: Service) -> None:
    gateway.process.kill()
    until(lambda: not ready_workers(gateway))


def test_memory_is_bounded_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(process, "share_arenas", lambda: order.append("arenas"))

    def create(settings: Settings, *, on_failure: Callable[[], None]) -> NoReturn:
        order.append("create")
        raise InvalidConfiguration("enough")

    with pytest.raises(InvalidConfiguration, match="enough"):
        process.serve(create, Settings(), "test")
    assert order == ["arenas", "create"]
