"""Test that each alert reads a metric that its fault changes, with real failures."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.samples import Sample

from boundarymorph.access.limits import Access
from boundarymorph.api.lifecycle import Readiness
from boundarymorph.errors import BoundaryMorphError, Overloaded, RetrieverUnavailable, ScorerUnavailable
from boundarymorph.scoring.remote import RemoteScorer, parse
from boundarymorph.settings import Limits, Settings
from boundarymorph.telemetry import metrics
from tests.clocks import Clock
from tests.deploy.test_dashboard import RECORDED, RULES, selectors
from tests.fakes.scorer import SeededScorer
from tests.fakes.service import filled
from tests.ports import free_port
from tests.retrieval.fakes import SeededEncoder

ALERTS = {rule["alert"]: rule["expr"] for rule in RULES if "alert" in rule}
Strike = Callable[[], Awaitable[object]]  # sends a request that meets the fault
Fault = Callable[[Path, pytest.MonkeyPatch, Clock], AbstractAsyncContextManager[Strike]]
REQUEST = {"query": "q", "index": "texts", "budget": 2, "k": 2}


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
async def unready(folder: Path, patch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Strike]:
    async def probe(deadline: float) -> None:
        raise ScorerUnavailable("gone")

    yield Readiness({"scorer": probe}, interval=1, timeout=1).probe


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


# The alert, its fault, and the value of its gauge during the fault; None for a counter, which rises.
CASES: list[tuple[str, Fault, float | None]] = [
    ("BoundaryMorphAnswersDegraded", scorer_away, None),
    ("BoundaryMorphScorerAway", scorer_away, None),
    ("BoundaryMorphErrorBudget", scorer_away, None),
    ("BoundaryMorphErrors", encoder_away, None),
    ("BoundaryMorphPartAway", unready, 0),
    ("BoundaryMorphReplicaAway", replica_away, 0),
    ("BoundaryMorphSelectRefuses", full_house, None),
]


def values(alert: str) -> list[float]:
    """Return the values of the first metric of an alert, with the labels that it selects."""
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
async def test_alert_metric_changes_with_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alert: str, fault: Fault, expected: float | None
) -> None:
    for counter in (metrics.selections, metrics.http_seconds, metrics.requests_refused):
        counter.clear()  # as in a process that has just started
    async with fault(tmp_path, monkeypatch, Clock(0.0)) as strike:
        await strike()
        once = values(alert)
        if expected is not None:
            assert expected in once
            return
        await strike()
        assert sum(values(alert)) > sum(once) > 0
