"""What the client sends of values that JSON does not have, and what it says of those that it cannot send."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx
import numpy as np
import pandas as pd
import pytest

from boundarymorph_client import AsyncClient, Client, ConnectionFailed, InvalidArgument
from boundarymorph_client.encoding import encoded
from tests.clients.flavours import Connect, Flavour

pytestmark = pytest.mark.strangers

HALF = "\ud83d"  # of a pair of surrogates


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
def test_what_has_a_form_in_json(value: object, expected: object) -> None:
    assert json.loads(encoded({"x": value})) == {"x": expected}


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("-inf"), np.float64("nan"), np.array([1.0, np.nan]), Decimal("NaN"), Decimal("1e999"),
        {1}, b"a", object(), pd.NaT, np.datetime64("NaT"), timedelta(1), np.timedelta64(1, "s"), {(1, 2): 3},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_has_none_is_named(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"pool\.documents\[1\] \(id 'b'\)\.metadata\.x"):
        encoded({"pool": {"documents": [{"id": "a"}, {"id": "b", "metadata": {"x": value}}]}})


def test_what_contains_itself() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidArgument, match="itself"):
        encoded({"x": endless})


def documents(bad: dict[str, Any], before: int = 3_000) -> Iterator[dict[str, Any]]:
    yield from ({"id": f"n{number}", "text": f"text {number}"} for number in range(before))
    yield bad
    yield {"id": "after", "text": "a"}


async def one_by_one(found: Iterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for each in found:
        yield each


BAD = {"id": "bad", "text": "a", "metadata": {"when": {1}}}


async def test_an_upload_says_which_document_and_how_far_it_came(flavour: Flavour, connect: Connect, url: str) -> None:
    client = connect(url)
    given = documents(BAD)
    with pytest.raises(
        InvalidArgument, match=r"3001 \(id 'bad'\).*metadata\.when.*3000 before it: 3000 added"
    ) as raised:
        await client.upload("texts", one_by_one(given) if flavour is Flavour.ASYNC else given)
    assert raised.value.report is not None
    assert raised.value.report.added == 3_000
    assert (await client.describe_index("texts")).count == 3_040


async def test_a_strict_upload_writes_nothing_then(connect: Connect, url: str) -> None:
    client = connect(url)
    for given, strict in ((documents(BAD), True), (documents(BAD, before=0), False)):
        with pytest.raises(InvalidArgument, match=r"\(id 'bad'\).*nothing was written") as raised:
            await client.upload("texts", given, strict=strict)
        assert raised.value.report is None
    assert (await client.describe_index("texts")).count == 40


async def test_half_a_surrogate_pair_anywhere(connect: Connect, url: str) -> None:
    client = connect(url)
    document = {"id": f"i{HALF}", "text": f"t{HALF}", "metadata": {f"k{HALF}": f"v{HALF}"}}
    assert (await client.upload("texts", [document])).added == 1
    found = await client.get_document("texts", f"i{HALF}")
    assert (found.id, found.text, found.metadata) == ("i\ufffd", "t\ufffd", {"k\ufffd": "v\ufffd"})
    assert not (await client.list_documents("texts", after=f"i{HALF}")).documents
    assert (await client.select(f"q{HALF}", pool=[f"a{HALF}", "b"], k=2)).status == "complete"
    assert (await client.delete_documents("texts", [f"i{HALF}"])).deleted == 1


async def test_a_service_that_is_not_there(connect: Connect) -> None:
    client = connect("http://user:password@127.0.0.1:9/prefix", retries=0)
    with pytest.raises(
        ConnectionFailed, match=r"http://127\.0\.0\.1:9/prefix .*`boundarymorph serve` running"
    ) as raised:
        await client.ready()
    assert "password" not in str(raised.value)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_clients_are_copied_and_pickled(kind: Any) -> None:
    client = kind("http://a", api_key="k", timeout=3, retries=1)
    for again in (copy.copy(client), copy.deepcopy(client), pickle.loads(pickle.dumps(client))):
        assert again._connection == client._connection
        assert again._pools is not client._pools
    http = httpx.Client() if kind is Client else httpx.AsyncClient()
    with pytest.raises(TypeError, match="of yours"):
        copy.deepcopy(kind(http=http))
