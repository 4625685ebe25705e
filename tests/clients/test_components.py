"""What the components of all frameworks do alike: with texts that are not there, and with copies of themselves."""

from __future__ import annotations

import asyncio
import copy
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from haystack import Document as HaystackDocument
from haystack import Pipeline
from haystack.dataclasses import ByteStream
from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import ImageNode, NodeWithScore, TextNode

from boundarymorph_client import InvalidArgument, haystack, langchain, llamaindex

pytestmark = pytest.mark.strangers

TEXT = "the sea is wide and blue"


def by_langchain(component: Any, texts: list[str | None]) -> list[tuple[str, float]]:
    found = component.compress_documents([LangChainDocument(text or "") for text in texts], "sea")
    return [(each.page_content, each.metadata["relevance_score"]) for each in found]


def by_llamaindex(component: Any, texts: list[str | None]) -> list[tuple[str, float]]:
    image = {"metadata": {"file_name": "sea.png"}}
    nodes = [ImageNode(**image) if text is None else TextNode(text=text) for text in texts]
    found = component.postprocess_nodes([NodeWithScore(node=node) for node in nodes], query_str="sea")
    return [(each.node.get_content(), each.score) for each in found]


def by_haystack(component: Any, texts: list[str | None]) -> list[tuple[str, float]]:
    documents = [
        HaystackDocument(id=f"{number}", content=text, blob=ByteStream(b"a") if text is None else None)
        for number, text in enumerate(texts)
    ]
    return [(each.content or "", each.score) for each in component.run("sea", documents)["documents"]]


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
    assert {text for text, _ in found[:2]} == {TEXT, "hills"}
    assert [score for _, score in found[2:]] == [0, 0, 0]


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
