"""Define the Prometheus metrics of the service, in seconds and counts.

Callers cannot create label values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Literal, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector

Cache = Literal["scores", "embeddings"]
Value = TypeVar("Value")

# Geometric, from 1 ms to 75 s.
SECONDS = tuple(round(0.001 * 1.5**power, 6) for power in range(29))
CACHE_SECONDS = tuple(0.0001 * 2**power for power in range(14))  # geometric, from 0.1 ms to 0.8 s
COUNTS = (0, 1, 2, 5, 10, 25, 50, 100, 200, 500, 1_000, 2_000)
TOKENS = tuple(2**power for power in range(5, 18))
PORTIONS = tuple(tenths / 10 for tenths in range(11))
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def _counter(name: str, what: str, *labels: str) -> Counter:
    return Counter(f"boundarymorph_{name}_total", what, labels)


def _histogram(name: str, what: str, *labels: str, buckets: Sequence[float] = SECONDS) -> Histogram:
    return Histogram(f"boundarymorph_{name}", what, labels, buckets=buckets)


def _gauge(name: str, what: str, *labels: str) -> Gauge:
    return Gauge(f"boundarymorph_{name}", what, labels)


connections_closed = _counter("connections_closed", "Callers' connections closed for what they did not do.", "reason")
http_seconds = _histogram(
    "http_request_duration_seconds",
    "Time from the head of a request to the end of its response.",
    "method",
    "route",
    "status",
)
select_stage_seconds = _histogram("select_stage_duration_seconds", "Time a selection spent in a stage.", "stage")
selections = _counter("selections", "Selections by status and reason for stopping.", "status", "stop_reason")
expected_loss = _histogram(
    "select_expected_loss_ratio", "Share of the best set's relevance that a set is expected to miss.", buckets=SHARES
)
budget_used = _histogram("select_budget_used_ratio", "Share of a selection's budget that was spent.", buckets=PORTIONS)
retriever_seconds = _histogram(
    "retriever_call_duration_seconds", "Time of a call of a local or remote retriever.", "call", "outcome"
)
part_up = _gauge("part_up", "Whether a part answered its last probe.", "part")
replica_up = _gauge("replica_up", "Whether a remote server works, as far as requests have shown.", "role", "endpoint")
select_running = _gauge("select_running", "Selections that run, at the scrape.")
select_waiting = _gauge("select_waiting", "Selections that wait for their turn, at the scrape.")
requests_refused = _counter("requests_refused", "Requests that were refused with 429, but for rate limits.", "reason")
cross_encoder_calls = _counter("cross_encoder_calls", "Pairs scored for selections.")
select_calls = _histogram("select_calls", "Cross-encoder calls of a selection.", buckets=COUNTS)
rerank_documents = _counter("rerank_documents", "Documents of answered rerank requests.", "route", "outcome")
select_rounds = _histogram("select_rounds", "Trips to the scorer of a selection.", buckets=COUNTS)
rate_limited = _counter("rate_limited_requests", "Requests of a key that has a rate limit.", "key", "outcome")
rate_limit_unshared = _counter("rate_limit_unshared", "Requests counted in this process because Redis did not answer.")
ingested = _counter("ingested_documents", "Uploaded documents by outcome.", "outcome")
indexes = _gauge("indexes", "Indexes on this machine's disk, by kind; unreadable: those that cannot be read.", "kind")
index_documents = _gauge("index_documents", "Documents of the indexes on this machine's disk.", "kind")
index_bytes = _gauge("index_bytes", "Size of the files of the indexes on this machine's disk.", "kind")
# hit, miss, corrupt (damaged or foreign), error (the cache did not answer)
cache_lookups = _counter("cache_lookups", "Scores and embeddings looked up.", "cache", "outcome")
# ok, error (the cache did not take them), dropped (too many writes waited)
cache_writes = _counter("cache_writes", "Scores and embeddings written.", "cache", "outcome")
cache_seconds = _histogram(
    "cache_operation_duration_seconds",
    "Time of a command in Redis, from the wait for a connection.",
    "cache",
    "operation",
    buckets=CACHE_SECONDS,
)
cache_circuit = _gauge("cache_circuit_state", "Circuit breaker to Redis: 0 closed, 1 half-open, 2 open.", "operation")


class BatchMetrics:
    """The metrics of the batchers of one role, or of one model of that role.

    The scorer's batchers have pairs, and the encoder's have texts.
    """

    def __init__(self, role: str, item: str, done: str) -> None:
        items, title, model = f"{item}s", item.capitalize(), ("model", "backend")
        self.queue = (
            _gauge(f"{role}_queue_{items}", f"{title}s in the queue, at the scrape.", *model),
            _gauge(f"{role}_queue_tokens", "Tokens in the queue, at the scrape.", *model),
        )
        self.batch_items = _histogram(f"{role}_batch_{items}", f"{title}s per batch.", *model, buckets=COUNTS)
        self.batch_tokens = _histogram(f"{role}_batch_tokens", "Tokens per batch.", *model, buckets=TOKENS)
        self.padding = _histogram(
            f"{role}_batch_padding_ratio", "Share of a batch's cost that was padding.", *model, buckets=SHARES
        )
        self.wait_seconds = _histogram(f"{role}_wait_seconds", f"Time from a {item}'s arrival to its batch.", *model)
        self.tokenize_seconds = _histogram(f"{role}_tokenize_seconds", "Time to tokenise a request.", *model)
        self.compute_seconds = _histogram(f"{role}_compute_seconds", "Time of a batch in the model.", *model)
        self.truncated = _counter(f"{role}_truncated_{items}", f"{title}s cut to fit the model.", *model)
        self.out_of_memory = _counter(f"{role}_out_of_memory", "Batches halved for memory.", *model)
        self.refused = _counter(f"{role}_refused_requests", "Requests refused on arrival.", *model)
        self._dropped = _counter(
            f"{role}_dropped_{items}", f"{title}s dropped before they were {done}.", *model, "reason"
        )
        self._labels: tuple[str, ...] = ()

    def for_model(self, model: str, backend: str, waiting: Callable[[], tuple[int, int]]) -> BatchMetrics:
        """Return the metrics of one model in this process.

        Args:
            model: The name of the model.
            backend: The program that runs it.
            waiting: Returns the items and tokens in its queue.
        """
        bound = copy(self)
        bound._labels = (model, backend)
        for name, metric in vars(self).items():
            if isinstance(metric, Counter | Histogram) and name != "_dropped":
                setattr(bound, name, metric.labels(*bound._labels))
        for place, gauge in enumerate(self.queue):
            gauge.labels(*bound._labels).set_function(lambda place=place: waiting()[place])  # type: ignore[misc]
        return bound

    def dropped(self, reason: str, items: int) -> None:
        self._dropped.labels(*self._labels, reason).inc(items)

    def close(self) -> None:
        for gauge in self.queue:
            gauge.remove(*self._labels)


scorer_requests = _counter("scorer_requests", "Requests of selections to the scorer.")
judge_answers = _counter("judge_answers", "Answers of a language model that grades, by outcome.", "outcome")
judge_tokens = _counter("judge_tokens", "Tokens that a language model read and wrote.", "kind")
scorer_batches = BatchMetrics("scorer", "pair", "scored")
encoder_batches = BatchMetrics("encoder", "text", "encoded")
attempt_seconds = {
    role: _histogram(
        f"{role}_attempt_duration_seconds", f"Time of an attempt at a remote {role}.", "endpoint", "outcome"
    )
    for role in ("scorer", "encoder")
}


def count_lookups(cache: Cache, **outcomes: int) -> None:
    for outcome, items in outcomes.items():
        if items:
            cache_lookups.labels(cache, outcome).inc(items)


def record_lookups(cache: Cache, found: list[Value | None]) -> list[Value | None]:
    """Count looked-up items as hits and misses (None), and return them."""
    missing = sum(value is None for value in found)
    count_lookups(cache, hit=len(found) - missing, miss=missing)
    return found


def exposition(*, named: bool) -> bytes:
    """Return the text that Prometheus scrapes.

    With `named`, it shows which key did what; otherwise those samples are added up, as key "all".
    """
    if named:
        return generate_latest(REGISTRY)
    nameless = CollectorRegistry()
    nameless.register(_SumsOverKeys(REGISTRY))
    return generate_latest(nameless)


class _SumsOverKeys(Collector):
    """The families of a registry, with samples added up over the label "key"."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def describe(self) -> Sequence[Metric]:
        return ()  # so that the registry skips the first collection

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
