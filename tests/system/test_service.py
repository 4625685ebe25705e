"""Test the service as a process, over a real socket."""

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from tests.patience import PATIENCE, until
from tests.system.service import Service, boundarymorph, service

DOCUMENTS = [
    {"id": "violin", "text": "A violin has four strings."},
    {"id": "tram", "text": "Trams leave every ten minutes."},
    {"id": "bread", "text": "Yeast makes the dough rise."},
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("system") / "data") as running:
        yield running


@pytest.fixture
def data(running: Service) -> Path:
    return running.log_file.with_suffix("")


def selected(running: Service, index: str, query: str, **options: object) -> list[str]:
    return [document["id"] for document in running.select(query=query, index=index, k=1, **options)["documents"]]


@pytest.mark.servers
def test_service_selects_over_http(running: Service) -> None:
    assert running.client.get("/livez").json()["status"] == "ok"
    assert running.client.put("/indexes/few").status_code == 201
    assert running.client.post("/indexes/few/documents", json=DOCUMENTS).json()["added"] == 3
    assert selected(running, "few", "violin strings") == ["violin"]
    assert selected(running, "few", "dough", budget=3) == ["bread"]
    assert 'route="/select",status="200"' in running.client.get("/metrics").text
    assert "ready" in running.log


def test_service_sees_builds_of_other_processes_at_once(running: Service, data: Path, tmp_path: Path) -> None:
    source = tmp_path / "docs.jsonl"
    for count in (2, 3):
        source.write_bytes(b"\n".join(map(orjson.dumps, DOCUMENTS[:count])))
        built = boundarymorph("index", "build", "beside", "--from", str(source), data=data)
        assert (built.returncode, built.stderr) == (0, "")
        assert (selected(running, "beside", "dough") == ["bread"]) == (count == 3)
        assert running.client.get("/indexes/beside").json()["count"] == count
    # The command sees uploads to the service, too.
    uploaded = running.client.post("/indexes/beside/documents", json=[{"id": "harp", "text": "A harp is plucked."}])
    assert uploaded.json()["added"] == 1
    found = boundarymorph("select", "beside", "plucked harp", "-k", "1", "--json", data=data)
    assert [document["id"] for document in orjson.loads(found.stdout)["documents"]] == ["harp"]
    assert boundarymorph("index", "delete", "beside", data=data).returncode == 0
    assert running.client.get("/indexes/beside").status_code == 404


def test_service_exits_if_its_port_is_in_use(running: Service, tmp_path: Path) -> None:
    with service(tmp_path / "data", port=running.port, ready=False) as second:
        assert second.process.wait(timeout=PATIENCE) != 0
        assert "in use" in second.log and "--port" in second.log and "Traceback" not in second.log
    assert running.client.get("/readyz").is_success


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_service_finishes_its_requests_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with service(tmp_path / "data", embedded=True) as ending:
        texts = [{"text": f"the number {n} " * 20} for n in range(60)]
        with ThreadPoolExecutor(1) as thread:
            request = {"query": "numbers", "pool": texts, "k": 5, "budget": 40}
            in_flight = thread.submit(ending.client.post, "/select", json=request)
            until(lambda: ending.metric("boundarymorph_select_running") == 1)
            assert ending.stop(number) == 0
            assert in_flight.result().status_code == 200
        assert "Traceback" not in ending.log
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", ending.port))


def test_service_exits_on_a_signal_during_its_start(tmp_path: Path) -> None:
    with service(tmp_path / "data", ready=False) as starting:
        starting.await_answer("/livez")
        assert starting.stop() == 0
        assert "Traceback" not in starting.log
