"""POST /select/batch: many selections as lines, answered as they finish, behind all other requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI
from pydantic import ValidationError

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.access.limits import Access
from boundarymorph.api import batch
from boundarymorph.errors import Overloaded
from boundarymorph.scoring.scorer import Scores
from boundarymorph.settings import Limits, RateLimitSettings, Settings
from tests.api.service import NDJSON, Held, answer, application, listening, problem, serving, texts
from tests.patience import PATIENCE, until_async
from tests.scoring.fakes import SeededScorer

SELECT = {"query": "q", "pool": texts(9), "budget": 3, "k": 2, "rounds": 1}
Lines = list[dict[str, Any]]


def ndjson(*requests: object) -> bytes:
    return b"".join(orjson.dumps(request) + b"\n" for request in requests)


async def sent(client: httpx.AsyncClient, body: Any, path: str = "/select/batch", **headers: str) -> Lines:
    """The lines that a batch was answered with."""
    response = await client.post(path, content=body, headers=NDJSON | headers, timeout=PATIENCE)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == NDJSON["content-type"]
    return [orjson.loads(line) for line in response.text.splitlines()]


def named(*names: object) -> bytes:
    return ndjson(*(SELECT | {"id": name, "query": str(name)} for name in names))


async def test_lines_are_answered_as_the_route_itself_answers(client: httpx.AsyncClient) -> None:
    requests: dict[str, dict[str, Any]] = {
        "pool": SELECT,
        "index": {"query": "q", "index": "texts", "k": 3, "budget": 4, "explain": True},
    }
    refused: dict[str, dict[str, Any]] = {
        "unknown": SELECT | {"budgets": 1},
        "absent": {"query": "q", "index": "absent"},
    }
    lines = await sent(client, ndjson(*({"id": id, **request} for id, request in (requests | refused).items())))
    assert lines.pop() == {"done": {"lines": 4, "answers": 2, "problems": 2}}
    found = {line["id"]: line for line in lines}
    for id, request in requests.items():
        alone = answer(await client.post("/select", json=request))
        assert found[id]["status"] == 200
        assert found[id]["answer"]["documents"] == alone["documents"]
        assert found[id]["answer"].keys() == alone.keys()
        assert found[id]["answer"]["rounds"] == alone["rounds"]
    for id, request in refused.items():
        response = await client.post("/select", json=request)
        assert found[id]["status"] == response.status_code
        assert found[id]["problem"] == response.json() | {"instance": "/select/batch"}


async def test_a_broken_line_is_its_own_problem(client: httpx.AsyncClient) -> None:
    body = (
        named("a") + b"{broken\n\n[1]\n" + ndjson(SELECT) + named("a", 7, 7.5, True, None, "x" * 513, 2**63, "x" * 512)
    )
    *lines, done = await sent(client, body)
    told = {line["id"]: line["problem"]["detail"] for line in lines if line["status"] == 422}
    assert {id: said.partition(":")[0] for id, said in told.items()} == {
        2: "the body is not JSON", 4: "a line must be an object", **dict.fromkeys((6, 8, 9, 10, 11, 12), "id")
    }  # fmt: skip
    assert "an earlier line of the batch has 'a'" in told[6]
    assert {line["id"] for line in lines if line["status"] == 200} == {"a", 5, 7, "x" * 512}
    assert done == {"done": {"lines": 12, "answers": 4, "problems": 8}}


async def test_without_lines(client: httpx.AsyncClient) -> None:
    for body in (b"", b"\n\n"):
        assert await sent(client, body) == [{"done": {"lines": 0, "answers": 0, "problems": 0}}]


async def test_what_is_refused_as_a_whole(client: httpx.AsyncClient) -> None:
    problem(await client.post("/select/batch", json=SELECT), 415, "unsupported-media-type")
    problem(await client.post("/p/none/select/batch", content=named(1), headers=NDJSON), 404, "unknown-policy")
    *lines, broken, done = await sent(client, "﻿a".encode("utf-16"))
    assert (lines, done["done"]["lines"]) == ([], 0)
    assert broken["problem"]["type"].endswith("invalid-input")


async def test_a_policy_is_that_of_each_line(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path, policies={"few": {"budget": 2}})
    asked = {name: value for name, value in SELECT.items() if name != "budget"}
    async with serving(settings) as client:
        first, _ = await sent(client, ndjson(asked), "/p/few/select/batch")
    assert (first["answer"]["policy"], first["answer"]["usage"]["budget"]) == ("few", 2)


async def test_a_line_at_the_limit_and_over_it(tmp_path: Path) -> None:
    line = orjson.dumps({"query": "q", "pool": ["a", "b"], "k": 1, "budget": 0})
    first, last = (orjson.dumps({"id": 'e"é'}) + line).replace(b"}{", b","), line[:-1] + b',"id":"f"}'
    async with serving(Settings(data_directory=tmp_path, limits=Limits(body_bytes=1_024))) as client:
        *lines, _ = await sent(
            client, b"\n".join((line.ljust(1_024), line.ljust(1_025), line, first.ljust(1_025), last.ljust(1_025)))
        )
    assert {found["id"]: found["status"] for found in lines} == {1: 200, 2: 413, 3: 200, 'e"é': 413, 5: 413}


async def test_what_is_over_another_limit_has_its_id(tmp_path: Path) -> None:
    async with serving(Settings(data_directory=tmp_path, depth=64, limits=Limits(pool=64, dimension=64))) as client:
        line, _ = await sent(client, ndjson(SELECT | {"id": "long", "pool": ["t"] * 65}))
    assert (line["id"], line["status"]) == ("long", 422)
    assert "limits.pool" in line["problem"]["detail"]


async def test_as_many_lines_as_there_may_be_and_one_more(tmp_path: Path) -> None:
    async with serving(Settings(data_directory=tmp_path, limits=Limits(batch_lines=3))) as client:
        assert (await sent(client, named(*"abc")))[-1] == {"done": {"lines": 3, "answers": 3, "problems": 0}}
        *lines, broken, done = await sent(client, named(*"abcd"))
    assert {line["id"] for line in lines} == set("abc")
    assert broken["problem"]["status"] == 422 and "limit of 3 lines" in broken["problem"]["detail"]
    assert done == {"done": {"lines": 3, "answers": 3, "problems": 0}}


def test_the_sessions_of_batches_are_some_of_all(tmp_path: Path) -> None:
    assert Settings(limits=Limits(sessions=9)).batch_sessions == 2
    assert Settings(limits=Limits(sessions=1)).batch_sessions == 1
    assert Settings(limits=Limits(sessions=9, batch_sessions=9)).batch_sessions == 9
    with pytest.raises(ValidationError, match="batch_sessions is 10, over the sessions of this service: 9"):
        Settings(limits=Limits(sessions=9, batch_sessions=10))
    with pytest.raises(ValidationError, match="batch_sessions"):
        Limits(batch_sessions=0)


async def test_all_batches_share_their_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Settings(data_directory=tmp_path, limits=Limits(sessions=8, batch_sessions=3))) as client:
        held = Held(monkeypatch, "quick")
        batches = [asyncio.create_task(sent(client, named(*range(6)))) for _ in range(2)]
        await until_async(lambda: held.running == 3)
        answer(await client.post("/select", json=SELECT | {"query": "quick"}))
        held.open.set()
        for lines in await asyncio.gather(*batches):
            assert lines[-1]["done"]["answers"] == 6
    assert held.most == 4


async def test_other_requests_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the least urgent of the same caller, and lines whose priority is the highest."""
    limits = Limits(sessions=1, batch_sessions=1)
    async with serving(Settings(data_directory=tmp_path, limits=limits)) as client:
        access: Access = client._transport.app.state.access  # type: ignore[attr-defined]
        held = Held(monkeypatch, "quick")
        one = asyncio.create_task(client.post("/select", json=SELECT | {"query": "one"}))
        await until_async(lambda: held.running == 1)
        lines = asyncio.create_task(sent(client, ndjson(SELECT | {"query": "line", "priority": 9})))
        await until_async(lambda: access.admission.waiting == 1)
        two = asyncio.create_task(client.post("/select", json=SELECT | {"query": "two", "priority": -9}))
        turns = access.admission._turns
        await until_async(lambda: turns.waiting("", 0)[1].total() == 2)  # both have been read, too
        held.open.set()
        await asyncio.gather(one, lines, two)
    assert held.order == ["one", "two", "line"]


@pytest.mark.parametrize("times", [2, float("inf")])
async def test_a_line_without_capacity_is_tried_again_until_its_deadline(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, times: float
) -> None:
    score, calls = SeededScorer.score, list[str]()

    async def refused(scorer: SeededScorer, query: str, given: Sequence[str], **options: Any) -> Scores:
        calls.append(query)
        if len(calls) <= times:
            raise Overloaded("busy", retry_after=0.001)
        return await score(scorer, query, given, **options)

    monkeypatch.setattr(SeededScorer, "score", refused)
    line, _ = await sent(client, ndjson(SELECT | {"deadline_ms": 1_000}))
    if times == 2:
        assert line["status"] == 200 and len(calls) == 3
    else:
        assert line["status"] == 429 and line["problem"]["type"].endswith("overloaded") and len(calls) > 1


BUSY, OF_BUSY = callers.make_key("busy", [Scope.SELECT])


@pytest.mark.parametrize(("limit", "lines", "answered"), [("3/year", 3, 3), ("3/year", 4, 3), ("2/second", 5, 5)])
async def test_a_batch_counts_as_its_selections(tmp_path: Path, limit: str, lines: int, answered: int) -> None:
    """It waits for the rate limits of the key, unless that takes longer than any selection may."""
    rates = RateLimitSettings(keys={"busy": limit})
    settings = Settings(data_directory=tmp_path, keys=(str(OF_BUSY),), rate_limits=rates)
    async with serving(settings) as client:
        found = await sent(client, named(*range(lines)), authorization=f"Bearer {BUSY}")
    assert found[-1]["done"] == {"lines": answered, "answers": answered, "problems": 0}
    ended = [line["problem"]["type"] for line in found if line.keys() == {"problem"}]
    assert ended == ["urn:boundarymorph:problem:rate-limited"] * (answered < lines)


async def test_large_lines_wait_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is room for one line beside the one that is being read, one after another is answered."""
    limits = Limits(body_bytes=3_000, bytes_in_hand=9_000, key_share=0.75, sessions=8, batch_sessions=8)
    async with serving(Settings(data_directory=tmp_path, limits=limits)) as client:
        access: Access = client._transport.app.state.access  # type: ignore[attr-defined]
        held = Held(monkeypatch, "quick")
        body = b"".join(orjson.dumps(SELECT | {"query": str(number)}).ljust(2_900) + b"\n" for number in range(5))
        lines = asyncio.create_task(sent(client, body))
        await until_async(lambda: held.running > 0)
        await asyncio.sleep(0.05)
        assert held.running == 1
        held.open.set()
        assert (await lines)[-1]["done"]["answers"] == 5
        assert access.bytes_in_hand.total == 0


async def test_it_says_how_far_it_is(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "PROGRESS_SECONDS", 0.01)
    held = Held(monkeypatch, "quick")
    lines = asyncio.create_task(sent(client, named("a", "b")))
    await until_async(lambda: held.running == 2)
    await asyncio.sleep(0.05)
    held.open.set()
    assert {"progress": {"lines": 2, "answers": 0, "problems": 0}} in await lines


def roomy(tmp_path: Path) -> FastAPI:
    limits = Limits(sessions=8, batch_sessions=8, key_share=1.0)
    return application("whole", Settings(data_directory=tmp_path, limits=limits))


class Duplex:
    """A caller that reads answers while it sends, over a socket."""

    @classmethod
    @asynccontextmanager
    async def of(cls, url: str) -> AsyncIterator["Duplex"]:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        head = "POST /select/batch HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
        writer.write(f"{head}content-type: {NDJSON['content-type']}\r\n\r\n".encode())
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def send(self, body: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(body), body))

    async def line(self) -> dict[str, Any]:
        """The next line that is JSON."""
        async with asyncio.timeout(PATIENCE):
            while not (line := await self._reader.readline()).startswith(b"{"):
                assert line, "the connection was closed"
        found: dict[str, Any] = orjson.loads(line)
        return found


async def test_answers_come_as_they_are_ready_while_the_body_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(roomy(tmp_path)) as (url, _), Duplex.of(url) as caller:
        held = Held(monkeypatch, "quick")
        caller.send(named("slow", "quick"))
        assert (await caller.line())["id"] == "quick"
        caller.send(named("more")[:20])
        caller.send(named("more")[20:])
        await until_async(lambda: held.running == 2)
        held.open.set()
        assert {(await caller.line())["id"], (await caller.line())["id"]} == {"slow", "more"}
        caller.send(b"")
        assert (await caller.line())["done"]["answers"] == 3


@pytest.mark.parametrize("ended", [True, False])
async def test_who_leaves_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool) -> None:
    """Whether or not the body has been read to its end, and where nothing more of it is read."""
    app = roomy(tmp_path)
    async with listening(app) as (url, _), Duplex.of(url) as caller:
        access: Access = app.state.access
        held = Held(monkeypatch, "quick")
        caller.send(named(*range(4)))
        if ended:
            caller.send(b"")
        await until_async(lambda: held.running == 4)
        caller.writer.transport.abort()
        await until_async(lambda: held.running == 0)
        await until_async(lambda: access.admission.inside == access.bytes_in_hand.total == access.selections.total == 0)
        assert access.background.shares.total == 0


async def test_who_leaves_while_nothing_is_read_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "PROGRESS_SECONDS", 0.01)  # what is sent to who has left
    app = roomy(tmp_path)
    async with listening(app) as (url, _), Duplex.of(url) as caller:
        access: Access = app.state.access
        held = Held(monkeypatch, "quick")
        caller.send(named(*range(2 * batch.AHEAD)))
        await until_async(lambda: held.running == 8)
        caller.writer.transport.abort()
        await asyncio.sleep(0.05)
        held.open.set()
        await until_async(lambda: access.admission.inside == access.bytes_in_hand.total == 0)
    assert len(set(held.order)) <= batch.AHEAD


async def test_nothing_more_is_read_of_who_does_not_read(tmp_path: Path) -> None:
    """No more lines are taken than may be in hand, until an answer has been sent."""
    app = application("whole", Settings(data_directory=tmp_path))
    given, reading, sent_lines = 0, asyncio.Event(), list[bytes]()
    total = 3 * batch.AHEAD

    async def receive() -> dict[str, Any]:
        nonlocal given
        if given == total:
            await asyncio.Event().wait()
        given += 1
        return {"type": "http.request", "body": named(given), "more_body": given < total}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await reading.wait()
            sent_lines.extend(message["body"].splitlines())

    scope = {
        "type": "http", "method": "POST", "path": "/select/batch", "raw_path": b"/select/batch", "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in NDJSON.items()], "query_string": b"",
    }  # fmt: skip
    async with app.router.lifespan_context(app):
        await until_async(lambda: app.state.lifecycle.ready)
        call: Awaitable[None] = app(scope, receive, send)
        running = asyncio.ensure_future(call)
        access: Access = app.state.access
        await until_async(lambda: given >= batch.AHEAD and access.admission.inside == 0)
        await asyncio.sleep(0.05)
        assert batch.AHEAD <= given <= batch.AHEAD + 2
        reading.set()
        await running
    assert orjson.loads(sent_lines[-1]) == {"done": {"lines": total, "answers": total, "problems": 0}}
