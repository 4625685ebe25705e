"""The filters of Haystack and LlamaIndex mean to the service what they mean to their own implementations."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

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

MIDNIGHT = datetime(2025, 3, 5)
MOMENT = datetime(2025, 3, 5, 10, 30, tzinfo=UTC)
TIMES = [
    f"{day}{rest}"
    for day in ("2025-03-04", "2025-03-05", "2025-03-06")
    for rest in ("", "T00:00:00", "T10:30:00.000Z", " 10:30:00", "T10:30:00+00:00", "T10:30:00.5Z", "T10:29:59.999999")
]
VALUES: list[Any] = [None, 0, 1, 2.5, -3, "", "a", "Ann", *TIMES]
METADATA: list[dict[str, Any]] = [{}, *({"x": value} for value in VALUES), {"x": {"y": 1}}, {"x": {"y": None}}]


def outcome(test: Callable[[], bool]) -> bool | None:
    """None where the reference compares what it cannot."""
    try:
        return test()
    except (FilterError, TypeError):
        return None


def passes(translation: dict[str, Any], metadata: dict[str, Any]) -> bool:
    return Filter(json.loads(encoded(translation))).matches(metadata)


def of(operator: str, value: Any, field: str = "meta.x") -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


COMPARED = [
    *[None, 0, 1, 2.5, "a", "nowhere", MIDNIGHT, MOMENT, MOMENT.replace(microsecond=500_000), "2025-03-05", TIMES[11]],
]
LISTS: list[list[Any]] = [[], [None], ["a", None], [1, 2.5], [MOMENT, "a"], ["2025-03-05"]]


def haystack_cases() -> list[dict[str, Any]]:
    single = [of(operator, value) for operator in ("==", "!=") for value in COMPARED]
    ordered = [
        of(operator, value)
        for operator in (">", ">=", "<", "<=")
        for value in COMPARED
        if value not in ("a", "nowhere")
    ]
    several = [of(operator, values) for operator in ("in", "not in") for values in LISTS]
    nested = [of(operator, value, "meta.x.y") for operator in ("==", "!=") for value in (None, 1)]
    combined = [
        {"operator": operator, "conditions": conditions}
        for operator in ("AND", "OR", "NOT")
        for conditions in (
            [],
            [of("==", "a")],
            [of("!=", None), of("not in", [1, "a"])],
            [{"operator": "OR", "conditions": []}, of(">", 1)],
            [{"operator": "NOT", "conditions": [of("==", None), of("<", MOMENT)]}, of("!=", "b", "x")],
        )
    ]
    return [*single, *ordered, *several, *nested, *combined]


@pytest.mark.parametrize("given", haystack_cases(), ids=str)
def test_haystack(given: dict[str, Any]) -> None:
    translation = translated(given)
    compared = 0
    for metadata in METADATA:
        expected = outcome(partial(document_matches_filter, given, Document(content="c", meta=metadata)))
        if expected is not None:
            compared += 1
            assert passes(translation, metadata) == expected, metadata
    assert compared


def test_haystack_none_in_a_list_is_no_none() -> None:
    odd: list[dict[str, Any]] = [{"x": ["Ann", None]}, {"x": [None, 1]}, {"x": [True, None]}, {"x": []}]
    for metadata in odd:
        document = Document(content="c", meta=metadata)
        for operator in ("==", "!="):
            given = of(operator, None)
            assert passes(translated(given), metadata) == document_matches_filter(given, document), metadata


def test_haystack_times_of_other_zones() -> None:
    """What they are compared with has a zone: to Haystack a time without one has that of the other."""
    there = MOMENT.astimezone(timezone(timedelta(hours=5)))
    for operator in ("==", "!=", ">", ">=", "<", "<="):
        for metadata in ({"x": time} for time in TIMES if time.endswith(("Z", "+00:00"))):
            document = Document(content="c", meta=metadata)
            for given in (of(operator, there), of(operator, there.isoformat())):
                assert passes(translated(given), metadata) == document_matches_filter(given, document), metadata


def test_haystack_values_that_are_written_as_strings_and_numbers() -> None:
    number, name = Decimal("2.5"), UUID(int=7)
    assert passes(translated(of("==", name)), {"x": str(name)})
    assert passes(translated(of(">=", number)), {"x": 2.5})
    assert passes(translated(of("in", [date(2025, 3, 5)])), {"x": "2025-03-05T00:00:00Z"})


@pytest.mark.parametrize(
    "given",
    [
        *(of(each, 1, field) for each in COMPARISONS for field in ("id", "content", "score", "meta", "meta.not")),
        *(of(operator, ["a"]) for operator in ("==", "!=", ">", "<=")),
        *(of(operator, "a") for operator in ("in", "not in", ">", ">=", "<", "<=")),
        *(of(operator, True) for operator in (">", "<=")),
        of("==", {"a": 1}),
        of("in", [["a"]]),
        of("contains", "a"),
        {"operator": "XOR", "conditions": []},
        {"operator": "AND"},
        {"field": "meta.x", "operator": "=="},
    ],
    ids=str,
)  # fmt: skip
def test_haystack_has_more(given: dict[str, Any]) -> None:
    with pytest.raises(FilterError, match=str(given["operator"])):
        translated(given)


def filters(condition: FilterCondition | None, *given: tuple[FilterOperator, Any]) -> MetadataFilters:
    return MetadataFilters(
        filters=[MetadataFilter(key="x", operator=operator, value=value) for operator, value in given],
        condition=condition,
    )


SCALARS = [1, 2.5, "", "a", "Ann", TIMES[9]]
SEVERAL: list[Any] = [["a"], ["a", "b"], [1, 2], [2.5], []]
OF_SCALARS = [FilterOperator(each) for each in ("==", "!=", ">", ">=", "<", "<=")]
OF_SETS = [FilterOperator(each) for each in ("in", "nin")]
OF_LISTS = [FilterOperator(each) for each in ("any", "all")]
LLAMA_CASES = [
    *(filters(FilterCondition.AND, (operator, value)) for operator in OF_SCALARS for value in SCALARS),
    *(filters(FilterCondition.AND, (operator, value)) for operator in OF_SETS for value in SEVERAL),
    *(filters(FilterCondition.AND, (FilterOperator(each), None)) for each in ("==", "!=")),
    *(
        filters(condition, (FilterOperator.NE, "a"), (FilterOperator.NIN, [1]))
        for condition in (*FilterCondition, None)
    ),
    *(filters(condition) for condition in FilterCondition),
]
LLAMA_LISTS = [
    *(filters(FilterCondition.AND, (operator, value)) for operator in OF_LISTS for value in SEVERAL),
    *(filters(FilterCondition.AND, (FilterOperator.CONTAINS, value)) for value in SCALARS),
]


@pytest.mark.parametrize("given", [*LLAMA_CASES, *LLAMA_LISTS], ids=str)
def test_llamaindex(given: MetadataFilters) -> None:
    translation = BoundaryMorphRetriever("i", filters=given)._asked()["filter"] or {}
    lists: list[dict[str, Any]] = [{}, {"x": None}, *({"x": value} for value in ([], ["a"], ["b", "a"], [1, 2], [""]))]
    compared = 0
    for metadata in lists if given in LLAMA_LISTS else METADATA:
        expected = outcome(partial(build_metadata_filter_fn({"n": metadata}.__getitem__, given), "n"))
        if expected is not None:
            compared += 1
            assert passes(translation, metadata) == expected, metadata
    assert compared


def test_llamaindex_nested() -> None:
    """Its own store refuses these."""
    inner = filters(FilterCondition.NOT, (FilterOperator.EQ, "a"), (FilterOperator.GT, 1))
    given = MetadataFilters(filters=[inner, MetadataFilters(filters=[])], condition=FilterCondition.AND)
    translation = BoundaryMorphRetriever("i", filters=given)._asked()["filter"]
    assert [passes(translation, {"x": value}) for value in ("a", 2, 1, None)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        ("text_match", "a"),
        ("text_match_insensitive", "a"),
        ("is_empty", None),
        *((each.value, ["a"]) for each in OF_SCALARS),
        *((each.value, "a") for each in (*OF_SETS, *OF_LISTS)),
        *((each, None) for each in (">", "<=", "in", "contains")),
    ],
)
def test_llamaindex_has_more(operator: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"'{operator}'"):
        BoundaryMorphRetriever("i", filters=filters(None, (FilterOperator(operator), value)))
