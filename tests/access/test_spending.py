"""Ceilings on what a language model may cost: kept in this process, and in a real Redis for several."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic import ValidationError

from boundarymorph.access.limits import DAY, Spending
from boundarymorph.errors import CostCeiling
from boundarymorph.remote.wire import TokenCounts
from boundarymorph.scoring.costs import NOTHING, Amount, Bill, Prices, Reservation
from boundarymorph.settings import JudgeSettings
from tests import metrics
from tests.caching.servers import RedisServer
from tests.clocks import Clock

NOON = 20_000 * DAY + DAY / 2
PRICED = {"input_price": 1.0}


def spending(opened: AsyncExitStack, url: str | None, *, clock: Clock | None = None, **ceilings: Any) -> Spending:
    ledger = Spending(JudgeSettings(**ceilings), url=url, timeout=5.0, clock=clock or Clock(NOON))
    opened.push_async_callback(ledger.close)
    return ledger


async def spend(ledger: Spending, bill: Bill, tokens: int, most: int | None = None) -> None:
    """Reserve the most, and settle what it came to."""
    reservation = await ledger.reserve(bill, Amount(most or tokens, 1_000 * (most or tokens)))
    await ledger.settle(bill, reservation, Amount(tokens, 1_000 * tokens))


def unshared() -> float:
    return metrics.counted("boundarymorph_spending_unshared_total")


async def refused(ledger: Spending, bill: Bill, tokens: int) -> CostCeiling:
    before = bill.reserved
    with pytest.raises(CostCeiling) as raised:
        await ledger.reserve(bill, Amount(tokens, 1_000 * tokens))
    assert bill.reserved == before, "what is refused is not held"
    return raised.value


CEILINGS = [
    ({"request_tokens": 100}, "request_tokens"),
    ({"request_cost": 1e-4, **PRICED}, "request_cost"),
    ({"key_day_tokens": 100}, "key_day_tokens"),
    ({"key_day_cost": 1e-4, **PRICED}, "key_day_cost"),
    ({"day_tokens": 100}, "day_tokens"),
    ({"day_cost": 1e-4, **PRICED}, "day_cost"),
]


@pytest.mark.parametrize(("ceilings", "name"), CEILINGS)
async def test_a_ceiling_is_reached_and_not_passed(
    opened: AsyncExitStack, url: str | None, ceilings: dict[str, Any], name: str
) -> None:
    ledger, bill = spending(opened, url, **ceilings), Bill("rag")
    await spend(ledger, bill, 60, most=90)
    error = await refused(ledger, bill, 41)
    assert f"scorer.judge.{name}" in error.public
    assert math.isinf(error.retry_after) == name.startswith("request")
    await spend(ledger, bill, 40)
    assert bill.spent.tokens == 100 and bill.reserved == NOTHING
    await refused(ledger, bill, 1)


async def test_reserved_costs_count_against_the_ceiling(opened: AsyncExitStack, url: str | None) -> None:
    ledger, bill = spending(opened, url, request_tokens=100, day_tokens=150), Bill("rag")
    reservation = await ledger.reserve(bill, Amount(80))
    await refused(ledger, bill, 21)
    other = Bill("other")
    await refused(ledger, other, 71)
    await ledger.settle(bill, reservation, NOTHING)
    await spend(ledger, other, 100)


async def test_whose_ceiling_it_is(opened: AsyncExitStack, url: str | None) -> None:
    ledger = spending(opened, url, key_day_tokens=100, day_tokens=150)
    await spend(ledger, Bill("rag"), 100)
    assert "key_day_tokens" in str(await refused(ledger, Bill("rag"), 1))
    await spend(ledger, Bill("batch"), 50)
    assert "day_tokens" in str(await refused(ledger, Bill("batch"), 1))
    assert "all keys" in str(await refused(ledger, Bill(""), 1)), "what no request asked for is of no key"
    await spend(spending(opened, url, key_day_tokens=10), Bill(""), 11)


async def test_a_day_ends_at_midnight(opened: AsyncExitStack, url: str | None) -> None:
    clock = Clock(NOON)
    ledger = spending(opened, url, clock=clock, key_day_tokens=100)
    await spend(ledger, Bill("rag"), 100)
    assert (await refused(ledger, Bill("rag"), 1)).retry_after == DAY / 2
    clock.now += DAY / 2
    await spend(ledger, Bill("rag"), 100)
    assert len(ledger._own) == 1, "past days are forgotten"


async def test_an_answer_after_midnight_counts_towards_the_day_it_was_asked_on(
    opened: AsyncExitStack, url: str | None
) -> None:
    clock, bill = Clock(NOON), Bill("rag")
    ledger = spending(opened, url, clock=clock, key_day_tokens=100)
    reservation = await ledger.reserve(bill, Amount(100))
    clock.now += DAY / 2
    await spend(ledger, bill, 90)
    await ledger.settle(bill, reservation, Amount(10))
    await refused(ledger, bill, 11)
    await spend(ledger, bill, 10)


async def test_processes_share_their_sums(opened: AsyncExitStack, server: RedisServer) -> None:
    first, second = (spending(opened, server.url, day_tokens=100) for _ in range(2))
    await spend(first, Bill("rag"), 60)
    await refused(second, Bill("rag"), 41)
    await spend(second, Bill("rag"), 40)


async def test_many_at_a_time_do_not_pass_it_either(opened: AsyncExitStack, server: RedisServer) -> None:
    ledgers = [spending(opened, server.url, day_tokens=100) for _ in range(2)]
    tried = [ledgers[number % 2].reserve(Bill("rag"), Amount(10)) for number in range(40)]
    outcomes = await asyncio.gather(*tried, return_exceptions=True)
    assert all(isinstance(outcome, Reservation | CostCeiling) for outcome in outcomes)
    assert sum(isinstance(outcome, Reservation) for outcome in outcomes) == 10


async def test_without_redis_each_process_keeps_to_what_it_spent_itself(
    opened: AsyncExitStack, own_server: RedisServer
) -> None:
    ledger = spending(opened, own_server.url, day_tokens=100)
    await spend(ledger, Bill("rag"), 60)
    before = unshared()
    own_server.kill()
    await refused(ledger, Bill("rag"), 41)
    await spend(ledger, Bill("rag"), 40)
    assert unshared() > before


def test_prices() -> None:
    assert Prices(0.15, 0.6).of(TokenCounts(1_000_000, 1_000_000)).cost == pytest.approx(0.75)
    assert Prices(0.0001, 0.0).of(TokenCounts(1, 0)).nanos == 1, "never rounded down to nothing"


@pytest.mark.parametrize(
    "settings",
    [{"day_cost": 1.0}, {"body": {"max_tokens": 9}}, {"omit": ["max_completion_tokens"]}, {"day_tokens": 0}],
)
def test_settings_that_would_not_hold(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JudgeSettings(**settings)
