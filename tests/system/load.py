"""Put a steady load on a service: clients that send requests, and their outcomes."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.patience import PATIENCE

CLIENTS = 6
PAUSE = 0.05  # seconds between an answer and the client's next request
COMPLETE = "200 `complete`"


def outcome(response: httpx.Response) -> str:
    """Return the outcome of POST /select in the words of the tables in docs/monitoring.md."""
    if not response.headers.get("content-type", "").endswith("json"):
        return f"no JSON, with status {response.status_code}"
    body = response.json()
    if response.is_success:
        why = "" if body["status"] == "complete" else f" (`{body['stop_reason']}`)"
        return f"{response.status_code} `{body['status']}`{why}"
    slug = body["type"].rpartition(":")[2]
    again = ", `Retry-After`" if "retry-after" in response.headers else ""
    return f"{response.status_code} `{slug}`{again}"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request.

    Attributes:
        began: The time of time.monotonic() when the request was sent.
        ended: The time when the answer arrived.
        outcome: The outcome, or the name of a transport error.
        calls: The calls of the cross-encoder.
    """

    began: float
    ended: float
    outcome: str
    calls: int

    def is_complete(self) -> bool:
        return self.outcome == COMPLETE


@dataclass
class Load:
    """The answers so far, in the order of arrival."""

    clients: int
    answers: list[Answer] = field(default_factory=list)

    def outcomes(self) -> Counter[str]:
        return Counter(answer.outcome for answer in tuple(self.answers))

    def since(self, moment: float) -> list[Answer]:
        """Return the answers to requests made since a moment of time.monotonic()."""
        return [answer for answer in tuple(self.answers) if answer.began >= moment]

    def has_answers_since(self, moment: float, rounds: int = 3) -> bool:
        """Return whether each client has some answers to requests made since a moment."""
        return len(self.since(moment)) >= rounds * self.clients

    def is_normal(self, moment: float, normal: Callable[[Answer], bool], rounds: int = 3) -> bool:
        """Return whether the last answers of all clients to requests since a moment are normal.

        `rounds` is their number per client.
        """
        answers = self.since(moment)[-rounds * self.clients :]
        return len(answers) == rounds * self.clients and all(map(normal, answers))

    def recovery(self, moment: float, normal: Callable[[Answer], bool]) -> float:
        """Return the seconds from a moment to the last abnormal answer, or 0."""
        ended = (answer.ended for answer in tuple(self.answers) if not normal(answer))
        return max(0.0, max(ended, default=moment) - moment)


@contextmanager
def load(url: str, body: Callable[[int], Mapping[str, Any]], clients: int = CLIENTS) -> Iterator[Load]:
    """Select with some clients until the end of the block.

    `body` makes a request from its number.
    """
    seen, stop = Load(clients), threading.Event()

    def ask(client: httpx.Client, number: int) -> Answer:
        began, calls = time.monotonic(), 0
        try:
            response = client.post("/select", json=body(number))
            what = outcome(response)
            if response.is_success:
                calls = response.json()["usage"]["cross_encoder_calls"]
        except httpx.TransportError as error:
            what = type(error).__name__
        return Answer(began, time.monotonic(), what, calls)

    def call(number: int) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            while not stop.wait(PAUSE):
                seen.answers.append(ask(client, number))
                number += clients

    threads = [threading.Thread(target=call, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()
