"""What a server says about when to come again, and about a refusal."""

import pytest

from boundarymorph.inference.concurrency import Budget
from boundarymorph.remote.peer import Peer, Refused, retry_after
from boundarymorph.telemetry import tracing
from tests.fakes.upstream import answer
from tests.fakes.wires import Ours, running

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
        ("-3", None),
        ("-0.5", None),
        ("Wed, 21 Oct 2015 12:00:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 11:00:00 GMT", 0.0),
        ("Wed, 32 Oct 2015", None),
        ("Wed, 21 Oct 2015 12:00:30 +99999999999999", None),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOON) == seconds


async def test_the_id_of_the_request_that_is_answered_here_goes_along() -> None:
    async with running(Ours()) as [server]:
        peer = Peer(server.endpoint().base, "scorer")
        request = b'{"query": "q", "texts": ["t"], "deadline_ms": 1000}'
        token = tracing.request_id.set("named")
        await peer.fetch("/score", request, Budget(10, last=False))
        tracing.request_id.reset(token)
        await peer.fetch("/score", request, Budget(10, last=False))
        await peer.close()
    assert [request.headers.get("x-request-id") for request in server.requests] == ["named", None]


SECRET = "what a document says"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            {"detail": [{"type": "missing", "loc": ["body", "texts", 0], "msg": "Field required", "input": SECRET}]},
            ": body.texts.0: Field required",
        ),
        (
            {"detail": [{"loc": ["body"], "msg": "bad"}, {"loc": ["query"], "msg": "worse", "ctx": {"given": SECRET}}]},
            ": body: bad; query: worse",
        ),
        ([{"msg": "bad", "input": {"texts": [SECRET]}}], ": bad"),
        ({"detail": [SECRET, {"loc": "body", "msg": ["bad"], "input": SECRET}]}, ""),
        ({"detail": {"input": SECRET}}, ""),
        ({"errors": [{"input": SECRET}]}, ""),
        ({"detail": []}, ""),
        ({"detail": "too many texts"}, ": too many texts"),
        (None, ""),
    ],
)
async def test_what_is_told_of_a_refusal_repeats_no_text(body: object, told: str) -> None:
    """As servers made with FastAPI do, whose answers end in our log."""
    async with running(Ours()) as [server]:
        server.behaviour = answer(body, 422)
        peer = Peer(server.endpoint().base, "scorer")
        request = b'{"query": "q", "texts": ["t"], "deadline_ms": 1000}'
        with pytest.raises(Refused) as refused:
            await peer.fetch("/score", request, Budget(10, last=False))
        await peer.close()
    assert str(refused.value) == f"{server.endpoint().base}/score answered 422{told}"
