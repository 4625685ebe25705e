"""Test a gateway with the retriever in a separate process: it gives the same answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.scenario import DOCUMENTS, fill
from tests.patience import until
from tests.ports import free_port
from tests.system.service import Service, repeatable_part, retriever, scorer, service

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
    """Yield a gateway without indexes and models."""
    with (
        scorer(directory / "scorer.log") as scoring,
        service(directory / "gateway", "--retriever-url", alone.url, "--scorer-url", scoring.url) as running,
    ):
        fill(running)
        yield running


def select(running: Service, **options: Any) -> dict[str, Any]:
    return repeatable_part(running.select(**SELECT | options))


def test_gateway_with_a_retriever_answers_like_one_process(gateway: Service, directory: Path) -> None:
    with service(directory / "whole") as whole:
        fill(whole)
        for options in ({}, {"max_tokens": 100, "k": None}, {"query": "tram", "depth": 20, "method": "boundarymorph"}):
            assert select(whole, **options) == select(gateway, **options)


def test_gateway_loads_no_index_or_model_libraries(gateway: Service, alone: Service) -> None:
    select(gateway)
    pool = [{"id": str(n), "text": document["text"]} for n, document in enumerate(DOCUMENTS[:10])]
    select(gateway, index=None, pool=pool, k=3, vectors="encoder")  # the encoder of the retriever
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
