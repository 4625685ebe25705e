"""What the caches tell Prometheus."""

from __future__ import annotations

from typing import Literal, TypeVar

from prometheus_client import Counter, Gauge, Histogram

Cache = Literal["scores", "embeddings"]
Operation = Literal["read", "write"]
Value = TypeVar("Value")
OPERATIONS: tuple[Operation, ...] = ("read", "write")

# Geometric, from 0.1 ms to 0.8 s.
_SECONDS = tuple(0.0001 * 2**power for power in range(14))

lookups = Counter(
    "boundarymorph_cache_lookups_total",
    "Scores and embeddings looked up: hit, miss, corrupt (damaged or foreign), error (the cache did not answer).",
    ["cache", "outcome"],
)
recalled = Counter("boundarymorph_cache_recalled_scores_total", "Scores that came with a whole query.")
writes = Counter(
    "boundarymorph_cache_writes_total",
    "Scores and embeddings to keep: ok, error (the cache did not take them), dropped (too many writes waited).",
    ["cache", "outcome"],
)
shared = Counter(
    "boundarymorph_cache_shared_total", "Scores and embeddings that another request was computing already.", ["cache"]
)
seconds = Histogram(
    "boundarymorph_cache_operation_duration_seconds",
    "Time of a command in Redis, from the wait for a connection.",
    ["cache", "operation"],
    buckets=_SECONDS,
)
circuit = Gauge(
    "boundarymorph_cache_circuit_state",
    "Whether Redis is asked: 0 yes, 1 for a trial, 2 no; of a cluster, the worst of its nodes.",
    ["operation"],
    multiprocess_mode="livemax",
)


def count_lookups(cache: Cache, **outcomes: int) -> None:
    """Count looked-up items by their outcomes."""
    for outcome, items in outcomes.items():
        if items:
            lookups.labels(cache, outcome).inc(items)


def counted(cache: Cache, found: list[Value | None]) -> list[Value | None]:
    """What was found of looked-up items, None for nothing, counted as hits and misses."""
    missing = found.count(None)
    count_lookups(cache, hit=len(found) - missing, miss=missing)
    return found
