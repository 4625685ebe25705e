"""Test blocking work: kinds of work do not wait for each other, and each piece is small."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import httpx
import orjson
import pytest

from boundarymorph.api import select
from boundarymorph.api.rerank import routes
from boundarymorph.retrieval import uploads
from boundarymorph.retrieval.local.catalog import LocalCatalog, LocalIndex
from boundarymorph.retrieval.uploads import BATCH_BYTES
from boundarymorph.selector.documents import Documents
from boundarymorph.settings import Limits, Settings
from tests.fakes.service import NDJSON, answer, application, client_of, problem, ready
from tests.patience import PATIENCE, until_async

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
SECONDS = PATIENCE  # then a test fails


class Gate:
    """A gate for calls of a function, which wait while it is shut; `came` counts them."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.came = 0

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: Any, **named: Any) -> Any:
            self.came += 1
            assert self.open.wait(SECONDS)
            return function(*args, **named)

        return gated


def note_threads(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[bool]:
    """Return a list that gets, for each call of a function, whether it ran on the loop."""
    on_loop: list[bool] = []
    function = getattr(owner, name)

    def noted(*arguments: Any, **named: Any) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, noted)
    return on_loop


SELECT = {"query": "q", "index": "texts", "budget": 2, "k": 2, "deadline_ms": 10_000}
UPLOAD = ("POST", "/indexes/texts/documents", [{"id": "new", "text": "new"}])


@pytest.mark.parametrize(
    ("part", "name", "request_"),
    [
        (LocalIndex, "upsert", UPLOAD),
        (LocalIndex, "digests", UPLOAD),
        (LocalCatalog, "describe", ("GET", "/indexes/texts", None)),
    ],
)
async def test_selections_proceed_while_other_requests_wait_for_storage(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, part: type, name: str, request_: tuple[str, str, Any]
) -> None:
    gate = Gate()
    monkeypatch.setattr(part, name, gate.before(getattr(part, name)))
    waiting = [asyncio.create_task(send(client, *request_)) for _ in range(40)]
    try:
        await until_async(lambda: gate.came >= 3)
        async with asyncio.timeout(SECONDS / 2):
            assert answer(await client.post("/select", json=SELECT))["status"] == "complete"
            if part is LocalIndex:
                assert answer(await client.get("/indexes/texts/documents/d1"))["id"] == "d1"
                assert len(answer(await client.get("/indexes"))["indexes"]) == 2
            else:
                answer(await send(client, *UPLOAD))
    finally:
        gate.open.set()
    assert {(await sent).status_code for sent in waiting} == {200}


class TestAnswers:
    """Long responses, and the notes on many texts, are made in a thread."""

    @pytest.mark.parametrize(
        "documents", [[{"text": "a", "group": "b" * 50_000}, {"text": "c"}], ["a"] * 10_000], ids=["large", "many"]
    )
    async def test_rerank_responses_to_large_bodies(
        self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, documents: list[Any]
    ) -> None:
        on_loop = note_threads(monkeypatch, routes, "_ranking")
        asked = {"query": "a", "documents": documents, "distinct": "group", "budget": 0}
        answer(await client.post("/v1/rerank", json=asked))
        assert on_loop == [False]

    async def test_selections_with_groups_and_from_large_pools(
        self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        on_loop = note_threads(monkeypatch, select, "response_of")
        answer(await client.post("/select", json=SELECT | {"distinct": "group", "return_documents": False}))
        answer(await client.post("/select", json={"query": "a", "pool": ["a " * 50_000, "b"], "budget": 0, "k": 1}))
        assert on_loop == [False, False]

    async def test_notes_on_many_short_texts(self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
        on_loop = note_threads(monkeypatch, Documents, "_take_note")
        answer(await client.post("/select", json={"query": "a", "pool": ["a"] * 5_000, "budget": 0, "k": 1}))
        assert False in on_loop  # the others are of few texts


async def send(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> httpx.Response:
    return await client.request(method, path, json=body)


class TestUploads:
    async def test_uploads_are_parsed_off_the_event_loop(
        self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        on_loop = note_threads(monkeypatch, uploads, "parse_record")
        documents = [{"id": str(i), "text": "t" * 500, "embedding": [1.0, 2, 3, i]} for i in range(300)]
        array, lines = orjson.dumps(documents), b"\n".join(map(orjson.dumps, documents))
        for content, headers in ((array, {"content-type": "application/json"}), (lines, NDJSON)):
            on_loop.clear()
            sent = await client.post("/indexes/own/documents", content=content, headers=headers)
            assert answer(sent)["added"] + answer(sent)["unchanged"] == 300
            assert on_loop and not any(on_loop)


class TestStreamedUploads:
    """A streamed upload holds the bytes of one batch from its beginning to its end."""

    async def test_streamed_upload_counts_a_batch_in_bytes_in_flight(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = Limits(line_bytes=2_048, body_bytes=4_096, bytes_in_flight=20 * 2**20, key_share=1)
        held = BATCH_BYTES + 2_048
        settings = Settings(data_directory=tmp_path, limits=limits)
        app = application("whole", settings)
        hand = app.state.access.bytes_in_flight
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
            await until_async(lambda: hand.total == 2 * held)
            problem(await send(), 429, "overloaded")
            short = orjson.dumps({"id": "c", "text": "c"})
            answer(await client.post("/indexes/texts/documents", content=short, headers=NDJSON))
            goes_on.set()
            assert [answer(await sent)["added"] + answer(await sent)["unchanged"] for sent in uploads] == [2, 2]
            assert hand.total == 0
