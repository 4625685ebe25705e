"""Test answers with the calibration of an index or of pools, and an index's artifacts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from boundarymorph.calibration.calibration import Calibration, ProbabilityMap
from boundarymorph.calibration.trust import Choice
from boundarymorph.retrieval.artifacts import FILE, Artifacts
from boundarymorph.settings import Settings
from tests.fakes.scorer import SeededScorer, score_of
from tests.fakes.service import answer, artifacts, fill_directory, filled, gateway, problem, serving, texts

QUERY = "calibrated"
WHEN = "2026-11-28T10:00:00+00:00"
MAP = ProbabilityMap(0.5, -1.0, 1e-6)
MADE = Calibration(SeededScorer().name, None, {"human": MAP, "scorer": MAP}, created=WHEN)
POOL = texts(40)
OF_INDEX = {"query": QUERY, "index": "texts", "budget": 5, "k": 5}


def read(score: float) -> float:
    return float(1 / (1 + np.exp(1.0) * ((1 - score) / score) ** 0.5))


@pytest.fixture
def calibrated(settings: Settings, tmp_path: Path) -> Settings:
    """Return settings with a calibration for pools."""
    path = tmp_path / "pools.json"
    path.write_bytes(orjson.dumps(MADE.to_json()))
    return settings.model_copy(update={"calibration": path})


@pytest.mark.parametrize("relevance", ["human", "scorer"])
async def test_calibrated_document_has_a_probability_and_its_score(calibrated: Settings, relevance: str) -> None:
    request = {"query": QUERY, "pool": POOL, "budget": 10, "k": 20, "explain": True, "relevance": relevance}
    async with filled(calibrated) as client:
        plain = answer(await client.post("/select", json={**request, "calibration": False}))
        body = answer(await client.post("/select", json=request))
    assert (plain["calibration"], body["calibration"]) == (None, WHEN)
    before = {document["id"]: document["relevance"] for document in plain["documents"]}
    assert {document["id"] for document in body["documents"]} == before.keys()
    scored = [document for document in body["documents"] if document["source"] == "cross_encoder"]
    assert scored
    for document in scored:
        assert document["relevance"] == pytest.approx(read(before[document["id"]]))
        if relevance == "scorer":
            assert document["relevance"] == pytest.approx(read(document["cross_encoder_score"]))
    by_id = {document["id"]: score_of(QUERY, document["text"]) for document in POOL}
    assert all(document["cross_encoder_score"] == by_id[document["id"]] for document in scored)
    assert all(call["score"] == by_id[call["id"]] for part in body["rounds"] for call in part["calls"])


@pytest.mark.parametrize("source", ["index", "pool"])
async def test_trust_of_the_calibration_is_used_and_may_stop_calls(
    settings: Settings, tmp_path: Path, source: str
) -> None:
    async def selected(trust: Choice, **fields: object) -> Any:
        made = replace(MADE, maps={}, trust=trust)
        (tmp_path / "pools.json").write_bytes(orjson.dumps(made.to_json()))
        given: dict[str, Any] = {"index": "texts"} if source == "index" else {"pool": POOL}
        async with filled(settings.model_copy(update={"calibration": tmp_path / "pools.json"})) as client:
            artifacts(settings, "texts").change(calibration=made)
            assert answer(await client.get("/indexes/texts"))["trust"] == trust
            wanted = {"query": QUERY, "k": 5, "relevance": "human", **given, **fields}
            return answer(await client.post("/select", json=wanted))

    strong = await selected("strong", budget=5)
    assert (strong["scorer"]["trust"], strong["calibration"], strong["warnings"]) == ("strong", WHEN, [])
    spared = await selected("none")
    assert (spared["usage"]["budget"], spared["usage"]["cross_encoder_calls"]) == (0, 0)
    assert [warning["slug"] for warning in spared["warnings"]] == ["harmful-scorer-not-called"]
    if source == "index":
        several = await selected("none", query=None, queries=[{"query": QUERY}, {"query": "other"}])
        assert (several["usage"]["budget"], several["usage"]["cross_encoder_calls"]) == (0, 0)
    asked = await selected("none", budget=5)
    assert asked["usage"]["cross_encoder_calls"] == 5 and asked["scorer"]["trust"] == "weak"
    assert [warning["slug"] for warning in asked["warnings"]] == ["harmful-scorer"]
    by_score = await selected("none", relevance="scorer")
    assert by_score["usage"]["cross_encoder_calls"] > 0 and not by_score["warnings"]
    without = await selected("none", calibration=False)
    assert without["usage"]["cross_encoder_calls"] > 0 and without["scorer"]["trust"] == "normal"


async def test_calibration_of_an_index_applies_to_that_index_only(
    client: httpx.AsyncClient, settings: Settings
) -> None:
    artifacts(settings, "texts").change(calibration=MADE)
    assert answer(await client.post("/select", json=OF_INDEX))["calibration"] == WHEN
    assert answer(await client.post("/select", json={**OF_INDEX, "calibration": False}))["calibration"] is None
    assert answer(await client.post("/select", json={"query": QUERY, "pool": POOL}))["calibration"] is None
    other = {"query_embedding": [1, 0, 0, 0], "query": QUERY, "index": "own", "budget": 2, "k": 2}
    assert answer(await client.post("/select", json=other))["calibration"] is None


@pytest.mark.parametrize("through_gateway", [False, True])
async def test_damaged_artifacts_are_reported_and_searches_succeed(
    tmp_path: Path, through_gateway: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(data_directory=tmp_path)
    await fill_directory(tmp_path)
    artifacts(settings, "texts").change(calibration=MADE, description="Texts.")
    (tmp_path / "indexes" / "texts" / FILE).write_bytes(b"{")
    async with gateway(settings) if through_gateway else serving(settings) as client:
        found = answer(await client.post("/select", json=OF_INDEX))
        assert found["calibration"] is None and len(found["documents"]) == 5
        assert "the calibration and the default 'distinct' of the index cannot be read" in str(found["warnings"])
        assert FILE in caplog.text and str(tmp_path) not in str(found)
        assert answer(await client.get("/indexes/texts"))["description"] is None
        assert {index["name"] for index in answer(await client.get("/indexes"))["indexes"]} >= {"texts"}
        problem(await client.get("/indexes/texts/artifacts"), 500, "corrupt-index")
        problem(await client.patch("/indexes/texts/artifacts", json={"distinct": "n"}), 500, "corrupt-index")


@pytest.mark.parametrize("through_gateway", [False, True])
async def test_artifacts_route_reads_and_changes_artifacts(tmp_path: Path, through_gateway: bool) -> None:
    settings = Settings(data_directory=tmp_path)
    await fill_directory(tmp_path)
    path = "/indexes/texts/artifacts"
    async with gateway(settings) if through_gateway else serving(settings) as client:
        assert answer(await client.get(path)) == {"description": None, "distinct": None, "calibration": None}
        for change in ({"description": "Texts.", "distinct": "page"}, {"calibration": MADE.to_json()}):
            assert (await client.patch(path, json=change)).status_code == 204
        assert artifacts(settings, "texts").read() == Artifacts("Texts.", "page", MADE)
        assert answer(await client.get(path))["calibration"] == MADE.to_json()
        assert (await client.patch(path, json={"distinct": None})).status_code == 204
        assert artifacts(settings, "texts").read() == Artifacts("Texts.", None, MADE)
        for wrong in ({"calibration": {"version": 1}}, {"calibration": "mine"}, {"other": 1}, {"distinct": 3}):
            problem(await client.patch(path, json=wrong), 422, "invalid-input")
        problem(await client.patch("/indexes/other/artifacts", json={"distinct": "page"}), 404, "unknown-index")
        problem(await client.get("/indexes/other/artifacts"), 404, "unknown-index")
        assert (await client.delete("/indexes/texts")).status_code == 204
        answer(await client.put("/indexes/texts"))
        assert artifacts(settings, "texts").read() == Artifacts()


async def test_rerank_routes_apply_the_pool_calibration_and_a_threshold(calibrated: Settings) -> None:
    request = {"query": QUERY, "documents": [document["text"] for document in POOL]}
    calibrated = calibrated.model_copy(update={"policies": Settings(policies={"raw": {"calibration": False}}).policies})
    async with filled(calibrated) as client:
        plain = (await client.post("/v2/rerank", json={**request, "calibration": False})).json()
        read_as = (await client.post("/v2/rerank", json=request)).json()
        assert [found["index"] for found in read_as["results"]] == [found["index"] for found in plain["results"]]
        for before, after in zip(plain["results"], read_as["results"], strict=True):
            assert after["relevance_score"] == pytest.approx(read(before["relevance_score"]))
        assert read_as["boundarymorph"]["calibration"] == WHEN
        least = read_as["results"][12]["relevance_score"]
        some = (await client.post("/v2/rerank", json={**request, "min_relevance": least})).json()
        assert some["results"] == read_as["results"][:13]
        by_policy = (await client.post("/p/raw/v2/rerank", json=request)).json()
        assert by_policy["results"] == plain["results"]
