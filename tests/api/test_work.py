"""Blocking work: kinds that do not wait for each other, bounds on each, and pieces that are small."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import httpx
import orjson
import pytest

from boundarymorph.errors import Overloaded
from boundarymorph.inference.concurrency import BoundedExecutor
from boundarymorph.retrieval import ingestion, uploads
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.local.index import LocalIndex
from boundarymorph.server.app import create_app, create_retriever_app
from boundarymorph.settings import Limits, Settings, WorkSettings
from tests import metrics
from tests.api.service import NDJSON, answer, client_of, fake_retrieval, fake_service, problem, ready, texts
from tests.patience import PATIENCE

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
SECONDS = PATIENCE  # after which a test has failed


class Gate:
    """What calls of a function wait for, from when it is shut until it is open; how many came to it."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.came = 0

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: Any, **named: Any) -> Any:
            self.came += 1
            assert self.open.wait(SECONDS)
            return function(*args, **named)

        return gated

    async def reached(self, times: int) -> None:
        async with asyncio.timeout(SECONDS):
            while self.came < times:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.005)


@asynccontextmanager
async def filled(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A service with the indexes "texts" and "own" (of 4 dimensions)."""
    async with client_of(create_app(settings, build=fake_service)) as client:
        await ready(client)
        answer(await client.put("/indexes/texts"))
        answer(await client.put("/indexes/own", json={"dimension": 4}))
        answer(await client.post("/indexes/texts/documents", json=texts(9)))
        yield client


def upload(client: httpx.AsyncClient, name: str = "texts") -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post(f"/indexes/{name}/documents", json=[{"id": "new", "text": "new"}]))


class TestKinds:
    @pytest.mark.parametrize("kind", ["upsert", "digests"])
    async def test_uploads_that_wait_for_a_lock_keep_no_selection_waiting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        gate = Gate()
        async with filled(Settings(data_directory=tmp_path)) as client:
            monkeypatch.setattr(LocalIndex, kind, gate.before(getattr(LocalIndex, kind)))
            uploads = [upload(client) for _ in range(40)]
            try:
                await gate.reached(3)
                async with asyncio.timeout(SECONDS / 2):
                    request = {"query": "q", "index": "texts", "budget": 2, "k": 2, "deadline_ms": 10_000}
                    assert answer(await client.post("/select", json=request))["status"] == "complete"
                    assert answer(await client.get("/indexes/texts/documents/d1"))["id"] == "d1"
                    assert len(answer(await client.get("/indexes"))["indexes"]) == 2
            finally:
                gate.open.set()
            assert {(await sent).status_code for sent in uploads} == {200}

    async def test_a_slow_catalog_keeps_no_selection_waiting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = Gate()
        async with filled(Settings(data_directory=tmp_path)) as client:
            monkeypatch.setattr(LocalCatalog, "describe", gate.before(LocalCatalog.describe))
            looks = [asyncio.create_task(client.get("/indexes/texts")) for _ in range(40)]
            try:
                await gate.reached(3)
                async with asyncio.timeout(SECONDS / 2):
                    request = {"query": "q", "index": "texts", "budget": 2, "k": 2, "deadline_ms": 10_000}
                    assert answer(await client.post("/select", json=request))["status"] == "complete"
                    assert answer(await upload(client))["added"] == 1
            finally:
                gate.open.set()
            assert {(await look).status_code for look in looks} == {200}


class TestRefusals:
    """One thread and one place to wait: the third is refused, by the name of the settings."""

    async def test_uploads_beyond_the_queue_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gate = Gate()
        work = WorkSettings(write_threads=1, write_waiting=1)
        async with filled(Settings(data_directory=tmp_path, work=work, limits=Limits(key_share=1))) as client:
            monkeypatch.setattr(LocalIndex, "upsert", gate.before(LocalIndex.upsert))
            first = upload(client)
            await gate.reached(1)
            second = upload(client)
            await settle()
            for refused in (await upload(client), await client.put("/indexes/more"), await self.delete(client)):
                assert "work.write_threads and work.write_waiting" in problem(refused, 429, "overloaded")
                assert int(refused.headers["retry-after"]) >= 1
            gate.open.set()
            assert [(await sent).status_code for sent in (first, second)] == [200, 200]
            assert (await self.delete(client)).is_success

    async def test_reads_beyond_the_queue_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gate = Gate()
        work = WorkSettings(read_threads=1, read_waiting=1)
        async with filled(Settings(data_directory=tmp_path, work=work, limits=Limits(key_share=1))) as client:
            monkeypatch.setattr(LocalCatalog, "list", gate.before(LocalCatalog.list))
            looks = [asyncio.create_task(client.get("/indexes")) for _ in range(2)]
            await gate.reached(1)
            await settle()
            for path in ("/indexes", "/indexes/texts", "/indexes/texts/documents/d1"):
                assert "work.read_waiting" in problem(await client.get(path), 429, "overloaded")
            gate.open.set()
            assert [(await look).status_code for look in looks] == [200, 200]

    async def test_searches_beyond_the_queue_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gate = Gate()

        def build(settings: Settings, on_lost: Callable[[], None] = lambda: None) -> Any:
            rooms = fake_retrieval(settings)
            rooms.retriever._executor = BoundedExecutor("search", threads=1, waiting=1)
            return rooms

        async with client_of(create_retriever_app(Settings(data_directory=tmp_path), build=build)) as client:
            await ready(client)
            answer(await client.put("/indexes/texts"))
            answer(await client.post("/indexes/texts/documents", json=texts(3)))
            monkeypatch.setattr(LocalIndex, "retrieve", gate.before(LocalIndex.retrieve))
            wanted = {"index": "texts", "query": "q", "depth": 2}
            searches = [asyncio.create_task(client.post("/retrieve", json=wanted)) for _ in range(2)]
            await gate.reached(1)
            await settle()
            refused = await client.post("/documents", json={"index": "texts", "ids": ["d0"]})
            assert "work.search_waiting" in problem(refused, 429, "overloaded")
            gate.open.set()
            assert [(await search).status_code for search in searches] == [200, 200]

    async def test_bodies_beyond_the_queue_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gate = Gate()
        work = WorkSettings(parsing_threads=1, parsing_waiting=1)
        before = metrics.counted("boundarymorph_work_refused_total", kind="parsing")
        async with filled(Settings(data_directory=tmp_path, work=work, limits=Limits(key_share=1))) as client:
            monkeypatch.setattr("boundarymorph.api.select._parse", gate.before(parse_select()))
            request = {"query": "q", "index": "texts", "budget": 0, "k": 2}
            selections = [asyncio.create_task(client.post("/select", json=request)) for _ in range(2)]
            await gate.reached(1)
            await settle()
            assert "work.parsing_waiting" in problem(await client.post("/select", json=request), 429, "overloaded")
            gate.open.set()
            assert [(await selection).status_code for selection in selections] == [200, 200]
        assert metrics.counted("boundarymorph_work_refused_total", kind="parsing") == before + 1

    async def delete(self, client: httpx.AsyncClient) -> httpx.Response:
        return await client.delete("/indexes/texts/documents/d1")


def parse_select() -> Callable[..., Any]:
    from boundarymorph.api import select

    return select._parse


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0.001)


class TestBoundedExecutor:
    async def test_at_its_bound_and_over_it(self) -> None:
        executor, gate = BoundedExecutor("read", threads=2, waiting=1), Gate()
        calls = [asyncio.create_task(executor.run(gate.before(abs), -number)) for number in range(3)]
        await gate.reached(2)
        with pytest.raises(Overloaded, match=r"work\.read_waiting"):
            await executor.run(abs, -3)
        gate.open.set()
        assert await asyncio.gather(*calls) == [0, 1, 2]
        assert executor.taken == 0
        assert await executor.run(abs, -3) == 3
        await executor.close()

    async def test_a_call_that_nobody_waits_for_keeps_its_place_until_it_ends(self) -> None:
        executor, gate = BoundedExecutor("read", threads=1, waiting=0), Gate()
        call = asyncio.create_task(executor.run(gate.before(abs), -1))
        await gate.reached(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(Overloaded):
            await executor.run(abs, -2)
        gate.open.set()
        async with asyncio.timeout(SECONDS):
            while executor.taken:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.005)
        assert await executor.run(abs, -2) == 2

    async def test_one_that_has_not_begun_gives_its_place_back_at_once(self) -> None:
        executor, gate = BoundedExecutor("read", threads=1, waiting=1), Gate()
        first = asyncio.create_task(executor.run(gate.before(abs), -1))
        await gate.reached(1)
        waiting = asyncio.create_task(executor.run(abs, -2))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert executor.taken == 1
        gate.open.set()
        assert await first == 1

    async def test_a_place_is_kept_for_all_of_its_calls(self) -> None:
        executor = BoundedExecutor("write", threads=1, waiting=0)
        with executor.place() as run:
            assert [await run(abs, -number) for number in range(3)] == [0, 1, 2]
            with pytest.raises(Overloaded), executor.place():
                pass
            with pytest.raises(ZeroDivisionError):
                await run(lambda: 1 // 0)
        assert executor.taken == 0
        with executor.place():
            assert executor.taken == 1
        assert executor.taken == 0


class TestArrays:
    async def test_are_parsed_off_the_event_loop_in_pieces(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parsed: list[tuple[bool, int]] = []
        loads = orjson.loads

        def noted(text: bytes) -> Any:
            parsed.append((threading.current_thread() is threading.main_thread(), len(text)))
            return loads(text)

        async with filled(Settings(data_directory=tmp_path)) as client:
            monkeypatch.setattr("boundarymorph.retrieval.uploads.orjson.loads", noted)
            documents = [{"id": str(i), "text": "t" * 500, "embedding": [1.0, 2, 3, i]} for i in range(3_000)]
            for content, headers in (
                (orjson.dumps(documents), {"content-type": "application/json"}),
                (b"\n".join(map(orjson.dumps, documents)), NDJSON),
            ):
                parsed.clear()
                sent = await client.post("/indexes/own/documents", content=content, headers=headers)
                assert answer(sent)["added"] + answer(sent)["unchanged"] == 3_000
                assert not any(on_loop for on_loop, _ in parsed)
                assert max(size for _, size in parsed) < 1_000

    async def test_the_loop_goes_on_meanwhile(self) -> None:
        """Of 4 MiB, no step takes the loop for as long as the whole."""
        body = orjson.dumps([{"id": str(i), "text": "t", "embedding": [0.123456789] * 1_000} for i in range(300)])
        with ThreadPoolExecutor(1) as threads:
            steps = 0

            async def run(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
                nonlocal steps
                steps += 1
                return await asyncio.get_running_loop().run_in_executor(threads, function, *args)

            found = [entry async for entry in uploads.parse_array(body, 1_000, run=run)]
        assert len(found) == 300
        assert steps > len(body) / uploads.PIECE_BYTES


class TestLists:
    async def test_more_numbers_than_a_vector_has_are_refused(self, tmp_path: Path) -> None:
        numbers = [1] * 20_001
        async with filled(Settings(data_directory=tmp_path)) as client:
            for given in (
                {"index": "texts", "query_embedding": numbers},
                {"pool": [{"text": "t", "embedding": numbers}]},
            ):
                response = await client.post("/select", json={"query": "q", **given})
                assert response.status_code == 422 and "20,001" in response.text, response.text

    async def test_lists_in_texts_and_lists_at_the_bound_are_none_of_these(self, tmp_path: Path) -> None:
        settings = Settings(data_directory=tmp_path, depth=99, limits=Limits(dimension=100, pool=99))
        long = "[" + ", ".join(map(str, range(40_000))) + "]"
        async with filled(settings) as client:
            pool: list[dict[str, Any]] = [{"text": f'he said \\"{long}'}, {"text": long}, {"text": f'"{long}\\'}]
            pool = [document | {"embedding": [1.0] * 100} for document in pool]
            request = {"query": "q", "query_embedding": [2] * 100, "pool": pool, "budget": 0, "k": 1}
            answer(await client.post("/select", json=request))
            pool[2]["embedding"] = [1.0] * 101
            assert "100" in problem(await client.post("/select", json=request), 422, "limit-exceeded")


class TestBytesOfStreamedUploads:
    """So many bytes as an upload keeps at a time are in hand from its beginning to its end."""

    async def test_are_in_hand(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        limits = Limits(line_bytes=2_048, body_bytes=4_096, bytes_in_hand=20 * 2**20, key_share=1)
        held = ingestion.BATCH_BYTES + 2_048
        settings = Settings(data_directory=tmp_path, limits=limits)
        app = create_app(settings, build=fake_service)
        hand = app.state.access.bytes_in_hand
        goes_on = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield orjson.dumps({"id": "a", "text": "a"}) + b"\n"
            await goes_on.wait()
            yield orjson.dumps({"id": "b", "text": "b"}) + b"\n"

        async with client_of(app) as client:
            await ready(client)
            answer(await client.put("/indexes/texts"))

            def send() -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(client.post("/indexes/texts/documents", content=body(), headers=NDJSON))

            uploads = [send(), send()]
            async with asyncio.timeout(SECONDS):
                while hand.total < 2 * held:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.005)
            assert hand.total == 2 * held
            problem(await send(), 429, "overloaded")
            short = orjson.dumps({"id": "c", "text": "c"})
            answer(await client.post("/indexes/texts/documents", content=short, headers=NDJSON))
            goes_on.set()
            assert [answer(await sent)["added"] + answer(await sent)["unchanged"] for sent in uploads] == [2, 2]
            assert hand.total == 0
