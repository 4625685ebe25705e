"""Test both clients with a service on a socket."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

import httpx
import numpy as np
import pytest

import boundarymorph_client as bm
from boundarymorph.errors import ScorerUnavailable
from boundarymorph.scoring.scorer import Scores
from boundarymorph_client import Round, Selection
from tests.clients.conftest import Connect, Flavour, Recorder
from tests.fakes.scorer import SeededScorer, failing
from tests.fakes.service import texts
from tests.patience import until_async

QUERY = "music of the sea"
HALF = "\ud83d"  # half of a surrogate pair


def without_chance(selection: Selection) -> Selection:
    return selection.model_copy(update={"id": "", "timings_ms": {}})


class TestSelect:
    async def test_select_returns_the_answer_of_the_service(self, connect: Connect, url: str) -> None:
        options: dict[str, Any] = {
            "pool": texts(30), "budget": 7, "k": 5, "rounds": 4, "method": "boundarymorph", "reuse": False,
            "return_documents": True, "explain": True, "on_failure": "error", "distinct": {"by": "text"},
        }  # fmt: skip
        selection = await connect(url).select(QUERY, **options)
        async with httpx.AsyncClient(base_url=url) as plain:
            response = await plain.post("/select", json={"query": QUERY, **options})
        assert without_chance(selection) == without_chance(Selection.model_validate_json(response.content))
        assert selection.model_extra == {}
        assert selection.usage.cross_encoder_calls == 7
        assert len(selection.documents) == 5 and len(selection.rounds or ()) == 4

    async def test_extend_infers_from_given_scores_without_a_call(self, connect: Connect, url: str) -> None:
        """Half of the documents lie in each of two directions, of which one is relevant."""
        vectors = np.random.default_rng(1).standard_normal((40, 8)) / 4 + np.eye(8)[np.arange(40) % 2]
        found = await connect(url).extend(
            QUERY,
            [f"text {n}" for n in range(40)],
            [0.9, 0.1] * 6,
            k=12,
            embeddings=vectors,
            query_embedding=np.eye(8)[2],
        )
        assert found.usage.cross_encoder_calls == 0
        assert sum(int(document.id) % 2 == 0 for document in found.documents) >= 11
        known = {document.id for document in found.documents if document.source == "cross_encoder"}
        assert {str(number) for number in range(0, 12, 2)} <= known <= {str(number) for number in range(12)}

    @pytest.mark.parametrize(
        ("options", "kind", "slug", "status"),
        [
            ({"index": "texts", "k": 0}, bm.InvalidInput, "invalid-input", 422),
            ({"index": "texts", "bugdet": 3}, bm.InvalidInput, "invalid-input", 422),
            ({"index": "texts", "k": 10**6}, bm.InvalidInput, "limit-exceeded", 422),
            ({"index": "none"}, bm.UnknownIndex, "unknown-index", 404),
            ({"pool": texts(1) * 2}, bm.InvalidInput, "duplicate-ids", 422),
            ({"pool": ["a"], "embeddings": np.zeros((1, 4))}, bm.InvalidInput, "invalid-embeddings", 422),
        ],
    )
    async def test_select_raises_the_error_class_of_a_problem(
        self, connect: Connect, url: str, options: Any, kind: type[bm.ProblemError], slug: str, status: int
    ) -> None:
        with pytest.raises(bm.ProblemError) as raised:
            await connect(url).select(QUERY, **options)
        error = raised.value
        assert type(error) is kind
        assert (error.type, error.status) == (f"urn:boundarymorph:problem:{slug}", status)
        assert error.detail in str(error) and error.request_id
        if slug == "invalid-input":
            assert [found["field"] for found in error.errors] == [list(options)[-1]]


class TestStream:
    async def test_stream_yields_rounds_and_then_the_selection(self, connect: Connect, url: str) -> None:
        client, text = connect(url), "U+2028 ends a line for Python, not for an event:\u2028\x85\r\n\nend"
        options: dict[str, Any] = {
            "pool": [f"{text} {n}" for n in range(9)],
            "budget": 6,
            "rounds": 3,
            "return_documents": True,
        }
        *rounds, last = [step async for step in client.stream(QUERY, **options)]
        assert [step.cross_encoder_calls for step in rounds if isinstance(step, Round)] == [0, 2, 4]
        assert isinstance(last, Selection) and str(last.documents[0].text).startswith(text)
        assert without_chance(last) == without_chance(await client.select(QUERY, **options))

    async def test_stream_raises_a_problem_at_its_start_and_midway(
        self, connect: Connect, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(bm.UnknownIndex):
            await anext(connect(url).stream(QUERY, index="none"))
        monkeypatch.setattr(SeededScorer, "score", failing(ScorerUnavailable("nobody answers")))
        stream = connect(url).stream(QUERY, index="texts", budget=6, k=5, on_failure="error")
        assert isinstance(await anext(stream), Round)
        with pytest.raises(bm.ScorerUnavailable) as raised:
            await anext(stream)
        assert raised.value.status == 503 and raised.value.request_id

    async def test_stream_closed_early_ends_the_work_of_the_service(
        self, connect: Connect, url: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        score, asked = SeededScorer.score, []

        async def slow(scorer: SeededScorer, query: str, given: Sequence[str], **options: Any) -> Scores:
            asked.append(len(given))
            await asyncio.sleep(0.01)
            return await score(scorer, query, given, **options)

        monkeypatch.setattr(SeededScorer, "score", slow)
        pool = [f"text {number}" for number in range(1_000)]
        async with aclosing(connect(url).stream(QUERY, pool=pool, budget=900, rounds=900, k=3)) as stream:
            async for step in stream:
                if isinstance(step, Round) and step.rounds == 3:
                    break
        await until_async(recorder.is_idle)
        assert 3 <= len(asked) < 900


class TestIndexes:
    async def test_client_creates_reads_and_deletes_indexes(self, connect: Connect, url: str) -> None:
        client = connect(url)
        made = await client.create_index("own", dimension=4, kind="flat", lexical=False)
        assert (made.name, made.dimension, made.encoder, made.count) == ("own", 4, None, 0)
        assert "own" in [index.name for index in await client.list_indexes()]
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
        await client.set_description("own", "One text.")
        described = await client.describe_index("own")
        assert (described.count, described.description) == (1, "One text.")
        assert (await client.delete_documents("own", filter={"n": {"lt": 2}})).deleted == 0
        assert (await client.delete_documents("own", filter={"n": 2})).deleted == 1
        await client.delete_index("own")
        with pytest.raises(bm.UnknownIndex):
            await client.describe_index("own")


class TestUpload:
    @pytest.fixture
    def index(self, url: str, flavour: Flavour) -> Iterator[str]:
        with bm.Client(url) as client:
            yield client.create_index("uploaded").name
            client.delete_index("uploaded")

    async def test_upload_reads_documents_while_it_sends_them(
        self, connect: Connect, url: str, index: str, recorder: Recorder
    ) -> None:
        """A connection's buffers are smaller than 3 MB.

        So the last documents must be read after the request begins.
        """
        begun: list[int] = []

        def documents() -> Iterator[dict[str, Any]]:
            for number in range(3_000):
                begun.append(len(recorder.seen))
                yield {"id": number, "text": f"{number} " + "x" * 1_000}

        recorder.seen.clear()
        report = await connect(url).upload(index, documents())
        assert (report.added, report.skipped) == (3_000, 0)
        assert begun[-1] == len(recorder.seen) == 1
        assert recorder.seen[0].headers["transfer-encoding"] == "chunked"

    async def test_upload_reports_bad_documents_unless_strict(self, connect: Connect, url: str, index: str) -> None:
        client = connect(url)
        documents: list[dict[str, Any]] = [{"id": "a", "text": "t", "titel": "x"}, {"id": "b"}]
        report = await client.upload(index, iter(documents))
        assert (report.added, report.skipped, report.unknown_fields) == (1, 1, {"titel": 1})
        assert [problem.line for problem in report.problems] == [2]
        with pytest.raises(bm.InvalidInput):
            await client.upload(index, iter(documents), strict=True)
