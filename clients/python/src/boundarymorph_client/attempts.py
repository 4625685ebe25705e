"""How often a call is tried, and when, without doing any of it: both clients send and sleep as they are told here."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from boundarymorph_client import errors
from boundarymorph_client.calls import NDJSON, Call
from boundarymorph_client.encoding import encoded
from boundarymorph_client.version import __version__

DEFAULT_URL = "http://127.0.0.1:8080"
LAST_PORT = 65_535
AGAIN = (429, 503)  # statuses of requests that were not begun
CONNECT_SECONDS = 5.0
GRACE_SECONDS = 0.5  # that an answer may take beyond its deadline, which the service keeps, to arrive
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0  # seconds at most, before jitter


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the service is, and how patient its client.

    timeout: seconds for a call with all its attempts. retries: attempts after the first, at most.
    """

    url: str
    api_key: str | None = field(repr=False)
    timeout: float
    retries: int

    @classmethod
    def of(cls, base_url: str | None, api_key: str | None, timeout: float, retries: int) -> Connection:
        """Return a connection whose URL and key are in the environment unless they are given.

        Raises InvalidArgument for a URL or a key that cannot be used. Its message contains neither key nor password.
        """
        url = (base_url or os.environ.get("BOUNDARYMORPH_URL") or DEFAULT_URL).strip()
        key = (api_key or os.environ.get("BOUNDARYMORPH_API_KEY") or "").strip()
        _check_url(url)
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise errors.InvalidArgument(
                "the API key has characters that a header cannot carry; copy it again, without quotes or spaces"
            )
        return cls(url.rstrip("/"), key or None, timeout, retries)


def _check_url(url: str) -> None:
    """Raise InvalidArgument for a URL that is not HTTP's."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = None
    if (
        parsed is None
        or parsed.scheme not in ("http", "https")
        or not parsed.host
        or (parsed.port or 1) > LAST_PORT
        or parsed.query
        or parsed.fragment
    ):
        shown = "the URL of the service" if "@" in url else f"the URL of the service, {url!r},"
        raise errors.InvalidArgument(f"{shown} cannot be used; give it as http://HOST:PORT or https://HOST")


class Attempts:
    """One call on its way.

    clock: in seconds; chance: uniform in [0, 1).
    """

    def __init__(
        self,
        call: Call[Any],
        connection: Connection,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._call = call
        self._connection = connection
        self._clock = clock
        self._chance = chance
        self._seconds = connection.timeout if call.seconds is None else call.seconds
        self._end = clock() + self._seconds
        self._retries = 0

    def request(self) -> dict[str, Any]:
        """The next attempt, as arguments of httpx's `build_request`."""
        call, left = self._call, self._left()
        headers = {"accept": call.accept, "user-agent": f"boundarymorph-client/{__version__}"}
        if self._connection.api_key is not None:
            headers["authorization"] = f"Bearer {self._connection.api_key}"
        content: object = None
        if call.lines is not None:
            headers["content-type"], content = NDJSON, call.lines
        elif call.body is not None:
            timed = {"deadline_ms": max(1.0, round(1e3 * left, 3))} if call.timed else {}
            headers["content-type"], content = "application/json", encoded({**call.body, **timed})
        late = max(0.0, left) + GRACE_SECONDS
        return {
            "method": call.method,
            "url": self._connection.url + call.path,
            "params": call.parameters or None,
            "headers": headers,
            "content": content,
            "timeout": httpx.Timeout(late, connect=min(late, CONNECT_SECONDS)),
        }

    def after_answer(self, response: httpx.Response) -> float:
        """Seconds to wait before the next attempt. Raises the ProblemError if there is to be none."""
        error = errors.of_response(response)
        if response.status_code not in AGAIN:
            raise error
        return self._pause(error, error.retry_after or 0.0)

    def after_failure(self, error: httpx.RequestError) -> float:
        """Seconds to wait before the next attempt. Raises ConnectionFailed or TimedOut if there is to be none."""
        failure = errors.of_transport(error, self._connection.url)
        if isinstance(error, httpx.LocalProtocolError):
            raise failure from None  # which quotes the header
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        broken = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
        if not (unsent or (broken and self._call.idempotent)):
            raise failure from error
        try:
            return self._pause(failure, 0.0)
        except errors.BoundaryMorphError:
            raise failure from error

    def _pause(self, error: errors.BoundaryMorphError, least: float) -> float:
        pause = least + self._chance() * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**self._retries)
        lines = self._call.lines
        repeatable = lines is None or lines.repeatable
        if not repeatable or self._retries >= self._connection.retries or pause >= self._left():
            raise error
        self._retries += 1
        return pause

    def _left(self) -> float:
        return self._seconds if self._call.unbounded else self._end - self._clock()
