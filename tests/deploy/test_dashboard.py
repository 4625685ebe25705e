"""The dashboard's units, thresholds and places, as they are drawn (load_tests/dashboard.py records the data)."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from load_tests import dashboard
from load_tests.dashboard import DASHBOARD, Line

PANELS = json.loads(DASHBOARD.read_text())["panels"]
DRAWN = [panel for panel in PANELS if panel["type"] != "row"]
UNITS = {"reqps", "cps", "s", "bytes", "percentunit", "short", "none"}


@pytest.mark.parametrize("panel", DRAWN, ids=lambda panel: str(panel["title"]))
def test_units_fit_what_is_asked(panel: dict[str, object]) -> None:
    text = json.dumps(panel["targets"])
    unit = panel["fieldConfig"]["defaults"]["unit"]  # type: ignore[index]
    assert unit in UNITS
    assert ("_seconds" in text and "_count" not in text and "_cpu_" not in text) <= (unit == "s")
    assert ("_bytes" in text) == (unit == "bytes")
    assert ("_ratio" in text) <= (unit == "percentunit")
    assert (unit in ("reqps", "cps")) <= ("rate(" in text)


def test_a_picture_of_the_dashboard_has_its_size(tmp_path: Path) -> None:
    chosen = [panel for panel in PANELS if panel["title"] in ("Requests a second", "Circuit to Redis", "Requests")]
    at = np.arange(0.0, 10.0)
    found = {panel["title"]: [Line("a", at, at), Line("b", at[3:], at[3:])] for panel in chosen}
    dashboard.draw(chosen, found, tmp_path / "drawn.png")
    with Image.open(tmp_path / "drawn.png") as drawn:
        assert drawn.size[0] == round(100 * dashboard.COLUMNS * dashboard.CELL[0])


def test_what_prometheus_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def get(url: str, params: dict[str, object]) -> httpx.Response:
        asked.append(params)
        values = [[100.0, "1"], [102.0, "NaN"]], [[100.0, "NaN"]]
        result = [{"metric": {"route": f"/{n}", "status": "200"}, "values": v} for n, v in enumerate(values)]
        return httpx.Response(200, json={"data": {"result": result}}, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)
    requests = next(panel for panel in DRAWN if panel["title"] == "Requests a second")
    (line,) = dashboard.lines("http://prometheus", requests, began=100.0)
    assert line.label == "/0 200" and line.at.tolist() == [0.0, 2.0] and np.isnan(line.values[1])
    assert "$" not in str(asked[0]["query"])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, "s", "250 ms"),
        (2.5, "s", "2.5 s"),
        (0.5, "percentunit", "50%"),
        (1_500, "short", "1.5 K"),
        (2, "cps", "2 c/s"),
        (3 * 2**27, "bytes", "384 MiB"),
        (0, "bytes", "0 B"),
        (2**20 - 2**10, "bytes", "1020 KiB"),
    ],
)
def test_units(value: float, unit: str, text: str) -> None:
    assert dashboard.shown(value, unit) == text
