"""Test the components in Haystack's own pipelines: serialisation, secrets, and filters."""

from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret

from boundarymorph_client.haystack import BoundaryMorphRanker, BoundaryMorphRetriever
from tests.clients.conftest import Recorder

FOUND = [Document(id=f"d{n}", content=f"text {n}", meta={"t": f"T{n}"}) for n in range(30)]
OURS = ["boundarymorph_client"]  # modules that a loaded pipeline may import


async def run_and_close(pipeline: Pipeline, given: dict[str, Any], later: bool) -> Any:
    if not later:
        return pipeline.run(given, include_outputs_from={"ranker"})
    result = await pipeline.run_async(given, include_outputs_from={"ranker"})
    await pipeline.close_async()
    return result


@pytest.mark.parametrize("later", [False, True])
async def test_pipeline_runs_after_serialization(
    later: bool, url: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_OURS", "bm_secret")
    store = InMemoryDocumentStore(index=f"found {later}")  # a store of this process
    store.write_documents([Document(id=found.id, content=found.content, meta=found.meta) for found in FOUND])
    ranker = BoundaryMorphRanker(base_url=url, top_k=4, title_field="t", api_key=Secret.from_env_var("KEY_OF_OURS"))
    made = Pipeline()
    made.add_component("retriever", InMemoryBM25Retriever(store, top_k=30))
    made.add_component("ranker", ranker)
    made.add_component("prompt", PromptBuilder("{% for d in documents %}{{ d.content }};{% endfor %}{{ query }}", "*"))
    made.connect("retriever", "ranker")
    made.connect("ranker.documents", "prompt.documents")
    written = made.dumps()
    assert "bm_secret" not in written
    pipeline = Pipeline.loads(written, allowed_modules=OURS)
    assert pipeline.to_dict()["components"] == made.to_dict()["components"]

    given = {name: {"query": "text"} for name in ("retriever", "ranker", "prompt")}
    result = await run_and_close(pipeline, given, later)
    assert recorder.seen[-1].headers["authorization"] == "Bearer bm_secret"
    sent = recorder.bodies[-1]["pool"]["documents"]
    assert len(sent) == 30 and all(each["title"] == each["text"].replace("text ", "T") for each in sent)
    chosen = result["ranker"]["documents"]
    assert len(chosen) == 4
    assert result["prompt"]["prompt"] == "".join(f"{document.content};" for document in chosen) + "text"


def test_ranker_reads_its_key_from_a_secret(url: str, recorder: Recorder) -> None:
    token = BoundaryMorphRanker(base_url=url, api_key=Secret.from_token("bm_secret"))
    for ranker in (token, BoundaryMorphRanker(base_url=url)):
        ranker.run("q", FOUND)
    sent = [seen.headers.get("authorization") for seen in recorder.seen]
    assert sent == ["Bearer bm_secret", None]
    with pytest.raises(ValueError, match="Cannot serialize token"):
        token.to_dict()
    with pytest.raises(ValueError, match="KEY_OF_OURS"):
        BoundaryMorphRanker(base_url=url, api_key=Secret.from_env_var("KEY_OF_OURS")).warm_up()


def test_retriever_filters_of_a_call_replace_its_own(url: str) -> None:
    early = {"field": "meta.n", "operator": "<", "value": 2}
    retriever = BoundaryMorphRetriever("texts", filters=early, base_url=url)
    assert {found.id for found in retriever.run("q")["documents"]} == {"d0", "d1"}
    late = {"field": "meta.n", "operator": ">=", "value": 7}
    some = {"operator": "AND", "conditions": [late, {"field": "meta.n", "operator": "in", "value": [0, 8]}]}
    assert {found.id for found in retriever.run("q", filters=some)["documents"]} == {"d8"}
