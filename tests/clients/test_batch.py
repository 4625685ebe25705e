"""Test many selections by both clients: order, concurrency, and failures of single requests."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

import boundarymorph_client as bm
from boundarymorph.scoring.scorer import Scores
from tests.clients.conftest import Connect, Flavour, Recorder
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import texts
from tests.patience import until_async

OPTIONS: dict[str, Any] = {"pool": texts(5), "budget": 2, "k": 1, "rounds": 1}


def requests(count: int) -> list[dict[str, Any]]:
    return [{"query": f"q{number}", **OPTIONS} for number in range(count)]


async def results(client: bm.AsyncClient, *given: Any, **options: Any) -> list[bm.Selection | bm.BoundaryMorphError]:
    async with aclosing(client.select_batch(*given, **options)) as found:
        return [result async for result in found]


async def test_batch_yields_results_in_the_order_of_the_requests(
    connect: Connect, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, last = connect(url), asyncio.Event()
    score = SeededScorer.score

    async def score_the_first_last(scorer: SeededScorer, query: str, given: Sequence[str], **options: Any) -> Scores:
        if query == "q0":
            await last.wait()
        elif query == "q3":
            last.set()
        return await score(scorer, query, given, **options)

    monkeypatch.setattr(SeededScorer, "score", score_the_first_last)
    found = await results(client, requests(6))
    alone = [await client.select(**request) for request in requests(6)]
    assert [getattr(result, "documents", result) for result in found] == [selection.documents for selection in alone]


async def test_batch_concurrency_bounds_requests_read_and_sent(
    connect: Connect, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = most = read = 0
    score = SeededScorer.score

    async def count(scorer: SeededScorer, query: str, given: Sequence[str], **options: Any) -> Scores:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await until_async(lambda: most == 3)
        found = await score(scorer, query, given, **options)
        running -= 1
        return found

    def reading() -> Iterator[dict[str, Any]]:
        nonlocal read
        for request in requests(9):
            read += 1
            yield request

    monkeypatch.setattr(SeededScorer, "score", count)
    client = connect(url)
    async with aclosing(client.select_batch(reading(), concurrency=3)) as found:
        await anext(found)
        assert read == 3
        assert len([result async for result in found]) == 8
    assert (read, most) == (9, 3)
    with pytest.raises(bm.InvalidArgument, match="give 1 or more"):
        await results(client, requests(1), concurrency=0)


async def test_batch_yields_the_error_of_a_request_as_its_result(
    connect: Connect, url: str, recorder: Recorder
) -> None:
    given = [
        {"query": "x", "index": "none"}, *requests(2), OPTIONS, {"query": "q", **OPTIONS, "bugdet": 1},
        {"query": "q", **OPTIONS, "embeddings": [[1.0]]}, {"query": "last", **OPTIONS},
    ]  # fmt: skip
    found = await results(connect(url), iter(given))
    assert [type(result) for result in found] == [
        bm.UnknownIndex, bm.Selection, bm.Selection, bm.InvalidArgument, bm.InvalidInput, bm.InvalidArgument,
        bm.Selection,
    ]  # fmt: skip
    assert len(recorder.seen) == 5
    away = await results(connect("http://127.0.0.1:9", retries=0), requests(2))
    assert [type(result) for result in away] == [bm.ConnectionFailed] * 2


async def test_batch_closed_early_cancels_requests_in_flight(
    connect: Connect, flavour: Flavour, url: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocking client waits for the requests in flight."""
    score, held = SeededScorer.score, list[str]()

    async def hold(scorer: SeededScorer, query: str, given: Sequence[str], **options: Any) -> Scores:
        if query != "q0":
            held.append(query)
            await (asyncio.sleep(0) if flavour is Flavour.SYNC else asyncio.Event().wait())
        return await score(scorer, query, given, **options)

    monkeypatch.setattr(SeededScorer, "score", hold)
    async with aclosing(connect(url).select_batch(requests(10), concurrency=2)) as found:
        assert isinstance(await anext(found), bm.Selection)
        await until_async(lambda: bool(held))
    await until_async(recorder.is_idle)
    assert len(recorder.seen) <= 2
