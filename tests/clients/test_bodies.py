"""What is sent: values that have one obvious form in JSON, and errors that name what has none."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import orjson
import pytest

from boundarymorph_client import BoundaryMorphError, Client, ConnectionFailed, NotSerializable
from boundarymorph_client.bodies import encoded
from tests.clients.flavours import in_thread
from tests.ports import free_port

pytestmark = pytest.mark.strangers


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (datetime(2025, 3, 5, 1, 2, 3, tzinfo=UTC), "2025-03-05T01:02:03+00:00"),
        (date(2025, 3, 5), "2025-03-05"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("a/b"), "a/b"),
        (Decimal("1.5"), 1.5),
        (Decimal("2.00"), 2),
        (Colour.RED, "red"),
        ({"b", "a"}, ["a", "b"]),
        ((1, 2), [1, 2]),
        (np.float32(0.5), 0.5),
        (np.arange(3), [0, 1, 2]),
        ("cut \ud83d", "cut \ufffd"),
        ("\ud83d\ude00", "😀"),
        ({"k\udc00": 1}, {"k\ufffd": 1}),
    ],
)
def test_values(value: object, sent: object) -> None:
    assert orjson.loads(encoded({"metadata": {"x": value}})) == {"metadata": {"x": sent}}


ODD: list[tuple[dict[Any, Any], str]] = [
    ({"x": math.nan}, "metadata.x is nan"),
    ({"x": [1, {"y": -math.inf}]}, r"metadata.x\[1\].y is -inf"),
    ({"x": np.array([1.0, math.nan])}, r"metadata.x\[1\] is nan"),
    ({"x": object()}, "metadata.x is of type object"),
    ({"x": b"bytes"}, "metadata.x is of type bytes"),
    ({(1, 2): 1}, "metadata has a key of type tuple"),
]


@pytest.mark.parametrize(("metadata", "said"), ODD)
def test_what_is_no_json_is_named(metadata: dict[Any, Any], said: str) -> None:
    with pytest.raises(NotSerializable, match=rf"pool\[1\]\.{said}") as raised:
        encoded({"pool": [{"text": "a"}, {"text": "b", "metadata": metadata}]})
    assert isinstance(raised.value, BoundaryMorphError)


def test_a_circle_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(NotSerializable):
        encoded({"x": circle})


@in_thread
def test_a_document_of_an_upload_is_named(url: str) -> None:
    def documents() -> Iterator[Any]:
        yield {"id": "good", "text": "a"}
        yield {"id": "cut", "text": "a \udc00"}
        yield {"id": "bad", "text": "a", "metadata": {"x": math.nan}}
        yield {"id": "after", "text": "a"}

    with Client(url) as client:
        with pytest.raises(
            NotSerializable, match=r"document 3, with the id 'bad': metadata.x is nan.*the 2 before it may be"
        ):
            client.upload("texts", documents())
        client.upload("texts", [{"id": "cut", "text": "a \udc00"}])
        assert client.get_document("texts", "cut").text == "a \ufffd"


def test_nobody_listens() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url, retries=0) as client, pytest.raises(ConnectionFailed, match=f"{url}: .* is `boundarymorph serve`"):
        client.ready()
