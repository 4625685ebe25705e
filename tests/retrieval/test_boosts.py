"""Test the boosts that rules give documents."""

import math
from typing import Any

import pytest

from boundarymorph.api.boosts import BoostRule, rules_of
from boundarymorph.inference.concurrency import CallerGone, awaited_context
from boundarymorph.retrieval.boosts import LEAST, MOST, Boosts, seconds_of
from boundarymorph.retrieval.document import Document

NOW = 1_800_000_000.0
DAY = 86_400.0


def boost_of(metadata: dict[str, Any], *rules: dict[str, Any], weight: float = 1.0) -> float:
    boosts = Boosts(rules_of([BoostRule.model_validate(rule) for rule in rules], NOW), {"a": weight})
    (boost,) = boosts.factors(["a"], {"a": Document("a", "text", metadata=metadata)}).tolist()
    return float(boost)


def decay(shape: str, **fields: Any) -> dict[str, Any]:
    return {shape: {"field": "x", "origin": 10, "scale": 4, **fields}}


def factor(**fields: Any) -> dict[str, Any]:
    return {"field_value_factor": {"field": "x", **fields}}


@pytest.mark.parametrize("shape", ["gauss", "exp", "linear"])
@pytest.mark.parametrize("side", [-1, 1])
def test_decay_boost_follows_the_elasticsearch_formulas(shape: str, side: int) -> None:
    """The boost is 1 within the offset from the origin, and `decay` at `scale` beyond it."""
    rule = decay(shape, offset=2, decay=0.3)
    assert [boost_of({"x": 10 + side * far}, rule) for far in (0, 1, 2)] == [1.0, 1.0, 1.0]
    assert boost_of({"x": 10 + side * 6}, rule) == pytest.approx(0.3)
    far, scale = 3.0, 4.0
    expected = {
        "gauss": math.exp(-(far**2) / (2 * (-(scale**2) / (2 * math.log(0.3))))),
        "exp": math.exp(math.log(0.3) / scale * far),
        "linear": (scale / (1 - 0.3) - far) / (scale / (1 - 0.3)),
    }[shape]
    assert boost_of({"x": 10 + side * 5}, rule) == pytest.approx(expected)
    assert boost_of({"x": side * 1e9}, rule) == LEAST


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2027-01-15T08:00:00Z", 1.0),  # now
        ("2027-01-15T09:00:00+01:00", 1.0),
        ("2027-01-15T08:00:00", 1.0),
        (NOW, 1.0),
        (NOW - 30 * DAY, 0.5),
        ("2026-12-16T08:00:00Z", 0.5),
        (["2020-01-01", "2026-12-16T08:00:00Z"], 0.5),  # the nearest
        ("last week", 1.0),
        (True, 1.0),
        (None, 1.0),
    ],
)
def test_decay_compares_dates_and_seconds_with_now(value: Any, expected: float) -> None:
    rule = {"exp": {"field": "x", "origin": "now", "scale": "30d"}}
    assert boost_of({"x": value}, rule) == pytest.approx(expected)


def test_decay_accepts_the_elasticsearch_form() -> None:
    ours = decay("gauss", offset=2, decay=0.3)["gauss"]
    theirs = {ours["field"]: {name: value for name, value in ours.items() if name != "field"}}
    assert boost_of({"x": 15}, {"gauss": theirs}) == boost_of({"x": 15}, {"gauss": ours}) < 1.0


@pytest.mark.parametrize(("unit", "seconds"), [("d", DAY), ("h", 3_600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)])
def test_decay_durations_have_units(unit: str, seconds: float) -> None:
    origin = "2026-01-31"
    start = seconds_of(origin)
    assert start is not None
    rule = {"linear": {"field": "x", "origin": origin, "scale": f"20{unit}", "offset": f"2.5{unit}"}}
    assert boost_of({"x": start - 22.5 * seconds}, rule) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("modifier", "expected"),
    [
        ("none", 8.0),
        ("log", math.log10(8)),
        ("log1p", math.log10(9)),
        ("log2p", 1.0),
        ("ln", math.log(8)),
        ("ln1p", math.log(9)),
        ("ln2p", math.log(10)),
        ("square", 64.0),
        ("sqrt", math.sqrt(8)),
        ("reciprocal", 0.125),
    ],
)
def test_field_value_factor_applies_its_modifier(modifier: str, expected: float) -> None:
    assert boost_of({"x": 4}, factor(factor=2, modifier=modifier)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metadata", "rule", "expected"),
    [
        ({}, factor(), 1.0),
        ({}, factor(missing=3), 3.0),
        ({"x": "many"}, factor(missing=3), 3.0),
        ({"x": [None, 7, 8]}, factor(), 7.0),
        ({"x": {"y": 2}}, factor(field="x.y"), 2.0),
        ({"x": -5}, factor(), LEAST),
        ({"x": -5}, factor(modifier="ln"), LEAST),
        ({"x": 0}, factor(modifier="reciprocal"), MOST),
        ({"x": 1e200}, factor(modifier="square"), MOST),
        ({"x": 10**400}, factor(), 1.0),
        ({"x": math.nan}, factor(), 1.0),
        ({}, decay("gauss"), 1.0),
        ({"x": "2026-01-01"}, decay("gauss"), 1.0),  # the origin is a number
        ({"x": 10}, {"weight": 3, **decay("gauss")}, 3.0),
        ({"x": 14}, {"weight": 3, **decay("gauss")}, 1.5),
        ({"x": 1}, {"weight": 3, "filter": {"x": {"gte": 1}}}, 3.0),
        ({"x": 0}, {"weight": 3, "filter": {"x": {"gte": 1}}}, 1.0),
        ({"x": 0}, {"filter": {"x": 1}, **factor()}, 1.0),
    ],
)
def test_boost_is_defined_for_missing_and_odd_values(
    metadata: dict[str, Any], rule: dict[str, Any], expected: float
) -> None:
    assert boost_of(metadata, rule) == pytest.approx(expected)


def test_boost_multiplies_rules_and_weight_within_bounds() -> None:
    assert boost_of({"x": 2}, {"weight": 3}, factor(), weight=0.5) == 3.0
    assert boost_of({}, {"weight": 1_000}, {"weight": 1_000}, weight=1_000) == MOST
    assert boost_of({}, {"weight": 0.001}, {"weight": 0.001}) == LEAST


def test_unread_names_the_fields_that_no_document_has() -> None:
    boosts = Boosts(rules_of([BoostRule.model_validate(rule) for rule in (factor(field="a.b"), decay("exp"))], NOW))
    assert boosts.unread([Document("1", "t", metadata={"x": 1}), Document("2", "t", metadata={"a": {"b": "c"}})]) == [
        "a.b"
    ]
    assert boosts.unread([Document("1", "t", metadata={"a": {"b": 1}}), Document("2", "t", metadata={"x": 1})]) == []


@pytest.mark.parametrize("rule", [{"filter": {"x": {"gt": 1}}, "weight": 2}, factor(), decay("exp")])
def test_boosts_stop_when_abandoned(rule: dict[str, Any]) -> None:
    boosts = Boosts(rules_of([BoostRule.model_validate(rule)], NOW))
    documents = {"a": Document("a", "text", metadata={"x": 2})}
    with awaited_context() as context:
        assert context.run(boosts.factors, ["a"], documents).shape == (1,)
    with pytest.raises(CallerGone):
        context.run(boosts.factors, ["a"], documents)
