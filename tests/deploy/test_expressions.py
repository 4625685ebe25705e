"""Every expression of the dashboard and the alerts parses as PromQL, and asks for labels that the metrics have."""

import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import REGISTRY

import boundarymorph.telemetry.metrics
from tests.deploy.test_view import DEPLOY, expressions

IMPORTED = boundarymorph.telemetry.metrics
OF_THE_SCRAPE = {"instance", "job"}
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}


def plain(expression: str) -> str:
    """As Prometheus gets it: Grafana puts a duration where its variable is."""
    return expression.replace("$__rate_interval", "5m")


def nodes(node: Any) -> Iterator[Any]:
    yield node
    for name in ("expr", "param", "lhs", "rhs", "vector_selector"):
        if (inner := getattr(node, name, None)) is not None:
            yield from nodes(inner)
    for argument in getattr(node, "args", None) or ():
        yield from nodes(argument)


def labels_of(selector: promql_parser.VectorSelector) -> set[str]:
    name = selector.name
    assert name is not None
    if name in RECORDED:
        return labels_left(RECORDED[name])
    labels: tuple[str, ...] = getattr(REGISTRY._names_to_collectors[name], "_labelnames", ())
    return {*labels, *OF_THE_SCRAPE, *({"le"} if name.endswith("_bucket") else ())}


@pytest.mark.parametrize("expression", expressions())
def test_it_parses_and_its_labels_are_there(expression: str) -> None:
    parsed = promql_parser.parse(plain(expression))
    selectors = [node for node in nodes(parsed) if isinstance(node, promql_parser.VectorSelector)]
    assert selectors
    known = set.union(*(labels_of(selector) for selector in selectors))
    for selector in selectors:
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels_of(selector), f"{selector.name} has no label {matcher.name}"
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= known


def test_a_malformed_expression_is_an_error() -> None:
    for wrong, reason in (("sum(rate(x[5m])", "unclosed"), ("rate(x)", "expected type matrix")):
        with pytest.raises(ValueError, match=reason):
            promql_parser.parse(wrong)


def test_alerts_have_what_prometheus_wants() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) == len(RULES) - len(RECORDED)
    for rule in alerts:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations", "keep_firing_for"}
        assert re.fullmatch(r"\d+(s|m|h)", rule.get("for", "0s"))
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels_left(rule["expr"]), rule["alert"]


def labels_left(expression: str) -> set[str]:
    """The labels of an expression's results: those that it groups by, or those of its metrics."""
    if groups := re.findall(r"\bby \(([^)]*)\)", expression):
        return {label.strip() for label in ",".join(groups).split(",")}
    selectors = [
        node for node in nodes(promql_parser.parse(expression)) if isinstance(node, promql_parser.VectorSelector)
    ]
    return set.union(*map(labels_of, selectors))
