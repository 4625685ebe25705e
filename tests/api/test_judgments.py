"""POST /judgments: who may, what is kept, and what the metrics show."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.access import callers
from boundarymorph.calibration.belongings import Event
from boundarymorph.settings import Settings
from tests.api.service import answer, belongings, filled, problem
from tests.api.test_calibration import SCALE
from tests.metrics import counted

GIVEN: dict[str, Any] = {"query": "q", "index": "texts", "judgments": [{"document": "d1", "grade": 2}]}


async def test_grades_are_kept(client: httpx.AsyncClient, settings: Settings) -> None:
    more = [{"document": "d2", "grade": 0}, {"document": 7, "grade": 1}]
    told = answer(await client.post("/judgments", json={**GIVEN, "judgments": [*GIVEN["judgments"], *more]}))
    assert told == {"added": 2, "kept": 2, "unknown": ["7"]}
    assert belongings(settings, "texts").judgments.events() == [Event("q", "d1", 2.0), Event("q", "d2", 0.0)]
    refused = {**GIVEN, "judgments": [{"document": "nosuch", "grade": 1}]}
    assert "'nosuch'" in problem(await client.post("/judgments", json=refused), 404, "unknown-document")
    assert answer(await client.get("/judgments", params={"index": "texts"})) == {"kept": 2}
    assert answer(await client.delete("/judgments", params={"index": "texts", "query": "other"})) == {"deleted": 0}
    assert answer(await client.delete("/judgments", params={"index": "texts"})) == {"deleted": 2}


@pytest.mark.parametrize(
    "judgment",
    [{}, {"grade": -1}, {"grade": 101},
     {"clicked": True, "rank": 1}, {"grade": 1, "rank": 2}, {"grade": 1, "relevance": 1.1}],
)  # fmt: skip
async def test_malformed_ones(client: httpx.AsyncClient, judgment: dict[str, object]) -> None:
    given = {**GIVEN, "judgments": [{"document": "d1", **judgment}]}
    problem(await client.post("/judgments", json=given), 422, "invalid-input")


async def test_limits(tmp_path: Path) -> None:
    limited = Settings(data_directory=tmp_path, limits={"judgments": 2}, calibration={"judgments": 3})
    async with filled(limited) as client:
        one = {"document": "d1", "grade": 2}
        two, three = ({**GIVEN, "judgments": [one] * count} for count in (2, 3))
        assert answer(await client.post("/judgments", json=two))["kept"] == 2
        problem(await client.post("/judgments", json=three), 422, "limit-exceeded")
        problem(await client.post("/judgments", json=two), 422, "limit-exceeded")
        assert answer(await client.post("/judgments", json=GIVEN))["kept"] == 3


async def test_scopes(tmp_path: Path) -> None:
    made = {scope: callers.make_key(scope, [scope], ["own"]) for scope in (callers.Scope.SELECT, callers.Scope.JUDGE)}
    settings = Settings(data_directory=tmp_path, keys=tuple(str(key) for _, key in made.values()))
    async with filled(Settings(data_directory=tmp_path)):
        pass
    async with filled(settings) as client:
        client.headers["authorization"] = f"Bearer {made[callers.Scope.SELECT][0]}"
        problem(await client.post("/judgments", json={**GIVEN, "index": "own"}), 403, "forbidden")
        client.headers["authorization"] = f"Bearer {made[callers.Scope.JUDGE][0]}"
        own = {**GIVEN, "index": "own", "judgments": [{"document": "e1", "grade": 1}]}
        assert answer(await client.post("/judgments", json=own))["kept"] == 1
        problem(await client.post("/judgments", json=GIVEN), 404, "unknown-index")
        problem(await client.delete("/judgments", params={"index": "own"}), 403, "forbidden")
        problem(await client.post("/select", json={"query": "q", "index": "own"}), 403, "forbidden")


@pytest.mark.strangers
async def test_drift_is_measured_by_the_judgements_of_its_own_index(
    client: httpx.AsyncClient, settings: Settings
) -> None:
    belongings(settings, "texts").keep(replace(SCALE, name="texts", index="texts"))
    before = counted("boundarymorph_judgment_log_loss_nats_sum", calibrated="yes")
    told = [{"document": "d1", "grade": 1, "relevance": 0.5}, {"document": "d2", "grade": 0, "relevance": 0.5}]
    foreign = [{"document": "e1", "grade": 1, "relevance": 0.0}]
    answer(await client.post("/judgments", json={**GIVEN, "calibration": "texts", "judgments": told}))
    other = {**GIVEN, "index": "own", "calibration": "texts", "judgments": foreign}
    answer(await client.post("/judgments", json=other))
    after = counted("boundarymorph_judgment_log_loss_nats_sum", calibrated="yes")
    assert after - before == pytest.approx(2 * 0.6931, abs=1e-3)


@pytest.mark.strangers
async def test_a_deleted_index_takes_what_belongs_to_it_along(client: httpx.AsyncClient, settings: Settings) -> None:
    problem(await client.post("/judgments", json={**GIVEN, "index": "other"}), 404, "unknown-index")
    belongings(settings, "texts").keep(replace(SCALE, name="texts", index="texts"))
    assert answer(await client.post("/judgments", json=GIVEN))["kept"] == 1
    assert (await client.delete("/indexes/texts")).status_code == 204
    problem(await client.delete("/indexes/texts"), 404, "unknown-index")
    answer(await client.put("/indexes/texts"))
    assert answer(await client.get("/judgments", params={"index": "texts"})) == {"kept": 0}
    assert not belongings(settings, "texts").names()
