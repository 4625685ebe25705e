"""Test one server: its refusals, the pauses after them, and the caller that it receives."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from boundarymorph.errors import DeadlineExceeded
from boundarymorph.inference.concurrency import TimeBudget
from boundarymorph.remote.peer import KeyRefused, Peer, RequestRefused, ServerBusy, ServerUnavailable, retry_after
from boundarymorph.telemetry import tracing
from tests.fakes.upstream import Upstream, answer, listening

NOON = 1_445_428_800.0  # Wed, 21 Oct 2015 12:00:00 GMT
SECRET = "what a document says"
MISSING = {"type": "missing", "loc": ["body", "texts", 0], "msg": "Field required", "input": SECRET}


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("120", 120.0),
        ("-0.5", None),
        ("Wed, 21 Oct 2015 12:00:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 11:00:00 GMT", 0.0),
        ("Wed, 32 Oct 2015", None),
        ("Wed, 21 Oct 2015 12:00:30 +99999999999999", None),
    ],
)
def test_retry_after_reads_seconds_and_dates(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOON) == seconds


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    async with listening(Upstream()) as [server]:
        yield server


@pytest.fixture
async def peer(server: Upstream) -> AsyncIterator[Peer]:
    peer = Peer(server.url, "scorer", api_key="sk-1")
    yield peer
    await peer.close()


async def test_fetch_sends_the_key_and_the_request_id(server: Upstream, peer: Peer) -> None:
    token = tracing.request_id.set("named")
    await peer.fetch("/score", b"{}", TimeBudget(10, last=False))
    tracing.request_id.reset(token)
    await peer.fetch("/score", b"{}", TimeBudget(10, last=False))
    assert [request.headers.get("x-request-id") for request in server.requests] == ["named", None]
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer sk-1"] * 2


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, {"error": "the  reason", "error_type": "Validation"}, ": the reason"),
        (404, {"error": {"message": "the reason", "type": "invalid_request_error", "code": 400}}, ": the reason"),
        (413, {"message": "the reason"}, ": the reason"),
        (501, {"title": "Invalid", "detail": "the reason"}, ": the reason"),
        (307, b"the reason", ": the reason"),
        (422, {"detail": [MISSING]}, ": body.texts.0: Field required"),
        (
            422,
            {"detail": [{"loc": ["body"], "msg": "bad"}, {"loc": ["query"], "msg": "worse", "ctx": {"given": SECRET}}]},
            ": body: bad; query: worse",
        ),
        (422, [{"msg": "bad", "input": {"texts": [SECRET]}}], ": bad"),
        (422, {"detail": [SECRET, {"loc": "body", "msg": ["bad"], "input": SECRET}]}, ""),
        (422, {"detail": {"input": SECRET}}, ""),
        (422, {"errors": [{"input": SECRET}]}, ""),
        (422, {"detail": []}, ""),
        (422, None, ""),
    ],
)
async def test_fetch_quotes_a_refusal_without_its_texts(
    server: Upstream, peer: Peer, status: int, body: Any, told: str
) -> None:
    server.behaviour = answer(body, status)
    with pytest.raises(RequestRefused) as refused:
        await peer.fetch("/score", b"{}", TimeBudget(10, last=False))
    assert str(refused.value) == f"{server.url}/score answered {status}{told}"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "pause", "error"),
    [
        (401, None, KeyRefused),
        (403, None, KeyRefused),
        (429, None, ServerBusy),
        (429, "7", ServerBusy),
        (503, "7", ServerBusy),
        (503, None, ServerUnavailable),
        (500, None, ServerUnavailable),
        (424, None, ServerUnavailable),
        (504, None, ServerUnavailable),
    ],
)
async def test_fetch_distinguishes_busy_from_broken_servers(
    server: Upstream, peer: Peer, status: int, pause: str | None, error: type[Exception]
) -> None:
    server.behaviour = answer("why, sk-1?", status, **({"retry_after": pause} if pause else {}))
    with pytest.raises(error, match=rf"answered {status}: why, \*\*\*\?") as raised:
        await peer.fetch("/score", b"{}", TimeBudget(10, last=False))
    if isinstance(raised.value, ServerBusy):
        assert raised.value.pause == (None if pause is None else 7.0)


@pytest.mark.parametrize(("last", "error"), [(True, DeadlineExceeded), (False, ServerBusy)])
async def test_fetch_reads_a_504_of_our_scorer_as_the_deadline(
    server: Upstream, peer: Peer, last: bool, error: type[Exception]
) -> None:
    server.behaviour = answer({"title": "deadline exceeded"}, 504)
    with pytest.raises(error):
        await peer.fetch("/score", b"{}", TimeBudget(10, last=last), honours_deadlines=True)
