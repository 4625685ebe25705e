"""The retriever in a separate process: a gateway in front of it gives the same answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from boundarymorph.calibration.calibration import Calibration, ProbabilityMap
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.faults.scenario import DOCUMENTS, SUBJECTS, fill
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.system.service import Service, boundarymorph, repeatable, retriever, scorer, service

SELECT = {"query": "tales of music", "index": "tales", "budget": 15, "rounds": 3, "k": 10, "reuse": False}
SELECT |= {"return_documents": True}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("retrievers")


@pytest.fixture(scope="module")
def alone(directory: Path) -> Iterator[Service]:
    with retriever(directory / "data") as running:
        yield running


@pytest.fixture(scope="module")
def gateway(directory: Path, alone: Service) -> Iterator[Service]:
    """Neither indexes nor models are in this process."""
    with (
        scorer(directory / "scorer.log") as scoring,
        service(directory / "gateway", "--retriever-url", alone.url, "--scorer-url", scoring.url) as running,
    ):
        fill(running)
        yield running


def select(running: Service, **options: Any) -> dict[str, Any]:
    return repeatable(running.select(**SELECT | options))


def test_gateway_with_a_retriever_answers_as_one_process(gateway: Service, directory: Path) -> None:
    with service(directory / "whole") as whole:
        fill(whole)
        for options in ({}, {"max_tokens": 100, "k": None}, {"query": "tram", "depth": 20, "method": "boundarymorph"}):
            assert select(whole, **options) == select(gateway, **options)


def test_gateway_refuses_a_calibration_of_another_encoder(gateway: Service, directory: Path) -> None:
    held = LocalCatalog(directory / "data" / "indexes").artifacts("tales")
    scorer_name = gateway.client.get("/v1/models").json()["data"][0]["id"]
    answers = []
    for encoder in (gateway.client.get("/indexes/tales").json()["encoder"], "another encoder"):
        held.change(calibration=Calibration(scorer_name, encoder, {"people": ProbabilityMap(0.5, -1.0, 1e-6)}))
        answers.append(gateway.select(**SELECT))
    held.change(calibration=None)
    used, refused = answers
    assert (used["calibration"], refused["calibration"]) == ("", None)
    assert any("learned with the encoder 'another encoder'" in warning["message"] for warning in refused["warnings"])


def test_calibrate_through_a_gateway_names_the_retrievers_encoder(
    gateway: Service, alone: Service, directory: Path
) -> None:
    """The command reads the settings of the gateway, which has neither indexes nor an encoder of its own."""
    queries = [f"what is told of the {subject}" for subject in SUBJECTS]
    pairs = [
        {"query": query, "document": each["id"], "grade": int(query.split()[-1] in each["text"])}
        for query in queries
        for each in DOCUMENTS[::3]
    ]
    (directory / "pairs.ndjson").write_bytes(b"\n".join(map(orjson.dumps, pairs)))
    given = ["--judgments", str(directory / "pairs.ndjson"), "--json"]
    at = {"BOUNDARYMORPH_RETRIEVER__URL": f'["{alone.url}"]'}
    done = boundarymorph("calibrate", "tales", *given, data=directory / "other", environment=at)
    assert done.returncode == 0, done.stderr
    made = orjson.loads(done.stdout[done.stdout.index("{\n") :])
    assert made["encoder"] == gateway.client.get("/indexes/tales").json()["encoder"]
    after = gateway.select(**SELECT)
    assert after["calibration"] == made["created"]
    LocalCatalog(directory / "data" / "indexes").artifacts("tales").change(calibration=None)


def test_gateway_is_thin(gateway: Service, alone: Service) -> None:
    select(gateway)
    pool = [{"id": str(n), "text": document["text"]} for n, document in enumerate(DOCUMENTS[:10])]
    select(gateway, index=None, pool=pool, k=3, vectors="encoder")  # the retriever's
    select(gateway, index=None, pool=pool, k=3)
    gateway.client.get("/indexes/tales")
    maps = Path(f"/proc/{gateway.process.pid}/maps").read_text()
    for library in ("libfaiss", "_swigfaiss", "onnxruntime", "libtorch"):
        assert library not in maps
    assert not (gateway.log_file.with_suffix("") / "indexes").exists()
    assert alone.client.post("/select", json=SELECT).status_code == 404
    assert "libtorch" not in Path(f"/proc/{alone.process.pid}/maps").read_text()


@pytest.mark.slow
def test_gateway_waits_for_its_retriever(directory: Path) -> None:
    port = free_port()
    with service(directory / "early", "--retriever-url", f"http://127.0.0.1:{port}", ready=False) as front:
        front.await_answer("/livez")
        until(lambda: str(port) in (front.client.get("/readyz").json()["detail"] or ""))
        assert front.client.get("/indexes").status_code == 503
        with retriever(directory / "late", port=port):
            front.await_answer()
            assert front.client.get("/indexes").json() == {"indexes": [], "unreadable": []}


@pytest.mark.slow
def test_gateway_refuses_a_retriever_that_is_none(directory: Path) -> None:
    with (
        scorer(directory / "else.log") as other,
        service(directory / "wrong", "--retriever-url", other.url, ready=False) as front,
    ):
        assert front.process.wait(timeout=PATIENCE) == 1
        assert "is it a retriever" in front.log and "Traceback" not in front.log
