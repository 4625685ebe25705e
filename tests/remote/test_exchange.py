"""What a server says about when to come again."""

import pytest

from boundarymorph.remote.exchange import retry_after

NOON = 1_445_428_800.0  # Wed, 21 Oct 2015 12:00:00 GMT


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("0", 0.0),
        ("120", 120.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Wed, 21 Oct 2015 12:00:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 11:00:00 GMT", 0.0),
        ("Wed, 32 Oct 2015", None),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOON) == seconds
