"""Test the meaning of filters, by table and by predicate, and their refusals."""

import sqlite3
import time
from contextlib import closing
from itertools import count
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundarymorph.errors import InvalidInput, LimitExceeded
from boundarymorph.retrieval.filters import MAX_DEPTH, MAX_VALUES, Filter
from boundarymorph.retrieval.local import metadata as module
from boundarymorph.retrieval.local.metadata import MatchingReader, add
from boundarymorph.retrieval.local.sqlite_file import SCHEMA
from tests.stateful.profile import times

METADATA: dict[str, dict[str, Any]] = {
    "tram": {"year": 1999, "lang": "de", "tags": ["rail", "city"], "open": True, "by": {"name": "Ada", "age": 36}},
    "violin": {"year": 1999.5, "lang": "en", "tags": [], "open": False, "by": None},
    "bread": {"year": "1999", "tags": [1, None, "rail"], "open": 1, "by": {"name": ["Ada", "Bo"]}},
    "bare": {},
}


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({}, "tram violin bread bare"),
        ({"lang": "de"}, "tram"),
        ({"year": 1999}, "tram"),
        ({"year": "1999"}, "bread"),
        ({"year": {"gt": 1999}}, "violin"),
        ({"year": {"lte": "1999"}}, "bread"),
        ({"open": True}, "tram"),
        ({"open": 1}, "bread"),
        ({"tags": "rail"}, "tram bread"),
        ({"tags": None}, "bread"),
        ({"tags": {"exists": True}}, "tram violin bread"),
        ({"by": None}, "violin"),
        ({"by": {"exists": False}}, "bare"),
        ({"by": "Ada"}, ""),
        ({"by.name": "Ada"}, "tram bread"),
        ({"by.name.first": {"exists": True}}, ""),
        ({"lang": {"ne": "de"}}, "violin bread bare"),
        ({"lang": {"in": ["de", "en", 3]}}, "tram violin"),
        ({"or": [{"lang": "de"}, {"by": None}]}, "tram violin"),
        ({"and": [{"tags": "rail"}, {"not": {"year": {"gte": 0}}}]}, "bread"),
        ({"not": {}}, ""),
    ],
)
def test_filter_matches_by_table_and_by_predicate(filter: dict[str, Any], expected: str) -> None:
    assert by_predicate(Filter(filter), list(METADATA.values())) == [id in expected.split() for id in METADATA]
    assert by_table(Filter(filter), list(METADATA.values())) == [id in expected.split() for id in METADATA]


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ([], r"filter: expected an object.*\[\]"),
        ({"a": [1]}, r"filter\.a: expected a string, a number.*or an object"),
        ({"a": {}}, r"filter\.a: expected a comparison"),
        ({"a": {"b": 1}}, r"filter\.a: there is no comparison 'b'.*dots"),
        ({"a": {"in": 1}}, r"filter\.a\.in: expected a list"),
        ({"a": {"in": [1, [2]]}}, r"filter\.a\.in\[1\]"),
        ({"a": {"gt": True}}, r"filter\.a\.gt: expected a number or a string"),
        ({"a": {"exists": 1}}, r"filter\.a\.exists: expected true or false"),
        ({"a": float("nan")}, r"filter\.a: a number must be finite"),
        ({"a": 2**63}, r"filter\.a: .*64 bits"),
        ({"a": "x\0"}, r"filter\.a: .*NUL"),
        ({"a": "\ud800"}, "surrogate"),
        ({"a..b": 1}, "name of a field"),
        ({"a\\b": 1}, "name of a field"),
        ({1: 1}, "a field name must be a string"),
        ({"and": []}, r"filter\.and: expected a list of at least one"),
        ({"or": [{"a": 1}, 7]}, r"filter\.or\[1\]: expected an object"),
        ({"not": [{"a": 1}]}, r"filter\.not: expected an object"),
        ({"and": [{"or": [{"not": {"x": {"y": 1}}}]}]}, r"filter\.and\[0\]\.or\[0\]\.not\.x: there is no"),
    ],
)
def test_filter_errors_name_the_place_of_the_mistake(filter: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Filter(filter)


def test_many_values_are_looked_up_as_fast_as_few() -> None:
    """Nothing interrupts the comparison of a list in the metadata with the values."""
    elements, spent = list(range(100_000)), []
    for values in (1, MAX_VALUES - 2):
        filter = Filter({"a": {"in": [-1 - number for number in range(values)]}})
        begun = time.thread_time()
        assert not filter.matches({"a": elements})
        spent.append(time.thread_time() - begun)
    assert spent[1] < 10 * spent[0]


def test_filter_depth_and_values_are_bounded() -> None:
    nested: dict[str, Any] = {"a": 1}
    for _ in range(MAX_DEPTH - 1):
        nested = {"not": nested}
    Filter(nested)
    with pytest.raises(LimitExceeded, match=rf"filter(\.not){{{MAX_DEPTH}}}: "):
        Filter({"not": nested})
    for _ in range(5_000):
        nested = {"not": nested}
    with pytest.raises(LimitExceeded):
        Filter(nested)
    largest = Filter({"a": {"in": list(range(MAX_VALUES - 2))}})
    assert by_table(largest, [{"a": 5}, {"a": -1}]) == [True, False]
    with pytest.raises(LimitExceeded, match=r"filter\.a\.in"):
        Filter({"a": {"in": list(range(MAX_VALUES - 1))}})
    with pytest.raises(LimitExceeded):
        Filter({"or": [{"a": 1}] * MAX_VALUES})
    for many in ("and", "or"):
        found = by_table(Filter({many: [{f"f{n}": n} for n in range(MAX_VALUES - 1)]}), [{}, {"f7": 7}])
        assert found == [False, many == "or"]


names = st.sampled_from(["a", "b", "ä ", "'"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1.5, 1e300, -2.25]),
    st.sampled_from(["", "a", "b", "B", "ä", "z", "\U0001f642", "\uffff", "1", "true", "%", "'"]),
)
values = st.recursive(
    scalars | st.sampled_from(["a\0b", 2**64 - 1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
metadata = st.dictionaries(names, values, max_size=4)
paths = st.lists(names, min_size=1, max_size=2).map(".".join)
orderable = scalars.filter(lambda value: value is not None and not isinstance(value, bool))
comparisons = st.one_of(
    st.fixed_dictionaries({}, optional={"eq": scalars, "ne": scalars, "gt": orderable, "lte": orderable}),
    st.fixed_dictionaries(
        {},
        optional={
            "in": st.lists(scalars, max_size=3),
            "nin": st.lists(scalars, max_size=3),
            "gte": orderable,
            "lt": orderable,
            "exists": st.booleans(),
        },
    ),
).filter(bool)
filters = st.recursive(
    st.dictionaries(paths, scalars | comparisons, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"and": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"or": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=4,
)


@settings(max_examples=times(80, 4_000), deadline=None)
@given(filters, st.lists(metadata, min_size=1, max_size=8))
def test_filter_means_the_same_by_table_and_predicate(filter: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    expected = by_predicate(Filter(filter), rows)
    assert by_table(Filter(filter), rows) == expected
    with mock.patch.multiple(module, _FIRST_LIMIT=1, _GROWTH=2, _READ_PER_CHECK=1):
        assert by_table(Filter(filter), rows) == expected, "with parts that are checked one by one"
    with mock.patch.multiple(module, _PIECE=1):
        assert by_table(Filter(filter), rows, every=100) == expected, "with most sequence numbers unused"


@settings(max_examples=50)
@given(filters)
def test_filters_in_another_order_are_equal(filter: dict[str, Any]) -> None:
    turned = dict(reversed(filter.items()))
    assert Filter(filter) == Filter(turned)
    assert hash(Filter(filter)) == hash(Filter(turned))
    assert Filter(filter) != Filter({"not": filter})


def test_filters_with_values_of_different_types_differ() -> None:
    assert len({Filter({"a": value}) for value in (1, True, "1", None, 0, False)}) == 6


def by_predicate(filter: Filter, rows: list[dict[str, Any]]) -> list[bool]:
    return [filter.matches(row) for row in rows]


def by_table(filter: Filter, rows: list[dict[str, Any]], every: int = 1) -> list[bool]:
    """Evaluate a filter with the metadata table.

    `every` is the distance between sequence numbers.
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(";".join(SCHEMA))
        encoded = [(number, orjson.dumps(row)) for number, row in zip(count(every, every), rows, strict=False)]
        connection.executemany(
            "INSERT INTO documents (sequence, id, embedding, metadata) VALUES (?1, ?1, '', ?2)", encoded
        )
        add(connection, encoded)
        found = MatchingReader(2**20).sequences(connection, filter)
    assert found.dtype == np.int64 and found.tolist() == sorted(set(found.tolist()))
    return [number in found for number, _ in encoded]
