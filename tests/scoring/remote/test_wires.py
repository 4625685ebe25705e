"""Every wire format against the contract, and what is particular to each."""

from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from boundarymorph.errors import InvalidInput, ScorerFailed
from boundarymorph.scoring.remote import DEADLINE_SHARE, RemoteScorer
from tests.contract.scorer import QUERY, TEXTS, ScorerContract
from tests.fakes.scorer import score_of
from tests.fakes.upstream import Behaviour, answer, edited
from tests.fakes.wires import (
    MODEL,
    Cohere,
    Decisions,
    Infinity,
    Jina,
    ListwiseJina,
    LlamaCpp,
    Ours,
    Server,
    SystemOne,
    Tei,
    Vllm,
    Voyage,
    Wire,
    running,
    scoring,
)

WIRES: list[Callable[[], Wire]] = [Ours, Tei, Vllm, Infinity, Cohere, Jina, Voyage]
NAMES = {
    Ours: MODEL,
    Tei: f"{MODEL}@0123456789ab/float16/512",
    Vllm: f"{MODEL}/8192@",  # and from there what stands for the server's address
    Infinity: f"{MODEL}/auto@",
    Cohere: f"cohere:{MODEL}@",
    Jina: f"jina:{MODEL}@",
    Voyage: f"voyage:{MODEL}@",
}


@pytest.fixture(params=WIRES, ids=lambda wire: wire.__name__)
def wire(request: pytest.FixtureRequest) -> Wire:
    made: Wire = request.param()
    return made


class TestRemoteScorer(ScorerContract):
    @pytest.fixture
    async def scorer(self, wire: Wire) -> AsyncIterator[RemoteScorer]:
        async with running(wire) as [server], scoring(server) as scorer:
            yield scorer

    async def test_a_closed_scorer_refuses_calls(self, scorer: RemoteScorer) -> None:
        await scorer.close()
        with pytest.raises(RuntimeError):
            await scorer.score(QUERY, TEXTS)
        with pytest.raises(RuntimeError):
            await scorer.connect()


async def test_the_limit_is_one_request_and_one_more_text_is_two(wire: Wire) -> None:
    texts = [f"text {index}" for index in range(wire.most + 1)]
    async with running(wire) as [server], scoring(server) as scorer:
        await scorer.score(QUERY, texts[1:])
        assert server.batches == [wire.most]
        scores = await scorer.score(QUERY, texts)
        assert len(server.batches) == 3 and sum(server.batches[1:]) == wire.most + 1
    np.testing.assert_array_equal(scores.values, [score_of(QUERY, text) for text in texts])


async def test_the_name_is_what_the_server_tells(wire: Wire) -> None:
    async with running(wire) as [server], scoring(server) as scorer:
        await scorer.connect()
        expected = NAMES[type(wire)]
        assert scorer.name.startswith(expected)
        assert len(scorer.name) == len(expected) + 8 * expected.endswith("@")
        assert server.asked == []


def _without_any(body: object) -> object:
    if isinstance(body, list):
        return []
    assert isinstance(body, dict)
    return {key: [] if isinstance(value, list) else value for key, value in body.items()}


def _twice_the_first(body: object) -> object:
    if isinstance(body, list):
        return [body[0], *body]
    assert isinstance(body, dict)
    return {key: [value[0], *value] if isinstance(value, list) else value for key, value in body.items()}


def _with_score(score: object) -> Callable[[object], object]:
    def edit(body: object) -> object:
        if isinstance(body, list):
            return [score if isinstance(one, float) else one | {_score_key(one): score} for one in body]
        assert isinstance(body, dict)
        return {key: edit(value) if isinstance(value, list) else value for key, value in body.items()}

    return edit


def _score_key(result: dict[str, object]) -> str:
    return "score" if "score" in result else "relevance_score"


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (answer(b"<html>"), "not JSON"),
        (answer("fine"), "'fine'"),
        (answer({}), "missing|not an array"),
        (edited(_without_any), "no score for any|0 scores for 2 texts"),
        (edited(_twice_the_first), "two scores|3 scores for 2 texts"),
        (edited(_with_score(None)), "no score for any of 2 texts"),
        (edited(_with_score(True)), "not a number"),
        (answer(b'{"scores": [NaN, NaN}'), "not JSON"),
        (edited(_with_score(7.25)), r"7.25 is not a relevance .*logit"),
        (edited(_with_score(-0.1)), r"-0.1 is not a relevance .*cosine"),
    ],
    ids=["html", "string", "empty", "missing", "double", "null", "bool", "nan", "logit", "cosine"],
)
async def test_an_answer_that_breaks_the_wire_is_refused(wire: Wire, behaviour: Behaviour, message: str) -> None:
    async with running(wire) as [server], scoring(server) as scorer:
        server.behaviour = behaviour
        with pytest.raises(ScorerFailed, match=message) as caught:
            await scorer.score(QUERY, TEXTS[:2])
        assert f"127.0.0.1:{server.port}" in str(caught.value)
        assert len(server.asked) == 1
        server.behaviour = edited(_with_score(1.0000005))
        np.testing.assert_array_equal((await scorer.score(QUERY, TEXTS[:2])).values, [1.0, 1.0])


async def test_half_a_surrogate_pair_is_the_callers_mistake(wire: Wire) -> None:
    async with running(wire) as [server], scoring(server) as scorer:
        with pytest.raises(InvalidInput, match="surrogate"):
            await scorer.score(QUERY, ["\ud800"])


class TestOurs:
    async def test_truncated_texts_are_counted_over_all_requests(self) -> None:
        async with running(Ours(most=2)) as [server], scoring(server) as scorer:
            assert (await scorer.score(QUERY, ["short", "l" * 101, "l" * 102, "short", "l" * 103])).truncated == 3

    async def test_the_scorer_is_given_the_time_that_is_left(self) -> None:
        async with running(Ours()) as [server], scoring(server, timeout=20.0, attempt_timeout=10.0) as scorer:
            await scorer.score(QUERY, TEXTS)
            assert server.asked[0]["deadline_ms"] == DEADLINE_SHARE * 10_000

    @pytest.mark.parametrize("wanted", ["a-model", "a-model@1234/int8/512", "another"])
    async def test_a_model_is_wanted_by_its_name_or_its_family(self, wanted: str) -> None:
        async with running(Ours("a-model@1234/int8/512")) as [server], scoring(server, model=wanted) as scorer:
            if wanted != "another":
                return await scorer.connect()
            with pytest.raises(ScorerFailed, match="serves a-model@1234/int8/512, not another"):
                await scorer.connect()

    async def test_a_count_that_is_none(self) -> None:
        async with running(Ours()) as [server], scoring(server) as scorer:
            server.behaviour = edited(lambda body: body | {"truncated": -1})
            with pytest.raises(ScorerFailed, match="not a count"):
                await scorer.score(QUERY, TEXTS)


class TestTei:
    async def test_bodies_stay_below_two_megabytes(self) -> None:
        texts = [f"{index} " + "é" * 300_000 for index in range(8)]
        async with running(Tei()) as [server], scoring(server) as scorer:
            scores = await scorer.score(QUERY, texts)
            assert len(server.batches) == 4
        np.testing.assert_array_equal(scores.values, [score_of(QUERY, text) for text in texts])

    async def test_another_limit_of_its_is_heeded(self) -> None:
        async with running(Tei(most=3)) as [server], scoring(server) as scorer:
            await scorer.score(QUERY, ["text"] * 10)
            assert max(server.batches) <= 3

    async def test_an_encoder_is_not_taken_for_a_reranker(self) -> None:
        async with running(Tei()) as [server], scoring(server) as scorer:
            server.description = edited(lambda info: info | {"model_type": {"embedding": {"pooling": "cls"}}})
            with pytest.raises(ScorerFailed, match="not a reranker but a model of type embedding"):
                await scorer.score(QUERY, TEXTS)
            assert server.asked == []


class TestSeveralModels:
    @pytest.mark.parametrize("kind", [Vllm, Infinity])
    async def test_one_must_be_chosen(self, kind: type[Vllm] | type[Infinity]) -> None:
        async with running(kind("a", "b")) as [server]:
            for model, said in (
                (None, r"several models, a, b: choose one with \?model=NAME"),
                ("c", "serves a, b, not c"),
            ):
                async with scoring(server, model=model) as scorer:
                    with pytest.raises(ScorerFailed, match=said):
                        await scorer.connect()
            async with scoring(server, model="b") as scorer:
                await scorer.score(QUERY, TEXTS)
                assert server.asked[0]["model"] == "b"
                assert scorer.name.startswith("b/")

    async def test_a_server_without_a_reranker_is_refused(self) -> None:
        async with running(Infinity()) as [server], scoring(server) as scorer:
            server.description = edited(lambda info: {"data": info["data"][:1]})
            with pytest.raises(ScorerFailed, match="no model of this kind"):
                await scorer.connect()


async def test_infinity_gets_no_more_characters_than_it_takes() -> None:
    async with running(Infinity()) as [server], scoring(server) as scorer:
        scores = await scorer.score(QUERY, ["a" * 122_881, "a" * 122_880])
        assert scores.truncated == 1
        assert scores.values[0] == scores.values[1]


class TestLogits(ScorerContract):
    @pytest.fixture
    async def scorer(self) -> AsyncIterator[RemoteScorer]:
        async with running(LlamaCpp()) as [server], scoring(server, activation="sigmoid") as scorer:
            yield scorer

    async def test_are_the_log_odds_of_its_scores(self, scorer: RemoteScorer) -> None:
        scores = await scorer.score(QUERY, TEXTS)
        np.testing.assert_allclose(scores.values, [score_of(QUERY, text) for text in TEXTS], rtol=1e-12)
        assert "/sigmoid" in scorer.name, "they are not known by the name of a server whose results are scores"


class TestDecisionModels(ScorerContract):
    @pytest.fixture(params=[SystemOne, Decisions])
    async def server(self, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
        async with running(request.param()) as [server]:
            yield server

    @pytest.fixture
    async def scorer(self, server: Server) -> AsyncIterator[RemoteScorer]:
        async with scoring(server) as scorer:
            yield scorer

    async def test_a_request_is_a_state_and_a_question_for_each_text(
        self, server: Server, scorer: RemoteScorer
    ) -> None:
        texts = [f"text {index}" for index in range(30)]
        scores = await scorer.score(QUERY, texts)
        [asked] = server.asked
        assert asked["model"] == MODEL
        assert asked["state"] == {"query": QUERY}
        assert [question["type"] for question in asked["questions"].values()] == ["noul"] * 30
        np.testing.assert_array_equal(scores.values, [score_of(QUERY, text) for text in texts])
        await scorer.score(QUERY, [*texts, "one more"])
        assert server.batches[1:] == [15, 16]

    async def test_long_texts_are_cut_and_requests_are_kept_small(self, server: Server, scorer: RemoteScorer) -> None:
        scores = await scorer.score(QUERY, ["é" * 8_001, "é" * 8_000, *["e" * 8_000] * 8])
        assert scores.truncated == 1
        assert scores.values[0] == scores.values[1]
        assert len(server.asked) > 1

    @pytest.mark.parametrize(
        ("behaviour", "message"),
        [
            (answer({"answers": {}}), "there is no score for any of 1 texts"),
            (answer({"model": "m"}), "there is missing"),
            (answer({"answers": {"0": {"type": "noul", "noul": None}}}), "there is no score for any of 1 texts"),
            (answer({"answers": {"0": {"type": "noul", "noul": True}}}), "not a number"),
            (answer({"answers": {"0": {"type": "noul", "noul": 1.5}}}), "answers with probabilities"),
            (answer({"answers": [{"name": "0", "probability": 0.5}]}), "where an object should be"),
        ],
    )
    async def test_an_answer_that_is_no_probability_is_refused(
        self, server: Server, scorer: RemoteScorer, behaviour: Behaviour, message: str
    ) -> None:
        server.behaviour = behaviour
        with pytest.raises(ScorerFailed, match=message):
            await scorer.score(QUERY, ["a text"])


class TestCosines(ScorerContract):
    @pytest.fixture
    async def scorer(self) -> AsyncIterator[RemoteScorer]:
        async with running(ListwiseJina()) as [server], scoring(server) as scorer:
            yield scorer

    async def test_become_relevances(self, scorer: RemoteScorer) -> None:
        scores = await scorer.score(QUERY, TEXTS)
        np.testing.assert_allclose(scores.values, [score_of(QUERY, text) for text in TEXTS], rtol=1e-12)

    async def test_of_any_server_if_its_url_says_so(self) -> None:
        async with running(Jina()) as [server], scoring(server, activation="cosine") as scorer:
            server.behaviour = edited(_with_score(-0.5))
            np.testing.assert_array_equal((await scorer.score(QUERY, TEXTS[:2])).values, [0.25, 0.25])
            assert "/cosine" in scorer.name
            server.behaviour = edited(_with_score(1.1))
            with pytest.raises(ScorerFailed, match="leave activation=cosine off"):
                await scorer.score(QUERY, TEXTS[:2])
            server.behaviour = edited(_with_score("high"))
            with pytest.raises(ScorerFailed, match="not a number"):
                await scorer.score(QUERY, TEXTS[:2])


@pytest.mark.parametrize("logit", [7.7, -11.0, 1.01, -0.01])
@pytest.mark.parametrize("activation", ["", "none"])
async def test_logits_are_refused_unless_announced(activation: str, logit: float) -> None:
    def one(body: dict[str, list[dict[str, float]]]) -> object:
        body["results"] = [{**result, "relevance_score": logit} for result in body["results"]]
        return body

    async with running(LlamaCpp()) as [server], scoring(server, activation=activation) as scorer:
        server.behaviour = edited(one)
        with pytest.raises(ScorerFailed, match="raw logit") as caught:
            await scorer.score(QUERY, ["a text"])
    assert ("?activation=sigmoid" in str(caught.value)) == (not activation)


async def test_replicas_of_which_one_is_read_otherwise_serve_another_model() -> None:
    async with running(Tei(), Tei()) as (plain, read):
        scorer = RemoteScorer([plain.endpoint(), read.endpoint(activation="sigmoid")])
        for _ in range(8):
            scores = await scorer.score(QUERY, TEXTS)
            np.testing.assert_array_equal(scores.values, [score_of(QUERY, text) for text in TEXTS])
        assert plain.asked and not read.asked
        await scorer.close()
