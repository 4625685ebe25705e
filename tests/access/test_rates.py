"""Test the rate limits of keys and the cost limits of language models.

The counters are in the process or in a real Redis, which may be unreachable.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.access.rates import Decision, RateLimited, RateLimits
from boundarymorph.errors import InvalidConfiguration
from boundarymorph.settings import RateLimitSettings, Settings
from tests import metrics
from tests.caching.servers import RedisServer
from tests.fakes.service import answer, bearer, problem, serving
from tests.patience import PATIENCE

NAMES = ("rag", "batch")
SECRETS = {name: callers.make_key(name, [Scope.SELECT]) for name in NAMES}
KEYS = tuple(str(key) for _, key in SECRETS.values())
PATIENT = 5.0  # seconds for a Redis that works


def limits_of(opened: AsyncExitStack, url: str | None, *, timeout: float = PATIENT, **settings: Any) -> RateLimits:
    limits = RateLimits(RateLimitSettings(timeout_seconds=timeout, **settings), NAMES, url=url)
    opened.push_async_callback(limits.close)
    return limits


async def admitted(limits: RateLimits, caller: str, requests: int) -> list[bool]:
    return [(await limits.take(caller)).refused is None for _ in range(requests)]


def unshared() -> float:
    return metrics.counted("boundarymorph_rate_limit_unshared_total")


class TestCounting:
    async def test_rate_limit_admits_up_to_the_limit_and_refuses_the_next(
        self, resources: AsyncExitStack, url: str | None
    ) -> None:
        limits, before = limits_of(resources, url, default="3/hour"), unshared()
        decisions = [await limits.take("rag") for _ in range(4)]
        assert [decision.limits[0].remaining for decision in decisions] == [2, 1, 0, 0]
        assert [decision.refused is None for decision in decisions] == [True, True, True, False]
        decisions[2].check()
        with pytest.raises(RateLimited, match=r"3 requests in 3,600 s") as raised:
            decisions[3].check()
        assert 1 <= raised.value.retry_after <= 3_600
        assert unshared() == before

    async def test_rate_limit_that_is_used_up_first_refuses(self, resources: AsyncExitStack, url: str | None) -> None:
        limits = limits_of(resources, url, default="4/day; 2/hour")
        assert await admitted(limits, "rag", 4) == [True, True, False, False]
        decision = await limits.take("rag")
        assert [limit.name for limit in decision.limits] == ['"2-in-3600s"']
        assert decision.refused == decision.limits[0]

    async def test_caller_without_a_rate_limit_is_always_admitted(
        self, resources: AsyncExitStack, url: str | None
    ) -> None:
        limits = limits_of(resources, url, default="1/hour", keys={"batch": "unlimited"})
        assert [await limits.take("batch") for _ in range(3)] == [Decision()] * 3
        assert await limits_of(resources, url).take("rag") == Decision()


class TestRedis:
    @pytest.mark.parametrize("settings", [{"default": "3/hour"}, {"keys": {"rag": "3/hour"}}])
    async def test_two_processes_share_a_rate_limit_through_redis(
        self, resources: AsyncExitStack, server: RedisServer, settings: dict[str, Any]
    ) -> None:
        one, two = (limits_of(resources, server.url, **settings) for _ in range(2))
        assert [*await admitted(one, "rag", 2), *await admitted(two, "rag", 2)] == [True, True, True, False]
        assert await admitted(one, "rag", 1) == [False]

    async def test_requests_are_counted_in_the_process_while_redis_hangs(
        self, resources: AsyncExitStack, tmp_path: Path
    ) -> None:
        server = RedisServer(tmp_path)
        limits, before = limits_of(resources, server.url, default="2/hour", timeout=0.05), unshared()
        server.hang()
        try:
            async with asyncio.timeout(PATIENCE):
                assert await admitted(limits, "rag", 9) == [True, True] + [False] * 7
        finally:
            server.resume()
            server.kill()
        assert unshared() == before + 9


class TestSettings:
    @pytest.mark.parametrize("text", ["100", "-1/second", "0/minute", "1/fortnight", "1/second; 2"])
    def test_malformed_rate_limit_is_refused(self, text: str) -> None:
        for settings in ({"default": text}, {"keys": {"rag": text}}):
            with pytest.raises(ValidationError, match="100/minute"):
                RateLimitSettings.model_validate(settings)

    def test_rate_limit_of_an_unknown_key_is_refused(self) -> None:
        with pytest.raises(InvalidConfiguration, match="'bacth'"):
            RateLimits(RateLimitSettings(keys={"bacth": "1/hour"}), NAMES, url=None)


class TestService:
    @pytest.fixture
    async def limited(self, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
        rates = RateLimitSettings(default="3/hour; 90/day", keys={"batch": "1/hour"})
        async with serving(Settings(data_directory=tmp_path, keys=KEYS, rate_limits=rates)) as client:
            yield client

    async def test_response_headers_show_the_rate_limits_and_what_remains(self, limited: httpx.AsyncClient) -> None:
        responses = [await limited.get("/indexes", headers=bearer(SECRETS["rag"][0])) for _ in range(4)]
        answer(responses[0])
        assert responses[0].headers["ratelimit-policy"] == '"3-in-3600s";q=3;w=3600, "90-in-86400s";q=90;w=86400'
        first, second = responses[0].headers["ratelimit"].split(", ")
        assert first.startswith('"3-in-3600s";r=2;t=') and second.startswith('"90-in-86400s";r=89;t=')
        assert "3 requests in 3,600 s" in problem(responses[3], 429, "rate-limited")
        assert 1 <= int(responses[3].headers["retry-after"]) <= 3_600
        assert responses[3].headers["ratelimit"].startswith('"3-in-3600s";r=0;t=')

    async def test_rate_limit_refuses_before_the_body_is_read(self, limited: httpx.AsyncClient) -> None:
        problem(await limited.post("/select", content=b"{", headers=bearer(SECRETS["batch"][0])), 422, "invalid-input")
        problem(await limited.post("/select", content=b"{", headers=bearer(SECRETS["batch"][0])), 429, "rate-limited")
