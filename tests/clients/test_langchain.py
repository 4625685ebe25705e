"""The compressor and the retriever in LangChain's own chains, with its serialisation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.load import dumps, loads
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from pydantic import SecretStr

from boundarymorph_client import AsyncClient, Client, InvalidInput, UnknownIndex
from boundarymorph_client.langchain import BoundaryMorphRerank, BoundaryMorphRetriever
from tests.clients.examples import check_example
from tests.clients.flavours import Flavour
from tests.clients.way import Recorder

QUERY = "what is asked"
FOUND = [Document(f"text {number}", id=f"d{number}", metadata={"n": number, "t": f"T{number}"}) for number in range(30)]


async def invoked(flavour: Flavour, runnable: Any, given: Any, config: Any = None) -> Any:
    if flavour is Flavour.ASYNC:
        return await runnable.ainvoke(given, config)
    return await asyncio.to_thread(runnable.invoke, given, config)


class Found(BaseRetriever):
    """Finds the same whatever the query."""

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return FOUND


def chain(rerank: BoundaryMorphRerank) -> ContextualCompressionRetriever:
    return ContextualCompressionRetriever(base_retriever=Found(), base_compressor=rerank)


class TestRerank:
    async def test_in_a_chain(self, flavour: Flavour, url: str, recorder: Recorder) -> None:
        rerank = BoundaryMorphRerank(base_url=url, k=4, budget=10, title_field="t", options={"rounds": 5})
        chosen = await invoked(flavour, chain(rerank), QUERY)
        assert len(chosen) == 4
        relevances = [document.metadata["relevance_score"] for document in chosen]
        assert relevances == sorted(relevances, reverse=True)
        for document in chosen:
            original = FOUND[document.metadata["n"]]
            assert (document.id, document.page_content) == (original.id, original.page_content)
            assert set(document.metadata) == {
                *original.metadata,
                *(f"relevance_{name}" for name in ("score", "std", "source")),
            }
            assert "relevance_score" not in original.metadata
        body = recorder.seen[-1].body
        assert (body["query"], body["k"], body["budget"], body["rounds"]) == (QUERY, 4, 10, 5)
        assert body["pool"]["documents"][7] == {"id": 7, "text": "text 7", "title": "T7", "score": -7}

    async def test_nothing_found(self) -> None:
        assert await BoundaryMorphRerank(base_url="http://nowhere").acompress_documents([], QUERY) == []

    async def test_a_client_of_ones_own(self, url: str) -> None:
        async with AsyncClient(url) as client:
            rerank = BoundaryMorphRerank(base_url="http://nowhere", async_client=client, k=2)
            assert len(await rerank.acompress_documents(FOUND, QUERY)) == 2

    def test_misspelt_options(self) -> None:
        with pytest.raises(ValueError, match="bugdet"):
            BoundaryMorphRerank(bugdet=3)  # type: ignore[call-arg]


class TestRetriever:
    async def test_documents_of_an_index(self, flavour: Flavour, url: str) -> None:
        document = {"id": "x", "text": "of its own", "title": "Title", "metadata": {"year": 2020}}
        with Client(url) as client:
            await asyncio.to_thread(client.upload, "texts", [document])
        found = await invoked(flavour, BoundaryMorphRetriever(base_url=url, index="texts", k=41, budget=3), QUERY)
        assert len(found) == 41
        (ours,) = (document for document in found if document.id == "x")
        assert ours.page_content == "of its own"
        assert (ours.metadata["title"], ours.metadata["year"]) == ("Title", 2020)
        assert 0 <= ours.metadata["relevance_score"] <= 1

    async def test_options_of_one_call(self, flavour: Flavour, url: str, recorder: Recorder) -> None:
        """As arguments, bound to it, and as configurable fields."""
        retriever = BoundaryMorphRetriever(base_url=url, index="texts", k=9, options={"depth": 20})
        configurable = retriever.configurable_fields(k=ConfigurableField("chosen"))
        for runnable, config, k in (
            (retriever.bind(k=2, budget=1), None, 2),
            (configurable, {"configurable": {"chosen": 3}}, 3),
            (retriever.with_config(run_name="ours"), None, 9),
        ):
            assert len(await invoked(flavour, runnable, QUERY, config)) == k
            assert (recorder.seen[-1].body["k"], recorder.seen[-1].body["depth"]) == (k, 20)
        assert recorder.seen[-3].body["budget"] == 1

    async def test_errors(self, flavour: Flavour, url: str) -> None:
        with pytest.raises(UnknownIndex):
            await invoked(flavour, BoundaryMorphRetriever(base_url=url, index="none"), QUERY)
        with pytest.raises(InvalidInput):
            await invoked(flavour, BoundaryMorphRetriever(base_url=url, index="texts", options={"bugdet": 1}), QUERY)

    async def test_batches(self, flavour: Flavour, url: str) -> None:
        retriever = BoundaryMorphRetriever(base_url=url, index="texts", k=2, budget=1)
        queries = ["a", "b", "c"]
        if flavour is Flavour.ASYNC:
            found = await retriever.abatch(queries)
        else:
            found = await asyncio.to_thread(retriever.batch, queries)
        assert [len(documents) for documents in found] == [2, 2, 2]

    @pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
    def test_is_written_down_without_its_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = BoundaryMorphRetriever(
            base_url="http://a", api_key=SecretStr("bm_secret"), index="i", k=3, options={"depth": 9}
        )
        text = dumps(made)
        assert "bm_secret" not in text
        assert "bm_secret" not in repr(made)
        monkeypatch.setenv("BOUNDARYMORPH_API_KEY", "bm_secret")
        again = loads(
            text,
            allowed_objects=[BoundaryMorphRetriever],
            valid_namespaces=["boundarymorph_client"],
            secrets_from_env=True,
        )
        assert (again.index, again.k, again.options, again.api_key) == ("i", 3, {"depth": 9}, SecretStr("bm_secret"))


async def test_the_example(url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    await check_example("with_langchain.py", url, monkeypatch, capfd)
