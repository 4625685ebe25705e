"""Test the answers of POST /select."""

from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest

from boundarymorph.selection.methods import METHODS
from boundarymorph.settings import Settings
from tests.fakes.scorer import score_of
from tests.fakes.service import answer, block, serving, streamed, texts
from tests.retrieval.fakes import vector_of

QUERY = "music of the sea"


async def select(client: httpx.AsyncClient, **request: Any) -> dict[str, Any]:
    return answer(await client.post("/select", json={"query": QUERY, **request}))


def ids(body: dict[str, Any]) -> list[str]:
    return [document["id"] for document in body["documents"]]


def check(
    body: dict[str, Any], texts_by_id: dict[str, str], budget: int, k: int, rounds: int = 1_000, spend: str = "order"
) -> None:
    """Check the properties that any answer of the fake service has.

    The `retrieval_rank` follows the encoder's vectors.
    """
    chosen, usage = body["documents"], body["usage"]
    count = len(texts_by_id)
    assert body["status"] == "complete"
    assert len(body["id"]) == 32
    assert (body["pool_size"], body["k"]) == (count, k)
    assert len(chosen) == min(k, count) == len(set(ids(body)))
    assert [document["rank"] for document in chosen] == list(range(1, len(chosen) + 1))

    fits = spend == "set" and k >= count
    calls = 0 if fits else min(budget, count)
    assert usage["budget"] == budget
    assert usage["cross_encoder_calls"] == calls
    assert usage["rounds"] == (1 if spend == "order" and calls == count else min(rounds, calls))
    assert body["stop_reason"] == ("nothing_to_decide" if fits else "budget" if calls == budget else "pool_exhausted")
    assert (body["warnings"] != []) == (budget > calls == 0)

    retrieval = {id: float(vector_of(text) @ vector_of(QUERY)) for id, text in texts_by_id.items()}
    order = sorted(retrieval, key=lambda id: -retrieval[id])
    for document in chosen:
        assert order[document["retrieval_rank"] - 1] == document["id"]
        assert document["retrieval_score"] == pytest.approx(retrieval[document["id"]], abs=1e-3)
        assert 0 <= document["relevance"] <= 1
        if document["source"] == "cross_encoder":
            exact = score_of(QUERY, texts_by_id[document["id"]])
            assert document["cross_encoder_score"] == document["relevance"] == exact
            assert document["std"] == 0
        else:
            assert document["source"] == "posterior"
            assert document["cross_encoder_score"] is None
            assert document["std"] > 0
    relevance = [document["relevance"] for document in chosen]
    assert relevance == sorted(relevance, reverse=True)

    timings = dict(body["timings_ms"])
    total = timings.pop("total")
    assert set(timings) <= {"receive", "parse", "wait", "retrieve", "fetch", "score", "select"}
    assert all(value >= 0 for value in timings.values())
    assert sum(timings.values()) <= total + 0.01


@pytest.mark.parametrize("spend", ["order", "set"])
@pytest.mark.parametrize("rounds", [3, 1_000])
@pytest.mark.parametrize(("budget", "k"), [(0, 5), (7, 39), (60, 5), (0, 60), (40, 60)])
async def test_selection_from_an_index_is_consistent(
    client: httpx.AsyncClient, budget: int, k: int, rounds: int, spend: str
) -> None:
    body = await select(client, index="texts", budget=budget, k=k, rounds=rounds, spend=spend)
    check(body, {document["id"]: document["text"] for document in texts(40)}, budget, k, rounds, spend)
    assert body["rounds"] is None
    assert all(document["text"] == f"text {document['id'][1:]}" for document in body["documents"])


async def test_embeddings_of_a_pool_may_have_any_documented_form(client: httpx.AsyncClient) -> None:
    given = texts(12)
    vectors = np.array([vector_of(document["text"]) for document in given])
    one_each = [document | {"embedding": row.tolist()} for document, row in zip(given, vectors, strict=True)]
    some = [document if number % 3 else one_each[number] for number, document in enumerate(given)]
    plain = await select(client, pool=given, budget=5, k=4, vectors="encoder", rounds=1)
    for pool in (
        one_each,
        some,
        {"documents": given, "embeddings": block(vectors)},
        {"documents": given, "embeddings": block(vectors, "float16")},
        {"documents": given, "embeddings": block(1e4 * vectors, "float16")},
        {"documents": given, "embeddings": block(1e-15 * vectors)},
    ):
        body = await select(client, pool=pool, budget=5, k=4, rounds=1)
        check(body, {document["id"]: document["text"] for document in given}, 5, 4, rounds=1)
        assert ids(body) == ids(plain)
    query = vector_of(QUERY)
    for vector in ((2 * query).tolist(), block(query), block(query, "float16"), block(query, shape=[32])):
        body = await select(client, pool=one_each, budget=5, k=4, rounds=1, query_embedding=vector)
        assert ids(body) == ids(plain)


async def test_query_embedding_replaces_the_encoded_query(client: httpx.AsyncClient) -> None:
    vector = vector_of("text 7").tolist()
    body = await select(client, index="texts", k=1, budget=0, query_embedding=vector)
    assert ids(body) == ["d7"]
    body = await select(client, index="own", k=1, budget=0, query_embedding=[0, 0, 5, 1])
    assert ids(body) == ["e2"]
    assert body["documents"][0]["retrieval_score"] == pytest.approx(5 / np.sqrt(26))


async def test_depth_bounds_the_size_of_the_pool(client: httpx.AsyncClient) -> None:
    for name in ("depth", "N"):
        body = await select(client, index="texts", k=3, budget=2, **{name: 10})
        assert body["pool_size"] == 10
        assert max(document["retrieval_rank"] for document in body["documents"]) <= 10


async def test_select_defaults_come_from_the_settings(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path, budget=6, k=3, depth=9, rounds=2)
    async with serving(settings) as client:
        answer(await client.put("/indexes/texts"))
        answer(await client.post("/indexes/texts/documents", json=texts(20)))
        body = await select(client, index="texts")
        assert (body["k"], body["pool_size"], body["usage"]["budget"], body["usage"]["rounds"]) == (3, 9, 6, 2)
        body = await select(client, pool=texts(20), k=None, budget=None)
        assert (body["k"], body["pool_size"], body["usage"]["budget"]) == (3, 20, 6)


@pytest.mark.parametrize("given", [{}, {"rounds": "auto"}])
async def test_rounds_grow_unless_their_number_is_fixed(client: httpx.AsyncClient, given: dict[str, Any]) -> None:
    body = await select(client, index="texts", k=5, budget=20, explain=True, **given)
    assert [len(entry["calls"]) for entry in body["rounds"]] == [2, 2, 2, 3, 4, 4, 3]
    assert body["usage"]["rounds"] == 7


async def test_documents_are_returned_for_an_index_and_on_request(client: httpx.AsyncClient) -> None:
    for asked in ({"index": "texts", "return_documents": False}, {"pool": ["a", "b"]}):
        body = await select(client, **asked, k=2, budget=0)
        assert [document[field] for document in body["documents"] for field in ("text", "metadata")] == [None] * 4
    body = await select(client, index="texts", k=5, budget=2)
    for document in body["documents"]:
        assert document["text"] == f"text {document['id'][1:]}"
        assert document["metadata"] == {"from": "index"}
        assert document["title"] is None
    metadata = {"nested": [1, 2.5, None, {"ü": "\u0000"}]}
    pool = [{"text": "", "title": "Ünïcode 🚋", "metadata": metadata}, {"text": "b"}]
    body = await select(client, pool=pool, k=2, return_documents=True)
    first = next(document for document in body["documents"] if document["id"] == "0")
    assert (first["title"], first["text"], first["metadata"]) == ("Ünïcode 🚋", "", metadata)


async def test_explain_pool_describes_every_candidate(client: httpx.AsyncClient) -> None:
    """Explaining does not change the selection."""
    plain = await select(client, index="texts", k=5, budget=8)
    body = await select(client, index="texts", k=5, budget=8, explain="pool")
    assert body["documents"] == plain["documents"] and len(body["rounds"]) == plain["usage"]["rounds"]
    pool = body["pool"]
    assert len(set(pool["ids"])) == 40
    for name in ("retrieval_scores", "first_relevance", "first_std", "relevance", "std"):
        assert len(pool[name]) == 40
    for document in body["documents"]:
        place = document["retrieval_rank"] - 1
        assert pool["ids"][place] == document["id"]
        for name in ("relevance", "std"):
            assert pool[name][place] == pytest.approx(document[name], abs=1e-5)
        assert pool["retrieval_scores"][place] == pytest.approx(document["retrieval_score"], abs=1e-5)
    assert all(std > 0 for std in pool["first_std"])
    first = await select(client, index="texts", k=5, budget=8, explain="pool", explain_depth=3)
    assert first["pool"] == {name: values[:3] for name, values in pool.items()}


@pytest.mark.parametrize("method", METHODS)
async def test_select_uses_the_requested_method(client: httpx.AsyncClient, method: str) -> None:
    body = await select(client, index="texts", k=5, budget=20, rounds=20, method=method, explain=True)
    check(body, {document["id"]: document["text"] for document in texts(40)}, 20, 5)
    assert body["method"] == method
    for entry in body["rounds"]:
        (call,) = entry["calls"]
        assert (call["gap"] is None) == (call["counterpart"] is None)
        assert call["rival"] == call["counterpart"]  # its earlier name
        assert call["value"] is None or call["counterpart"] is None


async def test_given_scores_cost_no_call(client: httpx.AsyncClient) -> None:
    plain = await select(client, pool=texts(40), k=10, budget=20)
    scores = {d["id"]: d["cross_encoder_score"] for d in plain["documents"] if d["cross_encoder_score"] is not None}
    assert scores
    pool = [{**document, "cross_encoder_score": scores.get(document["id"])} for document in texts(40)]
    again = await select(client, pool=pool, k=10, budget=15, explain=True)
    asked = {call["id"] for entry in again["rounds"] for call in entry["calls"]}
    assert not asked & scores.keys()
    assert len(asked) == again["usage"]["cross_encoder_calls"] == 15
    for document in again["documents"]:
        if document["id"] in scores:
            assert document["source"] == "cross_encoder"
            assert document["cross_encoder_score"] == scores[document["id"]]


async def test_pool_without_k_is_reranked(client: httpx.AsyncClient) -> None:
    """Clients of other rerankers send documents without k and this service's other fields."""
    body = await select(client, pool=texts(20), budget=30)
    scores = {document["id"]: score_of(QUERY, document["text"]) for document in texts(20)}
    assert ids(body) == sorted(scores, key=lambda id: -scores[id])
    assert {document["id"]: document["cross_encoder_score"] for document in body["documents"]} == scores
    assert (body["status"], body["stop_reason"], body["warnings"]) == ("complete", "pool_exhausted", [])
    assert (body["usage"]["cross_encoder_calls"], body["usage"]["rounds"]) == (20, 1)


async def test_select_warns_why_no_call_was_made(client: httpx.AsyncClient) -> None:
    known = [document | {"cross_encoder_score": 0.5} for document in texts(9)]
    for request, why in (
        ({"pool": texts(9), "spend": "set"}, "every document fits"),
        ({"pool": known}, "known already"),
        ({"pool": known, "k": 3, "budget": "auto"}, "known already"),
    ):
        body = await select(client, **request)
        assert body["usage"]["rounds"] == 0
        (warning,) = body["warnings"]
        assert warning["slug"] == "no-call-made" and why in warning["message"]
    assert (await select(client, pool=texts(9), budget=0))["warnings"] == []


@pytest.mark.parametrize(("tokens", "most", "count"), [(None, 810, 2), (None, 690, 1), (2_000, 810, 1)])
async def test_passage_counts_its_own_tokens_unless_the_document_has_a_count(
    client: httpx.AsyncClient, tokens: int | None, most: int, count: int
) -> None:
    """The long document has 1,600 tokens, in passages of 379 and one of 275.

    The selection counts one of its passages. The other document has 425 tokens.
    """
    long = {"id": "long", "text": "word " * 1_280} | ({} if tokens is None else {"tokens": tokens})
    pool = [long, {"id": "whole", "text": "word " * 340}]
    body = await select(client, pool=pool, passages=True, max_tokens=most, budget=9)
    assert len(set(ids(body))) == len(ids(body)) == count
    assert tokens is None or ids(body) == ["whole"]
    assert body["pool_size"] == 6


@pytest.mark.parametrize(
    "known", [{"known_scores": {"long": 0.25}}, {"pool": [{"cross_encoder_score": 0.25}, {}]}], ids=["by id", "in pool"]
)
async def test_known_score_of_a_long_document_stands_for_all_of_it(
    client: httpx.AsyncClient, known: dict[str, Any]
) -> None:
    text = " ".join(f"word{number}" for number in range(500))
    pool: list[dict[str, Any]] = [{"id": "long", "text": text}, {"id": "other", "text": text}]
    pool = [document | more for document, more in zip(pool, known.get("pool", [{}, {}]), strict=True)]
    fields = {"relevance": "scorer", "calibration": False, "passages": True, "budget": 9, "k": 2}
    body = await select(client, **known | fields | {"pool": pool})
    (long,) = [document for document in body["documents"] if document["id"] == "long"]
    assert (long["relevance"], long["source"], long["passage"]) == (0.25, "cross_encoder", None)
    assert body["usage"]["cross_encoder_calls"] == body["pool_size"] - 1 > 1, "passages of the other document"


class TestStreaming:
    REQUEST: ClassVar[dict[str, Any]] = {"query": "q", "index": "texts", "budget": 6, "rounds": 3, "k": 5}

    async def test_stream_has_an_event_per_round_and_then_the_selection(self, client: httpx.AsyncClient) -> None:
        response = await client.post("/select", json=self.REQUEST, headers={"accept": "text/event-stream"})
        names = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event")]
        assert names == ["round"] * 3 + ["selection"]
        *rounds, body = await streamed(client, **self.REQUEST, reuse=False)
        assert [event["cross_encoder_calls"] for event in rounds] == [0, 2, 4]
        assert all(len(event["ids"]) == 5 and event["budget"] == 6 for event in rounds)
        plain = answer(await client.post("/select", json=self.REQUEST | {"reuse": False}))
        for whole in (body, plain):
            del whole["id"], whole["timings_ms"]
        assert body == plain


class TestFilter:
    DOCUMENTS: ClassVar[list[dict[str, Any]]] = [
        {"id": f"{number}", "text": text, "metadata": {"year": 2000 + number, "tags": ["even", "odd"][number % 2]}}
        for number, text in enumerate(
            ["a violin has strings", "a tram has wheels", "strings of a harp", "bread has a crust"] * 5
        )
    ]

    @pytest.fixture
    async def stored(self, client: httpx.AsyncClient) -> httpx.AsyncClient:
        answer(await client.put("/indexes/words"))
        answer(await client.post("/indexes/words/documents", json=self.DOCUMENTS))
        return client

    async def test_filter_restricts_the_pool(self, stored: httpx.AsyncClient) -> None:
        for filter, expected in (
            ({"year": {"gte": 2015}}, {"15", "16", "17", "18", "19"}),
            ({"and": [{"tags": "odd"}, {"year": {"lt": 2004}}]}, {"1", "3"}),
            ({}, {str(number) for number in range(20)}),
        ):
            body = await select(stored, index="words", k=20, budget=2, filter=filter)
            assert set(ids(body)) == expected
            assert body["pool_size"] == len(expected)
            hybrid = await select(stored, index="words", k=20, budget=2, filter=filter, hybrid=True)
            assert set(ids(hybrid)) == expected

    @pytest.mark.parametrize("more", [{}, {"hybrid": True}, {"max_tokens": 100}, {"budget": "auto"}])
    async def test_filter_that_matches_nothing_gives_an_empty_answer(
        self, stored: httpx.AsyncClient, more: dict[str, Any]
    ) -> None:
        request = {"query": "q", "index": "words", "explain": True, **more}
        body = answer(await stored.post("/select", json=request | {"filter": {"year": 1900}}))
        assert (body["documents"], body["pool_size"], body["rounds"], body["status"]) == ([], 0, [], "complete")
        assert body["stop_reason"] == "nothing_to_decide"
        nothing = {"slug": "no-document-passes-filter", "message": "no document passes the filter"}
        assert body["warnings"] == [nothing]
        assert (body["usage"]["cross_encoder_calls"], body["expected_loss"]) == (0, 0)
        body = answer(await stored.post("/select", json=request | {"filter": {"year": "2000"}}))
        assert body["documents"] == []
        said = "the filter compares 'year' with a string, and no document has a string there"
        assert body["warnings"] == [nothing, {"slug": "filter-type-mismatch", "message": said}]
        events = await stored.post(
            "/select", json=request | {"filter": {"year": 1900}}, headers={"accept": "text/event-stream"}
        )
        assert [line for line in events.text.splitlines() if line.startswith("event")] == ["event: selection"]
