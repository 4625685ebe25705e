"""Test a trace over three processes, and that traces are off by default."""

from pathlib import Path

import pytest

from tests.system.service import retriever, scorer, service
from tests.telemetry.collector import Collector, collecting

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SECRET = "marmalade"
REQUEST = {
    "query": f"where is the {SECRET}",
    "pool": [{"id": f"{SECRET}-{n}", "text": f"{SECRET} number {n}"} for n in range(5)],
    "vectors": "encoder",
    "k": 2,
    "budget": 4,
    "rounds": 2,
    "reuse": False,
}


def configured(folder: Path, collector: Collector, more: str = "") -> Path:
    folder.mkdir()
    (folder / "boundarymorph.toml").write_text(f'traces.url = "{collector.url}"\nlog_format = "json"\n{more}')
    return folder


@pytest.mark.slow
def test_trace_spans_three_processes(tmp_path: Path) -> None:
    with collecting() as collector:
        folder = configured(tmp_path / "all", collector, "ready_interval_seconds = 0.1")
        with (
            retriever(folder / "behind") as pools,
            scorer(folder / "scorer.log") as scores,
            service(folder / "front", "--retriever-url", pools.url, "--scorer-url", scores.url) as front,
        ):
            headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "x-request-id": "its-id"}
            answer = front.client.post("/select", json=REQUEST, headers=headers)
            assert answer.json()["status"] == "complete"
            nowhere = {"index": "nowhere", "pool": None, "vectors": None, "calibration": False, "distinct": False}
            assert front.client.post("/select", json=REQUEST | nowhere, headers=headers).status_code == 404
            assert [running.stop() for running in (front, scores, pools)] == [0, 0, 0]
            lines = [line for line in front.lines if line.get("path") == "/select"]
            assert {line["trace_id"] for line in lines} == {TRACE}
            for running in (front, scores, pools):
                assert "Traceback" not in running.log
        ours = [span for span in collector.spans if span.trace == TRACE]
        by_id = {span.id: span for span in ours}
        assert {span.service for span in ours} == {f"boundarymorph{role}" for role in ("", "-scorer", "-retriever")}
        roots = [span for span in ours if span.parent == CALLER]
        assert [(span.service, span.name) for span in roots] == [("boundarymorph", "POST /select")] * 2
        root = next(span for span in roots if span.attributes["http.response.status_code"] == 200)
        assert root.attributes["boundarymorph.request_id"] == "its-id"
        assert root.attributes["openinference.span.kind"] == "RERANKER"
        assert root.attributes["gen_ai.operation.name"] == "retrieval"
        assert root.attributes["reranker.model_name"] == root.attributes["gen_ai.request.model"] != ""
        assert (root.attributes["reranker.top_k"], root.attributes["boundarymorph.cross_encoder_calls"]) == (2, 4)
        relevance = [document["relevance"] for document in answer.json()["documents"]]
        assert [root.attributes[f"reranker.output_documents.{n}.document.score"] for n in range(2)] == relevance
        stages = [span.name for span in ours if span.parent == root.id]
        assert stages.count("retrieve") == 1
        assert stages.count("score") == 2  # rounds
        assert stages.count("select") == 4
        # The spans of other processes are within the gateway's calls of them.
        for role, route, stage in (
            ("scorer", "POST /score", "score"),
            ("retriever", "POST /embed/query", "retriever.embed_query"),
        ):
            served = [span for span in ours if span.service == f"boundarymorph-{role}" and span.name == route]
            assert served
            for span in served:
                assert by_id[by_id[span.parent].parent].name == stage
        assert {span.name for span in ours if span.failed} >= {"retrieve", "retriever.retrieve"}
        assert SECRET.encode() not in collector.raw
        # Probes have no trace.
        assert {span.trace for span in collector.spans if span.name == "POST /score"} == {TRACE}


@pytest.mark.slow
def test_spans_show_query_and_documents(tmp_path: Path) -> None:
    with collecting() as collector:
        folder = configured(tmp_path / "all", collector, "traces.texts = true")
        with service(folder / "data") as running:
            answer = running.client.post("/select", json=REQUEST).json()
            assert answer["status"] == "complete"
            assert running.stop() == 0
        [root] = [span for span in collector.spans if not span.parent]
    assert root.name == "POST /select"
    assert root.attributes["reranker.query"] == root.attributes["gen_ai.retrieval.query.text"] == REQUEST["query"]
    for place, document in enumerate(answer["documents"]):
        shown = f"reranker.output_documents.{place}.document"
        assert root.attributes[f"{shown}.id"] == document["id"]
        assert root.attributes[f"{shown}.content"] == document["id"].replace("-", " number ")
    assert sum(name.startswith("reranker.input_documents.") and name.endswith(".id") for name in root.attributes) == 5
