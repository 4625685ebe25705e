"""Test when a call is tried again, in virtual time, and the parsing of event streams."""

import json
import pickle
import time
from contextlib import nullcontext
from email.utils import formatdate
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundarymorph_client import (
    ConnectionFailed,
    Overloaded,
    ProblemError,
    Round,
    Selection,
    TimedOut,
    Unavailable,
    UnexpectedAnswer,
    bodies,
    calls,
)
from boundarymorph_client.attempts import FIRST_PAUSE, LONGEST_PAUSE, Attempts, Connection
from boundarymorph_client.calls import Call
from boundarymorph_client.errors import TYPE, error_from_response
from boundarymorph_client.events import Events
from tests.clocks import Clock


def attempts(
    call: Call[Any], *, clock: Clock | None = None, chance: float = 0.5, timeout: float = 60, retries: int = 3
) -> Attempts:
    connection = Connection.create("http://service", None, timeout, retries)
    return Attempts(call, connection, clock=clock or Clock(0.0), chance=lambda: chance)


def refusal(status: int = 429, retry_after: str | None = "2", slug: str = "overloaded") -> httpx.Response:
    problem = {"type": TYPE + slug, "title": "t", "status": status, "detail": "too much"}
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return httpx.Response(status, json=problem, headers=headers)


SELECT, DELETE = calls.select("q", {"index": "i"}), calls.delete_index("i")


class TestPauses:
    def test_retry_pause_is_retry_after_plus_growing_jitter(self) -> None:
        tried = attempts(SELECT)
        assert [tried.after_answer(refusal()) for _ in range(3)] == [2 + FIRST_PAUSE * 2**n / 2 for n in range(3)]
        with pytest.raises(Overloaded):
            tried.after_answer(refusal())

    def test_retry_pause_has_an_upper_bound(self) -> None:
        tried = attempts(SELECT, chance=1, timeout=1e6, retries=50)
        pauses = [tried.after_answer(refusal(503, None, "not-ready")) for _ in range(50)]
        assert pauses[0] == FIRST_PAUSE
        assert max(pauses) == LONGEST_PAUSE

    @pytest.mark.parametrize("header", ["Wed, 21 Oct 2015 12:00:30 +99999999999999", "-5", "soon"])
    def test_retry_pause_ignores_a_malformed_retry_after(self, header: str) -> None:
        answered = refusal(429, header)
        assert attempts(SELECT, chance=1).after_answer(answered) == FIRST_PAUSE
        assert error_from_response(answered).retry_after is None

    def test_retry_is_given_up_if_the_pause_passes_the_deadline(self) -> None:
        clock = Clock(0.0)
        tried = attempts(SELECT, clock=clock, timeout=10)
        assert tried.after_answer(refusal()) < 10
        clock.now = 8.0
        with pytest.raises(Overloaded) as raised:
            tried.after_answer(refusal())
        assert raised.value.retry_after == 2

    @pytest.mark.parametrize("status", [422, 500, 502, 504])
    def test_retry_never_follows_a_status_of_begun_work(self, status: int) -> None:
        with pytest.raises(ProblemError):
            attempts(SELECT).after_answer(refusal(status))

    @pytest.mark.parametrize(
        ("error", "call", "kind"),
        [
            (httpx.ConnectError("refused"), DELETE, None),
            (httpx.ConnectTimeout("lost"), DELETE, None),
            (httpx.ReadError("reset"), SELECT, None),
            (httpx.RemoteProtocolError("closed"), SELECT, None),
            (httpx.ReadError("reset"), DELETE, ConnectionFailed),
            (httpx.RemoteProtocolError("closed"), DELETE, ConnectionFailed),
            (httpx.ReadTimeout("late"), SELECT, TimedOut),
            (httpx.UnsupportedProtocol("odd"), SELECT, ConnectionFailed),
        ],
    )
    def test_retry_follows_a_connection_error_only_if_repeatable(
        self, error: httpx.RequestError, call: Call[Any], kind: type[Exception] | None
    ) -> None:
        if kind is None:
            assert attempts(call).after_failure(error) > 0
            return
        with pytest.raises(kind) as raised:
            attempts(call).after_failure(error)
        assert raised.value.__cause__ is error

    @pytest.mark.parametrize("once", [False, True])
    def test_retry_never_follows_an_upload_from_a_read_iterator(self, once: bool) -> None:
        documents = [{"id": "a", "text": "t"}]
        lines = bodies.Lines(iter(documents) if once else documents)
        tried = attempts(calls.upload("i", lines, strict=False, stall_seconds=60))
        tried.after_failure(httpx.ConnectError("refused"))
        assert b"".join(lines) == b'{"id":"a","text":"t"}\n'
        with pytest.raises(Overloaded) if once else nullcontext():
            tried.after_answer(refusal())


def test_connection_repr_hides_its_key() -> None:
    assert "secret" not in repr(Connection.create("http://service", "secret", 60, 3))


class TestRequests:
    def test_request_sends_the_remaining_time_as_its_deadline(self) -> None:
        clock = Clock(0.0)
        tried = attempts(calls.select("q", {"index": "i", "deadline_ms": 3_000}), clock=clock)
        clock.now = 1.0
        request = tried.request()
        assert json.loads(request["content"]) == {"query": "q", "index": "i", "deadline_ms": 2_000}
        assert 2 <= request["timeout"].read <= 2.5
        assert request["timeout"].connect == request["timeout"].read

    def test_upload_timeout_applies_to_each_wait(self) -> None:
        clock = Clock(0.0)
        tried = attempts(calls.upload("i", bodies.Lines([]), strict=True, stall_seconds=600), clock=clock)
        clock.now = 10_000.0
        assert tried.request()["timeout"].read >= 600
        assert tried.request()["params"] == {"strict": "true"}


class TestErrors:
    def test_retry_after_may_be_a_date(self) -> None:
        error = error_from_response(refusal(503, formatdate(time.time() + 100, usegmt=True)))
        assert error.retry_after is not None
        assert 90 < error.retry_after <= 100

    def test_error_of_an_unknown_type_is_a_problem_error(self) -> None:
        error = error_from_response(refusal(418, None, "teapot"))
        assert type(error) is ProblemError
        assert (error.type, error.status, error.detail) == (f"{TYPE}teapot", 418, "too much")
        assert type(error_from_response(refusal(503, None, "teapot"))) is Unavailable
        assert type(error_from_response(httpx.Response(500))) is ProblemError

    def test_problem_error_survives_pickling(self) -> None:
        error = pickle.loads(pickle.dumps(error_from_response(refusal())))
        assert type(error) is Overloaded
        assert (error.detail, error.retry_after) == ("too much", 2)


ROUND = Round(
    rounds=1, cross_encoder_calls=5, cached_scores=0, reused_scores=0, budget=9, expected_loss=0.5, ids=["a\u2028b"]
)
STREAM = (
    f": hello\r\n\r\nevent: round\ndata: {ROUND.model_dump_json()}\n\nevent:round\ndata:{ROUND.model_dump_json()}\n\n"
)


class TestEvents:
    @given(st.lists(st.integers(0, len(STREAM.encode())), max_size=20).map(sorted))
    def test_events_are_read_however_the_bytes_are_cut(self, cuts: list[int]) -> None:
        raw, events = STREAM.encode(), Events(httpx.Response(200))
        pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        found: list[Round | Selection] = [event for piece in pieces for event in events.feed(piece)]
        assert found == [ROUND, ROUND]
        with pytest.raises(ConnectionFailed):
            events.end()

    def test_malformed_event_is_refused_and_unknown_one_ignored(self) -> None:
        with pytest.raises(UnexpectedAnswer):
            list(Events(httpx.Response(200)).feed(b"event: round\ndata: {}\n\n"))
        assert list(Events(httpx.Response(200)).feed(b"event: other\ndata: 1\n\n")) == []
