"""The dashboard and the alerts name metrics that the service has."""

import re
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml

from tests.api.service import answer, texts

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\bboundarymorph_[a-z0-9_]+")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def expressions() -> list[str]:
    dashboard = orjson.loads((DEPLOY / "grafana/boundarymorph.json").read_bytes())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    groups: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    return shown + [rule["expr"] for group in groups for rule in group["rules"]]


async def test_every_metric_exists_after_one_request(client: httpx.AsyncClient) -> None:
    answer(await client.post("/select", json={"query": "q", "pool": texts(9), "k": 2, "budget": 3}))
    known = set(re.findall(r"^# TYPE (\S+)", (await client.get("/metrics")).text, re.MULTILINE))
    named = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(named) > 15
    assert {name for name in named if SUFFIX.sub("", name) not in known and name not in known} == set()


def test_panels_do_not_overlap() -> None:
    panels = orjson.loads((DEPLOY / "grafana/boundarymorph.json").read_bytes())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize("expression", expressions())
def test_brackets_are_closed(expression: str) -> None:
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
