"""Every alert is fired by its fault: the real parts fail, and their metrics are scraped as a Prometheus does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from boundarymorph.access.admission import Admission
from boundarymorph.access.rates import RateLimits
from boundarymorph.access.spending import Spending
from boundarymorph.caching.redis import RedisLink, RedisScoreCache
from boundarymorph.errors import BoundaryMorphError, CostCeiling, Overloaded, RetrieverUnavailable, ScorerUnavailable
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.scoring.batching import BatchingScorer
from boundarymorph.scoring.bill import Amount, Bill
from boundarymorph.scoring.remote.client import RemoteScorer
from boundarymorph.scoring.remote.urls import parse
from boundarymorph.server import middleware
from boundarymorph.server.readiness import Readiness
from boundarymorph.settings import JudgeSettings, RateLimitSettings, Settings
from boundarymorph.telemetry import metrics
from tests.api.service import filled
from tests.clocks import Clock
from tests.deploy.promql import ALERTS, Scrapes
from tests.ports import free_port
from tests.retrieval.fakes import SeededEncoder
from tests.scoring.fakes import SeededCrossEncoder, SeededScorer
from tests.scoring.test_batching import Bench, asked, queued

SCRAPE = 15  # seconds
Strike = Callable[[], Awaitable[object]]  # something that meets the fault
Fault = Callable[[Path, pytest.MonkeyPatch, Clock], AbstractAsyncContextManager[Strike]]
REQUEST = {"query": "q", "index": "texts", "budget": 2, "k": 2}


def nowhere() -> str:
    return f"redis://127.0.0.1:{free_port()}"


@asynccontextmanager
async def selections_without(
    part: type, method: str, error: BoundaryMorphError, folder: Path, patch: pytest.MonkeyPatch
) -> AsyncIterator[Strike]:
    async def fail(*_: object, **__: object) -> None:
        raise error

    async with filled(Settings(data_directory=folder)) as client:
        patch.setattr(part, method, fail)
        yield lambda: client.post("/select", json=REQUEST)


def scorer_away(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AbstractAsyncContextManager[Strike]:
    return selections_without(SeededScorer, "score", ScorerUnavailable("gone"), folder, patch)


def encoder_away(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AbstractAsyncContextManager[Strike]:
    return selections_without(SeededEncoder, "encode_query", RetrieverUnavailable("gone"), folder, patch)


@asynccontextmanager
async def slow(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    """Each look at the middleware's clock is twenty seconds after the one before."""

    def later() -> float:
        clock.now += 20
        return clock.now

    async with filled(Settings(data_directory=folder)) as client:
        patch.setattr(middleware, "time", SimpleNamespace(perf_counter=later))
        yield lambda: client.post("/select", json=REQUEST)


@asynccontextmanager
async def full_queue(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    async with Bench(queue_tokens=10) as bench:
        waiting = asked(bench.scorer, "q", "x" * 10)
        await queued(bench.scorer, 1)

        async def strike() -> None:
            with pytest.raises(Overloaded):
                await bench.scorer.score("q", ["y" * 10])

        yield strike
        bench.model.open.set()
        await waiting


@asynccontextmanager
async def little_memory(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    scorer = BatchingScorer(SeededCrossEncoder(batch_tokens=80, memory=25))
    yield lambda: scorer.score("q", [f"{number:10}" for number in range(8)])
    await scorer.close()


@asynccontextmanager
async def unready(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    async def probe(deadline: float) -> None:
        raise ScorerUnavailable("gone")

    yield Readiness({"scorer": probe}, interval=1, timeout=1).ask


@asynccontextmanager
async def damaged_index(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    async with filled(Settings(data_directory=folder)):
        pass
    (folder / "indexes/own/index.sqlite3").write_bytes(b"damaged" * 1_000)
    catalog = LocalCatalog(folder / "indexes")

    async def strike() -> None:
        for kind, totals in catalog.totals().items():
            metrics.observe_indexes(kind, totals.indexes, totals.documents, totals.bytes)

    yield strike


@asynccontextmanager
async def replica_away(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    endpoint = parse(f"http://127.0.0.1:{free_port()}")
    scorer = RemoteScorer([endpoint], on_change=partial(metrics.observe_replica, "scorer"))

    async def strike() -> None:
        with suppress(ScorerUnavailable):
            await scorer.score("q", ["text"])

    yield strike
    await scorer.close()


@asynccontextmanager
async def full_house(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    admission = Admission(running=1, waiting=0)

    async def strike() -> None:
        with pytest.raises(Overloaded), admission.enter("b"):
            pass

    with admission.enter("a"):
        yield strike


@asynccontextmanager
async def rates_alone(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    limits = RateLimits(RateLimitSettings(default="1000/minute"), ("rag",), url=nowhere())
    yield lambda: limits.take("rag")
    await limits.close()


@asynccontextmanager
async def spending_alone(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    ledger = Spending(JudgeSettings(day_tokens=10_000), url=nowhere(), timeout=1.0)
    yield lambda: ledger.reserve(Bill(caller="rag"), Amount(1, 0))
    await ledger.close()


@asynccontextmanager
async def ceiling(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    ledger = Spending(JudgeSettings(request_tokens=10), url=None, timeout=1.0)

    async def strike() -> None:
        with pytest.raises(CostCeiling):
            await ledger.reserve(Bill(caller="rag"), Amount(11, 0))

    yield strike


@asynccontextmanager
async def cache_away(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    link = RedisLink(nowhere(), timeout=5, clock=clock)
    cache = RedisScoreCache(link)
    for _ in range(5):
        await cache.read("model", "q", [b"text"])
    yield lambda: cache.read("model", "q", [b"text"])
    await link.close()


@asynccontextmanager
async def dearer(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    async def strike() -> None:
        metrics.observe_judge(1_000, 10, cost=0.001 if clock.now < 24 * 3_600 else 0.01)

    yield strike


OFTEN, SELDOM, ONCE = SCRAPE, 75, 10**9
MINUTE, HOUR = 60, 3_600
# The alert, its fault, seconds from one strike to the next, how long the fault lasts, and from one scrape to the next.
CASES: list[tuple[str, Fault, int, int, int]] = [
    *((alert, scorer_away, each, 12 * MINUTE, SCRAPE)
      for alert in ("BoundaryMorphAnswersDegraded", "BoundaryMorphScorerAway") for each in (OFTEN, SELDOM)),
    ("BoundaryMorphErrorBudget", scorer_away, SELDOM, 65 * MINUTE, SELDOM),
    *(("BoundaryMorphErrors", encoder_away, each, 12 * MINUTE, SCRAPE) for each in (OFTEN, SELDOM)),
    *(("BoundaryMorphSlow", slow, each, 17 * MINUTE, SCRAPE) for each in (OFTEN, SELDOM)),
    *(("BoundaryMorphScorerRefuses", full_queue, each, 12 * MINUTE, SCRAPE) for each in (OFTEN, SELDOM)),
    ("BoundaryMorphOutOfMemory", little_memory, ONCE, 5 * MINUTE, SCRAPE),
    ("BoundaryMorphPartAway", unready, OFTEN, 5 * MINUTE, SCRAPE),
    ("BoundaryMorphIndexUnreadable", damaged_index, SELDOM, 5 * MINUTE, SCRAPE),
    *(("BoundaryMorphReplicaAway", replica_away, each, 8 * MINUTE, SCRAPE) for each in (SELDOM, ONCE)),
    *(("BoundaryMorphSelectRefuses", full_house, each, 12 * MINUTE, SCRAPE) for each in (OFTEN, SELDOM)),
    *(("BoundaryMorphRateLimitsUnshared", rates_alone, each, 12 * MINUTE, SCRAPE) for each in (OFTEN, SELDOM)),
    *(("BoundaryMorphCostCeilingsUnshared", spending_alone, each, 12 * MINUTE, SCRAPE) for each in (OFTEN, SELDOM)),
    ("BoundaryMorphCostCeiling", ceiling, ONCE, 5 * MINUTE, SCRAPE),
    *(("BoundaryMorphCacheAway", cache_away, each, 10 * MINUTE, SCRAPE) for each in (OFTEN, SELDOM, ONCE)),
    ("BoundaryMorphCostRises", dearer, 10 * MINUTE, 26 * HOUR, 5 * MINUTE),
]  # fmt: skip


@pytest.mark.strangers
@pytest.mark.parametrize(("alert", "fault", "between", "seconds", "scrape"), CASES)
async def test_it_fires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alert: str, fault: Fault, between: int, seconds: int, scrape: int
) -> None:
    for counter in (metrics.selections, metrics.http_seconds, metrics.select_refused, metrics.cost_refused):
        counter.clear()  # as in a process that has just started
    clock, scrapes = Clock(0.0), Scrapes()
    async with fault(tmp_path, monkeypatch, clock) as strike:
        scrapes.scrape(clock.now)
        assert not scrapes.firing(alert)
        due = 0
        for second in range(scrape, seconds + scrape, scrape):
            if second >= due + scrape:
                due = second + between - scrape
                await strike()
            clock.now = float(second)
            scrapes.scrape(clock.now)
    assert scrapes.firing(alert)


def test_every_alert_has_a_fault() -> None:
    assert {alert for alert, *_ in CASES} == ALERTS.keys()


def test_without_faults_nothing_fires() -> None:
    scrapes: Any = Scrapes()
    for second in range(0, 2 * HOUR, MINUTE):
        metrics.selections.labels("complete", "budget").inc()
        scrapes.scrape(float(second))
    assert not [alert for alert in ("BoundaryMorphErrorBudget", "BoundaryMorphScorerAway") if scrapes.firing(alert)]
