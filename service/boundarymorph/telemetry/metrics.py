"""Prometheus metrics of the service, in seconds and counts. Callers cannot create label values.

With several workers, each keeps its numbers in a file in SHARED_DIRECTORY; the one that is scraped adds them up.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    Summary,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

Cache = Literal["scores", "embeddings"]
Value = TypeVar("Value")
SHARED_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"  # the variable that prometheus_client reads when it is imported

# Geometric, from 1 ms to 75 s.
SECONDS = tuple(round(0.001 * 1.5**power, 6) for power in range(29))
CACHE_SECONDS = tuple(0.0001 * 2**power for power in range(14))  # geometric, from 0.1 ms to 0.8 s
COUNTS = (0, 1, 2, 5, 10, 25, 50, 100, 200, 500, 1_000, 2_000)
TOKENS = tuple(2**power for power in range(5, 18))
PORTIONS = tuple(tenths / 10 for tenths in range(11))
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)

connections_closed = Counter(
    "boundarymorph_connections_closed_total",
    "Callers' connections that were closed for what they did not do.",
    ["reason"],
)
http_seconds = Histogram(
    "boundarymorph_http_request_duration_seconds",
    "Time from the head of a request to the end of its response.",
    ["method", "route", "status"],
    buckets=SECONDS,
)
select_stage_seconds = Histogram(
    "boundarymorph_select_stage_duration_seconds", "Time a selection spent in a stage.", ["stage"], buckets=SECONDS
)
selections = Counter(
    "boundarymorph_selections_total", "Selections by status and reason for stopping.", ["status", "stop_reason"]
)
expected_loss = Histogram(
    "boundarymorph_select_expected_loss_ratio",
    "Share of the best set's relevance that a set is expected to miss.",
    buckets=SHARES,
)
budget_used = Histogram(
    "boundarymorph_select_budget_used_ratio", "Share of a selection's budget that was spent.", buckets=PORTIONS
)
retriever_seconds = Histogram(
    "boundarymorph_retriever_call_duration_seconds",
    "Time of a call of the retriever, local or remote.",
    ["call", "outcome"],
    buckets=SECONDS,
)
part_up = Gauge(
    "boundarymorph_part_up", "Whether a part answered its last probe.", ["part"], multiprocess_mode="livemin"
)
replica_up = Gauge(
    "boundarymorph_replica_up",
    "Whether a remote server works, as far as requests have shown.",
    ["role", "endpoint"],
    multiprocess_mode="livemin",
)
select_running = Gauge(
    "boundarymorph_select_running", "Selections that run, at the scrape.", multiprocess_mode="livesum"
)
select_waiting = Gauge(
    "boundarymorph_select_waiting",
    "Requests for selections that are being read or wait for their turn, at the scrape.",
    multiprocess_mode="livesum",
)
select_refused = Counter(
    "boundarymorph_select_refused_total", "Requests for selections that were refused with 429.", ["reason"]
)
cross_encoder_calls = Counter("boundarymorph_cross_encoder_calls_total", "Pairs scored for selections.")
select_calls = Histogram("boundarymorph_select_calls", "Cross-encoder calls of a selection.", buckets=COUNTS)
rerank_documents = Counter(
    "boundarymorph_rerank_documents_total",
    "Documents of answered rerank requests, by route and by whether the cross-encoder scored them.",
    ["route", "outcome"],
)
select_rounds = Histogram("boundarymorph_select_rounds", "Trips to the scorer of a selection.", buckets=COUNTS)
rate_limited = Counter(
    "boundarymorph_rate_limited_requests_total",
    "Requests of keys that have a rate limit, by the key's name: admitted or refused.",
    ["key", "outcome"],
)
rate_limit_unshared = Counter(
    "boundarymorph_rate_limit_unshared_total", "Requests counted in this process because Redis did not answer."
)
work_refused = Counter(
    "boundarymorph_work_refused_total",
    "Calls of blocking work that were refused because threads and queue were full, by kind.",
    ["kind"],
)
ingested = Counter("boundarymorph_ingested_documents_total", "Uploaded documents by outcome.", ["outcome"])
indexes = Gauge(
    "boundarymorph_indexes",
    "Indexes on this machine's disk, by kind; unreadable: those that cannot be read.",
    ["kind"],
    multiprocess_mode="livemax",
)
index_documents = Gauge(
    "boundarymorph_index_documents",
    "Documents of the indexes on this machine's disk.",
    ["kind"],
    multiprocess_mode="livemax",
)
index_bytes = Gauge(
    "boundarymorph_index_bytes",
    "Size of the files of the indexes on this machine's disk.",
    ["kind"],
    multiprocess_mode="livemax",
)

cache_lookups = Counter(
    "boundarymorph_cache_lookups_total",
    "Scores and embeddings looked up: hit, miss, corrupt (damaged or foreign), error (the cache did not answer).",
    ["cache", "outcome"],
)
cache_writes = Counter(
    "boundarymorph_cache_writes_total",
    "Scores and embeddings written: ok, error (the cache did not take them), dropped (too many writes waited).",
    ["cache", "outcome"],
)
cache_seconds = Histogram(
    "boundarymorph_cache_operation_duration_seconds",
    "Time of a command in Redis, from the wait for a connection.",
    ["cache", "operation"],
    buckets=CACHE_SECONDS,
)
cache_circuit = Gauge(
    "boundarymorph_cache_circuit_state",
    "Circuit breaker to Redis: 0 closed, 1 half-open, 2 open.",
    ["operation"],
    multiprocess_mode="livemax",
)

_MODEL = ["model", "backend"]


class BatchFamily:
    """The metrics of all batchers of one role: the scorer's pairs, or the encoder's texts."""

    def __init__(self, role: str, item: str, done: str) -> None:
        """role, item: parts of the names, the item in the singular; done: the participle for what a batch does."""
        prefix, items, title = f"boundarymorph_{role}", f"{item}s", item.capitalize()
        self.queue_items = Gauge(
            f"{prefix}_queue_{items}", f"{title}s in the queue, at the scrape.", _MODEL, multiprocess_mode="livesum"
        )
        self.queue_tokens = Gauge(
            f"{prefix}_queue_tokens", "Tokens in the queue, at the scrape.", _MODEL, multiprocess_mode="livesum"
        )
        self.queue = (self.queue_items, self.queue_tokens)
        self.batch_items = Histogram(f"{prefix}_batch_{items}", f"{title}s per batch.", _MODEL, buckets=COUNTS)
        self.batch_tokens = Histogram(f"{prefix}_batch_tokens", "Tokens per batch.", _MODEL, buckets=TOKENS)
        self.padding = Histogram(
            f"{prefix}_batch_padding_ratio", "Share of a batch's cost that was padding.", _MODEL, buckets=SHARES
        )
        self.wait_seconds = Histogram(
            f"{prefix}_wait_seconds", f"Time from a {item}'s arrival to its batch.", _MODEL, buckets=SECONDS
        )
        self.tokenize_seconds = Histogram(
            f"{prefix}_tokenize_seconds", "Time to tokenise a request.", _MODEL, buckets=SECONDS
        )
        self.compute_seconds = Histogram(
            f"{prefix}_compute_seconds", "Time of a batch in the model.", _MODEL, buckets=SECONDS
        )
        self.truncated = Counter(f"{prefix}_truncated_{items}_total", f"{title}s cut to fit the model.", _MODEL)
        self.out_of_memory = Counter(f"{prefix}_out_of_memory_total", "Batches halved for memory.", _MODEL)
        self.refused = Counter(f"{prefix}_refused_requests_total", "Requests refused on arrival.", _MODEL)
        self.dropped = Counter(
            f"{prefix}_dropped_{items}_total", f"{title}s dropped before they were {done}.", [*_MODEL, "reason"]
        )


scorer_trips = Counter("boundarymorph_scorer_trips_total", "Calls of the scorer for selections.")
scorer_units = Counter(
    "boundarymorph_scorer_billed_units_total", "Started hundreds of documents, of a scorer that bills by them."
)
scorer_cost = Counter("boundarymorph_scorer_cost_total", "Cost of a scorer, in the currency of its prices.")
scorer_doubts = Counter(
    "boundarymorph_scorer_doubts_total",
    "Selections on an index on which the scorer seems not to work: its scores are constant, saturated, or contrary to "
    "similarity and words.",
    ["doubt"],
)
judge_answers = Counter(
    "boundarymorph_judge_answers_total", "Answers of a language model that grades, by outcome.", ["outcome"]
)
judge_tokens = Counter("boundarymorph_judge_tokens_total", "Tokens that a language model read and wrote.", ["kind"])
judge_cost = Counter("boundarymorph_judge_cost_total", "Cost of a language model, in the currency of its prices.")
cost_refused = Counter(
    "boundarymorph_cost_ceiling_refusals_total",
    "Requests to a language model that were not sent, by ceiling.",
    ["ceiling"],
)
spending_unshared = Counter("boundarymorph_spending_unshared_total", "Daily sums that could not be written to Redis.")
scorer_batches = BatchFamily("scorer", "pair", "scored")
encoder_batches = BatchFamily("encoder", "text", "encoded")
attempt_seconds = {
    role: Histogram(
        f"boundarymorph_{role}_attempt_duration_seconds",
        f"Time of an attempt at a remote {role}.",
        ["endpoint", "outcome"],
        buckets=SECONDS,
    )
    for role in ("scorer", "encoder")
}

judgments = Counter("boundarymorph_judgments_total", "Judgements received.")
memory_requests = Counter(
    "boundarymorph_memory_requests_total",
    "Selections that a memory learns from: recorded, left_out, failed.",
    ["outcome"],
)
memory_out_of_force = Counter(
    "boundarymorph_memory_out_of_force_total",
    "Memories whose prior went out of force: the scorer or the questions changed.",
)
audits = Counter("boundarymorph_audits_total", "Audits of selections: done, left_out, failed.", ["outcome"])
audit_loss = Summary(
    "boundarymorph_audit_loss_ratio",
    "Loss of audited selections after the calls that they may make: real, and as it was believed to be.",
    ["loss"],
)
memory_selections = Counter(
    "boundarymorph_memory_selections_total",
    "Selections with a memory, by whether what it learned was in force.",
    ["in_force"],
)
judgment_log_loss = Histogram(
    "boundarymorph_judgment_log_loss_nats",
    "Log loss of relevance in answers by the grades that people then gave.",
    ["calibrated"],
    buckets=(0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
)


class BatchMetrics:
    """The batch metrics of one model in this process. `waiting` returns the items and tokens in the queue."""

    def __init__(self, family: BatchFamily, model: str, backend: str, waiting: Callable[[], tuple[int, int]]) -> None:
        self._family = family
        self._labels = labels = (model, backend)
        family.queue_items.labels(*labels).set_function(lambda: waiting()[0])
        family.queue_tokens.labels(*labels).set_function(lambda: waiting()[1])
        self.batch_items = family.batch_items.labels(*labels)
        self.batch_tokens = family.batch_tokens.labels(*labels)
        self.padding = family.padding.labels(*labels)
        self.wait_seconds = family.wait_seconds.labels(*labels)
        self.tokenize_seconds = family.tokenize_seconds.labels(*labels)
        self.compute_seconds = family.compute_seconds.labels(*labels)
        self.truncated = family.truncated.labels(*labels)
        self.out_of_memory = family.out_of_memory.labels(*labels)
        self.refused = family.refused.labels(*labels)

    def dropped(self, reason: str, items: int) -> None:
        """Count items that were dropped. reason: cancelled, deadline or failed."""
        self._family.dropped.labels(*self._labels, reason).inc(items)

    def close(self) -> None:
        """Stop reading the queue; the counts stay."""
        for gauge in self._family.queue:
            if is_shared():
                gauge.labels(*self._labels).set_function(lambda: 0)  # labels cannot be removed from a worker's file
            else:
                gauge.remove(*self._labels)


def observe_admission(running: Callable[[], int], waiting: Callable[[], int]) -> None:
    """Set the functions that return, at each scrape, how many selections run and how many requests wait."""
    select_running.set_function(running)
    select_waiting.set_function(waiting)


def observe_attempt(role: str, endpoint: str, outcome: str, seconds: float) -> None:
    """Record one attempt at a remote scorer or encoder."""
    attempt_seconds[role].labels(endpoint, outcome).observe(seconds)


def observe_trip(units: int | None, cost: float | None) -> None:
    """Record a call of the scorer. units, cost: what it took, None if it has no price of that kind."""
    scorer_trips.inc()
    scorer_units.inc(units or 0)
    scorer_cost.inc(cost or 0.0)


def observe_judge(read: int, written: int, cost: float) -> None:
    """Record the tokens and the cost of an answer of a language model."""
    judge_tokens.labels("read").inc(read)
    judge_tokens.labels("written").inc(written)
    judge_cost.inc(cost)


def observe_replica(role: str, endpoint: str, works: bool) -> None:
    """Record whether one of the servers of a role works."""
    replica_up.labels(role, endpoint).set(works)


def observe_indexes(kind: str, count: int, documents: int, size: int) -> None:
    """Record the indexes of a kind on this machine's disk. size: in bytes."""
    indexes.labels(kind).set(count)
    index_documents.labels(kind).set(documents)
    index_bytes.labels(kind).set(size)


def count_lookups(cache: Cache, **outcomes: int) -> None:
    """Count items looked up in a cache, by outcome."""
    for outcome, items in outcomes.items():
        if items:
            cache_lookups.labels(cache, outcome).inc(items)


def counted(cache: Cache, found: list[Value | None]) -> list[Value | None]:
    """Count looked-up items as hits and misses (None), and return them."""
    missing = sum(value is None for value in found)
    count_lookups(cache, hit=len(found) - missing, miss=missing)
    return found


EXPOSITION = CONTENT_TYPE_LATEST  # its content type


def exposition(*, named: bool) -> bytes:
    """Return the scrape, of this process or of all workers.

    named: whether it says which key did what; otherwise those samples are added up, under the key "all".
    """
    registry = REGISTRY
    if is_shared():
        share_gauges()
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    if not named:
        nameless = CollectorRegistry()
        nameless.register(_Nameless(registry))
        registry = nameless
    return generate_latest(registry)


class _Nameless(Collector):
    """The families of a registry, with what has a label "key" added up."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def describe(self) -> Sequence[Metric]:
        return ()  # which spares the registry the first collection

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            if not any("key" in sample.labels for sample in family.samples):
                yield family
                continue
            sums: dict[tuple[str, frozenset[tuple[str, str]]], list[float]] = defaultdict(list)
            for sample in family.samples:
                sums[sample.name, frozenset({**sample.labels, "key": "all"}.items())].append(sample.value)
            summed = Metric(family.name, family.documentation, family.type, family.unit)
            for (name, labels), values in sums.items():
                value = min(values) if name.endswith("_created") else sum(values)
                summed.add_sample(name, dict(labels), value)
            yield summed


def is_shared() -> bool:
    """Whether this process is one of several workers."""
    return SHARED_DIRECTORY in os.environ


def forget_worker(pid: int) -> None:
    """Remove the gauges of a worker that has ended; its counters remain."""
    mark_process_dead(pid)  # type: ignore[no-untyped-call]


def share_gauges() -> None:
    """Write the gauges that are otherwise read at the scrape, such as queue lengths, for the other workers."""
    for gauge in (select_running, select_waiting, *scorer_batches.queue, *encoder_batches.queue):
        for family in gauge.collect():
            for sample in family.samples:
                (gauge.labels(**sample.labels) if sample.labels else gauge).set(sample.value)
