"""Test what the components for LangChain, LlamaIndex and Haystack have in common."""

import asyncio
import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from haystack import Document as HaystackDocument
from haystack.dataclasses import ByteStream
from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import ImageNode, NodeWithScore, TextNode

from boundarymorph import Selector
from boundarymorph_client import InvalidArgument, UnknownIndex, haystack, langchain, llamaindex
from tests.clients.conftest import COUNT, Recorder

pytestmark = pytest.mark.strangers

NOWHERE = "http://nowhere"


@dataclass(frozen=True)
class Kit:
    """The components of a framework, and functions that call them.

    Attributes:
        k: The option for the number of documents.
        sent: What the reranker sends about a document with the text "text 7" and the title "T7", which is in its
            metadata as `t`.
    """

    reranker: Any
    retriever: Any
    k: str
    document: Callable[[str | None, dict[str, Any]], Any]
    rerank: Callable[[Any, str, list[Any], bool], Any]
    retrieve: Callable[[Any, str, bool], Any]
    read: Callable[[Any], tuple[str, float, dict[str, Any]]]
    sent: dict[str, Any]

    def reranked(
        self, component: Any, texts: Sequence[str | None], metadata: Sequence[dict[str, Any]] = (), *,
        query: str = "sea", later: bool = False,
    ) -> list[tuple[str, float, dict[str, Any]]]:  # fmt: skip
        """Return text, relevance, and metadata of each chosen document."""
        documents = [self.document(text, metadata[n] if n < len(metadata) else {}) for n, text in enumerate(texts)]
        chosen = self.rerank(component, query, documents, later)
        return [self.read(each) for each in (asyncio.run(chosen) if later else chosen)]

    def retrieved(self, component: Any, *, later: bool = False) -> list[tuple[str, float, dict[str, Any]]]:
        found = self.retrieve(component, "music of the sea", later)
        return [self.read(each) for each in (asyncio.run(found) if later else found)]


async def run_and_close(component: Any, **given: Any) -> Any:
    found = await component.run_async(**given)
    await component.close_async()
    return found["documents"]


KITS = {
    "LangChain": Kit(
        langchain.BoundaryMorphRerank,
        langchain.BoundaryMorphRetriever,
        "k",
        lambda text, given: LangChainDocument(text or "", metadata=given),
        lambda one, query, found, later: (one.acompress_documents if later else one.compress_documents)(found, query),
        lambda one, query, later: (one.ainvoke if later else one.invoke)(query),
        lambda one: (one.page_content, one.metadata["relevance_score"], one.metadata),
        {"id": 7, "text": "text 7", "title": "T7", "score": -7},
    ),
    "LlamaIndex": Kit(
        llamaindex.BoundaryMorphRerank,
        llamaindex.BoundaryMorphRetriever,
        "top_n",
        lambda text, given: NodeWithScore(
            node=ImageNode(metadata={"file": "a.png"}) if text is None else TextNode(text=text, metadata=given)
        ),
        lambda one, query, found, later: (one.apostprocess_nodes if later else one.postprocess_nodes)(
            found, query_str=query
        ),
        lambda one, query, later: (one.aretrieve if later else one.retrieve)(query),
        lambda one: (one.node.get_content(), one.score, one.metadata),
        {"id": 7, "text": "t: T7\n\ntext 7", "score": -7},
    ),
    "Haystack": Kit(
        haystack.BoundaryMorphRanker,
        haystack.BoundaryMorphRetriever,
        "top_k",
        lambda text, given: HaystackDocument(
            id=f"{text}{given}", content=text, blob=ByteStream(b"a") if text is None else None, meta=given
        ),
        lambda one, query, found, later: (
            run_and_close(one, query=query, documents=found) if later else one.run(query, found)["documents"]
        ),
        lambda one, query, later: run_and_close(one, query=query) if later else one.run(query)["documents"],
        lambda one: (one.content or "", one.score, one.meta),
        {"id": 7, "text": "text 7", "title": "T7", "score": -7},
    ),
}


@pytest.fixture(params=KITS)
def kit(request: pytest.FixtureRequest) -> Kit:
    return KITS[request.param]


@pytest.mark.parametrize("later", [False, True])
def test_reranker_returns_copies_of_the_best_documents(kit: Kit, later: bool, url: str, recorder: Recorder) -> None:
    texts, metadata = [f"text {n}" for n in range(30)], [{"t": f"T{n}"} for n in range(30)]
    titled = {} if kit is KITS["LlamaIndex"] else {"title_field": "t"}
    component = kit.reranker(base_url=url, budget=10, options={"rounds": 5}, **{kit.k: 4}, **titled)
    found = kit.reranked(component, texts, metadata, query="music of the sea", later=later)
    assert len(found) == 4
    assert [relevance for _, relevance, _ in found] == sorted((each[1] for each in found), reverse=True)
    for text, _, more in found:
        assert more["t"] == text.replace("text ", "T")
        assert more.keys() - {"relevance_score"} == {"t", "relevance_std", "relevance_source"}
    assert all(given.keys() == {"t"} for given in metadata)
    (body,) = recorder.bodies
    assert (body["query"], body["k"], body["budget"], body["rounds"]) == ("music of the sea", 4, 10, 5)
    assert body["pool"]["documents"][7] == kit.sent


@pytest.mark.parametrize("later", [False, True])
def test_retriever_returns_documents_of_an_index(kit: Kit, later: bool, url: str) -> None:
    component = kit.retriever(index="texts", base_url=url, budget=3, options={"k": COUNT})
    found = kit.retrieved(component, later=later)
    assert len(found) == COUNT and all(0 <= relevance <= 1 for _, relevance, _ in found)
    assert [(more["title"], more["n"]) for text, _, more in found if text == "text 7"] == [("Title 7", 7)]
    with pytest.raises(UnknownIndex):
        kit.retrieved(kit.retriever(index="none", base_url=url), later=later)


def copies(component: Any) -> list[Any]:
    return [copy.deepcopy(component), pickle.loads(pickle.dumps(component))]


def test_components_can_be_copied_before_and_after_a_call(kit: Kit, url: str) -> None:
    retriever, reranker = kit.retriever(index="texts", base_url=url), kit.reranker(base_url=url)
    before = [copies(retriever), copies(reranker)]
    found = len(kit.retrieved(retriever))
    assert len(kit.reranked(reranker, ["a", "b"])) == 2 and found > 0
    for again in (*before[0], *copies(retriever)):
        assert len(kit.retrieved(again)) == found
    for again in (*before[1], *copies(reranker)):
        assert len(kit.reranked(again, ["a", "b"])) == 2


TEXTS = [f"{'a walk in the hills' if n % 2 else 'a swim in the sea'} {n}" for n in range(40)]


class TestKnownScores:
    def test_known_scores_rank_documents_without_scores(self, kit: Kit, url: str, recorder: Recorder) -> None:
        """Another reranker scored the first twelve documents; those about the sea are relevant."""
        known = [{"by": kind(score)} for kind in (float, np.float32, Decimal) for score in (0.75, 0.125) * 2]
        component = kit.reranker(base_url=url, budget=0, known_score_field="by", **{kit.k: 12})
        found = kit.reranked(component, TEXTS, [*known, {"by": None}], query="a day out")
        assert sum("sea" in text for text, *_ in found) >= 11
        scored = {text for text, _, more in found if more["relevance_source"] == "cross_encoder"}
        assert set(TEXTS[:12:2]) <= scored <= set(TEXTS[:12]) and len(scored) < len(found)
        sent = recorder.bodies[-1]["pool"]["documents"]
        assert [document["text"] for document in sent] == TEXTS, "no model reads the scores"
        assert [document.get("cross_encoder_score") for document in sent] == [0.75, 0.125] * 6 + [None] * 28

    @pytest.mark.parametrize("score", [-0.01, 1.01, float("nan"), "0.5", [1]])
    def test_known_scores_outside_0_and_1_are_refused(self, kit: Kit, score: object) -> None:
        component = kit.reranker(base_url=NOWHERE, known_score_field="by")
        with pytest.raises(InvalidArgument, match=r"document 2 .*'by' in its metadata, .* from 0 to 1"):
            kit.reranked(component, TEXTS[:2], [{"by": 0}, {"by": score}])


class TestSelectors:
    """Components with a local `Selector` in place of a service."""

    @staticmethod
    def of_the_sea(query: str, texts: Sequence[str]) -> list[float]:
        return [0.9 if "sea" in text else 0.1 for text in texts]

    @pytest.mark.parametrize("later", [False, True])
    def test_component_with_a_selector_chooses_like_a_service(self, kit: Kit, later: bool) -> None:
        selector = Selector(self.of_the_sea)
        component = kit.reranker(selector=selector, base_url=NOWHERE, budget=10, options={"rounds": 1})
        documents = [{"text": text, "score": -place} for place, text in enumerate(TEXTS)]
        expected = selector.select("sea", documents, budget=10, rounds=1)
        for again in (component, *copies(component)):
            found = kit.reranked(again, TEXTS, later=later)
            assert [each[:2] for each in found] == [(each.text, each.relevance) for each in expected.documents]
