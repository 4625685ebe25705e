"""Read the events of a streamed selection from its bytes."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from boundarymorph_client.calls import parsed
from boundarymorph_client.errors import ConnectionFailed, error_from_problem
from boundarymorph_client.models import Problem, Round, Selection


class Events:
    """Reads events from the bytes of a response, and yields each one when it is complete."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._begun: list[bytes] = []  # bytes of the incomplete line
        self._name = ""
        self._data: list[bytes] = []
        self._ended = False

    def feed(self, received: bytes) -> Iterator[Round | Selection]:
        """Yield the events that these bytes complete.

        Raises ProblemError for a problem, and UnexpectedAnswer for an unknown event.
        """
        self._begun.append(received)
        if b"\n" not in received:
            return
        *lines, rest = b"".join(self._begun).split(b"\n")
        self._begun = [rest]
        for line in lines:
            field, _, value = line.removesuffix(b"\r").partition(b":")
            match field:
                case b"event":
                    self._name = value.decode().strip()
                case b"data":
                    self._data.append(value)
                case b"" if not line.strip() and self._data:
                    yield from self._event(self._name, b"\n".join(self._data))
                    self._name, self._data = "", []

    def end(self) -> None:
        """Check after the last byte that the selection has come. Raises ConnectionFailed if not."""
        if not self._ended:
            raise ConnectionFailed("the stream ended before the selection")

    def _event(self, name: str, data: bytes) -> Iterator[Round | Selection]:
        match name:
            case "round":
                yield parsed(Round, data)
            case "selection":
                self._ended = True
                yield parsed(Selection, data)
            case "problem":
                raise error_from_problem(parsed(Problem, data), self._response)
