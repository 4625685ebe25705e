"""The remote scorer when servers fail, hang, are overloaded, differ, or refuse."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from boundarymorph.errors import (
    DeadlineExceeded,
    InvalidConfiguration,
    InvalidInput,
    Overloaded,
    ScorerFailed,
    ScorerUnavailable,
)
from boundarymorph.remote.balancer import BACKOFF
from boundarymorph.scoring.remote import Endpoint, RemoteScorer, parse
from tests.clocks import Clock
from tests.contract.scorer import QUERY, TEXTS
from tests.fakes.scorer import score_of
from tests.fakes.upstream import Behaviour, Reply, answer, edited, hang, reset, slow, well
from tests.fakes.wires import Cohere, Ours, Tei, Vllm, Wire, running, scoring
from tests.patience import until_async

KEY = "sk-0123456789"


@pytest.mark.parametrize(("wire", "length"), [(Tei(), 512), (Vllm(), 8_192), (Ours(), None)])
async def test_what_it_reads_is_what_its_server_says(wire: Wire, length: int | None) -> None:
    async with running(wire) as servers, scoring(*servers) as scorer:
        assert scorer.max_length is None
        await scorer.connect()
        assert scorer.max_length == length


async def check(scorer: RemoteScorer, texts: list[str] = TEXTS) -> None:
    np.testing.assert_array_equal((await scorer.score(QUERY, texts)).values, [score_of(QUERY, t) for t in texts])


class TestFailover:
    async def test_all_refuse_connections(self) -> None:
        works: dict[str, bool] = {}
        async with running(Ours(), Ours()) as servers, scoring(*servers, on_change=works.__setitem__) as scorer:
            assert list(works.values()) == [True, True]
            for server in servers:
                await server.kill()
            with pytest.raises(ScorerUnavailable, match="cannot be reached") as raised:
                await scorer.score(QUERY, TEXTS)
            assert raised.value.logged, "when each stopped working"
            assert list(works.values()) == [False, False]
            with pytest.raises(ScorerUnavailable, match="cannot be reached"):
                await scorer.connect()

    async def test_a_request_of_many_parts_is_whole_when_its_first_finds_the_server_back(self) -> None:
        clock, texts = Clock(time.monotonic()), [f"text {index}" for index in range(100)]
        async with running(Tei()) as [server], scoring(server, clock=clock) as scorer:
            await server.kill()
            with pytest.raises(ScorerUnavailable):
                await scorer.score(QUERY, texts)
            await server.start()
            clock.now += BACKOFF
            await check(scorer, texts)
            assert server.batches == [25, 25, 25, 25]

    async def test_an_idle_connection_that_breaks_says_nothing(self) -> None:
        async with running(Ours()) as [server], scoring(server) as scorer:
            for _ in range(3):
                await check(scorer)
                server.script = [reset]
                await check(scorer)

    async def test_a_fresh_connection_that_breaks_is_a_failure(self) -> None:
        async with running(Ours()) as [server], scoring(server) as scorer:
            server.behaviour = reset
            with pytest.raises(ScorerUnavailable, match=r"the request to .* failed"):
                await scorer.score(QUERY, TEXTS)
            assert len(server.asked) == 2


class TestPaidRequests:
    @pytest.mark.parametrize(
        ("behaviour", "error", "said"),
        [
            (hang, ScorerUnavailable, "not retried"),
            (reset, ScorerUnavailable, "not retried"),
            (answer("broken", 500), ScorerUnavailable, "not retried"),
            (answer({"results": []}), ScorerFailed, "unusable scores"),
        ],
    )
    async def test_one_that_may_have_been_served_is_not_repeated(
        self, behaviour: Behaviour, error: type[Exception], said: str
    ) -> None:
        """Also where an idle connection breaks, of which nobody knows when it did."""
        async with running(Cohere(), Cohere()) as servers, scoring(*servers, attempt_timeout=0.3) as scorer:
            for _ in range(4):
                await check(scorer)
            for server in servers:
                server.behaviour, server.asked = behaviour, []
            with pytest.raises(error, match=said):
                await scorer.score(QUERY, TEXTS)
            assert sum(len(server.asked) for server in servers) == 1

    async def test_one_that_was_never_sent_goes_to_another_server_and_one_that_got_429_is_repeated(self) -> None:
        async with running(Cohere(), Cohere()) as servers, scoring(*servers) as scorer:
            await servers[1].kill()
            for _ in range(6):
                await check(scorer)
            servers[0].script = [answer({"message": "too many"}, 429, retry_after="0.05")]
            await check(scorer)
            assert len(servers[0].asked) == 8


class TestRefusal:
    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (400, {"error": "the  reason", "error_type": "Validation"}),
            (404, {"error": {"message": "the reason", "type": "invalid_request_error", "code": 400}}),
            (413, {"message": "the reason"}),
            (422, {"detail": [{"msg": "the reason"}]}),
            (501, {"title": "Invalid", "detail": "the reason"}),
            (307, b"the reason"),
        ],
    )
    async def test_is_passed_on_and_not_repeated(self, status: int, body: Any) -> None:
        async with running(Tei(), Tei()) as servers, scoring(*servers) as scorer:
            for server in servers:
                server.behaviour = answer(body, status)
            with pytest.raises(ScorerFailed, match=rf"/rerank answered {status}.*the reason"):
                await scorer.score(QUERY, TEXTS)
            assert sum(len(server.asked) for server in servers) == 1
            for server in servers:
                server.behaviour = well
            await check(scorer)

    async def test_of_the_key(self) -> None:
        async with running(Ours(), key=KEY) as [server]:
            for wrong in (None, "", "sk-wrong"):
                async with scoring(server, api_key=wrong) as scorer:
                    for _ in range(2):
                        with pytest.raises(ScorerFailed, match=r"401.*check the key") as caught:
                            await scorer.score(QUERY, TEXTS)
                        assert "sk-" not in str(caught.value)
                    with pytest.raises(ScorerFailed, match="401"):
                        await scorer.connect()
            async with scoring(server, api_key=KEY) as scorer:
                await check(scorer)

    async def test_a_refused_key_does_not_eject_a_server(self) -> None:
        async with running(Ours(), key=KEY) as [server], scoring(server, api_key=KEY) as scorer:
            await check(scorer)
            server.key = "another"
            with pytest.raises(ScorerFailed, match="401"):
                await scorer.score(QUERY, TEXTS)
            server.key = KEY
            await check(scorer)

    @pytest.mark.parametrize(
        "behaviour", [answer(KEY, 400), answer(KEY, 401), answer(KEY, 500), answer(KEY, 429), hang]
    )
    async def test_no_message_tells_the_key(self, behaviour: Behaviour, caplog: pytest.LogCaptureFixture) -> None:
        async with running(Ours()) as [server], scoring(server, api_key=KEY, timeout=0.2) as scorer:
            server.behaviour = behaviour
            caplog.set_level("DEBUG", logger="boundarymorph")
            with pytest.raises((ScorerFailed, ScorerUnavailable, Overloaded, DeadlineExceeded)) as caught:
                await scorer.score(QUERY, TEXTS)
            chain: BaseException | None = caught.value
            while chain is not None:
                assert KEY not in str(chain) + repr(chain)
                chain = chain.__cause__ or chain.__context__
            assert KEY not in caplog.text
            assert KEY not in repr(scorer) + repr(vars(scorer))

    async def test_a_server_of_another_kind(self) -> None:
        async with running(Ours()) as [server]:
            scorer = RemoteScorer([parse(f"vllm://127.0.0.1:{server.port}")])
            with pytest.raises(ScorerFailed, match=r"/v1/models answered 404.* is this a server of the kind 'vllm'\?"):
                await scorer.score(QUERY, TEXTS)
            await scorer.close()


class TestDeadline:
    async def test_is_one_for_all_requests(self) -> None:
        async with running(Ours(most=1)) as [server], scoring(server) as scorer:
            await scorer.connect()
            server.script = [well, well]
            server.behaviour = hang
            scores = await scorer.score(QUERY, TEXTS, deadline=time.monotonic() + 0.5)
            assert np.isnan(scores.values).sum() == len(TEXTS) - 2 and isinstance(scores.failure, DeadlineExceeded)
            with pytest.raises(DeadlineExceeded):
                await scorer.score(QUERY, TEXTS, deadline=time.monotonic() + 0.5)
            assert server.asked[-1]["deadline_ms"] <= 500

    async def test_without_one_there_is_a_timeout(self) -> None:
        async with running(Ours()) as [server], scoring(server, timeout=0.2) as scorer:
            server.behaviour = hang
            with pytest.raises(DeadlineExceeded):
                await scorer.score(QUERY, TEXTS)

    async def test_that_has_passed(self) -> None:
        async with running(Ours()) as [server], scoring(server) as scorer:
            with pytest.raises(DeadlineExceeded):
                await scorer.score(QUERY, TEXTS, deadline=time.monotonic())
            assert server.described == 0

    async def test_while_the_server_describes_itself(self) -> None:
        async with running(Ours()) as [server], scoring(server, timeout=0.2) as scorer:
            server.description = hang
            with pytest.raises(DeadlineExceeded):
                await scorer.score(QUERY, TEXTS)

    async def test_our_scorer_tells_that_it_is_over(self) -> None:
        async with running(Ours()) as [server], scoring(server) as scorer:
            await scorer.connect()
            server.script = [answer({"title": "deadline exceeded"}, 504)]
            with pytest.raises(DeadlineExceeded):
                await scorer.score(QUERY, TEXTS, deadline=time.monotonic() + 5)
            await check(scorer)


class TestCancellation:
    async def test_reaches_the_server(self) -> None:
        async with running(Ours(most=2)) as [server], scoring(server) as scorer:
            server.behaviour = hang
            request = asyncio.create_task(scorer.score(QUERY, TEXTS))
            await until_async(lambda: len(server.asked) == 3)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            await until_async(lambda: server.left == 3)
            server.behaviour = well
            await check(scorer)


class TestPartialAnswers:
    pytestmark = pytest.mark.strangers

    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            pytest.param(answer("no", 422), ScorerFailed, id="a refused request"),
            pytest.param(answer(b"<html>"), ScorerFailed, id="an unusable answer"),
            pytest.param(edited(lambda body: body | {"scores": [7.0, 7.0]}), ScorerFailed, id="logits"),
        ],
    )
    async def test_a_request_that_fails_costs_the_others_nothing(
        self, fault: Behaviour, error: type[Exception]
    ) -> None:
        async with running(Ours(most=2)) as [server], scoring(server, connections=4) as scorer:
            await scorer.connect()
            server.script = [fault]
            scores = await scorer.score(QUERY, TEXTS)
            there = ~np.isnan(scores.values)
            assert there.any() and not there.all() and isinstance(scores.failure, error)
            expected = np.array([score_of(QUERY, text) for text in TEXTS])
            np.testing.assert_array_equal(scores.values[there], expected[there])

    @pytest.mark.parametrize("missing", ["null", "NaN", None])
    async def test_a_text_without_a_score_costs_the_others_nothing(self, missing: str | None) -> None:
        scored = ['{"index": 0, "relevance_score": 1.0000001}']
        if missing is not None:
            scored.append(f'{{"index": 1, "relevance_score": {missing}}}')
        async with running(Cohere()) as [server], scoring(server) as scorer:
            server.behaviour = answer(f'{{"results": [{", ".join(scored)}]}}'.encode())
            scores = await scorer.score(QUERY, TEXTS[:2])
            assert scores.values[0] == 1.0 and np.isnan(scores.values[1])
            assert "no score for 1 of 2 texts" in str(scores.failure)

    async def test_a_text_that_is_not_unicode_is_still_the_callers_mistake(self) -> None:
        async with running(Ours(most=1)) as [server], scoring(server) as scorer:
            with pytest.raises(InvalidInput):
                await scorer.score(QUERY, ["a", "\ud800"])


class TestSeveralServers:
    async def test_the_scores_of_a_call_are_of_one_model(self, caplog: pytest.LogCaptureFixture) -> None:
        """Half of it was done by the old one when the servers changed."""
        async with running(Ours("a", most=2)) as [server], scoring(server, connections=4) as scorer:
            await scorer.connect()

            async def change(reply: Reply) -> Reply:
                server.wire = Ours("b", most=2)
                return reply

            server.script = [well, change]
            scores = await scorer.score(QUERY, TEXTS)
            assert scores.model == "b" == scorer.name
            np.testing.assert_array_equal(scores.values, [score_of(QUERY, text) for text in TEXTS])
            assert [body["texts"] for body in server.asked].count(server.asked[0]["texts"]) == 2
        assert caplog.text.count("now serve another model: b") == 1

    async def test_a_server_that_never_is_what_it_says(self) -> None:
        async with running(Ours("a")) as [server], scoring(server) as scorer:
            server.wire.model = "b"  # type: ignore[attr-defined]
            with pytest.raises(ScorerFailed, match="scored with b, not with a"):
                await scorer.score(QUERY, TEXTS)
            assert len(server.asked) == 2

    async def test_one_that_restarts_with_another_model_is_followed_while_it_is_overloaded(self) -> None:
        async with running(Ours("a"), Ours("a")) as servers, scoring(*servers, timeout=0.5) as scorer:
            await scorer.connect()
            for server in servers:
                server.wire = Ours("b")
                server.drop_idle()
            servers[0].behaviour = answer("full", 429, retry_after="0.01")
            for _ in range(8):
                with suppress(DeadlineExceeded, Overloaded):
                    await scorer.score(QUERY, TEXTS)
            assert scorer.identity == "b"

    async def test_one_with_a_lower_limit_gets_smaller_requests(self) -> None:
        clock = Clock(time.monotonic())
        async with running(Ours(most=4), Ours(most=2)) as [large, small], scoring(large, small, clock=clock) as scorer:
            await small.kill()
            await scorer.connect()
            await small.start()
            clock.now += BACKOFF
            await large.kill()
            await check(scorer, TEXTS[:4])
            assert small.batches == [2, 2]

    async def test_no_more_connections_than_allowed(self) -> None:
        async with running(Ours(most=1)) as [server], scoring(server, connections=3) as scorer:
            server.behaviour = slow(0.001)
            await asyncio.gather(*(check(scorer, TEXTS * 4) for _ in range(6)))
            assert server.connections <= 3


class TestConfiguration:
    def test_names_before_anything_is_known(self) -> None:
        assert RemoteScorer([parse("tei://a:8080/x")]).name == "tei:a:8080"
        assert RemoteScorer([parse("vllm://a:8080?model=m")]).name == "vllm:m"
        assert RemoteScorer([parse("http://a:8080")]).name == "boundarymorph:a:8080"
        assert RemoteScorer([parse("cohere://?model=rerank-v3.5")]).name == "cohere:rerank-v3.5"

    @pytest.mark.parametrize(
        ("endpoints", "mistake"),
        [
            ([], "at least one"),
            ([parse("http://a"), parse("http://a/")], "twice"),
            ([parse("cohere://a?model=m"), parse("cohere://b?model=n")], "serves cohere:n@.*, but .* serves cohere:m@"),
            ([Endpoint(parse("cohere://?model=m").dialect, "https://a")], "needs the name of a model"),
        ],
    )
    def test_mistakes(self, endpoints: list[Endpoint], mistake: str) -> None:
        with pytest.raises(InvalidConfiguration, match=mistake):
            RemoteScorer(endpoints)

    @pytest.mark.parametrize("key", ["sk-ä", "sk-1\nX: 1", "sk-1 sk-2"])
    def test_a_key_that_no_header_carries(self, key: str) -> None:
        with pytest.raises(InvalidConfiguration) as caught:
            RemoteScorer([parse("http://a")], api_key=key)
        assert "sk-" not in str(caught.value)


async def test_every_attempt_is_told_to_the_observer() -> None:
    told: list[tuple[str, str]] = []

    def observe(endpoint: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        told.append((endpoint, outcome))

    async with running(Ours()) as [server], scoring(server, observe=observe) as scorer:
        await check(scorer)
        server.script = [answer("full", status, retry_after="0.01") for status in (429, 503)]
        await check(scorer)
        server.script = [answer("no", 400)]
        with pytest.raises(ScorerFailed):
            await scorer.score(QUERY, TEXTS)
        server.arrived.clear()
        server.script = [hang]
        request = asyncio.create_task(scorer.score(QUERY, TEXTS))
        await until_async(server.arrived.is_set)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        server.script = [hang]
        with pytest.raises(DeadlineExceeded):
            await scorer.score(QUERY, TEXTS, deadline=time.monotonic() + 0.5)
        server.script = [answer("broken", 500)]
        with pytest.raises(ScorerUnavailable):
            await scorer.score(QUERY, TEXTS)
        base = server.endpoint().base
    assert {endpoint for endpoint, _ in told} == {base}
    outcomes = [outcome for _, outcome in told]
    assert outcomes == ["ok", "overloaded", "overloaded", "ok", "failed", "cancelled", "timeout", "unavailable"]
    assert Counter(outcomes).total() == len(server.asked)
