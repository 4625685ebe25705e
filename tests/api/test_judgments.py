"""POST /judgments: who may, what is kept, and what the metrics show."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from boundarymorph.access import keys
from boundarymorph.access.calibrations import feedback_of, folder_of
from boundarymorph.calibration.feedback import Event
from boundarymorph.settings import Settings
from tests.api.service import answer, filled, problem
from tests.api.test_calibration import SCALE
from tests.metrics import counted

GIVEN: dict[str, Any] = {"query": "q", "index": "texts", "judgments": [{"document": "d1", "grade": 2}]}


async def test_grades_and_clicks_are_kept(client: httpx.AsyncClient, settings: Settings) -> None:
    more = [{"document": "d2", "clicked": False, "rank": 3}, {"document": 7, "clicked": True, "rank": 1}]
    assert answer(await client.post("/judgments", json={**GIVEN, "judgments": [*GIVEN["judgments"], *more]})) == {
        "kept": 3
    }
    assert feedback_of(settings).events("texts") == [
        Event("q", "d1", 2.0),
        Event("q", "d2", None, 3, False),
        Event("q", "7", None, 1, True),
    ]
    assert answer(await client.get("/judgments", params={"index": "texts"})) == {"kept": 3}
    assert answer(await client.delete("/judgments", params={"index": "texts", "query": "other"})) == {"deleted": 0}
    assert answer(await client.delete("/judgments", params={"index": "texts"})) == {"deleted": 3}


@pytest.mark.parametrize(
    "judgment",
    [{}, {"grade": -1}, {"grade": 101}, {"grade": 1, "clicked": True, "rank": 1}, {"clicked": True},
     {"grade": 1, "rank": 2}, {"clicked": True, "rank": 0}, {"grade": 1, "relevance": 1.1}],
)  # fmt: skip
async def test_malformed_ones(client: httpx.AsyncClient, judgment: dict[str, object]) -> None:
    given = {**GIVEN, "judgments": [{"document": "d1", **judgment}]}
    problem(await client.post("/judgments", json=given), 422, "invalid-input")


async def test_limits(tmp_path: Path) -> None:
    limited = Settings(data_directory=tmp_path, limits={"judgments": 2}, calibration={"judgments": 3})
    async with filled(limited) as client:
        one = {"document": "d1", "grade": 2}
        two, three = ({**GIVEN, "judgments": [one] * count} for count in (2, 3))
        assert answer(await client.post("/judgments", json=two)) == {"kept": 2}
        problem(await client.post("/judgments", json=three), 422, "limit-exceeded")
        problem(await client.post("/judgments", json=two), 422, "limit-exceeded")
        assert answer(await client.post("/judgments", json=GIVEN)) == {"kept": 3}


async def test_scopes(tmp_path: Path) -> None:
    made = {scope: keys.make(scope, [scope], ["own"]) for scope in (keys.Scope.SELECT, keys.Scope.JUDGE)}
    settings = Settings(data_directory=tmp_path, keys=tuple(str(key) for _, key in made.values()))
    async with filled(Settings(data_directory=tmp_path)):
        pass
    async with filled(settings) as client:
        client.headers["authorization"] = f"Bearer {made[keys.Scope.SELECT][0]}"
        problem(await client.post("/judgments", json={**GIVEN, "index": "own"}), 403, "forbidden")
        client.headers["authorization"] = f"Bearer {made[keys.Scope.JUDGE][0]}"
        assert answer(await client.post("/judgments", json={**GIVEN, "index": "own"})) == {"kept": 1}
        problem(await client.post("/judgments", json=GIVEN), 404, "unknown-index")
        problem(await client.delete("/judgments", params={"index": "own"}), 403, "forbidden")
        problem(await client.post("/select", json={"query": "q", "index": "own"}), 403, "forbidden")


async def test_drift_is_measured(client: httpx.AsyncClient, settings: Settings) -> None:
    folder_of(settings).keep(SCALE)
    before = counted("boundarymorph_judgment_log_loss_nats_sum", calibration="scale")
    told = [{"document": "d1", "grade": 1, "relevance": 0.5}, {"document": "d2", "grade": 0, "relevance": 0.5}]
    for name in ("scale", "made-up"):
        answer(await client.post("/judgments", json={**GIVEN, "calibration": name, "judgments": told}))
    after = counted("boundarymorph_judgment_log_loss_nats_sum", calibration="scale")
    assert after - before == pytest.approx(2 * 0.6931, abs=1e-3)
    assert "made-up" not in (await client.get("/metrics")).text


async def test_of_an_index_that_exists(client: httpx.AsyncClient, settings: Settings) -> None:
    """Those of another are refused, and a deleted index takes its own and its calibration along."""
    problem(await client.post("/judgments", json={**GIVEN, "index": "other"}), 404, "unknown-index")
    folder = folder_of(settings)
    folder.keep(replace(SCALE, name="texts", index="texts"))
    folder.keep(replace(SCALE, name="kept", index="others"))
    assert answer(await client.post("/judgments", json=GIVEN)) == {"kept": 1}
    assert (await client.delete("/indexes/texts")).status_code == 204
    assert feedback_of(settings).count("texts") == 0 and folder.names() == ["kept"]
