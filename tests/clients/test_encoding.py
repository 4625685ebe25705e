"""Test how the client encodes values that JSON lacks, and its errors for the others."""

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from boundarymorph_client import InvalidArgument
from boundarymorph_client.encoding import encoded

pytestmark = pytest.mark.strangers

HALF = "\ud83d"  # half of a pair of surrogates


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"a{HALF}b", "a\ufffdb"),
        (f"{HALF}\ude00\udc00", "\U0001f600\ufffd"),
        ({HALF: [HALF]}, {"\ufffd": ["\ufffd"]}),
        (datetime(2025, 3, 5, 1), "2025-03-05T01:00:00"),
        (datetime(2025, 3, 5, 1, tzinfo=timezone(timedelta(hours=2))), "2025-03-04T23:00:00+00:00"),
        (pd.Timestamp("2025-03-05", tz=UTC), "2025-03-05T00:00:00+00:00"),
        (np.datetime64("2025-03-05T01:00:00", "ns"), "2025-03-05T01:00:00"),
        (date(2025, 3, 5), "2025-03-05"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        ([Decimal("1.50"), Decimal(3), Decimal(10) ** 30], [1.5, 3, 1e30]),
        ([np.float32(0.5), np.int64(3), np.bool_(True), np.arange(2)], [0.5, 3, True, [0, 1]]),
        ((1, None), [1, None]),
    ],
    ids=ascii,
)
def test_encoded_converts_values_that_json_lacks(value: object, expected: object) -> None:
    assert json.loads(encoded({"x": value})) == {"x": expected}


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("-inf"), np.float64("nan"), np.array([1.0, np.nan]), Decimal("NaN"), Decimal("1e999"),
        {1}, b"a", object(), pd.NaT, np.datetime64("NaT"), timedelta(1), np.timedelta64(1, "s"), {(1, 2): 3},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_encoded_names_the_place_of_an_unsupported_value(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"pool\.documents\[1\] \(id 'b'\)\.metadata\.x"):
        encoded({"pool": {"documents": [{"id": "a"}, {"id": "b", "metadata": {"x": value}}]}})


def test_encoded_refuses_a_list_that_contains_itself() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidArgument, match="itself"):
        encoded({"x": endless})
