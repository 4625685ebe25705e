"""The pictures of a report. Figures are drawn without pyplot, so nothing is shown, shared or left open."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from scipy.optimize import isotonic_regression

INK, MUTED, GRID = "#1f2430", "#8a909c", "#e6e8ec"
LINES = ("#9aa0a6", "#b08968", "#5f6368", "#8ab17d", "#9d79bc", "#e9a23b", "#3a9d9d", "#c98bb9", "#7f8f3a")
OURS = ("#2e6f95", "#d1495b", "#1b7837", "#7b2d8b")
COLOURS = 256
STYLE: Any = {
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "axes.labelsize": 9,
    "font.size": 9,
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "boundarymorph",
}


@dataclass(frozen=True)
class Look:
    """Of a method in every picture. strong: one of the product's."""

    title: str
    colour: str
    strong: bool

    @property
    def line(self) -> dict[str, Any]:
        return {
            "color": self.colour,
            "linewidth": 2.6 if self.strong else 1.3,
            "marker": "o",
            "markersize": 5.5 if self.strong else 3.5,
            "linestyle": "-" if self.strong else "--",
            "zorder": 3 if self.strong else 2,
        }


def looks(titles: Mapping[str, str], ours: Collection[str]) -> dict[str, Look]:
    """By method, with a colour each: quiet ones for baselines, strong ones for the product's."""
    quiet, strong = iter(LINES * 4), iter(OURS * 4)
    return {
        method: Look(title, next(strong) if method in ours else next(quiet), method in ours)
        for method, title in titles.items()
    }


def quality_against_budget(path: Path, values: pd.DataFrame, looks: Mapping[str, Look], metric: str) -> None:
    """Draw one panel a k, all on one scale, with labels at the line ends. values: (methods, (B, k)) from 0 to 1."""
    budgets, ks = (sorted(set(values.columns.get_level_values(level))) for level in (0, 1))
    with saved_figure(path, 3.9 * len(ks) + 0.6, 4.2) as figure:
        panels = figure.subplots(1, len(ks), sharey=True, squeeze=False)[0]
        ends: list[list[tuple[float, str]]] = []
        for panel, k in zip(panels, ks, strict=True):
            ends.append([])
            for method, row in values.iterrows():
                heights = [100 * row[budget, k] for budget in budgets]
                if np.isnan(heights).any():
                    continue
                panel.plot(budgets, heights, **looks[method].line)
                ends[-1].append((heights[-1], method))
            panel.set_title(f"k = {k}")
            panel.set_xlabel("budget B (cross-encoder calls)")
            panel.set_xscale("log" if budgets[0] else "symlog")
            panel.set_xticks(budgets, [str(budget) for budget in budgets])
            panel.minorticks_off()
        # The scale is common, so labels can only be placed once all lines are drawn.
        low, high = panels[0].get_ylim()
        for panel, here in zip(panels, ends, strict=True):
            here.sort()
            places = _apart([end for end, _ in here], 0.042 * (high - low), high)
            for (end, method), place in zip(here, places, strict=True):
                panel.annotate(
                    f"{looks[method].title} {end:.1f}",
                    (budgets[-1], end),
                    (1.03, place),
                    textcoords=("axes fraction", "data"),
                    color=looks[method].colour,
                    fontsize=7.5,
                    fontweight="bold" if looks[method].strong else "normal",
                    va="center",
                    annotation_clip=False,
                )
        panels[0].set_ylabel(f"{metric} (%)")


def quality_against_latency(
    path: Path,
    lines: Mapping[str, Mapping[str, Sequence[tuple[float, float, int]]]],
    looks: Mapping[str, Look],
    title: str,
) -> None:
    """Draw one panel a metric. lines: metric -> method -> (seconds a query, value 0..1, B), by growing B."""
    with saved_figure(path, 5.2 * len(lines) + 2.4, 4.4) as figure:
        panels = figure.subplots(1, len(lines), squeeze=False)[0]
        for panel, (metric, methods) in zip(panels, lines.items(), strict=True):
            for method, points in methods.items():
                seconds, values, budgets = zip(*points, strict=True)
                look = looks[method]
                panel.plot(seconds, [100 * value for value in values], label=look.title, **look.line)
                panel.annotate(
                    f"B={budgets[-1]}",
                    (seconds[-1], 100 * values[-1]),
                    (4, 3),
                    textcoords="offset points",
                    color=look.colour,
                    fontsize=7,
                )
            panel.set_xscale("log")
            panel.set_xlabel("seconds a query")
            panel.set_ylabel(f"{metric} (%)")
        panels[0].set_title(title)
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)


@contextmanager
def saved_figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure in the common style, saved when the block ends well."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=130)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = BytesIO()
        figure.savefig(drawn, format="png")
        # A palette makes a third of the bytes; without the software's name the same figure is the same bytes.
        with Image.open(drawn) as image:
            image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def _apart(heights: Sequence[float], least: float, highest: float) -> NDArray[np.float64]:
    """Sorted label positions, moved as little as keeps them `least` points apart and none above the highest."""
    apart = least * np.arange(len(heights))
    places = isotonic_regression(np.array(heights) - apart).x + apart
    moved: NDArray[np.float64] = np.minimum(places, highest - apart[::-1])
    return moved
