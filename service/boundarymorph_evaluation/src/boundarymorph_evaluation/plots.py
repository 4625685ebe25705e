"""Draw the plots of a report, without pyplot, so that no window is shown or left open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from scipy.optimize import isotonic_regression

INK, MUTED, GRID, OTHERS = "#1f2430", "#8a909c", "#e6e8ec", "#c3c7ce"
# Styles of the highlighted lines, which differ in the colour, also to the colour-blind, and in the marker.
LOOKS = (
    {"color": "#0b5394", "marker": "o", "linestyle": "-", "linewidth": 2.6},
    {"color": "#1f2430", "marker": "s", "linestyle": "--", "linewidth": 1.8},
    {"color": "#b04a00", "marker": "^", "linestyle": "-.", "linewidth": 1.8},
)
ACROSS = 2  # panels in a line
COLOURS = 256
STYLE: Any = {
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "axes.labelsize": 10,
    "font.size": 10,
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "boundarymorph",
}


def quality_against_budget(
    path: Path, values: pd.DataFrame, highlighted: Mapping[str, str], title: str, metric: str
) -> None:
    """Draw one panel per k, all on one scale.

    Only the highlighted methods have a label, at the end of their line.

    Args:
        path: The PNG file.
        values: (methods, (B, k)), from 0 to 1.
        highlighted: The titles of at most three methods; the first stands out most.
        title: The title of the figure.
        metric: The name of the metric.
    """
    budgets, ks = (sorted(set(values.columns.get_level_values(level))) for level in (0, 1))
    with _panels(path, len(ks), title, sharey=True) as panels:
        ends: list[list[tuple[float, str]]] = []
        for panel, k in zip(panels, ks, strict=True):
            ends.append([])
            for method, row in values.iterrows():
                heights = [100 * row[budget, k] for budget in budgets]
                if np.isnan(heights).any():
                    continue
                panel.plot(budgets, heights, **_look(str(method), highlighted))
                if method in highlighted:
                    ends[-1].append((heights[-1], str(method)))
            panel.set_title(f"k = {k}")
            panel.set_xlabel("budget B (cross-encoder calls)")
            panel.set_ylabel(f"{metric} (%)")
            panel.set_xscale("log" if budgets[0] else "symlog")
            panel.set_xticks(budgets, [str(budget) for budget in budgets])
            panel.minorticks_off()
        # The scale is common, so labels can only be placed once all lines are drawn.
        low, high = panels[0].get_ylim()
        for panel, here in zip(panels, ends, strict=True):
            here.sort()
            places = _spread_labels([end for end, _ in here], 0.08 * (high - low), high)
            for (end, method), place in zip(here, places, strict=True):
                panel.annotate(
                    f"{highlighted[method]} {end:.1f}",
                    (budgets[-1], end),
                    (1.03, place),
                    textcoords=("axes fraction", "data"),
                    color=_look(method, highlighted)["color"],
                    va="center",
                    annotation_clip=False,
                )


def _look(method: str, highlighted: Mapping[str, str]) -> dict[str, Any]:
    """Return the style of a method's line: in a thin grey unless it is highlighted."""
    if method not in highlighted:
        return {"color": OTHERS, "linewidth": 1.0, "zorder": 2}
    place = list(highlighted).index(method)
    return {**LOOKS[place], "markersize": 6, "zorder": 6 - place}


@contextmanager
def _panels(path: Path, count: int, title: str, *, sharey: bool = False) -> Iterator[list[Axes]]:
    """Yield `count` panels of a figure with a title, and save the figure."""
    across = min(ACROSS, count)
    down = -(-count // across)
    with saved_figure(path, 5.2 * across, 3.3 * down + 0.5) as figure:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
        panels = list(figure.subplots(down, across, sharey=sharey, squeeze=False).flat)
        for empty in panels[count:]:
            empty.remove()
        yield panels[:count]


@contextmanager
def saved_figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure in the common style, and save it when the block ends without an error."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=130)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = BytesIO()
        figure.savefig(drawn, format="png")
        # A palette makes a third of the bytes; without the software's name the same figure is the same bytes.
        with Image.open(drawn) as image:
            image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def _spread_labels(heights: Sequence[float], least: float, highest: float) -> NDArray[np.float64]:
    """Return sorted label positions that are at least `least` points apart.

    They are moved as little as possible, and none is above the highest.
    """
    apart = least * np.arange(len(heights))
    places = isotonic_regression(np.array(heights) - apart).x + apart
    moved: NDArray[np.float64] = np.minimum(places, highest - apart[::-1])
    return moved
