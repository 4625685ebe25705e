"""The pictures of a report. Figures are drawn without pyplot, so nothing is shown, shared or left open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from numpy.typing import NDArray
from PIL import Image
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from boundarymorph.evaluation.metrics import normalised_gain
from boundarymorph.evaluation.problem import Problem, Question, Ranking
from boundarymorph.selection import Belief

INK, MUTED, GRID, ACCENT, BLUE = "#1f2430", "#8a909c", "#e6e8ec", "#d1495b", "#2e6f95"
LINES = ("#9aa0a6", "#b08968", "#5f6368", "#8ab17d", "#9d79bc", "#e9a23b", "#3a9d9d", "#c98bb9", "#7f8f3a")
OURS = ("#2e6f95", "#d1495b", "#1b7837", "#7b2d8b")
SCORES = LinearSegmentedColormap.from_list("scores", ["#e4e7ec", "#9ecae1", "#3182bd", "#08306b"])
COLOURS = 256
MAPPED = 600  # far documents that nobody likes or asks for only shrink the rest
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


def colours(methods: Sequence[str], ours: Sequence[str]) -> dict[str, str]:
    """A fixed colour a method: quiet ones for baselines, strong ones for the product's."""
    quiet, strong = iter(LINES * 4), iter(OURS * 4)
    return {method: next(strong) if method in ours else next(quiet) for method in methods}


def quality_against_budget(
    path: Path,
    budgets: Sequence[int],
    ks: Sequence[int],
    values: Mapping[str, Mapping[tuple[int, int], float | None]],
    titles: Mapping[str, str],
    palette: Mapping[str, str],
    ours: Sequence[str],
    metric: str,
) -> None:
    """values: method -> (B, k) -> 0..1. One panel a k, all on one scale; labels at the line ends."""
    with saved_figure(path, 3.9 * len(ks) + 0.6, 4.2) as figure:
        panels = figure.subplots(1, len(ks), sharey=True, squeeze=False)[0]
        ends: list[list[tuple[float, str]]] = []
        for panel, k in zip(panels, ks, strict=True):
            ends.append([])
            for method, cells in values.items():
                line = [cells.get((budget, k)) for budget in budgets]
                heights = [100 * value for value in line if value is not None]
                if len(heights) < len(budgets):
                    continue
                strong = method in ours
                panel.plot(
                    budgets,
                    heights,
                    color=palette[method],
                    linewidth=2.6 if strong else 1.3,
                    marker="o",
                    markersize=5.5 if strong else 3.5,
                    linestyle="-" if strong else "--",
                    zorder=3 if strong else 2,
                )
                ends[-1].append((heights[-1], method))
            panel.set_title(f"k = {k}")
            panel.set_xlabel("budget B (cross-encoder calls)")
            panel.set_xscale("log")
            panel.set_xticks(budgets, [str(budget) for budget in budgets])
            panel.minorticks_off()
        # The scale is common, so labels can only be placed once all lines are drawn.
        low, high = panels[0].get_ylim()
        for panel, here in zip(panels, ends, strict=True):
            here.sort()
            places = _apart([end for end, _ in here], 0.042 * (high - low), high)
            for (end, method), place in zip(here, places, strict=True):
                panel.annotate(
                    f"{titles[method]} {end:.1f}",
                    (budgets[-1], end),
                    (1.03, place),
                    textcoords=("axes fraction", "data"),
                    color=palette[method],
                    fontsize=7.5,
                    fontweight="bold" if method in ours else "normal",
                    va="center",
                    annotation_clip=False,
                )
        panels[0].set_ylabel(f"{metric} (%)")


def quality_against_latency(
    path: Path,
    lines: Mapping[str, Mapping[str, Sequence[tuple[float, float, int]]]],
    titles: Mapping[str, str],
    palette: Mapping[str, str],
    ours: Sequence[str],
    title: str,
) -> None:
    """lines: metric -> method -> (seconds a query, value 0..1, B), by growing B. One panel a metric."""
    with saved_figure(path, 5.2 * len(lines) + 2.4, 4.4) as figure:
        panels = figure.subplots(1, len(lines), squeeze=False)[0]
        for panel, (metric, methods) in zip(panels, lines.items(), strict=True):
            for method, points in methods.items():
                seconds, values, budgets = zip(*points, strict=True)
                strong = method in ours
                panel.plot(
                    seconds,
                    [100 * value for value in values],
                    color=palette[method],
                    linewidth=2.2 if strong else 1.2,
                    marker="o",
                    markersize=5.5 if strong else 3.5,
                    linestyle="-" if strong else "--",
                    zorder=3 if strong else 2,
                    label=titles[method],
                )
                panel.annotate(
                    f"B={budgets[-1]}",
                    (seconds[-1], 100 * values[-1]),
                    (4, 3),
                    textcoords="offset points",
                    color=palette[method],
                    fontsize=7,
                )
            panel.set_xscale("log")
            panel.set_xlabel("seconds a query")
            panel.set_ylabel(f"{metric} (%)")
        panels[0].set_title(title)
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)


def document_map(
    path: Path, question: Question, runs: Mapping[str, tuple[Problem, Ranking]], title: str, seed: int = 0
) -> None:
    """The pool in two dimensions (t-SNE of the embeddings), once a method: what it scored and what it chose.

    Of a large pool the MAPPED best-scored documents are shown, and every document that some method scored or chose.
    """
    drawn = np.zeros(len(question.pool), dtype=np.bool_)
    drawn[np.argsort(-question.scores, kind="stable")[:MAPPED]] = True
    for problem, ranking in runs.values():
        drawn[problem.calls] = True
        drawn[ranking[: problem.k]] = True
    places = np.full((len(drawn), 2), np.nan)
    places[drawn] = _layout(np.asarray(question.pool.embeddings[drawn], dtype=np.float32), seed)
    columns = 2 if len(runs) == 4 else min(3, len(runs))
    lines = -(-len(runs) // columns)
    with saved_figure(path, 5.4 * columns, 4.9 * lines + 0.9) as figure:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        order = np.argsort(question.scores, kind="stable")
        order = order[drawn[order]]
        for panel, (name, (problem, ranking)) in zip(panels, runs.items(), strict=False):
            chosen = ranking[: problem.k]
            dots = panel.scatter(
                *places[order].T,
                c=question.scores[order],
                cmap=SCORES,
                norm=PowerNorm(0.5, 0, 1),
                s=9 + 26 * question.scores[order],
                linewidths=0.2,
                edgecolors="white",
            )
            panel.scatter(
                *places[chosen].T, s=62, facecolors="none", edgecolors=ACCENT, linewidths=1.0, label="in the chosen set"
            )
            if problem.calls:
                panel.scatter(
                    *places[problem.calls].T, s=26, marker="x", color=INK, linewidths=1.0, label="scored (a call)"
                )
            gain = normalised_gain(chosen, question.scores)
            panel.set_title(f"{name}: {len(problem.calls)} calls, CE-nCG@{problem.k} {100 * gain:.0f} %")
            panel.set(xticks=[], yticks=[])
            panel.grid(False)
            panel.spines[:].set_visible(False)
        for panel in panels[len(runs) :]:
            panel.set_visible(False)
        handles, labels = max((panel.get_legend_handles_labels() for panel in panels), key=lambda found: len(found[1]))
        figure.legend(handles, labels, loc="outside lower left", ncols=2)
        figure.colorbar(
            dots, ax=list(panels), label="cross-encoder score", shrink=0.6, pad=0.01, ticks=[0, 0.1, 0.5, 1]
        )


def belief_along_rank(path: Path, prior: Belief, posterior: Belief, chosen: NDArray[np.intp], title: str) -> None:
    """Prior and posterior mean in retrieval order, the scored documents, and the boundary of the set: a line, or a band
    where the set does not follow this mean alone."""
    count = len(prior.mean)
    ranks = np.arange(1, count + 1)
    inside = np.zeros(count, dtype=np.bool_)
    inside[chosen] = True
    weakest = float(posterior.mean[inside].min())
    strongest = float(posterior.mean[~inside].max()) if (~inside).any() else weakest
    with saved_figure(path, 10.5, 4.8) as figure:
        panel = figure.subplots()
        free = ~posterior.scored
        panel.vlines(
            ranks[free],
            (posterior.mean - posterior.std)[free],
            (posterior.mean + posterior.std)[free],
            color="#cfe0ea",
            linewidth=0.7,
            label="posterior ± one standard deviation",
        )
        panel.plot(ranks, prior.mean, color=MUTED, linewidth=1.6, label="prior mean")
        for mask, colour, label in (
            (free & ~inside, BLUE, "posterior mean, left out"),
            (free & inside, ACCENT, "posterior mean, chosen unscored"),
        ):
            panel.plot(ranks[mask], posterior.mean[mask], ".", color=colour, markersize=4.5, label=label)
        for mask, fill, label in (
            (~free & ~inside, "white", "scored, left out"),
            (~free & inside, ACCENT, "scored, chosen"),
        ):
            panel.plot(
                ranks[mask],
                posterior.mean[mask],
                "D",
                markersize=5.5,
                markerfacecolor=fill,
                markeredgecolor=INK,
                linestyle="none",
                label=label,
            )
        _boundary(panel, weakest, strongest)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.set_xlim(0.9, count * 1.05)
        panel.set_xlabel("rank in retrieval (log scale)")
        panel.set_ylabel("expected score")
        panel.set_title(title)
        panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)


def _boundary(panel: Axes, weakest: float, strongest: float) -> None:
    """A line between the weakest chosen and the strongest other mean, or a band where they overlap."""
    if weakest >= strongest:
        panel.axhline((weakest + strongest) / 2, color=INK, linewidth=1.2, linestyle=(0, (5, 3)))
    else:
        panel.axhspan(weakest, strongest, color=MUTED, alpha=0.18, linewidth=0)
    panel.annotate(
        "boundary of the set",
        (1.0, max(weakest, strongest)),
        (-4, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
        color=INK,
        bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1},
    )


def unscored_share(path: Path, shares: Mapping[str, float], palette: Mapping[str, str], title: str) -> None:
    """Bars: how much of each set's CE gain came from documents that nobody paid for."""
    with saved_figure(path, 6.8, 0.42 * len(shares) + 1.2) as figure:
        panel = figure.subplots()
        names = list(shares)[::-1]
        widths = [100 * shares[name] for name in names]
        panel.barh(names, widths, color=[palette[name] for name in names], height=0.62)
        for row, width in enumerate(widths):
            panel.annotate(f"{width:.0f} %", (width, row), (4, 0), textcoords="offset points", va="center", fontsize=8)
        panel.set_xlim(0, 108)
        panel.set_xlabel("share of the set's CE gain from unscored documents (%)")
        panel.grid(axis="y", visible=False)
        panel.set_title(title)


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


def _apart(heights: Sequence[float], least: float, highest: float) -> list[float]:
    """Sorted label positions, moved as little as keeps them `least` points apart and none above the highest."""
    places = list(heights)
    for _ in range(200):
        moved = False
        for number in range(1, len(places)):
            gap = least - (places[number] - places[number - 1])
            if gap > 1e-6:
                places[number - 1] -= gap / 2
                places[number] += gap / 2
                moved = True
        if not moved:
            break
    return [min(place, highest - least * (len(places) - 1 - number)) for number, place in enumerate(places)]


def _layout(embeddings: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """(N, 2) places: t-SNE from the first principal components; two components alone for a handful of documents."""
    centred = embeddings - embeddings.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    flat = (centred @ axes[: min(50, len(axes))].T).astype(np.float64)
    if len(embeddings) < 50:
        padded = np.zeros((len(flat), 2))
        padded[:, : min(2, flat.shape[1])] = flat[:, :2]
        return padded
    # More threads wait for each other longer than they work, and how they split a sum would show in the picture.
    with threadpool_limits(1, user_api="openmp"):
        places: NDArray[np.float64] = TSNE(
            init="pca", perplexity=30, random_state=seed, learning_rate="auto", max_iter=500
        ).fit_transform(flat)
    return places
