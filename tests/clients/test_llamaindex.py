"""Test the components in LlamaIndex's query engine: events, callbacks, and serialisation."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters
from llama_index_instrumentation import get_dispatcher

from boundarymorph_client.llamaindex import BoundaryMorphRerank, BoundaryMorphRetriever
from tests.clients.conftest import COUNT

QUERY = "music of the sea"


class Events(BaseEventHandler):
    seen: list[Any] = []  # noqa: RUF012 - a field of pydantic's

    @classmethod
    def class_name(cls) -> str:
        return "Events"

    def handle(self, event: Any, **_: Any) -> None:
        self.seen.append(event)


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """Return the list to which the instrumentation adds its events."""
    handler, root = Events(), get_dispatcher()
    root.add_event_handler(handler)
    yield handler.seen
    root.event_handlers.remove(handler)


@pytest.mark.parametrize("later", [False, True])
def test_query_engine_receives_events_and_callbacks_of_components(later: bool, url: str, events: list[Any]) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    manager = CallbackManager([debug])
    retriever = BoundaryMorphRetriever("texts", similarity_top_k=30, budget=3, base_url=url, callback_manager=manager)
    rerank = BoundaryMorphRerank(base_url=url, top_n=4, budget=10)
    engine = RetrieverQueryEngine.from_args(
        retriever, llm=MockLLM(), node_postprocessors=[rerank], callback_manager=manager
    )
    response: Any = asyncio.run(engine.aquery(QUERY)) if later else engine.query(QUERY)
    chosen = response.source_nodes
    assert len(chosen) == 4

    names = [event.class_name() for event in events]
    steps = [names.index(f"{step}Event") for step in ("RetrievalStart", "RetrievalEnd", "ReRankStart", "ReRankEnd")]
    assert steps == sorted(steps)
    start, end = events[steps[2]], events[steps[3]]
    assert (start.query, len(start.nodes), start.top_n, end.nodes) == (QUERY, 30, 4, chosen)
    assert any("BoundaryMorphRerank" in (event.span_id or "") for event in events)
    ((_, retrieved),) = debug.get_event_pairs(CBEventType.RETRIEVE)
    assert retrieved.payload[EventPayload.NODES] == start.nodes  # type: ignore[index]
    ((began, ended),) = debug.get_event_pairs(CBEventType.RERANKING)
    assert began.payload[EventPayload.QUERY_STR] == QUERY  # type: ignore[index]
    assert ended.payload[EventPayload.NODES] == chosen  # type: ignore[index]


def test_reranker_is_serialized_without_its_key() -> None:
    made = BoundaryMorphRerank(base_url="http://a", api_key="bm_secret", top_n=3, options={"rounds": 9})
    assert "bm_secret" not in made.to_json() + repr(made)
    assert made.to_dict()["class_name"] == "BoundaryMorphRerank"
    again = BoundaryMorphRerank.from_json(made.to_json())
    assert (again.base_url, again.top_n, again.options, again.api_key) == ("http://a", 3, {"rounds": 9}, None)


def test_retriever_sends_its_filters(url: str) -> None:
    late: Any = [MetadataFilter(key="n", value=COUNT - 2, operator=FilterOperator.GTE)]
    for filters, expected in ((MetadataFilters(filters=late), 2), (MetadataFilters(filters=[]), COUNT), (None, COUNT)):
        retriever = BoundaryMorphRetriever("texts", filters=filters, budget=0, similarity_top_k=COUNT, base_url=url)
        assert len(retriever.retrieve(QUERY)) == expected
