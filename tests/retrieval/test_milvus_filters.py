"""Filters inside Milvus mean what they mean on this machine."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundarymorph.errors import InvalidInput
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.filters import MAX_DEPTH, MAX_STRING, MAX_VALUES, Filter
from boundarymorph.retrieval.milvus.catalog import MilvusCatalog
from boundarymorph.retrieval.milvus.connection import MilvusConnection
from boundarymorph.retrieval.milvus.terms import expression, terms_of
from boundarymorph.retrieval.retriever import Search
from boundarymorph.retrieval.stores.index import StoreIndex
from tests.contract.vector_index import unit
from tests.retrieval import milvus
from tests.retrieval.test_filters import METADATA, filters, metadata, orderable

ROWS = 40


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreIndex]:
    with milvus.embedded(tmp_path_factory.mktemp("milvus")) as url:
        catalog = MilvusCatalog(MilvusConnection(url), prefix=milvus.PREFIX)
        made = catalog.create("filtered", encoder=None, dimension=4)
        assert isinstance(made, StoreIndex)
        yield made
        catalog.close()


def hold(index: StoreIndex, rows: list[dict[str, Any]]) -> None:
    """Let the index hold these, with their places for ids, and nothing else."""
    index.delete([str(n) for n in range(ROWS)])
    index.upsert([Document(str(n), "", metadata=row) for n, row in enumerate(rows)], unit(len(rows), 4))


def by_milvus(index: StoreIndex, filter: dict[str, Any]) -> set[int]:
    try:
        return {int(id) for id in index.retrieve(Search("", ROWS, np.ones(4), filter=filter)).pool.ids}
    except InvalidInput:
        return set()


def by_predicate(filter: dict[str, Any], rows: list[dict[str, Any]]) -> set[int]:
    return {n for n, row in enumerate(rows) if Filter(filter).matches(row)}


@settings(max_examples=60, deadline=None)
@given(st.lists(filters, min_size=1, max_size=4), st.lists(metadata, min_size=1, max_size=8))
def test_milvus_and_predicate_agree(index: StoreIndex, asked: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    hold(index, rows)
    for filter in asked:
        assert by_milvus(index, filter) == by_predicate(filter, rows)


def test_the_cases_that_say_what_filters_mean(index: StoreIndex) -> None:
    from tests.retrieval.test_filters import test_what_filters_mean as documented

    rows = list(METADATA.values())
    hold(index, rows)
    (cases,) = [mark.args[1] for mark in documented.pytestmark]
    assert len(cases) > 20
    for filter, expected in cases:
        assert by_milvus(index, filter) == {n for n, id in enumerate(METADATA) if id in expected.split()}


def test_every_comparison_of_every_kind_of_value(index: StoreIndex) -> None:
    scalars = [
        None,
        True,
        False,
        -1,
        0,
        0.5,
        1,
        2**53,
        2**53 + 1,
        float(2**53),
        "",
        "a",
        "a\0b",
        "b",
        "1",
        "\U0001f642",
        "\uffff",
    ]
    lists = [[], [0, 1], [1, 0.5, "a"], ["b", "a\0b"], ["a", None], [True, 1], [[1]], [{"a": 1}, 0], ["", -1]]
    rows: list[dict[str, Any]] = [{"a": value} for value in [*scalars, *lists, {"a": 1}, {}]]
    rows.append({"b": 1})
    hold(index, rows)
    for operand in scalars:
        if isinstance(operand, str) and "\0" in operand:
            continue
        ordered = () if operand is None or isinstance(operand, bool) else ("gt", "gte", "lt", "lte")
        for comparison in ("eq", "ne", *ordered):
            filter = {"a": {comparison: operand}}
            assert by_milvus(index, filter) == by_predicate(filter, rows), (comparison, operand)
            opposite = {"not": {"a": {comparison: operand}}}
            assert by_milvus(index, opposite) == by_predicate(opposite, rows), (comparison, operand)


def test_the_largest_filters(index: StoreIndex) -> None:
    hold(index, [{"a": 5}, {"a": -1}, {"f7": 7}, {}])
    assert by_milvus(index, {"a": {"in": list(range(MAX_VALUES - 2))}}) == {0}
    assert by_milvus(index, {"or": [{f"f{n}": n} for n in range(MAX_VALUES - 1)]}) == {2}
    assert by_milvus(index, {"and": [{f"f{n}": {"ne": n}} for n in range(400)]}) == {0, 1, 3}
    nested: dict[str, Any] = {"a": 5}
    for _ in range(MAX_DEPTH - 1):
        nested = {"not": nested}
    assert by_milvus(index, nested) == {1, 2, 3}


def test_long_strings_sort_to_their_end(index: StoreIndex) -> None:
    longest = "ä" * MAX_STRING
    rows = [{"s": longest}, {"s": longest + "a"}, {"s": longest[:-1] + "z"}, {"s": longest * 3}, {"s": longest[:-1]}]
    hold(index, rows)
    for comparison in ("eq", "ne", "gt", "gte", "lt", "lte"):
        filter = {"s": {comparison: longest}}
        assert by_milvus(index, filter) == by_predicate(filter, rows), comparison


@given(
    st.lists(orderable, min_size=2, max_size=2)
    | st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=2)
)
def test_bounds_sort_as_the_values_do(pair: list[Any]) -> None:
    one, other = pair
    if isinstance(one, str) != isinstance(other, str):
        return
    first, second = (terms_of({"a": value}).bounds for value in pair)
    (one_as,), (other_as,) = set(first.values()), set(second.values())
    assert ((one_as > other_as) - (one_as < other_as)) == ((one > other) - (one < other))


@given(filters)
def test_no_text_of_a_caller_is_in_an_expression(filter: dict[str, Any]) -> None:
    said = expression(Filter(filter).condition)
    terms = r"array_contains_any\(terms, \[(-?\d+(, )?)+\]\)"
    bounds = r'bounds\["[0-9a-f]{16}_(least|greatest)"\] [<>]=? "x[0-9a-f]*"'
    constants = r'id [!=]= ""|\b(and|or|not)\b|[() ]'
    assert re.sub(f"{terms}|{bounds}|{constants}", "", said) == ""
    assert said == expression(Filter(dict(reversed(filter.items()))).condition)


@given(metadata)
def test_terms_are_64_bits(row: dict[str, Any]) -> None:
    terms, bounds = terms_of(orjson.loads(orjson.dumps(row)))
    assert all(-(2**63) <= term < 2**63 for term in terms)
    assert len(set(terms)) == len(terms)
    assert len(bounds) % 2 == 0
