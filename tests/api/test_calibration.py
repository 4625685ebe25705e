"""Requests with a calibration: by its name, the key's or the index's default."""

from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from boundarymorph.access import callers
from boundarymorph.calibration.belongings import DEFAULT, FOLDER
from boundarymorph.calibration.calibration import Calibration, Trust
from boundarymorph.retrieval.index_retriever import pools_of
from boundarymorph.settings import Settings
from tests.api.service import answer, belongings, fill_directory, filled, gateway, problem, texts
from tests.scoring.fakes import SeededScorer, score_of

QUERY = "calibrated"
SCALE = Calibration("scale", "scale", SeededScorer().name, None, 1e-6, Trust(0.5, -1.0), Trust(0.5, -1.0))
FULL = replace(SCALE, name="full", form="signals", full=Trust(0.2, -1.0, {"similarity": 2.0, "bm25": 0.5}))
POOL = texts(40)


def read(score: float) -> float:
    return float(1 / (1 + np.exp(1.0) * ((1 - score) / score) ** 0.5))


@pytest.fixture(autouse=True)
def kept(settings: Settings, client: httpx.AsyncClient) -> None:
    for calibration in (SCALE, FULL):
        pools_of(settings).keep(calibration)
    belongings(settings, "texts").keep(replace(FULL, name="texts", index="texts"))


async def test_a_document_has_its_probability_and_its_score(client: httpx.AsyncClient) -> None:
    request = {"query": QUERY, "pool": POOL, "budget": 10, "k": 20, "calibration": "scale", "explain": True}
    body = answer(await client.post("/select", json=request))
    assert body["calibration"] == "scale"
    scored = [document for document in body["documents"] if document["source"] == "cross_encoder"]
    assert scored
    for document in scored:
        assert document["relevance"] == pytest.approx(read(document["cross_encoder_score"]))
    assert all(document["cross_encoder_score"] is None for document in body["documents"] if document not in scored)
    by_id = {document["id"]: score_of(QUERY, document["text"]) for document in POOL}
    assert all(call["score"] == by_id[call["id"]] for part in body["rounds"] for call in part["calls"])


async def test_all_evidence_makes_another_set(client: httpx.AsyncClient) -> None:
    request = {"query": QUERY, "index": "texts", "budget": 40, "k": 8}
    plain = answer(await client.post("/select", json={**request, "calibration": False}))
    told = answer(await client.post("/select", json={**request, "calibration": "full"}))
    assert plain["calibration"] is None
    assert told["calibration"] == "full"
    assert {d["id"] for d in told["documents"]} != {d["id"] for d in plain["documents"]}


async def test_an_index_has_its_own_by_default(client: httpx.AsyncClient) -> None:
    request = {"query": QUERY, "index": "texts", "budget": 5, "k": 5}
    assert answer(await client.post("/select", json=request))["calibration"] == "texts"
    assert answer(await client.post("/select", json={**request, "calibration": "scale"}))["calibration"] == "scale"
    assert answer(await client.post("/select", json={**request, "calibration": False}))["calibration"] is None
    unasked = {"query_embedding": [1, 0, 0, 0], "query": QUERY, "index": "own", "budget": 2, "k": 2}
    assert answer(await client.post("/select", json=unasked))["calibration"] is None  # made for no index


@pytest.mark.strangers
@pytest.mark.parametrize("scorer", [SeededScorer().name, "a model of last year"])
async def test_one_that_could_not_tell_is_not_spoken_of_in_answers(
    client: httpx.AsyncClient, settings: Settings, scorer: str
) -> None:
    """`calibrate` said it once; whoever asks for documents can do nothing about it."""
    request = {"query": QUERY, "index": "texts", "budget": 5, "k": 5}
    plain = answer(await client.post("/select", json={**request, "calibration": False}))
    belongings(settings, "texts").keep(replace(FULL, name="texts", index="texts", form="none", scorer=scorer))
    found = answer(await client.post("/select", json=request))
    assert found["calibration"] is None and found["warnings"] == plain["warnings"]
    assert [one["id"] for one in found["documents"]] == [one["id"] for one in plain["documents"]]


async def test_a_key_has_one_by_default(tmp_path: Path) -> None:
    secret, key = callers.make_key("ours", [callers.Scope.SELECT])
    settings = Settings(data_directory=tmp_path, keys=(str(key),), calibration={"keys": {"ours": "scale"}})
    async with filled(Settings(data_directory=tmp_path)):
        pass
    pools_of(settings).keep(SCALE)
    async with filled(settings) as client:
        client.headers["authorization"] = f"Bearer {secret}"
        for request in ({"pool": POOL}, {"index": "texts"}):
            body = answer(await client.post("/select", json={"query": QUERY, "budget": 3, "k": 3, **request}))
            assert body["calibration"] == "scale"


async def test_what_is_made_or_deleted_counts_for_the_next_request_through_a_gateway(tmp_path: Path) -> None:
    behind = Settings(data_directory=tmp_path / "behind")
    await fill_directory(behind.data_directory)
    held = belongings(behind, "texts")
    request = {"query": QUERY, "index": "texts", "budget": 5, "k": 5}
    several = {"query": None, "queries": [{"query": QUERY}, {"query": "another"}]}

    async def used(**fields: object) -> str | None:
        found: str | None = answer(await client.post("/select", json={**request, **fields}))["calibration"]
        return found

    async with gateway(behind) as client:
        assert await used() is None
        problem(await client.post("/select", json={**request, "calibration": "full"}), 404, "unknown-calibration")
        held.keep(replace(SCALE, name="texts", index="texts"))
        held.keep(replace(SCALE, name="full", index="texts"))
        assert [await used(), await used(calibration="full"), await used(calibration=False)] == ["texts", "full", None]
        assert await used(**several) == "texts"
        refused = await client.post("/select", json={**request, "calibration": "other"})
        assert "there is full, texts" in problem(refused, 404, "unknown-calibration")
        (behind.data_directory / "indexes" / "texts" / FOLDER / DEFAULT).unlink()
        assert await used() is None


async def test_unknown_and_misnamed_ones(client: httpx.AsyncClient) -> None:
    request = {"query": QUERY, "pool": POOL}
    refused = await client.post("/select", json={**request, "calibration": "other"})
    assert "full, scale, texts" in problem(refused, 404, "unknown-calibration")


async def test_rerank_routes_take_a_calibration_and_a_threshold(client: httpx.AsyncClient) -> None:
    request = {"query": QUERY, "documents": [document["text"] for document in POOL]}
    plain = (await client.post("/v2/rerank", json=request)).json()
    scale = (await client.post("/v2/rerank", json={**request, "calibration": "scale"})).json()
    assert [found["index"] for found in scale["results"]] == [found["index"] for found in plain["results"]]
    for before, after in zip(plain["results"], scale["results"], strict=True):
        assert after["relevance_score"] == pytest.approx(read(before["relevance_score"]))
    full = (await client.post("/v2/rerank", json={**request, "calibration": "full"})).json()
    assert [found["index"] for found in full["results"]] != [found["index"] for found in plain["results"]]
    least = scale["results"][12]["relevance_score"]
    some = (await client.post("/v2/rerank", json={**request, "calibration": "scale", "min_relevance": least})).json()
    assert some["results"] == scale["results"][:13]
    refused = await client.post("/v2/rerank", json={**request, "calibration": "other"})
    assert refused.status_code == 404


@pytest.mark.strangers
async def test_a_key_sees_and_uses_only_the_calibrations_of_its_indexes(tmp_path: Path) -> None:
    secret, key = callers.make_key("acme", [callers.Scope.SELECT], ["own"], "acme")
    async with filled(Settings(data_directory=tmp_path)):
        pass
    settings = Settings(data_directory=tmp_path, keys=(str(key),))
    held = belongings(settings, "texts")
    for name in ("texts", "merger"):
        held.keep(replace(SCALE, name=name, index="texts"))
    pools_of(settings).keep(SCALE)
    async with filled(settings) as client:
        client.headers["authorization"] = f"Bearer {secret}"
        rerank = {"query": QUERY, "documents": [document["text"] for document in POOL]}
        for path, request in (
            ("/select", {"query": QUERY, "pool": POOL}),
            ("/select", {"query": QUERY, "index": "own", "query_embedding": [1, 0, 0, 0]}),
            ("/v1/rerank", rerank),
            ("/v2/rerank", rerank),
            ("/rerank", {"query": QUERY, "texts": rerank["documents"]}),
        ):
            told = []
            for name in ("texts", "merger", "absent"):
                refused = await client.post(path, json={**request, "calibration": name})
                assert refused.status_code == 404
                told.append(refused.text.replace(name, "NAME"))
            assert len(set(told)) == 1 and "merger" not in told[0] and "there is full, scale" in told[0]
            assert (await client.post(path, json={**request, "calibration": "scale"})).is_success
