"""The table in docs/monitoring.md and the metrics in the code are the same."""

import re
from pathlib import Path

from prometheus_client import REGISTRY

import boundarymorph.telemetry.metrics

PAGE = Path(__file__).parents[2] / "docs/monitoring.md"
IMPORTED = boundarymorph.telemetry.metrics


def documented() -> dict[str, set[str]]:
    """Labels by metric, as the page has them."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0].splitlines():
        if not line.startswith("| `boundarymorph_"):
            continue
        _, names, labels, *_ = line.split("|")
        for name in re.findall(r"`(\w+)`", names):
            assert name not in found, f"{name} is there twice"
            found[name] = set(re.findall(r"\w+", re.sub(r"\([^)]*\)", "", labels)))
    return found


def registered() -> dict[str, set[str]]:
    """Labels by metric, as they are exposed."""
    collectors = {id(c): c for name, c in REGISTRY._names_to_collectors.items() if name.startswith("boundarymorph_")}
    found = {}
    for collector in collectors.values():
        for family in collector.describe() if hasattr(collector, "describe") else ():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = set(getattr(collector, "_labelnames", ()))
    return found


def test_each_metric_is_documented_and_each_documented_one_is_there() -> None:
    assert documented() == registered()
    assert len(documented()) > 40
