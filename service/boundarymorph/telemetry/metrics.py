"""Prometheus metrics: the only globals of the service. Seconds and counts, no label that a caller could make up."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram, generate_latest

# Geometric, from 1 ms to 75 s.
SECONDS = tuple(round(0.001 * 1.5**power, 6) for power in range(29))
COUNTS = (0, 1, 2, 5, 10, 25, 50, 100, 200, 500, 1_000, 2_000)

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


def exposition() -> tuple[bytes, str]:
    """The scrape and its content type."""
    return generate_latest(), CONTENT_TYPE_LATEST
