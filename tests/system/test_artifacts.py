"""The artifacts of an index, over sockets: a retriever has them, and two gateways agree on them and keep nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from boundarymorph.calibration.calibration import Calibration, ProbabilityMap
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.faults.scenario import fill
from tests.system.service import Service, boundarymorph, retriever, scorer, service

pytestmark = pytest.mark.strangers
WHEN = "2026-11-28T10:00:00+00:00"
SELECT = {"query": "tales of music", "index": "tales", "budget": 5, "k": 5}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def gateways(directory: Path) -> Iterator[tuple[Service, Service]]:
    with retriever(directory / "data") as alone, scorer(directory / "scorer.log") as scoring:
        urls = ("--retriever-url", alone.url, "--scorer-url", scoring.url)
        with service(directory / "a", *urls) as a, service(directory / "b", *urls) as b:
            yield a, b


def test_two_gateways_agree_and_keep_nothing(gateways: tuple[Service, Service], directory: Path) -> None:
    a, b = gateways
    fill(a)
    assert a.client.put("/indexes/tales/description", json={"description": "Tales."}).status_code == 204
    assert b.client.get("/indexes/tales").json()["description"] == "Tales."
    LocalCatalog(directory / "data" / "indexes").artifacts("tales").change(distinct="book")
    assert b.client.get("/indexes/tales").json()["distinct"] == "book"
    model = a.client.get("/v1/models").json()["data"][0]["id"]
    made = Calibration(model, None, {"people": ProbabilityMap(0.5, -1.0, 1e-6)}, created=WHEN)
    assert b.client.patch("/indexes/tales/artifacts", json={"calibration": made.to_json()}).status_code == 204
    assert a.client.get("/indexes/tales/artifacts").json() == {
        "description": "Tales.", "distinct": "book", "calibration": made.to_json()
    }  # fmt: skip

    first, second = a.select(**SELECT), b.select(**SELECT)
    assert (first["calibration"], second["calibration"]) == (WHEN, WHEN)
    assert [d["relevance"] for d in first["documents"]] == [d["relevance"] for d in second["documents"]]

    copied = boundarymorph("index", "snapshot", "tales", "--to", str(directory / "copy"), data=directory / "data")
    assert copied.returncode == 0, copied.stderr
    assert a.client.delete("/indexes/tales").status_code == 204
    assert b.client.delete("/indexes/tales").status_code == 404
    fill(b)
    assert a.select(**SELECT)["calibration"] is b.select(**SELECT)["calibration"] is None

    done = boundarymorph("index", "restore", "again", "--from", str(directory / "copy"), data=directory / "data")
    assert done.returncode == 0, done.stderr
    assert b.client.get("/indexes/again").json()["description"] == "Tales."
    assert b.client.get("/indexes/again").json()["distinct"] == "book"
    again = a.select(**{**SELECT, "index": "again"})
    assert again["calibration"] == WHEN
    relevance = [d["relevance"] for d in first["documents"]]
    assert [d["relevance"] for d in again["documents"]] == pytest.approx(relevance, rel=1e-4)
    assert boundarymorph("index", "delete", "again", data=directory / "data").returncode == 0
    assert b.client.get("/indexes/again").status_code == 404
    assert not (directory / "a").exists() and not (directory / "b").exists()
