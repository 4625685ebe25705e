"""Test that each limit admits a request of its value, and refuses a larger one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.api.select_task import task_of
from boundarymorph.inference.concurrency import Deadline, Shares
from boundarymorph.scoring.scorer import Scores
from boundarymorph.server.app import create_app
from boundarymorph.settings import Limits, Settings
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import NDJSON, answer, application, client_of, faked, problem, ready, texts
from tests.patience import PATIENCE

FOOTPRINT = 20 * 2 * 3 + 25 * 2**2 + 1_500 * 3 + 4 * 3 * 2  # two calls among three vectors of two dimensions
Send = Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]]


def select(**of_size: Callable[[int], Any]) -> Send:
    """Return a function that sends POST /select with fields that depend on a size."""

    async def send(client: httpx.AsyncClient, size: int) -> httpx.Response:
        fields = {name: of(size) for name, of in of_size.items()}
        given = {} if "index" in fields else {"pool": texts(3)}
        asked = {} if "queries" in fields else {"query": "q"}
        return await client.post("/select", json={**asked, **given, **fields})

    return send


async def whole_body(client: httpx.AsyncClient, size: int) -> httpx.Response:
    return await client.post("/select", content=b'{"query": "q", "pool": [{"text": "a"}]}'.ljust(size))


async def concurrent_body(client: httpx.AsyncClient, size: int) -> httpx.Response:
    """Send a body of `size` bytes while another request holds 1,024 bytes."""
    with BlockedScorer.bytes_in_flight.reserve("others") as take:
        take(1_024)
        return await client.put("/indexes/new", content=b'{"encoder": "none"}'.ljust(size - 1_024))


async def selection_in_flight(client: httpx.AsyncClient, size: int) -> httpx.Response:
    """Select with `size` bytes in flight, most of which belong to another request."""
    with BlockedScorer.bytes_in_flight.reserve("others") as take:
        pool = [{"text": str(number), "embedding": [1.0, number]} for number in range(3)]
        asked = orjson.dumps({"query": "q", "query_embedding": [1.0, 0.0], "pool": pool, "budget": 2, "k": 1})
        take(size - FOOTPRINT - len(asked))
        return await client.post("/select", content=asked)


async def one_line(client: httpx.AsyncClient, size: int) -> httpx.Response:
    line = orjson.dumps({"id": "a", "text": "a"})
    return await client.post("/indexes/texts/documents", content=line.ljust(size) + b"\n", headers=NDJSON)


async def score_texts(client: httpx.AsyncClient, size: int) -> httpx.Response:
    return await client.post("/score", json={"query": "q", "texts": ["t"] * size})


async def concurrent_selections(client: httpx.AsyncClient, size: int) -> httpx.Response:
    """Send `size` selections at once, and return the least successful answer."""
    BlockedScorer.open.clear()
    asking = [asyncio.create_task(client.post("/select", json={"query": "q", "pool": texts(3)})) for _ in range(size)]
    async with asyncio.timeout(PATIENCE):
        while BlockedScorer.requests.total + sum(task.done() for task in asking) < size:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.005)
    BlockedScorer.open.set()
    return max([await task for task in asking], key=lambda response: response.status_code)


class BlockedScorer(SeededScorer):
    """A scorer that waits for the event `open`."""

    open: asyncio.Event
    requests: Shares
    bytes_in_flight: Shares

    async def score(self, *given: Any, **options: Any) -> Scores:
        await self.open.wait()
        return await super().score(*given, **options)


@dataclass(frozen=True)
class Case:
    """A limit's value, other limits, how to send a request of a given size, and the refusal."""

    value: float
    send: Send
    status: int = 422
    slug: str = "limit-exceeded"
    others: tuple[tuple[str, float], ...] = ()
    total: int = 0  # the largest size within the limit, if not `value`


CASES = {
    "body_bytes": Case(1_536, whole_body, 413, "body-too-large"),
    "line_bytes": Case(1_024, one_line, 422, "invalid-input"),
    "diverse": Case(4, select(k=lambda size: size, diversity=lambda size: 0.3)),
    "query_characters": Case(5, select(query=lambda size: "q" * size)),
    "queries": Case(3, select(queries=lambda size: [f"q{number}" for number in range(size)])),
    "text_characters": Case(
        8, select(pool=lambda size: [{"text": "t" * (size - 3), "title": "abc"}, *texts(1)]), others=(("budget", 0),)
    ),
    "pool": Case(6, select(pool=texts)),
    "features": Case(
        2,
        select(pool=lambda size: {"documents": texts(3), "features": {f"s{n}": [1.0, 2.0, 3.0] for n in range(size)}}),
        others=(("pool", 3),),
    ),
    "budget": Case(3, select(budget=lambda size: size)),
    "k": Case(4, select(k=lambda size: size)),
    "max_tokens": Case(9, select(max_tokens=lambda size: size)),
    "known_scores": Case(
        2, select(pool=lambda size: [{**document, "cross_encoder_score": 0.5} for document in texts(size)])
    ),
    "rounds": Case(3, select(rounds=lambda size: size)),
    "dimension": Case(
        4,
        select(
            pool=lambda size: [{"text": "a", "embedding": [1.0] * size}, {"text": "b", "embedding": [2.0] * size}],
            query_embedding=lambda size: [1.0] * size,
        ),
    ),
    "requests": Case(2, concurrent_selections, 429, "overloaded", others=(("key_share", 1),)),
    "key_requests": Case(2, concurrent_selections, 429, "overloaded"),
    "key_share": Case(0.75, concurrent_selections, 429, "overloaded", others=(("requests", 4),), total=3),
    "texts": Case(3, score_texts),
    "bytes_in_flight": Case(
        2_048, concurrent_body, 429, "overloaded", others=(("body_bytes", 1_536), ("key_share", 1))
    ),
}


def test_every_limit_setting_has_a_test_case() -> None:
    """Limits that other files test, or that only delay a request, are excluded.

    For the limits of connections see test_connections.py, and for those of passages test_passages.py. Selections beyond
    `sessions` wait.
    """
    elsewhere = {"connections", "head_bytes", "sessions", "deadline_seconds", "passages", "document_passages"}
    assert CASES.keys() | elsewhere == Limits.model_fields.keys()


@pytest.mark.parametrize("path", ["/select", "/v1/rerank"])
async def test_deadline_is_cut_to_the_limit(path: str, tmp_path: Path) -> None:
    """A client that asks for a longer deadline gets an answer within the limit, not an error."""
    limits = Limits(deadline_seconds=3)
    settings = Settings(data_directory=tmp_path, deadline_seconds=2, limits=limits)
    for asked, seconds in ((None, 2), (2_999.0, 2.999), (3_001.0, 3)):
        request = SelectRequest.model_validate({"query": "q", "pool": ["a"], "deadline_ms": asked})
        assert (
            task_of(request, settings, arrival=0.0).context.deadline.moment
            == Deadline.from_request(0.0, seconds).moment
        )
    async with client_under(settings, scorer=False) as client:
        body = {"query": "q", "deadline_ms": 86_400_000}
        answer(await client.post(path, json=body | {"pool" if path == "/select" else "documents": ["a", "b"]}))


@pytest.mark.parametrize("name", CASES)
async def test_limit_admits_its_value_and_refuses_one_more(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    limits = Limits.model_validate({name: case.value, **dict(case.others)})
    settings = Settings(data_directory=tmp_path, budget=0, k=1, depth=1, rounds=1, deadline_seconds=3, limits=limits)
    if case.send is concurrent_selections:
        settings = settings.model_copy(update={"budget": 1})
    most = case.total or int(case.value)
    async with client_under(settings, scorer=case.send is score_texts) as client:
        answer(await case.send(client, most))
    async with client_under(settings, scorer=case.send is score_texts) as client:
        detail = problem(await case.send(client, most + 1), case.status, case.slug)
        assert case.slug != "limit-exceeded" or f"{case.value:,}" in detail


@asynccontextmanager
async def client_under(settings: Settings, *, scorer: bool) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a scorer, or of a service with one document in the index "texts"."""
    BlockedScorer.open = asyncio.Event()
    BlockedScorer.open.set()
    app = application("scorer", settings) if scorer else create_app(settings, build=faked(BlockedScorer()))
    BlockedScorer.requests = app.state.access.requests
    BlockedScorer.bytes_in_flight = app.state.access.bytes_in_flight
    async with client_of(app) as client:
        await ready(client)
        if not scorer:
            answer(await client.put("/indexes/texts"))
            answer(await client.post("/indexes/texts/documents", json=texts(1)))
        yield client


async def test_bytes_in_flight_counts_the_body_and_work_of_a_selection(tmp_path: Path) -> None:
    limits = Limits(bytes_in_flight=8_192, body_bytes=1_536, key_share=1)
    async with client_under(Settings(data_directory=tmp_path, limits=limits), scorer=False) as client:
        answer(await selection_in_flight(client, 8_192))
        problem(await selection_in_flight(client, 8_193), 429, "overloaded")
