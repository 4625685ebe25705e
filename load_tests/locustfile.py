"""Users for Locust, which `make load` runs; by hand: `locust -f load_tests/locustfile.py --host http://...`.

Each sends its next request some time after the last answer (a closed loop), as people and agents do. The requests are
those of `load_tests.workload`; BOUNDARYMORPH_LOAD_DOCUMENTS is the number of documents in the index.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import gevent
from locust import FastHttpUser, HttpUser, between, constant_pacing, task
from requests.exceptions import ConnectionError, ReadTimeout

from load_tests.workload import SLOW_PAUSE, Request, Workload, outcome, texts_of

DOCUMENTS = int(os.environ.get("BOUNDARYMORPH_LOAD_DOCUMENTS", "3000"))
HEADERS = {"content-type": "application/json"}
_TEXTS = texts_of(DOCUMENTS)
_seeds = itertools.count()


class _Caller(FastHttpUser):
    """A user with its own requests."""

    abstract = True

    def on_start(self) -> None:
        self.workload = Workload(_TEXTS, seed=next(_seeds))

    def ask(self, kind: str) -> None:
        """Send a request. An answer that is neither a set nor a declared refusal is a failure."""
        request = self.workload.of(kind)
        with self.client.post(
            "/select", data=request.pieces[0].decode(), headers=HEADERS, name=kind, catch_response=True
        ) as response:
            what = outcome(response.status_code, response.headers, response.content or b"", request)
            response.failure(what) if what.startswith("failed") else response.success()


class Application(_Caller):
    """Sends requests over an index or its own candidates, and sometimes repeats one."""

    weight = 6
    wait_time = between(0.5, 2)

    @task(4)
    def over_an_index(self) -> None:
        self.ask("index")

    @task(2)
    def over_a_pool(self) -> None:
        self.ask("pool")

    @task(2)
    def the_same_again(self) -> None:
        self.ask("repeat")


class Agent(_Caller):
    """Sends a query, and then the same query for more documents."""

    weight = 2
    wait_time = constant_pacing(3)

    @task
    def go_deeper(self) -> None:
        for kind in ("index", "deeper", "deeper"):
            self.ask(kind)
            gevent.sleep(0.2)


class SlowClient(HttpUser):
    """Sends its requests a piece at a time."""

    weight = 1
    wait_time = between(0.5, 2)

    def on_start(self) -> None:
        self.workload = Workload(_TEXTS, seed=next(_seeds))

    @task
    def send_slowly(self) -> None:
        request = self.workload.of("slow")
        with self.client.post(
            "/select", data=_slowly(request), headers=HEADERS, name="slow", catch_response=True
        ) as response:
            what = outcome(response.status_code, response.headers, response.content or b"", request)
            response.failure(what) if what.startswith("failed") else response.success()


class Leaver(HttpUser):
    """Mostly disconnects before the answer."""

    weight = 1
    wait_time = between(0.5, 2)

    def on_start(self) -> None:
        self.workload = Workload(_TEXTS, seed=next(_seeds))

    @task
    def leave(self) -> None:
        request = self.workload.of("abort")
        with self.client.post(
            "/select",
            data=request.pieces[0],
            headers=HEADERS,
            name="abort",
            timeout=(5, self.workload.patience()),
            catch_response=True,
        ) as response:
            if response.status_code or isinstance(response.error, (ReadTimeout, ConnectionError)):
                response.success()


def _slowly(request: Request) -> Iterator[bytes]:
    for number, piece in enumerate(request.pieces):
        if number:
            gevent.sleep(SLOW_PAUSE)
        yield piece
