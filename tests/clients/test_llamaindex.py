"""The postprocessor and the retriever in LlamaIndex's query engine, with its events, callbacks and serialisation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import (
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index_instrumentation import get_dispatcher

from boundarymorph_client import AsyncClient, Client
from boundarymorph_client.llamaindex import BoundaryMorphRerank, BoundaryMorphRetriever
from tests.clients.examples import check_example
from tests.clients.flavours import Flavour
from tests.clients.way import Recorder

QUERY = "what is asked"
FOUND = [
    NodeWithScore(
        node=TextNode(
            id_=f"d{number}",
            text=f"text {number}",
            metadata={"title": f"T{number}", "n": number},
            excluded_embed_metadata_keys=["n"],
        ),
        score=number / 30,
    )
    for number in range(30)
]


class Found(BaseRetriever):
    """Finds the same whatever the query."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return FOUND


class Events(BaseEventHandler):
    seen: list[Any] = []  # noqa: RUF012 - a field of pydantic's

    @classmethod
    def class_name(cls) -> str:
        return "Events"

    def handle(self, event: Any, **_: Any) -> None:
        self.seen.append(event)


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """Those of the instrumentation, as they happen."""
    handler, root = Events(), get_dispatcher()
    root.add_event_handler(handler)
    yield handler.seen
    root.event_handlers.remove(handler)


async def answered(flavour: Flavour, engine: RetrieverQueryEngine) -> Any:
    if flavour is Flavour.ASYNC:
        return await engine.aquery(QUERY)
    return await asyncio.to_thread(engine.query, QUERY)


async def retrieved(flavour: Flavour, retriever: BaseRetriever) -> list[NodeWithScore]:
    if flavour is Flavour.ASYNC:
        return await retriever.aretrieve(QUERY)
    return await asyncio.to_thread(retriever.retrieve, QUERY)


class TestRerank:
    async def test_in_a_query_engine(self, flavour: Flavour, url: str, recorder: Recorder, events: list[Any]) -> None:
        debug = LlamaDebugHandler(print_trace_on_end=False)
        rerank = BoundaryMorphRerank(base_url=url, top_n=4, budget=10, options={"rounds": 5})
        engine = RetrieverQueryEngine.from_args(
            Found(), llm=MockLLM(), node_postprocessors=[rerank], callback_manager=CallbackManager([debug])
        )
        response = await answered(flavour, engine)

        chosen = response.source_nodes
        assert len(chosen) == 4
        scores = [node.score for node in chosen]
        assert scores == sorted(scores, reverse=True)
        for node in chosen:
            original = FOUND[node.metadata["n"]]
            assert (node.node_id, node.text) == (original.node_id, original.text)
            assert node.metadata == {
                **original.metadata,
                "relevance_std": node.metadata["relevance_std"],
                "relevance_source": node.metadata["relevance_source"],
            }
            assert "relevance_std" not in original.metadata
            assert node.get_content(MetadataMode.LLM) == original.get_content(MetadataMode.LLM)
            assert original.get_content(MetadataMode.LLM) in str(response)  # the mock language model repeats its prompt
        assert "relevance" not in str(response)

        body = recorder.seen[-1].body
        assert (body["query"], body["k"], body["budget"], body["rounds"]) == (QUERY, 4, 10, 5)
        assert body["pool"]["documents"][7] == {"id": 7, "text": "title: T7\n\ntext 7", "score": -7}

        (start,) = (event for event in events if event.class_name() == "ReRankStartEvent")
        assert (start.query, start.nodes, start.top_n) == (QUERY, FOUND, 4)
        (end,) = (event for event in events if event.class_name() == "ReRankEndEvent")
        assert end.nodes == chosen
        assert any("BoundaryMorphRerank" in (event.span_id or "") for event in events)
        ((began, ended),) = debug.get_event_pairs(CBEventType.RERANKING)
        assert began.payload[EventPayload.QUERY_STR] == QUERY  # type: ignore[index]
        assert ended.payload[EventPayload.NODES] == chosen  # type: ignore[index]

    async def test_nothing_found_and_nothing_asked(self) -> None:
        rerank = BoundaryMorphRerank(base_url="http://nowhere")
        assert await rerank.apostprocess_nodes([], query_str=QUERY) == []
        with pytest.raises(ValueError, match="query"):
            rerank.postprocess_nodes(FOUND)

    async def test_a_client_of_ones_own(self, url: str) -> None:
        async with AsyncClient(url) as client:
            rerank = BoundaryMorphRerank(base_url="http://nowhere", async_client=client, top_n=2)
            assert len(await rerank.apostprocess_nodes(FOUND, query_str=QUERY)) == 2

    def test_is_written_down_without_its_key(self, url: str) -> None:
        made = BoundaryMorphRerank(base_url=url, api_key="bm_secret", top_n=3, options={"rounds": 9})
        assert "bm_secret" not in made.to_json() + repr(made)
        assert made.to_dict()["class_name"] == "BoundaryMorphRerank"
        again = BoundaryMorphRerank.from_json(made.to_json())
        assert (again.base_url, again.top_n, again.options, again.api_key) == (url, 3, {"rounds": 9}, None)


class TestRetriever:
    async def test_in_a_query_engine(self, flavour: Flavour, url: str, events: list[Any]) -> None:
        document = {"id": "x", "text": "of its own", "title": "Title", "metadata": {"year": 2020}}
        with Client(url) as client:
            await asyncio.to_thread(client.upload, "texts", [document])
        debug = LlamaDebugHandler(print_trace_on_end=False)
        manager = CallbackManager([debug])
        retriever = BoundaryMorphRetriever(
            "texts", similarity_top_k=41, budget=3, base_url=url, callback_manager=manager
        )
        response = await answered(
            flavour, RetrieverQueryEngine.from_args(retriever, llm=MockLLM(), callback_manager=manager)
        )
        assert len(response.source_nodes) == 41
        (ours,) = (node for node in response.source_nodes if node.node_id == "x")
        assert ours.text == "of its own"
        assert (ours.metadata["title"], ours.metadata["year"]) == ("Title", 2020)
        assert 0 <= ours.score <= 1
        assert "of its own" in str(response)
        ((_, ended),) = debug.get_event_pairs(CBEventType.RETRIEVE)
        assert ended.payload[EventPayload.NODES] == response.source_nodes  # type: ignore[index]
        names = [event.class_name() for event in events]
        assert names.index("RetrievalStartEvent") < names.index("RetrievalEndEvent")

    async def test_filters(self, flavour: Flavour, url: str) -> None:
        """They are sent; what they mean is in test_filters.py."""
        documents = [{"id": f"y{year}", "text": "t", "metadata": {"year": year}} for year in range(9)]
        with Client(url) as client:
            await asyncio.to_thread(client.upload, "texts", documents)
        late: Any = [MetadataFilter(key="year", value=7, operator=FilterOperator.GTE)]
        for filters, expected in ((MetadataFilters(filters=late), 2), (MetadataFilters(filters=[]), 49), (None, 49)):
            retriever = BoundaryMorphRetriever("texts", filters=filters, budget=0, base_url=url)
            assert len(await retrieved(flavour, retriever)) == expected


async def test_the_example(url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    await check_example("with_llamaindex.py", url, monkeypatch, capfd)
