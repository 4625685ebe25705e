"""The units of the dashboard's panels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "boundarymorph.json"
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
