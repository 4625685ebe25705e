"""Test that the queries of dashboard and alerts parse, and use existing metrics and labels."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import REGISTRY

import boundarymorph.telemetry.metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
METRICS = boundarymorph.telemetry.metrics
OF_THE_SCRAPE = {"instance", "job"}
BOARD = json.loads((DEPLOY / "grafana/boundarymorph.json").read_text())
DRAWN = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
SHOWN = [target["expr"] for panel in DRAWN for target in panel["targets"]]
SHOWN += [annotation["expr"] for annotation in BOARD["annotations"]["list"]]


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    """Yield the selectors of an expression, with a duration in place of Grafana's variable."""

    def nodes(node: Any) -> Iterator[Any]:
        yield node
        for name in ("expr", "param", "lhs", "rhs", "vector_selector"):
            if (inner := getattr(node, name, None)) is not None:
                yield from nodes(inner)
        for argument in getattr(node, "args", None) or ():
            yield from nodes(argument)

    for node in nodes(promql_parser.parse(expression.replace("$__rate_interval", "5m"))):
        if isinstance(node, promql_parser.VectorSelector):
            yield node


def labels_of(selector: promql_parser.VectorSelector) -> set[str]:
    if (name := selector.name or "") in RECORDED:
        return labels_left(RECORDED[name])
    if name == "up":  # Prometheus makes this metric
        return OF_THE_SCRAPE
    labels: tuple[str, ...] = getattr(REGISTRY._names_to_collectors[name], "_labelnames", ())
    return {*labels, *OF_THE_SCRAPE, *({"le"} if name.endswith("_bucket") else ())}


def grouped_by(expression: str) -> set[str]:
    groups = re.findall(r"\bby \(([^)]*)\)", expression)
    return {label.strip() for group in groups for label in group.split(",")}


def labels_left(expression: str) -> set[str]:
    """Return the labels of an expression's results: the grouping labels or the metrics' own."""
    return grouped_by(expression) or set.union(*map(labels_of, selectors(expression)))


@pytest.mark.parametrize("expression", SHOWN + [rule["expr"] for rule in RULES])
def test_dashboard_expression_parses_and_uses_existing_labels(expression: str) -> None:
    found = list(selectors(expression))
    assert found
    for selector in found:
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels_of(selector), selector.name
    assert grouped_by(expression) <= set.union(*map(labels_of, found))


@pytest.mark.parametrize("panel", DRAWN, ids=lambda panel: panel["title"])
def test_dashboard_panel_has_units_and_marks_missing_data(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] not in ("", "none", "short") or defaults["mappings"], "values of states have names instead"
    assert defaults["noValue"] == "no data"
    assert panel["type"] == "stat" or defaults["custom"]["spanNulls"] is False
    assert not any(re.search(r"\b(vector|absent)\(", target["expr"]) for target in panel["targets"])


def test_alert_texts_use_labels_that_their_expressions_keep() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) == len(RULES) - len(RECORDED)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("warning", "critical") and rule["annotations"]["summary"]
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels_left(rule["expr"]), rule["alert"]
