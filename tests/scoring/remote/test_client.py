"""Test the remote scorer when servers fail, hang, are overloaded, differ, or refuse."""

import asyncio
import time
from collections import Counter

import numpy as np
import pytest

from boundarymorph.errors import DeadlineExceeded, InvalidConfiguration, Overloaded, ScorerFailed, ScorerUnavailable
from boundarymorph.remote.balancer import BACKOFF
from boundarymorph.remote.urls import Endpoint
from boundarymorph.scoring.remote import DEADLINE_SHARE, RemoteScorer, parse
from tests.clocks import Clock
from tests.contract.scorer import QUERY, TEXTS
from tests.fakes.scorer import score_of
from tests.fakes.upstream import Behaviour, Reply, answer, edited, hang, reset, slow, well
from tests.fakes.wires import Cohere, Ours, Server, running, scoring
from tests.metrics import counted
from tests.patience import until_async

KEY = "sk-0123456789"


async def check(scorer: RemoteScorer, texts: list[str] = TEXTS) -> None:
    np.testing.assert_array_equal((await scorer.score(QUERY, texts)).values, [score_of(QUERY, t) for t in texts])


class TestFailover:
    async def test_broken_connection_counts_as_a_failure_only_if_it_was_fresh(self) -> None:
        async with running(Ours()) as [server], scoring(server) as scorer:
            for _ in range(3):
                await check(scorer)
                server.script = [reset]
                await check(scorer)
            server.behaviour, before = reset, len(server.asked)
            with pytest.raises(ScorerUnavailable, match=r"the request to .* failed"):
                await scorer.score(QUERY, TEXTS)
            assert len(server.asked) == before + 2, "one over the idle connection, one over a fresh one"


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
    async def test_request_that_may_have_been_served_is_not_repeated(
        self, behaviour: Behaviour, error: type[Exception], said: str
    ) -> None:
        async with running(Cohere(), Cohere()) as servers, scoring(*servers, attempt_timeout=1.0) as scorer:
            for _ in range(4):
                await check(scorer)
            for server in servers:
                server.behaviour, server.asked = behaviour, []
            with pytest.raises(error, match=said):
                await scorer.score(QUERY, TEXTS)
            assert sum(len(server.asked) for server in servers) == 1


class TestRefusal:
    async def test_refused_key_is_named_and_ejects_no_server(self) -> None:
        async with running(Ours(), key=KEY) as [server]:
            for wrong in (None, "", "sk-wrong"):
                async with scoring(server, api_key=wrong) as scorer:
                    for attempt in (scorer.score(QUERY, TEXTS), scorer.score(QUERY, TEXTS), scorer.connect()):
                        with pytest.raises(ScorerFailed, match=r"401.*check the key") as caught:
                            await attempt
                        assert "sk-" not in str(caught.value)
            async with scoring(server, api_key=KEY) as scorer:
                await check(scorer)
                server.key = "another"
                with pytest.raises(ScorerFailed, match="401"):
                    await scorer.score(QUERY, TEXTS)
                server.key = KEY
                await check(scorer)

    @pytest.mark.parametrize("behaviour", [answer(KEY, 400), answer(KEY, 500), answer(KEY, 429), hang])
    async def test_no_message_contains_the_key(self, behaviour: Behaviour, caplog: pytest.LogCaptureFixture) -> None:
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


class TestDeadline:
    async def test_deadline_applies_to_all_requests_of_a_call(self) -> None:
        async with running(Ours(most=1)) as [server], scoring(server) as scorer:
            await scorer.connect()
            server.script = [well, well]
            server.behaviour = hang
            scores = await scorer.score(QUERY, TEXTS, deadline=time.monotonic() + 1.5)
            assert np.isnan(scores.values).sum() == len(TEXTS) - 2 and isinstance(scores.failure, DeadlineExceeded)
            assert server.asked[-1]["deadline_ms"] <= 1500

    async def test_timeout_ends_a_call_without_a_deadline(self) -> None:
        async with running(Ours()) as [server], scoring(server, timeout=0.2) as scorer:
            server.description = hang
            with pytest.raises(DeadlineExceeded):
                await scorer.score(QUERY, TEXTS)
            server.description, server.behaviour = well, hang
            with pytest.raises(DeadlineExceeded):
                await scorer.score(QUERY, TEXTS)

    async def test_remote_scorer_sends_the_remaining_time(self) -> None:
        async with running(Ours()) as [server], scoring(server, timeout=20.0, attempt_timeout=10.0) as scorer:
            await scorer.score(QUERY, TEXTS)
            assert server.asked[0]["deadline_ms"] == DEADLINE_SHARE * 10_000


async def test_cancelled_score_closes_its_server_requests() -> None:
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
        "fault",
        [
            pytest.param(answer("no", 422), id="a refused request"),
            pytest.param(edited(lambda body: body | {"scores": [7.0, 7.0]}), id="logits"),
        ],
    )
    async def test_failed_request_leaves_other_scores_of_the_call(self, fault: Behaviour) -> None:
        async with running(Ours(most=2)) as [server], scoring(server, connections=4) as scorer:
            await scorer.connect()
            server.script = [fault]
            scores = await scorer.score(QUERY, TEXTS)
            there = ~np.isnan(scores.values)
            assert there.any() and not there.all() and isinstance(scores.failure, ScorerFailed)
            expected = np.array([score_of(QUERY, text) for text in TEXTS])
            np.testing.assert_array_equal(scores.values[there], expected[there])

    async def test_text_without_a_score_leaves_the_others_scored(self) -> None:
        async with running(Cohere()) as [server], scoring(server) as scorer:
            server.behaviour = answer({"results": [{"index": 0, "relevance_score": 1.0}]})
            scores = await scorer.score(QUERY, TEXTS[:2])
            np.testing.assert_array_equal(scores.values, [1.0, np.nan])
            assert "no score for 1 of 2 texts" in str(scores.failure)


class TestSeveralServers:
    async def test_scores_of_one_call_come_from_one_model(self, caplog: pytest.LogCaptureFixture) -> None:
        """The servers change their model when the old one has scored half of the texts."""
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

    async def test_server_that_scores_with_another_model_is_refused(self) -> None:
        async with running(Ours("a")) as [server], scoring(server) as scorer:
            server.wire.model = "b"  # type: ignore[attr-defined]
            with pytest.raises(ScorerFailed, match="scored with b, not with a"):
                await scorer.score(QUERY, TEXTS)
            assert len(server.asked) == 2

    async def test_server_with_a_lower_limit_gets_smaller_requests(self) -> None:
        clock = Clock(time.monotonic())
        async with running(Ours(most=4), Ours(most=2)) as [large, small], scoring(large, small, clock=clock) as scorer:
            await small.kill()
            await scorer.connect()
            await small.start()
            clock.now += BACKOFF
            await large.kill()
            await check(scorer, TEXTS[:4])
            assert small.batches == [2, 2]

    async def test_remote_scorer_opens_no_more_connections_than_allowed(self) -> None:
        async with running(Ours(most=1)) as [server], scoring(server, connections=3) as scorer:
            server.behaviour = slow(0.001)
            await asyncio.gather(*(check(scorer, TEXTS * 4) for _ in range(6)))
            assert server.connections <= 3


class TestConfiguration:
    def test_remote_scorer_name_before_connecting_uses_its_url(self) -> None:
        assert RemoteScorer([parse("tei://a:8080/x")]).name == "tei:a:8080"
        assert RemoteScorer([parse("vllm://a:8080?model=m")]).name == "vllm:m"

    @pytest.mark.parametrize(
        ("endpoints", "mistake"),
        [
            ([], "at least one"),
            ([parse("http://a"), parse("http://a/")], "twice"),
            ([parse("cohere://a?model=m"), parse("cohere://b?model=n")], "serves cohere:n@.*, but .* serves cohere:m@"),
        ],
    )
    def test_endpoints_that_do_not_fit_are_refused(self, endpoints: list[Endpoint], mistake: str) -> None:
        with pytest.raises(InvalidConfiguration, match=mistake):
            RemoteScorer(endpoints)

    @pytest.mark.parametrize("key", ["sk-ä", "sk-1\nX: 1", "sk-1 sk-2"])
    def test_key_that_no_header_can_carry_is_refused(self, key: str) -> None:
        with pytest.raises(InvalidConfiguration) as caught:
            RemoteScorer([parse("http://a")], api_key=key)
        assert "sk-" not in str(caught.value)


async def test_every_attempt_is_counted_by_outcome() -> None:
    async with running(Ours()) as [server], scoring(server) as scorer:
        before = attempts(server)
        server.script = [well, *(answer("full", status, retry_after="0.01") for status in (429, 503))]
        await check(scorer)
        await check(scorer)
        server.script = [answer("no", 400), answer("broken", 500)]
        with pytest.raises(ScorerFailed):
            await scorer.score(QUERY, TEXTS)
        with pytest.raises(ScorerUnavailable):
            await scorer.score(QUERY, TEXTS)
        assert attempts(server) - before == {"ok": 2, "overloaded": 2, "failed": 1, "unavailable": 1}
    async with running(Ours()) as [server], scoring(server) as scorer:
        before = attempts(server)
        server.behaviour = hang
        request = asyncio.create_task(scorer.score(QUERY, TEXTS))
        await until_async(server.arrived.is_set)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        with pytest.raises(DeadlineExceeded):
            await scorer.score(QUERY, TEXTS, deadline=time.monotonic() + 0.5)
        assert attempts(server) - before == {"cancelled": 1, "timeout": 1}


def attempts(server: Server) -> Counter[str]:
    """Return the number of attempts at a server's address, by outcome."""
    name, base = "boundarymorph_scorer_attempt_duration_seconds_count", server.endpoint().base
    outcomes = ("ok", "overloaded", "unavailable", "timeout", "failed", "cancelled")
    return Counter({outcome: int(counted(name, endpoint=base, outcome=outcome)) for outcome in outcomes})
