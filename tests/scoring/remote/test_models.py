"""Test the documented answers of current models, and relevant spans in the service."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundarymorph.caching.scores import MemoryScoreCache
from boundarymorph.remote.wire import Span, TextContext
from boundarymorph.scoring.build import full_pass
from boundarymorph.scoring.remote import MOST_SPANS, parse
from boundarymorph.scoring.rerankers import KNOWN
from boundarymorph.settings import ScorerSettings, Settings
from tests.fakes.scorer import score_of
from tests.fakes.service import answer, faked, select, serving
from tests.fakes.upstream import Reply, well
from tests.fakes.upstream import answer as answered
from tests.fakes.wires import Cohere, Wire, running, scoring

PAGE = Path(__file__).parents[3] / "docs/models.md"
PRO = "rerank-v5.0-pro"
SPANS = [{"start": 18, "end": 41, "score": 0.98}, {"start": 0, "end": 16, "score": 0.71}]


class Recorded(Wire):
    """A server that gives one answer."""

    most = 512

    def __init__(self, scheme: str, path: str, body: Any, *, model: str = "", lists: bool = False) -> None:
        self.scheme, self.score_path, self.body, self.models = scheme, path, body, (model,)
        if lists:
            self.description_path, self.description = "/v1/models", {"object": "list", "data": [{"id": model}]}

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body["model"] == self.models[0]
        return Reply(self.body)


def listed(name: str, *scores: float, **fields: Any) -> list[dict[str, Any]]:
    return [{"index": index, name: score, **fields} for index, score in enumerate(scores)]


def of_logits(*logits: float) -> list[float]:
    return [1 / (1 + math.exp(-logit)) for logit in logits]


QWEN, USAGE = "Qwen/Qwen3-Reranker-0.6B", {"prompt_tokens": 56, "total_tokens": 56}
DOCUMENTED: list[tuple[Recorded, list[float]]] = [
    (
        Recorded(
            "cohere+http",
            "/v2/rerank",
            {
                "id": "07734bd2-2473-4f07-94e1-0d9f0e6843cf",
                "results": [
                    {"index": 1, "relevance_score": 0.999071, "relevant_spans": SPANS},
                    {"index": 0, "relevance_score": 0.1867867},
                ],
                "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 56}},
            },
            model=PRO,
        ),
        [0.1867867, 0.999071],
    ),
    (
        Recorded(
            "voyage+http",
            "/v1/rerank",
            {
                "object": "list",
                "data": listed("relevance_score", 0.4375, 0.421875),
                "model": "rerank-3",
                "usage": {"total_tokens": 26},
            },
            model="rerank-3",
        ),
        [0.4375, 0.421875],
    ),
    (
        Recorded(
            "jina+http",
            "/v1/rerank",
            {
                "model": "jina-reranker-v3.5",
                "object": "list",
                "usage": {"total_tokens": 815},
                "results": listed("relevance_score", 0.5, -0.25),
            },
            model="jina-reranker-v3.5",
        ),
        [0.75, 0.375],
    ),
    (
        Recorded(
            "nim",
            "/v1/ranking",
            {"rankings": listed("logit", -1.2421875, -5.41015625), "usage": USAGE},
            model="nvidia/llama-nemotron-rerank-1b-v2",
            lists=True,
        ),
        of_logits(-1.2421875, -5.41015625),
    ),
    (
        Recorded(
            "vllm",
            "/v1/rerank",
            {
                "id": "rerank-1",
                "model": "nvidia/Nemotron-3.5-Rerank-8B-BF16",
                "usage": USAGE,
                "results": listed("relevance_score", 0.75, 0.25, document={"text": "a"}),
            },
            model="nvidia/Nemotron-3.5-Rerank-8B-BF16",
            lists=True,
        ),
        [0.75, 0.25],
    ),
    (
        Recorded(
            "sglang",
            "/v1/rerank",
            listed("score", 0.7981867777396212, 0.0002034269780552065, document=None, meta_info=None),
            model=QWEN,
            lists=True,
        ),
        [0.7981867777396212, 0.0002034269780552065],
    ),
    (
        Recorded(
            "llamacpp",
            "/v1/rerank",
            {"model": QWEN, "object": "list", "usage": USAGE, "results": listed("relevance_score", 0.9971, 0.0072)},
            model=QWEN,
            lists=True,
        ),
        [0.9971, 0.0072],
    ),
]


@pytest.mark.parametrize(("wire", "expected"), DOCUMENTED, ids=[wire.models[0] + wire.scheme for wire, _ in DOCUMENTED])
async def test_documented_answer_of_each_model_is_read(wire: Recorded, expected: Sequence[float]) -> None:
    async with running(wire) as [server], scoring(server) as scorer:
        scores = await scorer.score("q", ["a", "b"])
        known = KNOWN.get(f"{wire.scheme.removesuffix('+http')}:{wire.models[0]}")
        assert scorer.max_length == (None if known is None else known.tokens)
    np.testing.assert_allclose(scores.values, expected, rtol=1e-9)
    assert scores.spans == ({"b": [Span(18, 41, 0.98), Span(0, 16, 0.71)]} if wire.models[0] == PRO else {})


@pytest.mark.parametrize(
    ("url", "together"),
    [
        ("jina://?model=jina-reranker-v3.5", 64),
        ("jina+http://proxy?model=jina_ai/jina-reranker-v3", 64),
        ("jina://?model=jina-reranker-v2", 1),
        ("cohere://?model=rerank-v5.0-pro", 1),
    ],
)
def test_listwise_model_is_recognized_by_name_behind_a_proxy(url: str, together: int) -> None:
    assert full_pass(ScorerSettings(url=(url,))) == together


def test_activation_in_the_url_overrides_the_table() -> None:
    wire_format = parse("jina://?model=jina-reranker-v3.5&activation=none").format
    read = wire_format.read(b'{"results": [{"index": 0, "relevance_score": 0.25}]}', 1)
    assert read.values.tolist() == [0.25]


@pytest.mark.parametrize(
    "part", [None, "x", {"start": 0}, {"start": 3, "end": 3, "score": 0.5}, {"start": 0, "end": 1, "score": 1.5}]
)
def test_malformed_or_surplus_spans_are_dropped_and_scores_kept(part: Any) -> None:
    wire_format = parse(f"cohere://?model={PRO}").format
    good = {"start": 0, "end": 1, "score": 0.5}
    result = {"index": 0, "relevance_score": 0.5, "relevant_spans": [part, *[good] * MOST_SPANS]}
    read = wire_format.read(Reply({"results": [result]}).encoded().partition(b"\r\n\r\n")[2], 1)
    assert read.values.tolist() == [0.5] and read.spans == [[Span(0, 1, 0.5)] * (MOST_SPANS - 1)]
    assert (
        "relevant_spans"
        not in parse("cohere://?model=rerank-v4.0-pro").format.request("m", TextContext("q"), ["a"], 1.0).body
    )


class Focused(Cohere):
    """Cohere's Rerank 5, whose relevant spans are the first and the next ten characters."""

    models = (PRO,)

    def reply(self, body: dict[str, Any]) -> Reply:
        assert body["relevant_spans"] == {"mode": "enabled", "max_spans": MOST_SPANS}
        reply = super().reply(body)
        for result in reply.body["results"]:
            score = score_of(body["query"], body["documents"][result["index"]])
            result["relevant_spans"] = [{"start": 10 * n, "end": 10 * n + 10, "score": score / (n + 1)} for n in (0, 1)]
        return reply


async def test_relevant_spans_stay_with_their_texts_across_requests() -> None:
    texts = [f"text {number}" for number in range(1_001)]
    async with running(Focused()) as [server], scoring(server) as scorer:
        spans = (await scorer.score("q", texts)).spans
        assert len(server.batches) == 2
        server.script = [well, answered({}, 400)]
        some = await scorer.score("q", texts)
    assert {text: parts[0].score for text, parts in spans.items()} == {text: score_of("q", text) for text in texts}
    assert [text for text, value in zip(texts, some.values, strict=True) if value == value] == list(some.spans)
    assert 0 < len(some.spans) < len(texts)


async def test_relevant_spans_of_fresh_scores_reach_the_answers(tmp_path: Path) -> None:
    texts = [f"text {number} " + "of the same music " * 3 for number in range(8)]
    pool = [{"id": f"d{number}", "text": text, "score": -number} for number, text in enumerate(texts)]
    pool[0]["title"] = "Title"  # the scorer reads it before the text
    async with running(Focused()) as [server], scoring(server) as scorer:
        settings = Settings(data_directory=tmp_path)
        async with serving(settings, faked(scorer, cache=MemoryScoreCache())) as client:
            request = {"query": "q", "pool": pool, "k": 8, "budget": 5, "rounds": 1, "spend": "order"}
            first = {document["id"]: document for document in (await select(client, **request))["documents"]}
            scored = {id for id, document in first.items() if document["source"] == "cross_encoder"}
            assert len(scored) == 5 and "d0" in scored
            for id, document in first.items():
                places = [(span["start"], span["end"]) for span in document["relevant_spans"] or []]
                expected = [(0, 4), (4, 14)] if id == "d0" else [(0, 10), (10, 20)]
                assert places == (expected if id in scored else [])
            again = (await select(client, **request))["documents"]
            assert all(document["relevant_spans"] is None for document in again if document["id"] in scored)

            several = {"queries": ["q1", "q2"], "pool": pool[1:], "k": 7, "budget": 14, "rounds": 1}
            both = (await select(client, **several))["documents"]
            for document in both:
                asked, text = several["queries"][document["query"]], texts[int(document["id"][1:])]  # type: ignore[index]
                assert document["relevant_spans"][0]["score"] == pytest.approx(score_of(asked, text))

            body: dict[str, Any] = {"model": "m", "query": "other", "documents": texts}
            spans = {"mode": "enabled", "threshold": 0.0, "max_spans": 1}
            ranked = answer(await client.post("/v2/rerank", json=body | {"relevant_spans": spans}))
            assert [[span["start"] for span in result["relevant_spans"]] for result in ranked["results"]] == [[0]] * 8
            for wanted in (None, {"mode": "disabled"}):
                plain = answer(await client.post("/v2/rerank", json=body | {"query": "new", "relevant_spans": wanted}))
                assert not any("relevant_spans" in result for result in plain["results"])
            known = answer(await client.post("/v2/rerank", json=body | {"relevant_spans": spans}))
            assert any(said.startswith("relevant_spans has no effect") for said in known["meta"]["warnings"])
            least = answer(
                await client.post("/v2/rerank", json=body | {"query": "x", "relevant_spans": {"threshold": 0.9}})
            )
            found = [span["score"] for result in least["results"] for span in result["relevant_spans"]]
            assert all(score >= 0.9 for score in found)


def test_models_page_lists_the_known_models() -> None:
    page = PAGE.read_text()
    rows = re.findall(r"^\| (`[^|]+`) \| ([\d,]+|) \| (\w+) \| (\d+) \| (weak|normal|strong) \|$", page, re.M)
    table = {
        name: (
            f"{known.tokens:,}" if known.tokens else "",
            known.results,
            str(known.together),
            known.trust,
        )
        for name, known in KNOWN.items()
        if known.trust != "weak"
    }
    assert {name: tuple(fields) for names, *fields in rows for name in re.findall("`([^`]+)`", names)} == table
    (relative,) = re.findall(r"Only results of\s+`(\S+)` depend on the other documents", page)
    assert {re.split("[:/]", name)[-1] for name, known in KNOWN.items() if not known.absolute} == {relative}
