"""Every alert looks at a metric that its fault changes: the real parts fail."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.samples import Sample

from boundarymorph.access.limits import Access
from boundarymorph.access.rates import RateLimits
from boundarymorph.api import middleware
from boundarymorph.api.lifecycle import Readiness
from boundarymorph.caching.redis import RedisLink, RedisScoreCache
from boundarymorph.errors import BoundaryMorphError, Overloaded, RetrieverUnavailable, ScorerUnavailable
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.scoring.remote import RemoteScorer, parse
from boundarymorph.scoring.scorer import BatchingScorer
from boundarymorph.settings import Limits, RateLimitSettings, Settings
from boundarymorph.telemetry import metrics
from tests.clocks import Clock
from tests.deploy.test_dashboard import RECORDED, RULES, selectors
from tests.fakes.scorer import SeededCrossEncoder, SeededScorer
from tests.fakes.service import application, client_of, filled, gateway_to
from tests.ports import free_port
from tests.retrieval.fakes import SeededEncoder
from tests.scoring.test_batching import Bench, asked, queued

ALERTS = {rule["alert"]: rule["expr"] for rule in RULES if "alert" in rule}
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
    scorer = RemoteScorer([endpoint])

    async def strike() -> None:
        with suppress(ScorerUnavailable):
            await scorer.score("q", ["text"])

    yield strike
    await scorer.close()


@asynccontextmanager
async def full_house(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    access = Access(Settings(data_directory=folder, limits=Limits(requests=1)))

    async def strike() -> None:
        with pytest.raises(Overloaded), ExitStack() as until_end:
            access.enter("b", until_end)

    with ExitStack() as until_end:
        access.enter("a", until_end)
        yield strike


@asynccontextmanager
async def rates_alone(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    limits = RateLimits(RateLimitSettings(default="1000/minute"), ("rag",), url=nowhere())
    yield lambda: limits.take("rag")
    await limits.close()


@asynccontextmanager
async def cache_away(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    link = RedisLink(nowhere(), timeout=5, clock=clock)
    cache = RedisScoreCache(link)
    for _ in range(5):
        await cache.read("model", "q", [b"text"])
    yield lambda: cache.read("model", "q", [b"text"])
    await link.close()


RISES, RISES_AT_ONCE = "with every fault", "with the first fault, as it was there before"
# The alert, its fault, and what becomes of the metric that it looks at: a counter rises, a gauge has a value.
CASES: list[tuple[str, Fault, str | float]] = [
    ("BoundaryMorphAnswersDegraded", scorer_away, RISES),
    ("BoundaryMorphScorerAway", scorer_away, RISES),
    ("BoundaryMorphErrorBudget", scorer_away, RISES),
    ("BoundaryMorphErrors", encoder_away, RISES),
    ("BoundaryMorphSlow", slow, RISES),
    ("BoundaryMorphScorerRefuses", full_queue, RISES),
    ("BoundaryMorphOutOfMemory", little_memory, RISES_AT_ONCE),
    ("BoundaryMorphPartAway", unready, 0),
    ("BoundaryMorphIndexUnreadable", damaged_index, 1),
    ("BoundaryMorphReplicaAway", replica_away, 0),
    ("BoundaryMorphSelectRefuses", full_house, RISES),
    ("BoundaryMorphRateLimitsUnshared", rates_alone, RISES),
    ("BoundaryMorphCacheAway", cache_away, 2),
]


def values(alert: str) -> list[float]:
    """What the first metric of an alert has now, with the labels that the alert asks for."""
    selector = next(selectors(ALERTS[alert]))
    while selector.name in RECORDED:
        selector = next(selectors(RECORDED[selector.name]))
    samples = [sample for family in REGISTRY.collect() for sample in family.samples if sample.name == selector.name]
    return [sample.value for sample in samples if all(_matches(sample, each) for each in selector.matchers.matchers)]


def _matches(sample: Sample, matcher: Any) -> bool:
    value, kind = sample.labels.get(matcher.name, ""), str(matcher.op).rpartition(".")[2]
    same = value == matcher.value if kind in ("Equal", "NotEqual") else re.fullmatch(matcher.value, value) is not None
    return same == (kind in ("Equal", "Re"))


@pytest.mark.strangers
@pytest.mark.parametrize(("alert", "fault", "expected"), CASES)
async def test_it_sees_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alert: str, fault: Fault, expected: str | float
) -> None:
    for counter in (metrics.selections, metrics.http_seconds, metrics.requests_refused):
        counter.clear()  # as in a process that has just started
    async with fault(tmp_path, monkeypatch, Clock(0.0)) as strike:
        before = values(alert)
        await strike()
        once = values(alert)
        if expected == RISES:
            await strike()
            assert sum(values(alert)) > sum(once) > 0
        elif expected == RISES_AT_ONCE:
            assert before and sum(once) > sum(before)
        else:
            assert expected in once


OF_PROMETHEUS = {"BoundaryMorphProcessAway", "BoundaryMorphNotScraped"}  # alerts_test.yaml has their faults


@pytest.mark.strangers
@pytest.mark.parametrize("role", ["whole", "gateway", "retriever", "scorer"])
async def test_every_process_has_the_metric_by_which_its_end_is_noticed(tmp_path: Path, role: str) -> None:
    settings = Settings(data_directory=tmp_path)
    made = gateway_to("http://127.0.0.1:9", settings) if role == "gateway" else client_of(application(role, settings))
    async with made as client:
        exposition = (await client.get("/metrics")).text
    for alert in OF_PROMETHEUS:
        [name] = {each.name for each in selectors(ALERTS[alert])} - {"up"}
        assert f"\n{name} " in exposition


def test_every_alert_has_a_fault() -> None:
    assert {alert for alert, *_ in CASES} | OF_PROMETHEUS == ALERTS.keys()
