"""The ranker and the retriever in Haystack's own pipelines, with its serialisation and secrets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.core.errors import PipelineRuntimeError
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret

from boundarymorph_client import Client
from boundarymorph_client.haystack import BoundaryMorphRanker, BoundaryMorphRetriever
from tests.clients.examples import check_example
from tests.clients.flavours import Flavour
from tests.clients.way import Recorder

QUERY = "what is asked"
FOUND = [Document(id=f"d{n}", content=f"text {n}", meta={"n": n, "t": f"T{n}"}, score=n / 30) for n in range(30)]
OURS = ["boundarymorph_client"]  # modules that a pipeline may be loaded with


async def ran(flavour: Flavour, pipeline: Pipeline, given: dict[str, Any]) -> Any:
    if flavour is Flavour.ASYNC:
        result = await pipeline.run_async(given, include_outputs_from={"ranker"})
        await pipeline.close_async()
    else:
        result = await asyncio.to_thread(pipeline.run, given, include_outputs_from={"ranker"})
        pipeline.close()
    return result


async def documents(flavour: Flavour, instance: Any, **given: Any) -> list[Document]:
    """What a component comes to by itself."""
    if flavour is Flavour.ASYNC:
        found: list[Document] = (await instance.run_async(**given))["documents"]
        await instance.close_async()
    else:
        found = (await asyncio.to_thread(instance.run, **given))["documents"]
        instance.close()
    return found


class TestRanker:
    async def test_in_a_pipeline(
        self, flavour: Flavour, url: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Written down, read again, and run."""
        monkeypatch.setenv("KEY_OF_OURS", "bm_secret")
        store = InMemoryDocumentStore(index=f"found {flavour}")  # one of this process
        store.write_documents([Document(id=found.id, content=found.content, meta=found.meta) for found in FOUND])
        ranker = BoundaryMorphRanker(
            base_url=url, top_k=4, budget=10, title_field="t", options={"rounds": 5},
            api_key=Secret.from_env_var("KEY_OF_OURS"),
        )  # fmt: skip
        made = Pipeline()
        made.add_component("retriever", InMemoryBM25Retriever(store, top_k=30))
        made.add_component("ranker", ranker)
        made.add_component(
            "prompt", PromptBuilder("{% for d in documents %}{{ d.content }};{% endfor %}{{ query }}", "*")
        )
        made.connect("retriever", "ranker")
        made.connect("ranker.documents", "prompt.documents")
        written = made.dumps()
        assert "bm_secret" not in written
        pipeline = Pipeline.loads(written, allowed_modules=OURS)
        assert pipeline.to_dict()["components"] == made.to_dict()["components"]

        query = "text"
        given = {"retriever": {"query": query}, "ranker": {"query": query}, "prompt": {"query": query}}
        result = await ran(flavour, pipeline, given)

        request = recorder.seen[-1]
        assert request.headers["authorization"] == "Bearer bm_secret"
        body = request.body
        assert (body["query"], body["k"], body["budget"], body["rounds"]) == (query, 4, 10, 5)
        sent = body["pool"]["documents"]
        assert len(sent) == 30
        assert sent[7] == {"id": 7, "text": sent[7]["text"], "title": f"T{sent[7]['text'][5:]}", "score": -7}

        chosen = result["ranker"]["documents"]
        assert result["prompt"]["prompt"] == "".join(f"{document.content};" for document in chosen) + query
        assert len(chosen) == 4
        scores = [document.score for document in chosen]
        assert scores == sorted(scores, reverse=True)
        for document in chosen:
            original = FOUND[document.meta["n"]]
            assert (document.id, document.content) == (original.id, original.content)
            assert set(document.meta) == {*original.meta, "relevance_std", "relevance_source"}

    async def test_copies_of_a_document_come_once(self, flavour: Flavour, url: str) -> None:
        ranker = BoundaryMorphRanker(base_url=url, budget=0)
        assert len(await documents(flavour, ranker, query=QUERY, documents=[*FOUND, *FOUND], top_k=40)) == 30
        assert "relevance_std" not in FOUND[0].meta

    async def test_secrets(self, url: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
        token = BoundaryMorphRanker(base_url=url, api_key=Secret.from_token("bm_secret"), top_k=1)
        await documents(Flavour.SYNC, token, query=QUERY, documents=FOUND)
        assert recorder.seen[-1].headers["authorization"] == "Bearer bm_secret"
        with pytest.raises(ValueError, match="Cannot serialize token"):
            token.to_dict()
        none = BoundaryMorphRanker(base_url=url, top_k=1)
        await documents(Flavour.SYNC, none, query=QUERY, documents=FOUND)
        assert "authorization" not in recorder.seen[-1].headers
        missing = BoundaryMorphRanker(base_url=url, api_key=Secret.from_env_var("KEY_OF_OURS"))
        with pytest.raises(ValueError, match="KEY_OF_OURS"):
            missing.warm_up()

    async def test_in_one_event_loop_after_the_other(self, url: str) -> None:
        """As by a program that calls asyncio.run for each query."""
        ranker = BoundaryMorphRanker(base_url=url, top_k=1)
        for _ in range(2):
            result = await asyncio.to_thread(asyncio.run, ranker.run_async(QUERY, FOUND))
            assert len(result["documents"]) == 1


class TestRetriever:
    async def test_in_a_pipeline(self, flavour: Flavour, url: str) -> None:
        document = {"id": "x", "text": "of its own", "title": "Title", "metadata": {"year": 2020}}
        with Client(url) as client:
            await asyncio.to_thread(client.upload, "texts", [document])
        made = Pipeline()
        made.add_component("retriever", BoundaryMorphRetriever("texts", top_k=41, budget=3, base_url=url))
        made.add_component("ranker", BoundaryMorphRanker(top_k=41, base_url=url))
        made.connect("retriever", "ranker")
        pipeline = Pipeline.from_dict(made.to_dict(), allowed_modules=OURS)
        result = await ran(flavour, pipeline, {"retriever": {"query": QUERY}, "ranker": {"query": QUERY}})
        found = result["ranker"]["documents"]
        assert len(found) == 41
        (ours,) = (document for document in found if document.id == "x")
        assert ours.content == "of its own"
        assert (ours.meta["title"], ours.meta["year"]) == ("Title", 2020)
        assert 0 <= ours.score <= 1

    async def test_errors(self, flavour: Flavour, url: str) -> None:
        pipeline = Pipeline()
        pipeline.add_component("retriever", BoundaryMorphRetriever("none", base_url=url))
        with pytest.raises(PipelineRuntimeError, match="unknown-index"):
            await ran(flavour, pipeline, {"retriever": {"query": QUERY}})

    async def test_filters(self, flavour: Flavour, url: str) -> None:
        uploaded = [{"id": f"y{year}", "text": "t", "metadata": {"year": year}} for year in range(9)]
        with Client(url) as client:
            await asyncio.to_thread(client.upload, "texts", uploaded)
        retriever = BoundaryMorphRetriever(
            "texts", filters={"field": "meta.year", "operator": "<", "value": 2}, base_url=url
        )
        assert {found.id for found in await documents(flavour, retriever, query=QUERY)} == {"y0", "y1"}
        late = {"field": "meta.year", "operator": ">=", "value": 7}
        some = {"operator": "AND", "conditions": [late, {"field": "meta.year", "operator": "in", "value": [0, 8]}]}
        assert {found.id for found in await documents(flavour, retriever, query=QUERY, filters=some)} == {"y8"}


async def test_the_example(url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    await check_example("with_haystack.py", url, monkeypatch, capfd)
