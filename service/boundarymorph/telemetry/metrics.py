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
selections = Counter("boundarymorph_selections_total", "Selections by why they stopped.", ["stop_reason"])
cross_encoder_calls = Counter("boundarymorph_cross_encoder_calls_total", "Pairs scored for selections.")
select_calls = Histogram("boundarymorph_select_calls", "Cross-encoder calls of a selection.", buckets=COUNTS)
select_rounds = Histogram("boundarymorph_select_rounds", "Trips to the scorer of a selection.", buckets=COUNTS)
truncated_pairs = Counter("boundarymorph_truncated_pairs_total", "Scored pairs cut to fit the cross-encoder.")
ingested = Counter("boundarymorph_ingested_documents_total", "Uploaded documents by what became of them.", ["outcome"])

_SCORER = ["model", "backend"]
scorer_queue_pairs = Gauge("boundarymorph_scorer_queue_pairs", "Pairs that wait, at the scrape.", _SCORER)
scorer_queue_tokens = Gauge("boundarymorph_scorer_queue_tokens", "Tokens that wait, at the scrape.", _SCORER)
scorer_batch_pairs = Histogram("boundarymorph_scorer_batch_pairs", "Pairs of a batch.", _SCORER, buckets=COUNTS)
scorer_batch_tokens = Histogram("boundarymorph_scorer_batch_tokens", "Tokens of a batch.", _SCORER, buckets=TOKENS)
scorer_padding = Histogram(
    "boundarymorph_scorer_batch_padding_ratio", "Share of a batch's cost that was padding.", _SCORER, buckets=SHARES
)
scorer_wait_seconds = Histogram(
    "boundarymorph_scorer_wait_seconds", "Time from a pair's arrival to its batch.", _SCORER, buckets=SECONDS
)
scorer_tokenize_seconds = Histogram(
    "boundarymorph_scorer_tokenize_seconds", "Time to tokenise a request.", _SCORER, buckets=SECONDS
)
scorer_compute_seconds = Histogram(
    "boundarymorph_scorer_compute_seconds", "Time of a batch in the model.", _SCORER, buckets=SECONDS
)
scorer_truncated = Counter("boundarymorph_scorer_truncated_pairs_total", "Pairs cut to fit the model.", _SCORER)
scorer_out_of_memory = Counter("boundarymorph_scorer_out_of_memory_total", "Batches halved for memory.", _SCORER)
scorer_refused = Counter("boundarymorph_scorer_refused_requests_total", "Requests refused at the door.", _SCORER)
scorer_dropped = Counter(
    "boundarymorph_scorer_dropped_pairs_total", "Pairs dropped before they were scored.", [*_SCORER, "reason"]
)
scorer_attempt_seconds = Histogram(
    "boundarymorph_scorer_attempt_duration_seconds",
    "Time of an attempt at a remote scorer.",
    ["endpoint", "outcome"],
    buckets=SECONDS,
)


class ScorerMetrics:
    """Those of one cross-encoder in this process. `waiting` tells, at each scrape, the pairs and tokens that wait."""

    def __init__(self, model: str, backend: str, waiting: Callable[[], tuple[int, int]]) -> None:
        self._labels = labels = (model, backend)
        scorer_queue_pairs.labels(*labels).set_function(lambda: waiting()[0])
        scorer_queue_tokens.labels(*labels).set_function(lambda: waiting()[1])
        self.batch_pairs = scorer_batch_pairs.labels(*labels)
        self.batch_tokens = scorer_batch_tokens.labels(*labels)
        self.padding = scorer_padding.labels(*labels)
        self.wait_seconds = scorer_wait_seconds.labels(*labels)
        self.tokenize_seconds = scorer_tokenize_seconds.labels(*labels)
        self.compute_seconds = scorer_compute_seconds.labels(*labels)
        self.truncated = scorer_truncated.labels(*labels)
        self.out_of_memory = scorer_out_of_memory.labels(*labels)
        self.refused = scorer_refused.labels(*labels)

    def dropped(self, reason: str, pairs: int) -> None:
        """Count pairs that nobody waits for any more: cancelled, deadline or failed."""
        scorer_dropped.labels(*self._labels, reason).inc(pairs)

    def close(self) -> None:
        """Let go of the queue; the counts stay."""
        for gauge in (scorer_queue_pairs, scorer_queue_tokens):
            gauge.remove(*self._labels)


def observe_attempt(endpoint: str, outcome: str, seconds: float) -> None:
    """Record one attempt at a remote scorer."""
    scorer_attempt_seconds.labels(endpoint, outcome).observe(seconds)


def exposition() -> tuple[bytes, str]:
    """The scrape and its content type."""
    return generate_latest(), CONTENT_TYPE_LATEST
