"""The part of PromQL that the alerts use, over scrapes of this process: is an alert firing?

Rates are as Prometheus has them, but for its extrapolation to the edges of the window: a series needs two samples, and
what it had when it was first seen is no increase.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((Path(__file__).parents[2] / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
NAMED = sorted(set(re.findall(r"boundarymorph_\w+", " ".join(rule["expr"] for rule in RULES))))
UNITS = {"s": 1, "m": 60, "h": 3600}

Labels = frozenset[tuple[str, str]]
Vector = Mapping[Labels, float]
Series = Mapping[Labels, list[tuple[float, float]]]

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
}
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "*": operator.mul,
    "/": lambda a, b: a / b if b else float("nan"),
}
AGGREGATIONS: dict[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}


@dataclass
class Scrapes:
    """What a Prometheus has of one instance, and whether an alert fires at the last scrape."""

    at: list[float] = field(default_factory=list)
    samples: list[Mapping[str, Vector]] = field(default_factory=list)
    recorded: dict[tuple[str, int], Vector] = field(default_factory=dict)  # by rule and scrape

    def scrape(self, now: float) -> None:
        found: dict[str, dict[Labels, float]] = defaultdict(dict)
        exposed = generate_latest(REGISTRY.restricted_registry(NAMED))
        for family in text_string_to_metric_families(exposed.decode()):
            for sample in family.samples:
                found[sample.name][frozenset({**sample.labels, "instance": "a"}.items())] = sample.value
        self.at.append(now)
        self.samples.append(found)

    def firing(self, alert: str) -> bool:
        """Whether the expression has had a result at every scrape for as long as the alert asks for."""
        rule = ALERTS[alert]
        number, unit = re.fullmatch(r"(\d+)([smh])", rule.get("for", "0s")).groups()  # type: ignore[union-attr]
        since = self.at[-1] - int(number) * UNITS[unit]
        parsed = promql_parser.parse(rule["expr"])
        held = [bool(self.value(parsed, now)) for now in self.at if now >= since]
        return self.at[0] <= since and all(held)

    def value(self, node: Any, now: float) -> Any:
        """Evaluate an expression: a float, or a vector by labels."""
        match node:
            case promql_parser.NumberLiteral():
                return node.val
            case promql_parser.ParenExpr():
                return self.value(node.expr, now)
            case promql_parser.VectorSelector():
                return self._latest(node, now)
            case promql_parser.AggregateExpr():
                return self._aggregated(node, now)
            case promql_parser.Call():
                return self._called(node, now)
            case promql_parser.BinaryExpr():
                return _combined(str(node.op), self.value(node.lhs, now), self.value(node.rhs, now))
        raise NotImplementedError(type(node))

    def _latest(self, selector: Any, now: float) -> Vector:
        name, moment = selector.name, now - _seconds(selector.offset)
        place = max((place for place, at in enumerate(self.at) if at <= moment), default=None)
        if place is None:
            return {}
        if name in RECORDED:
            if (name, place) not in self.recorded:
                self.recorded[name, place] = self.value(promql_parser.parse(RECORDED[name]), self.at[place])
            return self.recorded[name, place]
        found = self.samples[place].get(name, {})
        return {labels: value for labels, value in found.items() if _matches(selector, dict(labels))}

    def _range(self, matrix: Any, now: float) -> Series:
        end = now - _seconds(matrix.vector_selector.offset)
        start = end - matrix.range.total_seconds()
        found: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
        for at in self.at:
            if start <= at <= end:
                for labels, value in self._latest(matrix.vector_selector, at).items():
                    found[labels].append((at, value))
        return found

    def _aggregated(self, node: Any, now: float) -> Vector:
        by = set() if node.modifier is None else set(node.modifier.labels)
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in self.value(node.expr, now).items():
            groups[frozenset(pair for pair in labels if pair[0] in by)].append(value)
        return {labels: AGGREGATIONS[str(node.op)](values) for labels, values in groups.items()}

    def _called(self, node: Any, now: float) -> Vector:
        name, arguments = node.func.name, node.args
        match name:
            case "vector":
                return {frozenset(): self.value(arguments[0], now)}
            case "histogram_quantile":
                return _quantiles(arguments[0].val, self.value(arguments[1], now))
            case "avg_over_time":
                found = self._range(arguments[0], now).items()
                return {labels: sum(value for _, value in values) / len(values) for labels, values in found}
            case "rate" | "increase":
                counts = {labels: each for labels, each in self._range(arguments[0], now).items() if len(each) > 1}
                return {labels: _increase(values, name == "rate") for labels, values in counts.items()}
        raise NotImplementedError(name)


def _seconds(offset: Any) -> float:
    return 0.0 if offset is None else offset.total_seconds()


def _matches(selector: Any, labels: Mapping[str, str]) -> bool:
    for matcher in selector.matchers.matchers:
        value, kind = labels.get(matcher.name, ""), str(matcher.op).rpartition(".")[2]
        wanted = matcher.value
        equal = value == wanted if kind in ("Equal", "NotEqual") else re.fullmatch(wanted, value) is not None
        if equal != (kind in ("Equal", "Re")):
            return False
    return True


def _increase(values: list[tuple[float, float]], by_second: bool) -> float:
    pairs = pairwise(values)
    grown = sum(after - before if after >= before else after for (_, before), (_, after) in pairs)
    return grown / (values[-1][0] - values[0][0]) if by_second else grown


def _quantiles(share: float, buckets: Vector) -> Vector:
    """By the upper bound of the bucket that holds it, for one histogram without other labels."""
    counts = sorted((float(dict(labels)["le"]), value) for labels, value in buckets.items())
    if not counts or not counts[-1][1]:
        return {}
    bound = next(bound for bound, count in counts if count >= share * counts[-1][1])
    return {frozenset(): min(bound, counts[-2][0])}


def _combined(op: str, left: Any, right: Any) -> Any:
    if op in ("and", "or"):
        return {key: value for key, value in left.items() if key in right} if op == "and" else {**right, **left}
    if isinstance(right, float) and isinstance(left, float):
        return ARITHMETIC[op](left, right)
    if isinstance(left, float):  # of a vector and a number, which arithmetic alone has here
        return {labels: ARITHMETIC[op](left, value) for labels, value in right.items()}
    others = dict.fromkeys(left, right) if isinstance(right, float) else right
    pairs = {labels: (value, others[labels]) for labels, value in left.items() if labels in others}
    if op in COMPARISONS:
        return {labels: a for labels, (a, b) in pairs.items() if COMPARISONS[op](a, b)}
    return {labels: ARITHMETIC[op](a, b) for labels, (a, b) in pairs.items()}
