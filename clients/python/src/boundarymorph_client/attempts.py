"""Decide how often a call is tried, and when.

Both clients ask this module, and send and sleep themselves.
"""

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
GRACE_SECONDS = 0.5  # seconds that an answer may take to arrive after the service's deadline
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0  # seconds at most, before jitter


@dataclass(frozen=True, slots=True)
class Connection:
    """The address of the service, and the patience of its client.

    Attributes:
        url: The address of the service.
        api_key: The key, if any.
        timeout: Seconds for a call with all its attempts.
        retries: Most attempts after the first.
    """

    url: str
    api_key: str | None = field(repr=False)
    timeout: float
    retries: int

    @classmethod
    def create(cls, base_url: str | None, api_key: str | None, timeout: float, retries: int) -> Connection:
        """Return a connection; the environment has the URL and the key unless they are given.

        Raises:
            InvalidArgument: For a URL or key that cannot be used. The message contains neither key nor password.
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
    """Raise InvalidArgument for a URL without `http` or `https`."""
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
    """The attempts of one call."""

    def __init__(
        self,
        call: Call[Any],
        connection: Connection,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Begin a call.

        Args:
            call: The call.
            connection: The service.
            clock: Returns the time in seconds.
            chance: Returns a uniform random number in [0, 1).
        """
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
        """Return the seconds until the next attempt, or raise the final ProblemError."""
        error = errors.error_from_response(response)
        if response.status_code not in AGAIN:
            raise error
        return self._pause(error, error.retry_after or 0.0)

    def after_failure(self, error: httpx.RequestError) -> float:
        """Return the seconds until the next attempt, or raise the final error.

        Raises:
            ConnectionFailed: If there is no further attempt.
            TimedOut: If there is no further attempt.
        """
        failure = errors.error_from_transport(error, self._connection.url)
        if isinstance(error, httpx.LocalProtocolError):
            raise failure from None  # the original error quotes the header
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
