"""Use BoundaryMORPH in LlamaIndex, as a node postprocessor and a retriever.

The postprocessor reranks the nodes of any retriever, and the retriever searches an index. Both need `llama-index-core`
(the extra `llamaindex`). The score of a returned node is its relevance in [0, 1]. Its metadata get `relevance_std`,
which is 0 if the cross-encoder scored it, and `relevance_source`; neither language models nor embedding models are
shown these.
"""

from __future__ import annotations

from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index_instrumentation import get_dispatcher
from pydantic import Field, SecretStr

from boundarymorph_client.async_client import AsyncClient
from boundarymorph_client.bodies import as_list
from boundarymorph_client.errors import InvalidArgument
from boundarymorph_client.filters import COMBINING, EVERYTHING, NOTHING, Filter, present
from boundarymorph_client.frameworks import (
    Service,
    candidate,
    certainty,
    document_phrase,
    found_metadata,
    optional_score,
)
from boundarymorph_client.models import SelectedDocument

MODEL_NAME = "boundarymorph"  # the name in events; only the service knows which cross-encoder it uses
OPERATORS = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "ne",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.IN: "in",
    FilterOperator.NIN: "nin",
    FilterOperator.ANY: "in",  # one element of a list in the metadata has to pass
    FilterOperator.ALL: "eq",  # each of the values has to be in the list
    FilterOperator.CONTAINS: "eq",
}
OF_LISTS = (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL)
dispatcher = get_dispatcher(__name__)


class BoundaryMorphRerank(Service, BaseNodePostprocessor):
    """Chooses the best `top_n` of the nodes that a retriever found, which come in its order.

    The cross-encoder reads them with the metadata that an embedding model would see. The key is not serialised: without
    an argument it is read from BOUNDARYMORPH_API_KEY.

    Attributes:
        top_n: Nodes to return.
        known_score_field: The field of the metadata with scores in [0, 1] that another reranker gave some of the nodes,
            which no model reads; with a budget of 0 these alone decide. `Service` describes the other attributes.
    """

    top_n: int | None = None
    known_score_field: str | None = None
    api_key: SecretStr | None = Field(None, exclude=True)

    @classmethod
    def class_name(cls) -> str:
        return "BoundaryMorphRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, nodes = _query(query_bundle), as_list(nodes, "nodes", NodeWithScore)
        if not nodes:
            return []
        with self.callback_manager.event(CBEventType.RERANKING, payload=self._started(nodes, query)) as event:
            chosen = _chosen(nodes, self.selected(query, pool=self._pool(nodes), k=self.top_n))
            event.on_end(payload={EventPayload.NODES: chosen})
        dispatcher.event(ReRankEndEvent(nodes=chosen))
        return chosen

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, nodes = _query(query_bundle), as_list(nodes, "nodes", NodeWithScore)
        if not nodes:
            return []
        with self.callback_manager.event(CBEventType.RERANKING, payload=self._started(nodes, query)) as event:
            chosen = _chosen(nodes, await self.aselected(query, pool=self._pool(nodes), k=self.top_n))
            event.on_end(payload={EventPayload.NODES: chosen})
        dispatcher.event(ReRankEndEvent(nodes=chosen))
        return chosen

    def _pool(self, nodes: list[NodeWithScore]) -> list[dict[str, Any]]:
        field = self.known_score_field
        return [
            candidate(
                position,
                _read(found.node, field),
                known=optional_score(found.metadata, field, document_phrase(position, found.node_id)),
            )
            for position, found in enumerate(nodes)
        ]

    def _started(self, nodes: list[NodeWithScore], query: str) -> dict[str, Any]:
        """Send the event of the beginning, and return its payload."""
        top_n = len(nodes) if self.top_n is None else self.top_n
        dispatcher.event(ReRankStartEvent(query=query, nodes=nodes, top_n=top_n, model_name=MODEL_NAME))
        return {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: MODEL_NAME,
            EventPayload.QUERY_STR: query,
            EventPayload.TOP_K: top_n,
        }


class BoundaryMorphRetriever(BaseRetriever):
    """Returns the best `similarity_top_k` nodes of an index whose metadata pass the filters.

    Filters that the service does not have (substrings, an empty field) raise an InvalidArgument, and a list passes
    comparisons if one of its elements does. `Service` describes the other arguments.
    """

    def __init__(
        self,
        index: str,
        *,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        budget: int | str | None = None,
        options: dict[str, Any] | None = None,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        async_client: AsyncClient | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(callback_manager=callback_manager, verbose=verbose)
        self.similarity_top_k = similarity_top_k
        self._index = index
        self._filter = _filter(filters) if filters is not None and filters.filters else None
        self._service = Service(
            base_url=base_url,
            api_key=SecretStr(api_key) if isinstance(api_key, str) else api_key,
            timeout=timeout,
            retries=retries,
            budget=budget,
            options=options or {},
            async_client=async_client,
        )

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self._service.selected(query_bundle.query_str, **self._asked()))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(await self._service.aselected(query_bundle.query_str, **self._asked()))

    def _asked(self) -> dict[str, Any]:
        return {"index": self._index, "k": self.similarity_top_k, "filter": self._filter, "return_documents": True}


def _query(bundle: QueryBundle | None) -> str:
    if bundle is None:
        raise ValueError("reranking needs the query: pass query_bundle or query_str")
    return bundle.query_str


def _read(node: BaseNode, unread: str | None) -> str:
    """Return the text of a node that the models read, without the metadata `unread`.

    It is empty if the node has no text, such as an image, whatever its metadata.
    """
    if not node.get_content(MetadataMode.NONE).strip():
        return ""
    if unread in node.metadata:
        node = node.model_copy(update={"excluded_embed_metadata_keys": [*node.excluded_embed_metadata_keys, unread]})
    return node.get_content(MetadataMode.EMBED)


def _chosen(nodes: list[NodeWithScore], selected: list[SelectedDocument]) -> list[NodeWithScore]:
    return [_scored(nodes[int(chosen.id)].node, chosen) for chosen in selected]


def _nodes(selected: list[SelectedDocument]) -> list[NodeWithScore]:
    return [
        _scored(TextNode(id_=chosen.id, text=chosen.text or "", metadata=found_metadata(chosen)), chosen)
        for chosen in selected
    ]


def _scored(node: BaseNode, chosen: SelectedDocument) -> NodeWithScore:
    """Return a copy of the node with its relevance."""
    more = certainty(chosen)
    copy = node.model_copy(
        update={
            "metadata": {**node.metadata, **more},
            "excluded_llm_metadata_keys": [*node.excluded_llm_metadata_keys, *more],
            "excluded_embed_metadata_keys": [*node.excluded_embed_metadata_keys, *more],
        }
    )
    return NodeWithScore(node=copy, score=chosen.relevance)


def _filter(filters: MetadataFilters) -> Filter:
    """Return the service's filter with the meaning in LlamaIndex's own vector store.

    Raises:
        InvalidArgument: If the service has no such filter.
    """
    if not filters.filters:
        return EVERYTHING
    conditions = [
        _filter(given) if isinstance(given, MetadataFilters) else _comparison(given) for given in filters.filters
    ]
    if filters.condition is FilterCondition.NOT:
        return {"not": {"or": conditions}}
    return {"or" if filters.condition is FilterCondition.OR else "and": conditions}


def _comparison(given: MetadataFilter) -> Filter:
    """Return a filter for one field; a missing or null field passes only NE and NIN."""
    key, value, operator = given.key, given.value, given.operator
    if operator not in OPERATORS:
        raise _unusable(given, f"it has {', '.join(each.value for each in OPERATORS)}")
    if key in COMBINING:
        raise _unusable(given, f"a field cannot have the name {key!r} there")
    if isinstance(value, list) is not (operator in OF_LISTS):
        raise _unusable(given, "give it a list" if operator in OF_LISTS else f"{value!r} is a list")
    if value is None:
        if operator is FilterOperator.NE:
            return EVERYTHING
        if operator is FilterOperator.EQ:
            return NOTHING
        raise _unusable(given, "give it a value")
    if operator is FilterOperator.ALL and isinstance(value, list):
        return {"and": [{key: {"eq": each}} for each in value]} if value else present(key)
    return {key: {OPERATORS[operator]: value}}


def _unusable(given: MetadataFilter, why: str) -> InvalidArgument:
    return InvalidArgument(f"the service has no filter {given.key!r} {given.operator.value!r} {given.value!r}: {why}")
