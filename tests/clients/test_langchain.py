"""Test the components in LangChain's own chains: options and serialisation."""

from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.load import dumps, loads
from langchain_core.runnables import ConfigurableField
from pydantic import SecretStr

from boundarymorph_client.langchain import BoundaryMorphRerank, BoundaryMorphRetriever
from tests.clients.conftest import Recorder


def test_reranker_works_in_a_compression_retriever(url: str, recorder: Recorder) -> None:
    retriever = BoundaryMorphRetriever(base_url=url, index="texts", k=20, budget=0)
    chain = ContextualCompressionRetriever(
        base_retriever=retriever, base_compressor=BoundaryMorphRerank(base_url=url, k=4, title_field="title")
    )
    assert len(chain.invoke("music of the sea")) == 4
    sent = recorder.bodies[-1]["pool"]["documents"]
    assert len(sent) == 20 and all(each["title"] == each["text"].replace("text", "Title") for each in sent)


@pytest.mark.parametrize("later", [False, True])
async def test_retriever_takes_options_per_call(url: str, recorder: Recorder, later: bool) -> None:
    """Options may be arguments, bound, or configurable fields."""
    retriever = BoundaryMorphRetriever(base_url=url, index="texts", k=9, options={"depth": 20})
    bound, configurable = retriever.bind(k=2, budget=1), retriever.configurable_fields(k=ConfigurableField("chosen"))
    steps: list[tuple[Any, Any, int]] = [
        (bound, None, 2), (configurable, {"configurable": {"chosen": 3}}, 3), (retriever, None, 9)
    ]  # fmt: skip
    for runnable, config, k in steps:
        found = await runnable.ainvoke("q", config) if later else runnable.invoke("q", config)
        assert len(found) == k
    assert [(body["k"], body["depth"]) for body in recorder.bodies] == [(2, 20), (3, 20), (9, 20)]
    assert recorder.bodies[0]["budget"] == 1


@pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
def test_retriever_is_serialized_without_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    key = SecretStr("bm_secret")
    made = BoundaryMorphRetriever(base_url="http://a", api_key=key, index="i", k=3, options={"depth": 9})
    text = dumps(made)
    assert "bm_secret" not in text + repr(made)
    monkeypatch.setenv("BOUNDARYMORPH_API_KEY", "bm_secret")
    allowed: dict[str, Any] = {
        "allowed_objects": [BoundaryMorphRetriever], "valid_namespaces": ["boundarymorph_client"]
    }  # fmt: skip
    again = loads(text, secrets_from_env=True, **allowed)
    assert (again.index, again.k, again.options, again.api_key) == ("i", 3, {"depth": 9}, key)
