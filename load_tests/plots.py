"""Plots of the figures in build/bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from load_tests.report import RESULTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def latencies(
    name: str, rows: Sequence[Mapping[str, Any]], by_rate: Mapping[float, Sequence[tuple[float, float]]]
) -> Path:
    """Plot percentiles by rate, and the times at each rate over its course. by_rate: (time, seconds) of each answer."""
    figure, (left, right) = _axes(2)
    rates = [row["rate"] for row in rows]
    for share in ("p50_ms", "p95_ms", "p99_ms"):
        left.plot(rates, [row[share] for row in rows], marker="o", label=share.removesuffix("_ms"))
    left.set(xlabel="requests a second", ylabel="from when it was due, ms", yscale="log")
    left.legend()
    for rate, answers in by_rate.items():
        start = min((moment for moment, _ in answers), default=0.0)
        moments = [moment - start for moment, _ in answers]
        right.plot(moments, [seconds * 1e3 for _, seconds in answers], ".", markersize=3, label=f"{rate:g}")
    right.set(xlabel="due, s", yscale="log")
    right.legend(title="a second")
    return _saved(figure, name)


def history(name: str, series: Mapping[str, Sequence[tuple[float, float]]], labels: tuple[str, str]) -> Path:
    """Plot lines over time."""
    figure, (axes,) = _axes(1)
    for label, points in series.items():
        axes.plot([x for x, _ in points], [y for _, y in points], label=label)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.legend()
    return _saved(figure, name)


def _axes(count: int) -> tuple[Figure, Sequence[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * count, 4), layout="constrained")
    return figure, [figure.add_subplot(1, count, number + 1) for number in range(count)]


def _saved(figure: Figure, name: str) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.png"
    figure.savefig(path, dpi=120)
    return path
