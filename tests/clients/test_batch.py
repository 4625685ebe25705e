"""Many selections by both clients: in pieces that need no reading while they are sent, kept, and resumed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

import boundarymorph_client as bm
from boundarymorph.api import batch
from boundarymorph.scoring.scorer import Scores
from boundarymorph.settings import Limits, Settings
from boundarymorph_client import batches
from tests.api.service import Held, texts
from tests.clients.flavours import Connect
from tests.clients.way import Recorder
from tests.patience import until_async
from tests.scoring.fakes import SeededScorer

OPTIONS: dict[str, Any] = {"pool": texts(5), "budget": 2, "k": 1, "rounds": 1}
KILLED = """
import sys
from boundarymorph_client import Client
requests = ({"query": f"q{number}", "pool": ["a", "b", "c"], "budget": 1, "k": 1} for number in range(150))
for answer in Client(sys.argv[1], timeout=600).select_batch(requests, kept=sys.argv[2]):
    print(answer.id, flush=True)
"""


def requests(count: int) -> list[dict[str, Any]]:
    return [{"id": f"r{number}", "query": f"q{number}", **OPTIONS} for number in range(count)]


async def answers(client: bm.AsyncClient, *given: Any, **options: Any) -> list[bm.BatchAnswer]:
    async with aclosing(client.select_batch(*given, **options)) as found:
        return [answer async for answer in found]


def ids(file: Path) -> list[str | int]:
    return [orjson.loads(line)["id"] for line in file.read_bytes().splitlines()]


def test_the_client_sends_no_more_than_the_service_takes_unread() -> None:
    assert batches.AHEAD == batch.AHEAD


async def test_every_request_has_its_answer(connect: Connect, url: str, recorder: Recorder) -> None:
    client = connect(url)
    given = [*requests(130), {"query": "x", "index": "none"}, {"query": "q", "pool": ["a"], "k": 1, "budget": 0}]
    found = {answer.id: answer for answer in await answers(client, iter(given))}
    assert found.keys() == {f"r{number}" for number in range(130)} | {131, 132}
    assert [len(seen.content.splitlines()) for seen in recorder.seen] == [64, 64, 4]
    alone = await client.select("q7", **OPTIONS)
    seventh = found["r7"].answer
    assert seventh is not None and seventh.documents == alone.documents
    assert found["r7"].model_extra == {}
    refused = found[131]
    assert (refused.status, refused.answer) == (404, None)
    assert refused.problem is not None and refused.problem.type.endswith("unknown-index")


async def test_large_answers_do_not_hinder_large_lines(connect: Connect, url: str) -> None:
    """As many as the service takes at once, though none of their answers is read before all have been sent."""
    long = [{"id": number, "query": "q", "pool": ["x" * 200_000, "y"], "k": 2, "budget": 0, "return_documents": True}
            for number in range(batches.AHEAD)]  # fmt: skip
    assert len(await answers(connect(url), long)) == batches.AHEAD


async def test_what_is_kept_is_not_asked_again(connect: Connect, url: str, recorder: Recorder, tmp_path: Path) -> None:
    kept, client = tmp_path / "answers.ndjson", connect(url)
    assert len(await answers(client, requests(3), kept=kept)) == 3
    with kept.open("ab") as file:
        file.write(b'{"id":"r3","status":200,"ans')  # as of a process that was killed while it wrote
    recorder.seen.clear()
    assert {answer.id for answer in await answers(client, requests(5), kept=kept)} == {"r3", "r4"}
    assert len(recorder.seen) == 1 and len(recorder.seen[0].content.splitlines()) == 2
    assert sorted(map(str, ids(kept))) == [f"r{number}" for number in range(5)]
    assert await answers(client, requests(5), kept=kept) == []
    assert len(recorder.seen) == 1


async def test_only_what_is_final_is_kept(
    connect: Connect, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> Scores:
        raise RuntimeError("out of order")

    kept, client = tmp_path / "answers.ndjson", connect(url)
    given = [{"id": "good", "query": "q", **OPTIONS}, {"id": "bad", "query": "q", "index": "none"}]
    with monkeypatch.context() as during:
        during.setattr(SeededScorer, "score", broken)
        assert {answer.id: answer.status for answer in await answers(client, given, kept=kept)} == {
            "good": 500, "bad": 404
        }  # fmt: skip
        assert ids(kept) == ["bad"]
    assert [(answer.id, answer.status) for answer in await answers(client, given, kept=kept)] == [("good", 200)]
    assert ids(kept) == ["bad", "good"]


async def test_what_cannot_be_sent(connect: Connect, url: str, tmp_path: Path) -> None:
    client = connect(url)
    for given, said in (
        ([*requests(1), *requests(1)], "request 2 has the id 'r0' of an earlier one"),
        ([{"index": "texts"}], "request 1 has no query"),
        ([{"id": 7.5, "query": "q", **OPTIONS}], "request 1 has the id 7.5, which is neither"),
    ):
        with pytest.raises(bm.InvalidArgument, match=said):
            await answers(client, given)
    other = tmp_path / "other"
    for content in ("one\ntwo\n", "one", '{"a": 1}', '{"id": "r9", "query": "q"}\n', '{"id":"r9","query":"q"}'):
        other.write_text(content)
        with pytest.raises(ValueError, match=r"other, line 1 is no answer"):
            await answers(client, requests(1), kept=other)
        assert other.read_text() == content


async def test_a_file_has_one_writer(connect: Connect, url: str, tmp_path: Path) -> None:
    kept = tmp_path / "answers.ndjson"
    with batches.Batch(requests(2), kept), pytest.raises(ValueError, match="being written by another batch"):
        await answers(connect(url), requests(2), kept=kept)
    assert len(await answers(connect(url), requests(2), kept=kept)) == 2


class TestTooMany:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(data_directory=tmp_path, limits=Limits(batch_lines=2))

    async def test_a_batch_that_ends_early_raises(self, connect: Connect, url: str, tmp_path: Path) -> None:
        kept = tmp_path / "answers.ndjson"
        with pytest.raises(bm.InvalidInput, match="limit of 2 lines"):
            await answers(connect(url), requests(3), kept=kept)
        assert len(ids(kept)) == 2


@pytest.mark.slow
async def test_killed_in_the_middle_and_resumed_without_a_double(
    url: str, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's process gets SIGKILL; the service ends what it had begun of it."""
    score, opened, count = SeededScorer.score, asyncio.Event(), 0

    async def held(scorer: SeededScorer, query: str, given: Sequence[str], **options: Any) -> Scores:
        nonlocal count
        count += 1
        if count > 90:
            await opened.wait()
        return await score(scorer, query, given, **options)

    monkeypatch.setattr(SeededScorer, "score", held)
    kept = tmp_path / "answers.ndjson"

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", KILLED, url, str(kept)], stdout=subprocess.PIPE)

    with start() as process:
        await until_async(lambda: count > 90 and len(ids(kept)) >= 90)
        process.kill()
    access = recorder.app.state.access
    await until_async(lambda: access.admission.inside == 0)
    before = ids(kept)
    opened.set()
    with start() as process:
        told, _ = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0
    assert len(before) == 90 and len(told.split()) == 60
    assert sorted(map(int, ids(kept))) == list(range(1, 151))


async def test_leaving_early_ends_the_work(
    connect: Connect, url: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Held(monkeypatch, "q0")
    async with aclosing(connect(url).select_batch(requests(10))) as found:
        async for answer in found:
            assert answer.id == "r0"
            break
    access = recorder.app.state.access
    await until_async(lambda: access.admission.inside == 0)


async def test_a_connection_that_breaks(connect: Connect) -> None:
    """Whatever had come is given; then it is said that the rest is missing."""
    line = orjson.dumps({"id": 1, "status": 404, "problem": {"type": "t", "title": "t", "status": 404, "detail": "d"}})
    response = httpx.Response(200)
    with batches.Batch([], None) as none:
        cut = batches.Answers(response, none)
        assert [answer.id for answer in cut.feed(line[:9])] == []
        assert [answer.id for answer in cut.feed(line[9:] + b"\n" + b'{"progress":{}}\n')] == [1]
        with pytest.raises(bm.ConnectionFailed, match="before the batch was done"):
            cut.end()
        assert list(cut.feed(b'{"done":{}}\n')) == []
        cut.end()
