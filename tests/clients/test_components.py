"""What the components of all frameworks do alike: with texts that are not there, and with copies of themselves."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from haystack import Document as HaystackDocument
from haystack import Pipeline
from haystack.core.errors import SerializationError
from haystack.dataclasses import ByteStream
from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import ImageNode, NodeWithScore, TextNode

from boundarymorph import Selector
from boundarymorph_client import InvalidArgument, haystack, langchain, llamaindex
from tests.clients.way import Recorder

pytestmark = pytest.mark.strangers

TEXT = "the sea is wide and blue"
Texts = Sequence[str | None]
Metadata = Sequence[dict[str, Any]]
NONE: Metadata = [{}] * 40


Found = list[tuple[str, float, str]]  # text, relevance and source of each


def by_langchain(component: Any, texts: Texts, metadata: Metadata = NONE, query: str = "sea") -> Found:
    found = [LangChainDocument(text or "", metadata=given) for text, given in zip(texts, metadata, strict=False)]
    chosen = component.compress_documents(found, query)
    return [(each.page_content, *(each.metadata[f"relevance_{of}"] for of in ("score", "source"))) for each in chosen]


def by_llamaindex(component: Any, texts: Texts, metadata: Metadata = NONE, query: str = "sea") -> Found:
    nodes = [
        ImageNode(metadata={"file_name": "sea.png"}) if text is None else TextNode(text=text, metadata=given)
        for text, given in zip(texts, metadata, strict=False)
    ]
    chosen = component.postprocess_nodes([NodeWithScore(node=node) for node in nodes], query_str=query)
    return [(each.node.get_content(), each.score, each.metadata["relevance_source"]) for each in chosen]


def by_haystack(component: Any, texts: Texts, metadata: Metadata = NONE, query: str = "sea") -> Found:
    documents = [
        HaystackDocument(id=f"{number}", content=text, blob=ByteStream(b"a") if text is None else None, meta=given)
        for number, (text, given) in enumerate(zip(texts, metadata, strict=False))
    ]
    chosen = component.run(query, documents)["documents"]
    return [(each.content or "", each.score, each.meta["relevance_source"]) for each in chosen]


RERANKERS = [
    (langchain.BoundaryMorphRerank, by_langchain),
    (llamaindex.BoundaryMorphRerank, by_llamaindex),
    (haystack.BoundaryMorphRanker, by_haystack),
]
RETRIEVERS = [
    (langchain.BoundaryMorphRetriever, lambda component: component.invoke("text")),
    (llamaindex.BoundaryMorphRetriever, lambda component: component.retrieve("text")),
    (haystack.BoundaryMorphRetriever, lambda component: component.run("text")["documents"]),
]


@pytest.mark.parametrize(("kind", "rerank"), RERANKERS)
async def test_what_has_no_text_is_last(kind: Any, rerank: Any, url: str) -> None:
    found = await asyncio.to_thread(rerank, kind(base_url=url), [None, "", " \n", TEXT, "hills"])
    assert {text for text, *_ in found[:2]} == {TEXT, "hills"}
    assert [score for _, score, _ in found[2:]] == [0, 0, 0]


@pytest.mark.parametrize(("kind", "rerank"), RERANKERS)
async def test_texts_come_in_the_order_of_their_retriever(kind: Any, rerank: Any, url: str) -> None:
    """Without a call."""
    texts = [f"text {number}" for number in range(30)]
    found = await asyncio.to_thread(rerank, kind(base_url=url, budget=0), texts)
    assert [text for text, *_ in found[:3]] == texts[:3]


@pytest.mark.parametrize(("kind", "rerank"), RERANKERS)
def test_nothing_found_asks_for_nothing(kind: Any, rerank: Any) -> None:
    assert rerank(kind(base_url="http://nowhere"), []) == []


def copies(component: Any) -> list[Any]:
    return [copy.deepcopy(component), pickle.loads(pickle.dumps(component))]


@pytest.mark.parametrize(("kind", "rerank"), RERANKERS)
async def test_rerankers_are_copied_before_and_after_a_call(kind: Any, rerank: Any, url: str) -> None:
    component = kind(base_url=url)
    before = copies(component)
    assert len(await asyncio.to_thread(rerank, component, [TEXT, "hills"])) == 2
    for again in (*before, *copies(component)):
        assert len(await asyncio.to_thread(rerank, again, [TEXT, "hills"])) == 2


@pytest.mark.parametrize(("kind", "retrieve"), RETRIEVERS)
async def test_retrievers_are_copied_before_and_after_a_call(kind: Any, retrieve: Any, url: str) -> None:
    component = kind(index="texts", base_url=url)
    before = copies(component)
    expected = len(await asyncio.to_thread(retrieve, component))
    for again in (*before, *copies(component)):
        assert len(await asyncio.to_thread(retrieve, again)) == expected > 0


async def test_a_pipeline_is_copied_also_in_its_event_loop(url: str) -> None:
    pipeline = Pipeline()
    pipeline.add_component("ranker", haystack.BoundaryMorphRanker(base_url=url))
    given = {"ranker": {"query": "sea", "documents": [HaystackDocument(content=TEXT)]}}
    await pipeline.run_async(given)
    again = copy.deepcopy(pipeline)
    assert len((await again.run_async(given))["ranker"]["documents"]) == 1
    await pipeline.close_async()
    await again.close_async()


class TestScores:
    def documents(self, score: object) -> list[LangChainDocument]:
        return [LangChainDocument(TEXT, id=name, metadata={"s": value}) for name, value in (("a", 0.1), ("b", score))]

    @pytest.mark.parametrize("score", [Decimal("0.5"), np.float32(0.5), 1])
    async def test_are_numbers_of_any_kind(self, score: object, url: str) -> None:
        rerank = langchain.BoundaryMorphRerank(base_url=url, score_field="s", budget=0)
        found = await rerank.acompress_documents(self.documents(score), "sea")
        assert [each.id for each in found] == ["b", "a"]

    @pytest.mark.parametrize("score", [None, float("nan"), Decimal("NaN"), float("inf"), "0.5", [1]])
    def test_are_there(self, score: object) -> None:
        rerank = langchain.BoundaryMorphRerank(base_url="http://nowhere", score_field="s")
        with pytest.raises(InvalidArgument, match=r"document 2 \(id 'b'\).*'s' is .*score_field"):
            rerank.compress_documents(self.documents(score), "sea")
        with pytest.raises(InvalidArgument, match=r"document 1 .*'s' is missing"):
            rerank.compress_documents([LangChainDocument(TEXT)], "sea")


TEXTS = [f"{'a walk in the hills' if n % 2 else 'a swim in the sea'} {n}" for n in range(40)]
# By another reranker, of the first twelve: those of the sea are relevant.
KNOWN: list[dict[str, Any]] = [
    {"by": kind(score)} for kind in (float, np.float32, Decimal) for score in (0.75, 0.125) * 2
]


K = {langchain.BoundaryMorphRerank: "k", llamaindex.BoundaryMorphRerank: "top_n", haystack.BoundaryMorphRanker: "top_k"}


@pytest.mark.parametrize(("kind", "rerank"), RERANKERS)
class TestKnownScores:
    async def test_speak_for_documents_that_nobody_read(
        self, kind: Any, rerank: Any, url: str, recorder: Recorder
    ) -> None:
        component = kind(base_url=url, budget=0, known_score_field="by", options={"reuse": False}, **{K[kind]: 12})
        metadata = [*KNOWN, {"by": None}, *[{} for _ in TEXTS[13:]]]
        found = await asyncio.to_thread(rerank, component, TEXTS, metadata, "a day out")
        assert sum("sea" in text for text, *_ in found) >= 11
        known = {text for text, _, source in found if source == "cross_encoder"}
        assert set(TEXTS[:12:2]) <= known <= set(TEXTS[:12]) and len(known) < len(found)
        sent = recorder.seen[-1].body["pool"]["documents"]
        assert [document["text"] for document in sent] == TEXTS, "no model reads the scores"
        assert [document.get("cross_encoder_score") for document in sent] == [0.75, 0.125] * 6 + [None] * 28

    async def test_are_known_only_if_their_field_is_named(
        self, kind: Any, rerank: Any, url: str, recorder: Recorder
    ) -> None:
        await asyncio.to_thread(rerank, kind(base_url=url), TEXTS, [{"by": 0.5}, *NONE])
        assert all("cross_encoder_score" not in each for each in recorder.seen[-1].body["pool"]["documents"])

    @pytest.mark.parametrize("score", [-0.01, 1.01, float("nan"), "0.5", [1]])
    def test_are_from_0_to_1(self, kind: Any, rerank: Any, score: object) -> None:
        component = kind(base_url="http://nowhere", known_score_field="by")
        with pytest.raises(InvalidArgument, match=r"document 2 .*'by' in its metadata, .* from 0 to 1"):
            rerank(component, TEXTS, [{"by": 0}, {"by": score}])


class TestSelectors:
    """In place of a service, a `Selector` of this process."""

    @staticmethod
    def of_the_sea(query: str, texts: Sequence[str]) -> list[float]:
        return [0.9 if "sea" in text else 0.1 for text in texts]

    @pytest.mark.parametrize(("kind", "rerank"), RERANKERS)
    async def test_choose_as_a_service_does(self, kind: Any, rerank: Any) -> None:
        selector = Selector(self.of_the_sea)
        component = kind(selector=selector, base_url="http://nowhere", budget=10, options={"rounds": 1})
        found = await asyncio.to_thread(rerank, component, TEXTS)
        documents = [{"text": text, "score": -place} for place, text in enumerate(TEXTS)]
        expected = await selector.aselect("sea", documents, budget=10, rounds=1)
        assert [one[:2] for one in found] == [(each.text, each.relevance) for each in expected.documents]
        for again in (component, *copies(component)):
            assert await asyncio.to_thread(rerank, again, TEXTS) == found

    async def test_are_awaited(self) -> None:
        component = langchain.BoundaryMorphRerank(selector=Selector(self.of_the_sea), k=3, budget=10)
        found = await component.acompress_documents([LangChainDocument(text) for text in TEXTS], "sea")
        assert len(found) == 3
        ranker = haystack.BoundaryMorphRanker(selector=Selector(self.of_the_sea), top_k=3, budget=10)
        chosen = await ranker.run_async("sea", [HaystackDocument(content=text) for text in TEXTS])
        assert [each.content for each in chosen["documents"]] == [each.page_content for each in found]

    def test_have_no_index(self) -> None:
        retriever = langchain.BoundaryMorphRetriever(index="texts", selector=Selector(self.of_the_sea))
        with pytest.raises(InvalidArgument, match="a selector has no index"):
            retriever.invoke("sea")

    def test_are_not_written_down(self) -> None:
        with pytest.raises(SerializationError, match=r"a selector .* cannot be written down"):
            haystack.BoundaryMorphRanker(selector=Selector(self.of_the_sea)).to_dict()


@pytest.mark.parametrize(("kind", "rerank"), RERANKERS)
async def test_known_scores_are_rounded_into_range(kind: Any, rerank: Any, url: str, recorder: Recorder) -> None:
    metadata = [{"by": np.float32(1.0000001)}, {"by": -1e-9}]
    await asyncio.to_thread(rerank, kind(base_url=url, budget=0, known_score_field="by"), TEXTS[:2], metadata)
    sent = recorder.seen[-1].body["pool"]["documents"]
    assert [document["cross_encoder_score"] for document in sent] == [1.0, 0.0]
