"""`boundarymorph top`: shows what a running service is doing, from its /metrics."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import httpx
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from boundarymorph.cli.common import console
from boundarymorph.errors import BoundaryMorphError

Labels = frozenset[tuple[str, str]]
SECONDS = 10.0  # timeout of a scrape
REQUESTS, STAGES = "boundarymorph_http_request_duration_seconds", "boundarymorph_select_stage_duration_seconds"
PROBED = {"/livez", "/readyz", "/metrics"}  # routes whose error statuses are not failures
WIDTH = 76  # of a panel


@dataclass(frozen=True, slots=True)
class Samples:
    """One scrape. at: seconds since 1970, NaN if unknown; values: by name and labels."""

    at: float
    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    @classmethod
    def parsed(cls, text: str, at: float) -> Samples:
        """Parse Prometheus's text format. Raises ValueError if the text is something else."""
        values: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name][frozenset(sample.labels.items())] = sample.value
        return cls(at, values)

    def of(self, name: str, **labels: str) -> dict[Labels, float]:
        """Return the values of a name that have these labels."""
        wanted = labels.items()
        return {found: value for found, value in self.values.get(name, {}).items() if wanted <= found}

    def total(self, name: str, **labels: str) -> float:
        return sum(self.of(name, **labels).values())


@dataclass(frozen=True, slots=True)
class Span:
    """The time between two scrapes of a service, which may have restarted in between."""

    before: Samples
    now: Samples

    @property
    def seconds(self) -> float:
        """The length of the span; NaN, as all rates then are, if the time of its first scrape is unknown."""
        return max(self.now.at - self.before.at, 1e-9)

    def grown(self, name: str, **labels: str) -> dict[Labels, float]:
        """Return by how much counters grew; one that fell was reset."""
        old = self.before.of(name, **labels)
        return {
            found: value if value < old.get(found, 0.0) else value - old.get(found, 0.0)
            for found, value in self.now.of(name, **labels).items()
        }

    def count(self, name: str, **labels: str) -> float:
        return sum(self.grown(name, **labels).values())

    def rate(self, name: str, **labels: str) -> float:
        """Return the growth per second."""
        return self.count(name, **labels) / self.seconds

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Return the growth of counters by the values of a label, the largest first, without zeros."""
        sums: defaultdict[str, float] = defaultdict(float)
        for found, value in self.grown(name, **labels).items():
            sums[dict(found).get(label, "")] += value
        return {key: sums[key] for key in sorted(sums, key=lambda key: -sums[key]) if sums[key] > 0}

    def mean(self, name: str, **labels: str) -> float:
        """Return the mean of a histogram; NaN if nothing was observed."""
        count = self.count(f"{name}_count", **labels)
        return self.count(f"{name}_sum", **labels) / count if count else math.nan

    def quantile(self, share: float, name: str, **labels: str) -> float:
        """Return a quantile of a histogram, linear within a bucket, as in Prometheus; NaN if nothing was observed."""
        sums: defaultdict[float, float] = defaultdict(float)
        for found, value in self.grown(f"{name}_bucket", **labels).items():
            sums[float(dict(found)["le"])] += value
        bounds = sorted(sums)
        if not bounds or not sums[bounds[-1]]:
            return math.nan
        wanted, low, below = share * sums[bounds[-1]], 0.0, 0.0
        for bound in bounds:
            if sums[bound] >= wanted:
                return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (sums[bound] - below)
            low, below = bound, sums[bound]
        return math.nan


class Unreachable(BoundaryMorphError):
    """The service's metrics cannot be read."""


def top(
    url: Annotated[
        str, typer.Option(envvar="BOUNDARYMORPH_URL", help="The service, a scorer or a retriever.")
    ] = "http://127.0.0.1:8080",
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two frames.")] = 2.0,
    window: Annotated[float, typer.Option(min=1, help="Seconds that rates and latencies cover.")] = 30.0,
    once: Annotated[bool, typer.Option("--once", help="Show one frame that covers all time since the start.")] = False,
) -> None:
    """Watch a running service: requests, latencies, calls, cache, queues, scorers, degraded answers. Ctrl-C exits."""
    with httpx.Client(base_url=url.rstrip("/"), timeout=SECONDS) as client:
        first = scrape(client)
        if once:
            console.print(frame(Span(_start(first), first), url))
            return
        kept = beginning(first)
        with Live(frame(Span(kept[0], first), url), console=console, screen=True, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(interval)
                    live.update(_next(client, kept, window, url), refresh=True)
            except KeyboardInterrupt:
                pass


def beginning(first: Samples) -> deque[Samples]:
    """Return the first scrapes to keep: those of all time since the start if it is known."""
    start = _start(first)
    return deque([first] if math.isnan(start.at) else [start, first])


def _start(first: Samples) -> Samples:
    """Return the scrape at the start of the process; its time is NaN if it is unknown, as it is of several workers."""
    return Samples(first.total("process_start_time_seconds") or math.nan)


def scrape(client: httpx.Client) -> Samples:
    """Read the metrics of the service. Raises Unreachable."""
    try:
        response = client.get("/metrics").raise_for_status()
        return Samples.parsed(response.text, time.time())
    except (httpx.HTTPError, ValueError) as error:
        raise Unreachable(f"{client.base_url}/metrics cannot be read: {error}") from error


def _next(client: httpx.Client, kept: deque[Samples], window: float, url: str) -> RenderableType:
    """Return the next frame, covering `window` seconds; if the service does not answer, the last one and the error."""
    try:
        kept.append(scrape(client))
    except Unreachable as error:
        return Group(Text(str(error), "bold red"), frame(Span(kept[0], kept[-1]), url))
    while len(kept) > 2 and kept[-1].at - kept[1].at >= window:
        kept.popleft()
    return frame(Span(kept[0], kept[-1]), url)


def frame(span: Span, url: str) -> RenderableType:
    """Return all panels for a span."""
    title = Text.assemble(("boundarymorph ", "bold"), url, (f"   {_duration(span.seconds)}", "dim"))
    panels = [_requests(span), _selections(span), _work(span), _state(span)]
    if span.now.of("boundarymorph_judge_answers_total"):
        panels.append(_judge(span))
    return Group(title, Columns(panels))


def _requests(span: Span) -> Panel:
    rows = [("all", _rate(span.rate(f"{REQUESTS}_count")), "")]
    for route in list(span.by("route", f"{REQUESTS}_count"))[:5]:
        rate = span.rate(f"{REQUESTS}_count", route=route)
        rows.append((route, _rate(rate), f"p95 {_time(span.quantile(0.95, REQUESTS, route=route))}"))
    failed: defaultdict[str, float] = defaultdict(float)
    for labels, count in span.grown(f"{REQUESTS}_count").items():
        found = dict(labels)
        if count and found["status"] >= "400" and found["route"] not in PROBED:
            failed[found["status"]] += count
    rows.append(("[red]refused or failed[/red]" if failed else "refused or failed", _counts(failed), ""))
    return _panel("requests", rows)


def _selections(span: Span) -> Panel:
    times = ", ".join(
        f"p{round(100 * share)} {_time(span.quantile(share, STAGES, stage='total'))}" for share in (0.5, 0.95, 0.99)
    )
    answers = span.by("status", "boundarymorph_selections_total")
    degraded = sum(answers.values()) - answers.get("complete", 0.0)
    reasons: dict[str, float] = {}
    for status in answers.keys() - {"complete"}:
        reasons |= span.by("stop_reason", "boundarymorph_selections_total", status=status)
    style = "red" if degraded else "green"
    return _panel(
        "selections",
        [
            ("answers", _rate(sum(answers.values()) / span.seconds), _counts(answers)),
            ("latency", times, ""),
            (f"[{style}]degraded[/{style}]", _share(degraded, sum(answers.values())), _counts(reasons)),
            ("expected loss", f"p95 {_percent(span.quantile(0.95, 'boundarymorph_select_expected_loss_ratio'))}", ""),
            ("refused (429)", _counts(span.by("reason", "boundarymorph_select_refused_total")), ""),
        ],
    )


def _work(span: Span) -> Panel:
    calls, rounds = span.mean("boundarymorph_select_calls"), span.mean("boundarymorph_select_rounds")
    rows = [
        (
            "calls",
            _rate(span.rate("boundarymorph_cross_encoder_calls_total")),
            f"{_number(calls)} a selection in {_number(rounds)} rounds",
        ),
        ("budget used", _percent(span.mean("boundarymorph_select_budget_used_ratio")), ""),
    ]
    for cache in ("scores", "embeddings"):
        found = span.by("outcome", "boundarymorph_cache_lookups_total", cache=cache)
        rows.append((f"cache: {cache}", f"{_share(found.get('hit', 0.0), sum(found.values()))} hits", ""))
    stages = {name: span.mean(STAGES, stage=name) for name in ("retrieve", "score", "select", "fetch", "wait")}
    rows += [(f"mean {name}", _time(seconds), "") for name, seconds in stages.items() if seconds > 0]
    return _panel("work", rows)


def _state(span: Span) -> Panel:
    now = span.now
    rows = [
        (
            "selections",
            f"{now.total('boundarymorph_select_running'):.0f} running",
            f"{now.total('boundarymorph_select_waiting'):.0f} waiting",
        )
    ]
    for role, items in (("scorer", "pairs"), ("encoder", "texts")):
        if now.of(f"boundarymorph_{role}_queue_tokens"):
            queue = now.total(f"boundarymorph_{role}_queue_{items}")
            tokens = now.total(f"boundarymorph_{role}_queue_tokens")
            wait = _time(span.quantile(0.95, f"boundarymorph_{role}_wait_seconds"))
            rows.append((f"{role}'s queue", f"{queue:.0f} {items}, {tokens:,.0f} tokens", f"p95 wait {wait}"))
    for labels, up in sorted(now.of("boundarymorph_part_up").items(), key=str):
        rows.append((dict(labels)["part"], _up(up), ""))
    for labels, up in sorted(now.of("boundarymorph_replica_up").items(), key=str):
        rows.append((escape(f"{dict(labels)['role']} {dict(labels)['endpoint']}"), _up(up), ""))
    if circuits := now.of("boundarymorph_cache_circuit_state"):
        away = sorted(f"{dict(labels)['operation']}s" for labels, state in circuits.items() if state)
        rows.append(
            ("Redis", "[bold red]away[/bold red]" if away else _up(1), f"no {' and '.join(away)}" if away else "")
        )
    return _panel("state", rows)


def _judge(span: Span) -> Panel:
    return _panel(
        "language model",
        [
            ("answers", _counts(span.by("outcome", "boundarymorph_judge_answers_total")), ""),
            ("tokens", _rate(span.rate("boundarymorph_judge_tokens_total")), ""),
            ("cost", _hourly(3600 * span.rate("boundarymorph_judge_cost_total")), ""),
            ("over a ceiling", _counts(span.by("ceiling", "boundarymorph_cost_ceiling_refusals_total")), ""),
        ],
    )


def _panel(title: str, rows: Iterable[tuple[str, str, str]]) -> Panel:
    grid = Table.grid(padding=(0, 2))
    for row in rows:
        grid.add_row(*row)
    return Panel(grid, title=title, title_align="left", width=WIDTH)


def _counts(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{escape(name)} {count:,.0f}" for name, count in counts.items()) or "none"


def _up(value: float) -> str:
    return "[green]up[/green]" if value else "[bold red]down[/bold red]"


def _time(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "since the start"
    return f"the last {seconds:.0f} s" if seconds < 120 else f"the last {seconds / 60:.0f} min"


def _rate(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.1f} /s"


def _hourly(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.2f} an hour"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"


def _share(part: float, whole: float) -> str:
    return _percent(part / whole) if whole else "-"
