"""The one form of times in stores."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundarymorph.retrieval.stores.table import Kind, Moment, in_one_form

pytestmark = pytest.mark.strangers
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("2025-03-05", "timestamp", "2025-03-05T00:00:00+00:00"),
        ("2025-03-05t01:00z", "timestamp", "2025-03-05T01:00:00+00:00"),
        ("2025-03-05 01:00:00,50 +02", "timestamp", "2025-03-04T23:00:00.5+00:00"),
        ("2025-03-05T00:00:00.000-0030", "timestamp", "2025-03-05T00:30:00+00:00"),
        ("2016-12-31T23:59:60Z", "timestamp", "2017-01-01T00:00:00+00:00"),
        ("2025-03-05T23:00:00-02:00", "date", "2025-03-06"),
        ("13:45", "time", "13:45:00"),
        ("01:00:00.50+02:00", "time", "23:00:00.5"),
        *((text, "timestamp", None) for text in ("", "soon", "2025", "2025-03", "2025-02-30", "20250305", "13:45")),
        *((text, "timestamp", None) for text in ("2025-03-05T24:01", "0000-01-01", "9999-12-31T23:59:59-01:00")),
        *((text, "time", None) for text in ("25:00", "13", "2025-03-05")),
        ("٢٠٢٥-03-05", "timestamp", None),
    ],
)
def test_what_is_a_time(text: str, kind: Kind, expected: str | None) -> None:
    moment = Moment.read(text, kind)
    assert (None if moment is None else moment.text(kind)) == expected
    assert in_one_form([text, 1, None], kind) == [text if expected is None else expected, 1, None]


@given(moments, moments)
def test_the_order_of_the_texts_is_that_of_the_times(one: datetime, other: datetime) -> None:
    first, second = in_one_form(one.isoformat()), in_one_form(other.isoformat(" "))
    assert (first < second, first == second) == (one < other, one == other)
    assert datetime.fromisoformat(first) == one
    microseconds = (one.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert in_one_form(str(np.datetime64(microseconds, "us"))) == first
