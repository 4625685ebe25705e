"""Prometheus metrics: the only globals of the service. Seconds and counts, no label that a caller could make up."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest

# Geometric, from 1 ms to 75 s.
SECONDS = tuple(round(0.001 * 1.5**power, 6) for power in range(29))
COUNTS = (0, 1, 2, 5, 10, 25, 50, 100, 200, 500, 1_000, 2_000)
TOKENS = tuple(2**power for power in range(5, 18))
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)

http_seconds = Histogram(
    "boundarymorph_http_request_duration_seconds",
    "Time from the head of a request to the end of its answer.",
    ["method", "route", "status"],
    buckets=SECONDS,
)
select_stage_seconds = Histogram(
    "boundarymorph_select_stage_duration_seconds", "Time a selection spent in a stage.", ["stage"], buckets=SECONDS
)
selections = Counter(
    "boundarymorph_selections_total", "Selections by what they are and why they stopped.", ["status", "stop_reason"]
)
expected_loss = Histogram(
    "boundarymorph_select_expected_loss_ratio",
    "Share of a set's relevance that more calls may have brought.",
    buckets=SHARES,
)
cross_encoder_calls = Counter("boundarymorph_cross_encoder_calls_total", "Pairs scored for selections.")
select_calls = Histogram("boundarymorph_select_calls", "Cross-encoder calls of a selection.", buckets=COUNTS)
select_rounds = Histogram("boundarymorph_select_rounds", "Trips to the scorer of a selection.", buckets=COUNTS)
truncated_pairs = Counter("boundarymorph_truncated_pairs_total", "Scored pairs cut to fit the cross-encoder.")
ingested = Counter("boundarymorph_ingested_documents_total", "Uploaded documents by what became of them.", ["outcome"])

_MODEL = ["model", "backend"]


class BatchFamily:
    """The metrics of all batchers of one role: of the scorer's pairs, or of the encoder's texts."""

    def __init__(self, role: str, item: str, done: str) -> None:
        """role, item: parts of the names, the item in the singular; done: what a batch does to it."""
        prefix, items, title = f"boundarymorph_{role}", f"{item}s", item.capitalize()
        self.queue_items = Gauge(f"{prefix}_queue_{items}", f"{title}s that wait, at the scrape.", _MODEL)
        self.queue_tokens = Gauge(f"{prefix}_queue_tokens", "Tokens that wait, at the scrape.", _MODEL)
        self.batch_items = Histogram(f"{prefix}_batch_{items}", f"{title}s of a batch.", _MODEL, buckets=COUNTS)
        self.batch_tokens = Histogram(f"{prefix}_batch_tokens", "Tokens of a batch.", _MODEL, buckets=TOKENS)
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
        self.refused = Counter(f"{prefix}_refused_requests_total", "Requests refused at the door.", _MODEL)
        self.dropped = Counter(
            f"{prefix}_dropped_{items}_total", f"{title}s dropped before they were {done}.", [*_MODEL, "reason"]
        )


scorer_batches = BatchFamily("scorer", "pair", "scored")
encoder_batches = BatchFamily("encoder", "text", "encoded")
scorer_attempt_seconds = Histogram(
    "boundarymorph_scorer_attempt_duration_seconds",
    "Time of an attempt at a remote scorer.",
    ["endpoint", "outcome"],
    buckets=SECONDS,
)
encoder_attempt_seconds = Histogram(
    "boundarymorph_encoder_attempt_duration_seconds",
    "Time of an attempt at a remote encoder.",
    ["endpoint", "outcome"],
    buckets=SECONDS,
)


class BatchMetrics:
    """Those of one model in this process. `waiting` tells, at each scrape, the items and tokens that wait."""

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
        """Count items that nobody waits for any more: cancelled, deadline or failed."""
        self._family.dropped.labels(*self._labels, reason).inc(items)

    def close(self) -> None:
        """Let go of the queue; the counts stay."""
        for gauge in (self._family.queue_items, self._family.queue_tokens):
            gauge.remove(*self._labels)


def observe_attempt(endpoint: str, outcome: str, seconds: float) -> None:
    """Record one attempt at a remote scorer."""
    scorer_attempt_seconds.labels(endpoint, outcome).observe(seconds)


def observe_encoder_attempt(endpoint: str, outcome: str, seconds: float) -> None:
    """Record one attempt at a remote encoder."""
    encoder_attempt_seconds.labels(endpoint, outcome).observe(seconds)


def exposition() -> tuple[bytes, str]:
    """The scrape and its content type."""
    return generate_latest(), CONTENT_TYPE_LATEST
