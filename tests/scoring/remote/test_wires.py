"""Test the requests to each kind of server, and the reading of answers and descriptions."""

import math
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
import pytest

from boundarymorph.errors import InvalidInput, ScorerFailed
from boundarymorph.remote.wire import MalformedAnswer, TextContext
from boundarymorph.scoring.remote import DEADLINE_SHARE, MOST_SPANS, QUESTION, RemoteScorer, parse
from tests.contract.scorer import QUERY, TEXTS, ScorerContract
from tests.fakes.scorer import score_of
from tests.fakes.upstream import answer, edited
from tests.fakes.wires import Cohere, Ours, SystemOne, Tei, Wire, running, scoring

ASKED = {"query": "q", "documents": ["a", "b"]}
NAMED = {"model": "m"} | ASKED
RESULTS = [{"index": 1, "relevance_score": 0.75}, {"index": 0, "relevance_score": 0.25, "document": {"text": "a"}}]
LOGITS = [{"index": n, "relevance_score": score} for n, score in ((1, math.log(3)), (0, -math.log(3)))]
COSINES = [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": -0.5}]
QUESTIONS = {
    "model": "m",
    "state": {"query": "q"},
    "questions": {str(n): {"type": "noul", "instructions": f"{QUESTION}\n\n{text}"} for n, text in enumerate("ab")},
}
DECIDED = {"model": "m.0", "answers": {"1": {"type": "noul", "noul": 0.75}, "0": {"type": "noul", "noul": 0.25}}}
JUDGED = [{"score": score, "document": None, "index": n, "meta_info": None} for n, score in ((1, 0.75), (0, 0.25))]
RANKED = {"model": "m", "query": {"text": "q"}, "passages": [{"text": "a"}, {"text": "b"}], "truncate": "END"}
SPANS = {"relevant_spans": {"mode": "enabled", "max_spans": MOST_SPANS}}
VLLM = {"truncate_prompt_tokens": -1, "use_activation": True}
# A URL, the path and the body of the request for the scores of two texts, and an answer that gives them 0.25 and 0.75.
EXCHANGES = [
    (
        "http://a",
        "/score",
        {"query": "q", "texts": ["a", "b"], "deadline_ms": DEADLINE_SHARE * 10_000},
        {"model": "m", "scores": [0.25, 0.75]},
    ),
    (
        "tei://a",
        "/rerank",
        {"query": "q", "texts": ["a", "b"], "truncate": True, "raw_scores": False},
        [{"index": 1, "score": 0.75}, {"index": 0, "score": 0.25}],
    ),
    ("vllm://a", "/v1/rerank", NAMED | VLLM, {"id": "1", "results": RESULTS}),
    ("infinity://a", "/rerank", NAMED | {"raw_scores": False, "return_documents": False}, {"results": RESULTS}),
    (
        "llamacpp://a?activation=sigmoid",
        "/v1/rerank",
        NAMED | {"top_n": 2, "return_documents": False},
        {"results": LOGITS},
    ),
    ("sglang://a", "/v1/rerank", NAMED | {"return_documents": False}, JUDGED),
    (
        "nim://a",
        "/v1/ranking",
        RANKED,
        {"rankings": [{"index": 1, "logit": math.log(3)}, {"index": 0, "logit": -math.log(3)}]},
    ),
    ("cohere://?model=m", "/v2/rerank", NAMED | {"top_n": 2}, {"id": "1", "results": RESULTS}),
    ("cohere://?model=rerank-v5.0-fast", "/v2/rerank", NAMED | {"top_n": 2} | SPANS, {"id": "1", "results": RESULTS}),
    ("jina://?model=m", "/v1/rerank", NAMED | {"top_n": 2, "return_documents": False}, {"results": RESULTS}),
    (
        "jina://?model=jina-reranker-v3.5",
        "/v1/rerank",
        NAMED | {"top_n": 2, "return_documents": False},
        {"results": COSINES},
    ),
    ("jina://?model=m&activation=cosine", "/v1/rerank", None, {"results": COSINES}),
    ("voyage://?model=m", "/v1/rerank", NAMED | {"return_documents": False}, {"object": "list", "data": RESULTS}),
    ("systemone://?model=m", "/v1/systemone", QUESTIONS, DECIDED),
    ("decisions://?model=m", "/v1/decisions", QUESTIONS, DECIDED),
]


@pytest.mark.parametrize(("url", "path", "body", "answered"), EXCHANGES)
def test_wire_sends_and_reads_documented_exchanges(
    url: str, path: str, body: dict[str, Any] | None, answered: Any
) -> None:
    wire_format = parse(url).format
    request = wire_format.request("m", TextContext("q"), ["a", "b"], 10.0)
    assert (request.path, request.cut) == (path, 0)
    assert body is None or request.body == body
    read = wire_format.read(orjson.dumps(answered), 2)
    np.testing.assert_allclose(read.values, [0.25, 0.75], rtol=1e-12)
    assert read.truncated == 0


@pytest.mark.parametrize("url", ["http://a", "vllm://a", "sglang://a", "tei://a", "cohere://?model=m"])
def test_wire_sends_the_instruction_to_servers_that_take_one(url: str) -> None:
    body = parse(url).format.request("m", TextContext("q", "only of 2026"), ["a"], 10.0).body
    name = "instruct" if url.startswith("sglang") else "instruction"
    assert body.get(name) == ("only of 2026" if url.startswith(("http", "vllm", "sglang")) else None)


def described(url: str, **told: Any) -> Any:
    endpoint = parse(url)
    return endpoint.format.describe(orjson.dumps(told), endpoint.model)


TEI = {
    "model_id": "m",
    "model_sha": "0123456789abcdef",
    "model_dtype": "float16",
    "model_type": {"reranker": {}},
    "max_concurrent_requests": 500,
    "max_input_length": 512,
    "max_client_batch_size": 64,
}
OURS = {"model": "m@12/int8/512", "max_texts": 100, "max_length": 512, "instructed": True}
CARDS = [{"id": "other", "capabilities": ["embed"]}, {"id": "m", "capabilities": ["rerank"], "dtype": "auto"}]


@pytest.mark.parametrize(
    ("url", "told", "name", "model", "texts", "length"),
    [
        ("http://a", OURS, "m@12/int8/512", "m", 100, 512),
        ("http://a", {"model": "m"}, "m", "m", 512, None),
        ("http://a?model=m", OURS, "m@12/int8/512", "m", 100, 512),
        ("http://a?model=m@12/int8/512", OURS, "m@12/int8/512", "m", 100, 512),
        ("tei://a", TEI, "m@0123456789ab/float16/512", "m", 64, 512),
        ("tei://a", {"model_id": "m"}, "m", "m", 32, None),
        ("vllm://a", {"data": [{"id": "m", "max_model_len": 8192}]}, "m/8192", "m", 512, 8192),
        ("vllm://a", {"data": [{"id": "m"}, {"id": "lora", "parent": "m"}]}, "m", "m", 512, None),
        ("vllm://a?model=b", {"data": [{"id": "a"}, {"id": "b"}]}, "b", "b", 512, None),
        ("sglang://a", {"data": [{"id": "m", "max_model_len": 8192}]}, "m/8192", "m", 512, 8192),
        ("nim://a", {"object": "list", "data": [{"id": "m"}]}, "m", "m", 512, None),
        ("infinity://a", {"data": CARDS}, "m/auto", "m", 2048, None),
        ("llamacpp://a", {"data": [{"id": "m"}]}, "m", "m", 256, None),
    ],
)
def test_describe_reads_the_model_and_its_limits(
    url: str, told: Any, name: str, model: str, texts: int, length: int | None
) -> None:
    read = described(url, **told)
    assert (read.name, read.model, read.texts, read.length) == (name, model, texts, length)
    assert read.instructed == (told is OURS or url.startswith(("vllm", "sglang")))
    assert not url.startswith("http:") or read.revision == ("12" if told is OURS else "m")
    assert read.concurrent_texts == told.get("max_concurrent_requests")


@pytest.mark.parametrize(
    ("url", "told", "message"),
    [
        ("http://a?model=other", OURS, "serves m@12/int8/512, not other"),
        ("http://a", {"model": 7}, "'model' is 7, not a name"),
        ("tei://a?model=other", TEI, "serves m, not other"),
        ("tei://a", TEI | {"model_type": {"embedding": {}}}, "not a reranker but a model of type embedding"),
        ("vllm://a", {"data": [{"id": "a"}, {"id": "b"}]}, r"several models, a, b: choose one with \?model=NAME"),
        ("vllm://a?model=c", {"data": [{"id": "a"}, {"id": "b"}]}, "serves a, b, not c"),
        ("infinity://a", {"data": CARDS[:1]}, "no model of this kind"),
        ("infinity://a", {"data": {}}, "'data' is {}, not an array"),
    ],
)
def test_describe_refuses_another_model(url: str, told: Any, message: str) -> None:
    with pytest.raises(MalformedAnswer, match=message):
        described(url, **told)


def scored(*scores: Any) -> dict[str, Any]:
    return {"results": [{"index": index, "relevance_score": score} for index, score in enumerate(scores)]}


def decided(probability: Any) -> dict[str, Any]:
    return {"answers": {"0": {"type": "noul", "noul": probability}}}


NOT_JSON = "not JSON"
BROKEN = [
    ("http", b"<html>", NOT_JSON),
    ("http", b'{"scores": [NaN, NaN}', NOT_JSON),
    ("http", "fine", "'fine' where an object"),
    ("http", {}, "'scores' is missing, not an array"),
    ("http", {"scores": [0.5]}, "1 scores for 2 texts"),
    ("http", {"scores": [0.5] * 3}, "3 scores for 2 texts"),
    ("http", {"scores": [None, None]}, "no score for any of 2 texts"),
    ("http", {"scores": [True, 0.5]}, "score of text 0 is True, not a number"),
    ("http", {"scores": [0.5, 7.25], "model": "m"}, r"7.25 is not a relevance .*apply the sigmoid in the scorer"),
    ("http", {"scores": [0.5, 0.5], "model": "m", "truncated": -1}, "'truncated' is -1, not a count"),
    ("http", {"scores": [0.5, 0.5]}, "'model' is missing, not a name"),
    ("tei", {}, "not an array"),
    ("tei", [], "no score for any of 2 texts"),
    ("tei", ["a"], "'a' where an object"),
    ("tei", [{"index": 0, "score": 0.5}, {"index": 0, "score": 0.5}], "two scores for text 0"),
    ("tei", [{"index": 2, "score": 0.5}], "a score for text 2; the texts asked for are 0 to 1"),
    ("tei", [{"index": True, "score": 0.5}], "a score for text True"),
    ("tei", [{"index": 0, "score": -0.1}], r"-0.1 is not a relevance .*honour raw_scores.*\?activation=sigmoid"),
    ("cohere", [], r"\[\] where an object"),
    ("cohere", {"results": []}, "no score for any"),
    ("cohere", scored("high", 0.5), "'high', not a number"),
    ("cohere", scored(1.01, 0.5), "1.01 is not a relevance"),
    ("voyage", scored(0.5), "'data' is missing"),
    ("jina cosine", scored(1.1, 0.5), r"1.05 is not a relevance .*leave activation=cosine off"),
    ("jina cosine", scored("high", 0.5), "not a number"),
    ("jina sigmoid", scored(None, None), "no score for any"),
    ("systemone", {"model": "m"}, "missing where an object"),
    ("systemone", {"answers": [{"name": "0", "probability": 0.5}]}, "where an object"),
    ("systemone", decided(None), "no score for any of 2 texts"),
    ("systemone", decided(True), "not a number"),
    ("systemone", decided(1.5), "answers with probabilities"),
]


@pytest.mark.parametrize(("kind", "body", "message"), BROKEN)
def test_wire_refuses_an_answer_that_breaks_it(kind: str, body: Any, message: str) -> None:
    scheme, _, activation = kind.partition(" ")
    options = f"model=m&activation={activation}" if activation else "model=m"
    wire_format = parse(f"{scheme}://a?{options}").format
    with pytest.raises(MalformedAnswer, match=message):
        wire_format.read(body if isinstance(body, bytes) else orjson.dumps(body), 2)


@pytest.mark.parametrize("activation", ["", "none"])
def test_wire_asks_for_the_activation_unless_it_is_known(activation: str) -> None:
    url = f"llamacpp://a?activation={activation}" if activation else "llamacpp://a"
    with pytest.raises(MalformedAnswer, match="raw logit") as caught:
        parse(url).format.read(orjson.dumps(scored(7.7)), 1)
    assert ("?activation=sigmoid" in str(caught.value)) == (not activation)


@pytest.mark.parametrize("missing", ["null", "NaN", None])
def test_wire_keeps_scores_beside_a_missing_one_and_clips_rounding(missing: str | None) -> None:
    results = ['{"index": 0, "relevance_score": 1.0000001}']
    if missing is not None:
        results.append(f'{{"index": 1, "relevance_score": {missing}}}')
    read = parse("cohere://?model=m").format.read(f'{{"results": [{", ".join(results)}]}}'.encode(), 2)
    np.testing.assert_array_equal(read.values, [1.0, np.nan])


@pytest.mark.parametrize(("url", "most"), [("infinity://a", 122_880), ("systemone://?model=m", 8_000)])
def test_wire_cuts_texts_that_the_server_would_refuse(url: str, most: int) -> None:
    wire_format = parse(url).format
    longer, longest = (wire_format.request("m", TextContext("q"), ["a" * (most + n)], 10.0) for n in range(2))
    assert longer.body == longest.body
    assert (longer.cut, longest.cut) == (0, 1)


class TestRemoteScorer(ScorerContract):
    @pytest.fixture(params=[Ours, Tei, Cohere, SystemOne])
    async def scorer(self, request: pytest.FixtureRequest) -> AsyncIterator[RemoteScorer]:
        async with running(request.param()) as [server], scoring(server) as scorer:
            yield scorer

    async def test_closed_remote_scorer_refuses_calls(self, scorer: RemoteScorer) -> None:
        await scorer.close()
        with pytest.raises(RuntimeError):
            await scorer.score(QUERY, TEXTS)
        with pytest.raises(RuntimeError):
            await scorer.connect()

    async def test_lone_surrogate_in_a_text_is_invalid_input(self, scorer: RemoteScorer) -> None:
        with pytest.raises(InvalidInput, match="surrogate"):
            await scorer.score(QUERY, ["a", "\ud800"])


@pytest.mark.parametrize("wire", [Ours(), Ours(most=3), Tei(), Tei(most=3), SystemOne()])
async def test_scorer_splits_texts_over_the_request_limit(wire: Wire) -> None:
    texts = [f"text {index}" for index in range(wire.most + 1)]
    async with running(wire) as [server], scoring(server) as scorer:
        await scorer.score(QUERY, texts[1:])
        assert server.batches == [wire.most]
        scores = await scorer.score(QUERY, texts)
        assert len(server.batches) == 3 and sum(server.batches[1:]) == wire.most + 1
    np.testing.assert_array_equal(scores.values, [score_of(QUERY, text) for text in texts])


@pytest.mark.parametrize(("wire", "text"), [(Tei(), "é" * 300_000), (SystemOne(), "é" * 7_000)])
async def test_scorer_keeps_bodies_below_the_limit_of_the_server(wire: Wire, text: str) -> None:
    texts = [f"{index} {text}" for index in range(8)]
    async with running(wire) as [server], scoring(server) as scorer:
        scores = await scorer.score(QUERY, texts)
        assert len(server.batches) in (2, 4)
    np.testing.assert_array_equal(scores.values, [score_of(QUERY, text) for text in texts])


async def test_scorer_names_the_server_whose_answer_is_unusable() -> None:
    async with running(Ours()) as [server], scoring(server) as scorer:
        server.script = [answer(b"<html>")]
        with pytest.raises(ScorerFailed, match=rf"127\.0\.0\.1:{server.port} gives unusable scores: .*not JSON"):
            await scorer.score(QUERY, TEXTS)
        assert len(server.asked) == 1
        assert not np.isnan((await scorer.score(QUERY, TEXTS)).values).any()


async def test_scorer_sums_truncated_texts_over_requests() -> None:
    async with running(Ours(most=2)) as [server], scoring(server) as scorer:
        assert (await scorer.score(QUERY, ["short", "l" * 101, "l" * 102, "short", "l" * 103])).truncated == 3


async def test_scorer_refuses_a_server_of_another_kind() -> None:
    async with running(Ours()) as [server]:
        scorer = RemoteScorer([parse(f"vllm://127.0.0.1:{server.port}")])
        with pytest.raises(ScorerFailed, match=r"/v1/models answered 404.* is this a server of the kind 'vllm'\?"):
            await scorer.score(QUERY, TEXTS)
        await scorer.close()


async def test_scorer_refuses_a_description_that_does_not_fit() -> None:
    async with running(Tei()) as [server], scoring(server) as scorer:
        server.description = edited(lambda info: info | {"model_type": {"embedding": {}}})
        with pytest.raises(ScorerFailed, match=r"/info does not fit: .*not a reranker.* is this a server of the kind"):
            await scorer.score(QUERY, TEXTS)
        assert server.asked == []


async def test_replicas_with_different_activations_are_not_mixed() -> None:
    async with running(Tei(), Tei()) as (plain, read):
        scorer = RemoteScorer([plain.endpoint(), read.endpoint(activation="sigmoid")])
        for _ in range(8):
            scores = await scorer.score(QUERY, TEXTS)
            np.testing.assert_array_equal(scores.values, [score_of(QUERY, text) for text in TEXTS])
        assert plain.asked and not read.asked
        await scorer.close()
