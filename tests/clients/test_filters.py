"""Test that filters of Haystack and LlamaIndex keep their meaning in the service."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from haystack import Document
from haystack.errors import FilterError
from haystack.utils.filters import document_matches_filter
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from boundarymorph.retrieval.filters import Filter
from boundarymorph_client import InvalidArgument
from boundarymorph_client.encoding import encoded
from boundarymorph_client.haystack_filters import COMPARISONS, translated
from boundarymorph_client.llamaindex import BoundaryMorphRetriever

pytestmark = pytest.mark.strangers

MOMENT = datetime(2025, 3, 5, 10, 30, tzinfo=UTC)
TIMES = [
    f"{day}{rest}"
    for day in ("2025-03-04", "2025-03-05", "2025-03-06")
    for rest in ("", "T00:00:00", "T10:30:00.000Z", " 10:30:00", "T10:30:00+00:00", "T10:30:00.5Z", "T10:29:59.999999")
]
VALUES: list[Any] = [None, 0, 1, 2.5, -3, "", "a", "Ann", *TIMES]
METADATA: list[dict[str, Any]] = [{}, *({"x": value} for value in VALUES), {"x": {"y": 1}}, {"x": {"y": None}}]


def check_agrees(
    translation: dict[str, Any], metadata: list[dict[str, Any]], test: Callable[[dict[str, Any]], bool]
) -> None:
    """Check that a translated filter matches as the reference does.

    Values that the reference cannot compare are left out.
    """
    ours, compared = Filter(json.loads(encoded(translation))), 0
    for each in metadata:
        try:
            expected = test(each)
        except (FilterError, TypeError):
            continue
        compared += 1
        assert ours.matches(each) == expected, each
    assert compared


def condition(operator: str, value: Any, field: str = "meta.x") -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


def matched(given: dict[str, Any], metadata: dict[str, Any]) -> bool:
    return document_matches_filter(given, Document(content="c", meta=metadata))


ORDERED = [None, 0, 1, 2.5, datetime(2025, 3, 5), MOMENT, MOMENT.replace(microsecond=500_000), TIMES[7], TIMES[11]]
HAYSTACK: list[dict[str, Any]] = [
    *(condition(operator, value) for operator in ("==", "!=") for value in (*ORDERED, "a", "nowhere")),
    *(condition(operator, value) for operator in (">", ">=", "<", "<=") for value in ORDERED),
    *(
        condition(operator, values)
        for operator in ("in", "not in")
        for values in ([], [None], ["a", None], [1, 2.5], [MOMENT, "a"], ["2025-03-05"])
    ),
    *(condition(operator, value, "meta.x.y") for operator in ("==", "!=") for value in (None, 1)),
    *(
        {"operator": operator, "conditions": conditions}
        for operator in ("AND", "OR", "NOT")
        for conditions in (
            [],
            [condition("==", "a")],
            [condition("!=", None), condition("not in", [1, "a"])],
            [{"operator": "OR", "conditions": []}, condition(">", 1)],
            [
                {"operator": "NOT", "conditions": [condition("==", None), condition("<", MOMENT)]},
                condition("!=", "b", "x"),
            ],
        )
    ),
]


@pytest.mark.parametrize("given", HAYSTACK, ids=str)
def test_haystack_filter_matches_like_its_own_implementation(given: dict[str, Any]) -> None:
    check_agrees(translated(given), METADATA, partial(matched, given))


@pytest.mark.parametrize(
    "given",
    [
        *(
            condition(each, 1, field)
            for each in COMPARISONS
            for field in ("id", "content", "score", "meta", "meta.not")
        ),
        *(condition(operator, ["a"]) for operator in ("==", "!=", ">", "<=")),
        *(condition(operator, "a") for operator in ("in", "not in", ">", ">=", "<", "<=")),
        *(condition(operator, True) for operator in (">", "<=")),
        condition("==", {"a": 1}),
        condition("in", [["a"]]),
        condition("contains", "a"),
        {"operator": "XOR", "conditions": []},
        {"operator": "AND"},
        {"field": "meta.x", "operator": "=="},
    ],
    ids=str,
)
def test_unsupported_haystack_filter_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(FilterError, match=str(given["operator"])):
        translated(given)


def filters(condition: FilterCondition | None, *given: tuple[str, Any]) -> MetadataFilters:
    each: list[Any] = [MetadataFilter(key="x", operator=FilterOperator(name), value=value) for name, value in given]
    return MetadataFilters(filters=each, condition=condition)


SCALARS, SETS, LISTS = ("==", "!=", ">", ">=", "<", "<="), ("in", "nin"), ("any", "all")
SEVERAL: list[Any] = [["a"], ["a", "b"], [1, 2], [2.5], []]
ONES = [1, 2.5, "", "a", "Ann", TIMES[9]]
LLAMAINDEX = [
    *(filters(FilterCondition.AND, (operator, value)) for operator in SCALARS for value in ONES),
    *(filters(FilterCondition.AND, (operator, value)) for operator in SETS for value in SEVERAL),
    *(filters(FilterCondition.AND, (operator, None)) for operator in ("==", "!=")),
    *(filters(condition, ("!=", "a"), ("nin", [1])) for condition in (*FilterCondition, None)),
    *(filters(condition) for condition in FilterCondition),
]
OF_LISTS = [
    *(filters(FilterCondition.AND, (operator, value)) for operator in LISTS for value in SEVERAL),
    *(filters(FilterCondition.AND, ("contains", value)) for value in ONES),
]


def llamaindex_matches(given: MetadataFilters) -> dict[str, Any]:
    return BoundaryMorphRetriever("i", filters=given)._asked()["filter"] or {}


@pytest.mark.parametrize("given", [*LLAMAINDEX, *OF_LISTS], ids=str)
def test_llamaindex_filter_matches_like_its_own_implementation(given: MetadataFilters) -> None:
    lists: list[dict[str, Any]] = [{}, {"x": None}, *({"x": value} for value in ([], ["a"], ["b", "a"], [1, 2], [""]))]
    check_agrees(
        llamaindex_matches(given),
        lists if given in OF_LISTS else METADATA,
        lambda metadata: build_metadata_filter_fn({"n": metadata}.__getitem__, given)("n"),
    )


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        ("text_match", "a"),
        ("text_match_insensitive", "a"),
        ("is_empty", None),
        *((each, ["a"]) for each in SCALARS),
        *((each, "a") for each in (*SETS, *LISTS)),
        *((each, None) for each in (">", "<=", "in", "contains")),
    ],
)
def test_unsupported_llamaindex_filter_is_refused(operator: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"'{operator}'"):
        llamaindex_matches(filters(None, (operator, value)))
