"""Both clients against a service on a socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

import boundarymorph_client as bm
from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.errors import ScorerUnavailable
from boundarymorph.scoring.scorer import Scores
from boundarymorph.server.app import create_app
from boundarymorph.settings import CLIENT_VARIABLES, RateLimitSettings, Settings
from boundarymorph_client import Round, Selection
from tests.clients.flavours import Connect
from tests.clients.way import Recorder, Way
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import on_socket, texts
from tests.patience import until_async

QUERY = "what is asked"
SECRET, KEY = callers.make_key("client", list(Scope))


def same(one: Selection, other: Selection) -> bool:
    """But for the id and the times."""
    kept = {"id": "", "timings_ms": {}}
    return one.model_copy(update=kept) == other.model_copy(update=kept)


class TestSelect:
    async def test_is_what_the_service_answers(self, connect: Connect, url: str) -> None:
        options: dict[str, Any] = {
            "pool": texts(30), "budget": 7, "k": 5, "rounds": 4, "method": "boundarymorph", "reuse": False,
            "return_documents": True, "explain": True, "on_failure": "error",
        }  # fmt: skip
        selection = await connect(url).select(QUERY, **options)
        async with httpx.AsyncClient(base_url=url) as plain:
            response = await plain.post("/select", json={"query": QUERY, **options})
        assert same(selection, Selection.model_validate_json(response.content))
        assert selection.model_extra == {}
        assert len(selection.documents) == 5
        assert selection.usage.cross_encoder_calls == 7
        assert selection.rounds is not None
        assert len(selection.rounds) == 4

    async def test_from_an_index(self, connect: Connect, url: str) -> None:
        selection = await connect(url).select(QUERY, index="texts", depth=20, budget=0, k=3, filter={}, hybrid=True)
        assert (selection.pool_size, selection.status) == (20, "complete")

    async def test_a_pool_of_texts(self, connect: Connect, url: str) -> None:
        pool = ["one", "two", "three"]
        selection = await connect(url).select(QUERY, pool=pool, budget=2, k=2, return_documents=True)
        assert all(document.text == pool[int(document.id)] for document in selection.documents)

    async def test_distinct_documents(self, connect: Connect, url: str) -> None:
        pool: list[bm.PoolDocument] = [
            {"text": text, "metadata": {"page": page}}
            for text, page in (("one", 1), ("one", 2), ("two", 2), ("three", 2))
        ]
        forms: list[tuple[bool | str | bm.Distinct, list[int]]] = [
            (True, [1, 2, 2]),
            ("page", [1, 2]),
            ({"by": "page", "at_most": 2, "k_counts": "groups"}, [1, 2, 2]),
        ]
        for distinct, pages in forms:
            found = await connect(url).select(QUERY, pool=pool, budget=4, k=3, distinct=distinct)
            by_page = [pool[int(document.id)]["metadata"]["page"] for document in found.documents]
            assert len(by_page) == len(pages) and (distinct is True or sorted(by_page) == pages)
            assert [document.group for document in found.documents] == ([None] * 3 if distinct is True else by_page)

    async def test_none_is_left_out(self, connect: Connect, url: str, recorder: Recorder) -> None:
        names = ("pool", "embeddings", "features", "query_embedding", "ranked", "deadline_ms")
        options: dict[str, Any] = dict.fromkeys(names)
        await connect(url).select(QUERY, index="texts", budget=0, **options)
        await connect(url).select(QUERY, budget=0, **{**options, "pool": ["a", "b"], "index": None})
        sent = [request.body.keys() - {"query", "budget", "deadline_ms"} for request in recorder.seen]
        assert sent == [{"index"}, {"pool"}]

    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ">f4"])
    async def test_arrays_are_what_lists_are(self, connect: Connect, url: str, recorder: Recorder, dtype: str) -> None:
        vectors = np.random.default_rng(1).standard_normal((20, 8)).astype(dtype)
        pool = [f"text {number}" for number in range(20)]
        client = connect(url)
        lists, arrays, inside = [
            await client.select(QUERY, pool=pool_, budget=6, k=4, reuse=False, **given)
            for pool_, given in (
                (pool, {"embeddings": vectors.tolist(), "query_embedding": vectors[0].tolist()}),
                (pool, {"embeddings": np.asfortranarray(vectors), "query_embedding": vectors[0]}),
                (
                    [{"text": text, "embedding": vector} for text, vector in zip(pool, vectors, strict=True)],
                    {"query_embedding": vectors[0]},
                ),
            )
        ]
        for other in (arrays, inside):  # brought to unit length by the service, in their own precision
            assert [document.id for document in other.documents] == [document.id for document in lists.documents]
            relevances = [document.relevance for document in lists.documents]
            assert [document.relevance for document in other.documents] == pytest.approx(relevances, abs=1e-3)
        block = recorder.seen[1].body["pool"]["embeddings"]
        assert (block["shape"], block["dtype"]) == ([20, 8], "float16" if dtype == "float16" else "float32")

    async def test_signals_as_lists_and_arrays(self, connect: Connect, url: str, recorder: Recorder) -> None:
        signals: dict[str, Any] = {"clicks": [3, None], "age": np.array([0.5, np.nan]), "size": np.array([1, 2])}
        await connect(url).select(QUERY, pool=["a", "b"], features=signals, budget=0, k=1)
        expected = {"clicks": [3, None], "age": [0.5, None], "size": [1, 2]}
        assert recorder.seen[0].body["pool"]["features"] == expected

    async def test_scores_speak_for_documents_that_nobody_read(self, connect: Connect, url: str) -> None:
        """Half the documents lie in each of two directions, and only those of one are relevant."""
        texts = [f"text {number}" for number in range(40)]
        vectors = np.random.default_rng(1).standard_normal((40, 8)) / 4 + np.eye(8)[np.arange(40) % 2]
        even = [0.9 if number % 2 == 0 else 0.1 for number in range(40)]
        for scores in (even[:12], {number: even[number] for number in range(12)}):
            found = await connect(url).extend(
                QUERY, texts, scores, k=12, embeddings=vectors, query_embedding=np.eye(8)[2], reuse=False
            )
            assert found.usage.cross_encoder_calls == 0
            sources = {document.id: document.source for document in found.documents}
            assert sum(int(id) % 2 == 0 for id in sources) >= 11
            known = {id for id, source in sources.items() if source == "cross_encoder"}
            assert {str(number) for number in range(0, 12, 2)} <= known <= {str(number) for number in range(12)}
        with pytest.raises(ValueError, match="position 40, and 40 documents"):
            await connect(url).extend(QUERY, texts, [*even, 0.5])
        with pytest.raises(ValueError, match="makes no call"):
            await connect(url).extend(QUERY, texts, even, budget=5)

    async def test_a_wrong_number_of_embeddings(self, connect: Connect, url: str, recorder: Recorder) -> None:
        with pytest.raises(ValueError, match="3 embeddings for 2 documents"):
            await connect(url).select(QUERY, pool=["a", "b"], embeddings=np.ones((3, 4)))
        assert recorder.seen == []

    async def test_an_option_that_only_the_service_knows(self, connect: Connect, url: str) -> None:
        """It is sent: the service may be newer. This one is not."""
        options: dict[str, Any] = {"bugdet": 3}
        with pytest.raises(bm.InvalidInput) as raised:
            await connect(url).select(QUERY, index="texts", **options)
        assert [error["field"] for error in raised.value.errors] == ["bugdet"]


class TestStream:
    async def test_rounds_and_the_selection_last(self, connect: Connect, url: str) -> None:
        client = connect(url)
        options: dict[str, Any] = {"index": "texts", "budget": 6, "rounds": 3, "k": 5, "reuse": False}
        *rounds, last = [step async for step in client.stream(QUERY, **options)]
        assert [step.cross_encoder_calls for step in rounds if isinstance(step, Round)] == [0, 2, 4]
        assert isinstance(last, Selection)
        assert same(last, await client.select(QUERY, **options))

    async def test_separators_that_are_none(self, connect: Connect, url: str) -> None:
        """U+2028 ends a line for Python, not for an event."""
        text = "a\u2028b\x85c\r\n\nd"
        stream = connect(url).stream(QUERY, pool=[text, text], budget=1, k=1, return_documents=True, reuse=False)
        *_, last = [step async for step in stream]
        assert isinstance(last, Selection)
        assert last.documents[0].text == text

    async def test_what_cannot_begin(self, connect: Connect, url: str) -> None:
        with pytest.raises(bm.UnknownIndex):
            [step async for step in connect(url).stream(QUERY, index="none")]

    async def test_a_problem_in_the_middle(self, connect: Connect, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        async def away(*_: object, **__: object) -> Scores:
            raise ScorerUnavailable("nobody answers")

        monkeypatch.setattr(SeededScorer, "score", away)
        stream = connect(url).stream(QUERY, index="texts", budget=6, k=5, on_failure="error")
        assert isinstance(await anext(stream), Round)
        with pytest.raises(bm.ScorerUnavailable) as raised:
            await anext(stream)
        assert raised.value.status == 503
        assert raised.value.request_id

    async def test_who_hangs_up_ends_the_work(
        self, connect: Connect, url: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        score, asked = SeededScorer.score, []

        async def slow(scorer: SeededScorer, query: str, given: Sequence[str], **options: Any) -> Scores:
            asked.append(len(given))
            await asyncio.sleep(0.01)
            return await score(scorer, query, given, **options)

        monkeypatch.setattr(SeededScorer, "score", slow)
        pool = [f"text {number}" for number in range(2_000)]
        async with aclosing(connect(url).stream(QUERY, pool=pool, budget=1_500, rounds=1_500, k=3)) as stream:
            async for step in stream:
                if isinstance(step, Round) and step.rounds == 3:
                    break
        access = recorder.app.state.access
        await until_async(lambda: access.admission.running == access.requests.total == 0)
        assert 3 <= len(asked) < 1_500


class TestIndexes:
    async def test_the_list_warns_of_what_it_lacks(self, connect: Connect, url: str, settings: Settings) -> None:
        damaged = settings.data_directory / "indexes" / "damaged"
        damaged.mkdir()
        (damaged / "generation.sqlite3").write_bytes(b"this is no database" * 1000)
        with pytest.warns(UserWarning, match="'damaged' is not in the list: the index cannot be read"):
            assert [index.name for index in await connect(url).list_indexes()] == ["texts"]

    async def test_from_creation_to_deletion(self, connect: Connect, url: str) -> None:
        client = connect(url)
        made = await client.create_index("own", dimension=4, kind="flat", lexical=False)
        assert (made.name, made.dimension, made.encoder, made.count) == ("own", 4, None, 0)
        assert [index.name for index in await client.list_indexes()] == ["own", "texts"]
        with pytest.raises(bm.IndexConflict):
            await client.create_index("own", dimension=5)
        with pytest.raises(bm.EmptyIndex):
            await client.select(QUERY, index="own", query_embedding=[1.0, 0.0, 0.0, 0.0])
        ids = ["..", "a/b", "ä ?#%41", "e"]
        documents = [
            {"id": id, "text": f"unit {id}", "metadata": {"n": n}, "embedding": np.eye(4, dtype="float32")[n]}
            for n, id in enumerate(ids)
        ]
        assert (await client.upload("own", documents)).added == 4
        for n, id in enumerate(ids):
            document = await client.get_document("own", id)
            assert (document.id, document.text, document.metadata) == (id, f"unit {id}", {"n": n})
        first = await client.list_documents("own", limit=3)
        rest = await client.list_documents("own", after=first.next or "")
        assert [found.id for found in [*first.documents, *rest.documents]] == sorted(ids) and rest.next is None
        statistics = await client.index_statistics("own")
        assert (statistics.count, statistics.sampled, statistics.fields["n"].values) == (4, 4, 4)
        await client.delete_document("own", "..")
        with pytest.raises(bm.UnknownDocument):
            await client.delete_document("own", "..")
        assert (await client.delete_documents("own", ["a/b", "e", "never"])).deleted == 2
        with pytest.raises(bm.InvalidInput, match="exactly one"):
            await client.delete_documents("own", ["ä ?#%41"], filter={"n": 1})
        with pytest.raises(bm.InvalidInput, match="array"):
            await client.delete_documents("own", "e")
        assert (await client.describe_index("own")).count == 1
        await client.set_description("own", "One text.")
        assert (await client.describe_index("own")).description == "One text."
        assert (await client.delete_documents("own", filter={"n": {"lt": 2}})).deleted == 0
        assert (await client.delete_documents("own", filter={"n": 2})).deleted == 1
        await client.delete_index("own")
        with pytest.raises(bm.UnknownIndex):
            await client.describe_index("own")

    async def test_an_upload_is_read_as_it_is_sent(self, connect: Connect, url: str, recorder: Recorder) -> None:
        """In one request, and not all before its beginning: 3 MB of it do not fit what may be under way."""
        begun: list[int] = []

        def documents() -> Iterator[dict[str, Any]]:
            for number in range(3_000):
                begun.append(len(recorder.seen))
                yield {"id": number, "text": f"{number} " + "x" * 1_000}

        report = await connect(url).upload("texts", documents())
        assert (report.added, report.skipped) == (3_000, 0)
        assert begun[-1] == 1
        (request,) = recorder.seen
        assert request.headers["transfer-encoding"] == "chunked"

    async def test_bad_documents(self, connect: Connect, url: str) -> None:
        client = connect(url)
        documents: list[dict[str, Any]] = [{"id": "a", "text": "t", "titel": "x"}, {"id": "b"}]
        report = await client.upload("texts", iter(documents))
        assert (report.added, report.skipped, report.unknown_fields) == (1, 1, {"titel": 1})
        assert [problem.line for problem in report.problems] == [2]
        with pytest.raises(bm.InvalidInput):
            await client.upload("texts", iter(documents), strict=True)

    async def test_documents_that_end_in_an_error(self, connect: Connect, url: str) -> None:
        """It is raised as it is, and the client goes on."""

        def documents() -> Iterator[dict[str, Any]]:
            yield {"id": "a", "text": "t"}
            raise LookupError("no more")

        client = connect(url)
        with pytest.raises(LookupError, match="no more"):
            await client.upload("texts", documents())
        assert (await client.ready()).status == "ok"


async def test_an_upload_from_an_asynchronous_generator(url: str) -> None:
    async def documents() -> AsyncIterator[dict[str, Any]]:
        for number in range(50):
            await asyncio.sleep(0)
            yield {"id": f"n{number}", "text": f"number {number}"}

    async with bm.AsyncClient(url) as client:
        assert (await client.upload("texts", documents())).added == 50


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "kind", "slug", "status"),
        [
            ({"index": "texts", "k": 0}, bm.InvalidInput, "invalid-input", 422),
            ({"index": "texts", "k": 10**6}, bm.InvalidInput, "limit-exceeded", 422),
            ({"index": "none"}, bm.UnknownIndex, "unknown-index", 404),
            ({"pool": texts(1) * 2}, bm.InvalidInput, "duplicate-ids", 422),
            ({"pool": ["a"], "embeddings": np.zeros((1, 4))}, bm.InvalidInput, "invalid-embeddings", 422),
        ],
    )
    async def test_by_type(
        self, connect: Connect, url: str, options: Any, kind: type[bm.ProblemError], slug: str, status: int
    ) -> None:
        with pytest.raises(bm.ProblemError) as raised:
            await connect(url).select(QUERY, **options)
        error = raised.value
        assert type(error) is kind
        assert (error.type, error.status) == (f"urn:boundarymorph:problem:{slug}", status)
        assert error.detail in str(error)
        assert error.request_id

    async def test_no_such_route(self, connect: Connect, url: str) -> None:
        with pytest.raises(bm.NotFound) as raised:
            await connect(url + "/elsewhere/").select(QUERY, index="texts")
        assert type(raised.value) is bm.NotFound

    async def test_of_something_else(self, connect: Connect) -> None:
        """Neither an answer nor a refusal of a service of ours."""

        def proxy(request: Request) -> HTMLResponse:
            return HTMLResponse("<h1>Hello</h1>", 200 if request.method == "GET" else 502)

        async with on_socket(Starlette(routes=[Route("/{path:path}", proxy, methods=["GET", "POST"])])) as url:
            client = connect(url)
            with pytest.raises(bm.UnexpectedAnswer):
                await client.list_indexes()
            with pytest.raises(bm.ProblemError, match="Hello") as raised:
                await client.select(QUERY, index="texts")
        assert (raised.value.type, raised.value.status) == ("about:blank", 502)

    async def test_no_url(self, connect: Connect) -> None:
        with pytest.raises(ValueError, match="localhost:8080"):
            connect("localhost:8080")


class TestKeys:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        rates = RateLimitSettings(keys={"client": "1/3second"})
        return Settings(data_directory=tmp_path, keys=(str(KEY),), rate_limits=rates)

    async def test_from_the_environment(self, connect: Connect, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(bm.Unauthenticated):
            await connect(url).list_indexes()
        monkeypatch.setenv("BOUNDARYMORPH_URL", url)
        monkeypatch.setenv("BOUNDARYMORPH_API_KEY", SECRET)
        for name in ("METRICS_SECONDS", "RELEVANCE"):  # of all tests
            monkeypatch.delenv(f"BOUNDARYMORPH_{name}")
        assert {name for name in os.environ if name.startswith("BOUNDARYMORPH_")} == set(CLIENT_VARIABLES)
        Settings.load()  # which refuses variables that are none of its own
        client = connect()
        assert await client.list_indexes() == []
        assert SECRET not in repr(vars(client))

    async def test_retries_after_what_is_asked_for(self, connect: Connect, url: str, recorder: Recorder) -> None:
        """A request that is refused waits as long as it is told, and has less time left then."""
        client = connect(url, api_key=SECRET)
        await client.list_indexes()
        while 429 not in [seen.status for seen in recorder.seen]:
            await client.select(QUERY, pool=["a", "b"], budget=1, k=1, deadline_ms=20_000)
        refused, answered = recorder.seen[-2:]
        assert (refused.status, answered.status) == (429, 200)
        assert answered.seconds - refused.answered >= 1
        assert answered.body["deadline_ms"] <= 19_000


class TestConnections:
    async def test_that_break_are_made_again(self, connect: Connect, way: Way) -> None:
        way.fates = ["reset", "reset"]
        selection = await connect(way.url).select(QUERY, pool=["a", "b"], budget=1, k=1)
        assert selection.status == "complete"
        assert way.connections == 3

    async def test_that_hang(self, connect: Connect, way: Way) -> None:
        way.fates = ["hang"] * 2
        with pytest.raises(bm.TimedOut):
            await connect(way.url).select(QUERY, index="texts", deadline_ms=50)
        assert way.connections == 1
        with pytest.raises(TimeoutError):
            [step async for step in connect(way.url, timeout=0.05).stream(QUERY, index="texts")]


class TestReady:
    async def test_when_it_is(self, connect: Connect, url: str) -> None:
        assert (await connect(url).ready()).status == "ok"

    async def test_when_it_is_not(self, connect: Connect, tmp_path: Path) -> None:
        def fails(*_: object) -> Any:
            raise OSError("no disk")

        app = create_app(Settings(data_directory=tmp_path), build=fails)
        async with on_socket(app) as url:
            client = connect(url, retries=0)
            async with asyncio.timeout(10):
                while (ready := await client.ready()).status == "starting":  # noqa: ASYNC110 - time alone changes it
                    await asyncio.sleep(0.005)
            assert ready.status == "failed" and ready.detail == "no disk"
            with pytest.raises(bm.NotReady) as raised:
                await connect(url, retries=0).list_indexes()
        assert raised.value.retry_after == 1
