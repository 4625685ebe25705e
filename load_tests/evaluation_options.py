"""What a session's options cost and bring, on every table of a folder: options.json, options.md and a plot.

python -m load_tests.evaluation_options TABLES --out build/evaluation-options
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from boundarymorph.evaluation import plots
from boundarymorph.selection.methods import METHODS
from load_tests import option_studies as options
from load_tests import report, studies
from load_tests.studies import Row, markdown

ALL = "mean of tables"
PACKED = ("count", "count+root", "count+density", "tokens")


def main() -> None:
    parser = studies.parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/evaluation-options"))
    parser.add_argument(
        "--studies", default=",".join(options.STUDIES), help="those not named are kept from the last run"
    )
    given = studies.parsed(parser)
    given.out.mkdir(parents=True, exist_ok=True)
    raw = given.out / "options-rows.json"
    found: dict[str, list[Row]] = orjson.loads(raw.read_bytes()) if raw.exists() else {}
    console = Console()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    stopped = False
    with Progress(*columns, console=console) as progress:
        try:
            for name in filter(None, given.studies.split(",")):
                measured: list[Row] = []
                for table in given.tables:
                    task = progress.add_task(f"{name}: {table.name}", total=-(-len(table) // given.every))
                    rows = options.STUDIES[name](table, given.every, lambda task=task: progress.advance(task))  # type: ignore[misc]
                    measured += [{"table": table.name, **row} for row in rows]
                found[name] = measured
                raw.write_bytes(orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY))
                console.print(_section(name, SUMMARIES[name](measured)), markup=False, highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            stopped = True
    figures = {name: SUMMARIES[name](found[name]) for name in SUMMARIES if name in found}
    text = "\n\n".join(_section(name, rows) for name, rows in figures.items()) + "\n"
    (given.out / "options.json").write_bytes(
        orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    )
    (given.out / "options.md").write_text("# Options of a session, measured\n\n" + text, encoding="utf-8")
    if "settle" in figures:
        _plot(given.out / "plots" / "settle.png", *_curves(found["settle"], figures["settle"]))
    console.print(f"written to {given.out}", highlight=False)
    if stopped:
        console.print("stopped: the studies that were not finished are as they were before", highlight=False)
        sys.exit(report.STOPPED)


def _section(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    return f"## {TITLES[name]}\n\n{markdown(rows)}"


TITLES = {
    "ablations": "What each part brings: change in points against the unchanged method (standard error)",
    "rounds": "Rounds of several documents: CE-nCG minus the sequential session's, in points (standard error)",
    "paces": "Growing rounds and small sets: CE-nCG over B in {10, 25, 50}, and changes in points (standard error)",
    "settle": "Stopping when settled: at most 200 calls, rounds of 5, against a fixed budget of as many calls",
    "tokens": "Token limits: relevance gathered, in % of the linear relaxation's optimum",
    "known": "Known scores: CE-nCG of a second request after one of B = 25, k = 50",
    "speculation": "Speculation at B = 50, k = 100: per pick",
    "hybrid": "BM25 as a feature and in the order of the pool: CE-nCG (standard error of the change)",
    "signals": "Signals of the caller's: CE-nCG, and its change in points (standard error)",
}


def _ablations(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for variant in options.VARIANTS:
        original = variant.partition(",")[0]
        line: dict[str, Any] = {"variant": variant}
        for metric, title in (("ce_ncg", "CE-nCG"), ("ncg", "nCG")):
            base = {_key(row): row[metric] for row in rows if row["variant"] == original}
            here = [
                row
                for row in rows
                if row["variant"] == variant and row[metric] is not None and np.isfinite(row[metric])
            ]
            if not here:  # of tables without human labels
                continue
            line[title] = f"{100 * _over_tables(here, metric):.1f}"
            changes = [{**row, "change": 100 * (row[metric] - base[_key(row)])} for row in here]
            if metric == "ce_ncg":
                line |= _by_table(changes, lambda part: "{:+.1f} ({:.1f})".format(*_mean_error(part, "change")))
            line[f"{title} change"] = _change(changes)
        found.append(line)
    return found


def _rounds(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for method in METHODS:
        base = {_key(row): row["ce_ncg"] for row in rows if row["method"] == method and row["round"] == 1}
        for size in options.ROUNDS:
            here = [row for row in rows if row["method"] == method and row["round"] == size]
            line: dict[str, Any] = {"method": method, "round": size}
            line["CE-nCG"] = f"{100 * _over_tables(here, 'ce_ncg'):.2f}"
            changes = [{**row, "change": 100 * (row["ce_ncg"] - base[_key(row)])} for row in here]
            line |= _by_table(changes, lambda part: "{:+.2f} ({:.2f})".format(*_mean_error(part, "change")))
            line[ALL] = f"{_over_tables(changes, 'change'):+.2f} ({_error_over_tables(changes, 'change'):.2f})"
            found.append(line)
    return found


def _paces(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for bm25 in (True, False):
        base = {
            pace: {_key(row): row["ce_ncg"] for row in rows if row["bm25"] == bm25 and row["pace"] == pace}
            for pace in (options.ONE_BY_ONE, options.PAPERS, options.FIRST_B)
        }
        for pace in (*options.PACES, options.FIRST_B):
            here = [row for row in rows if row["bm25"] == bm25 and row["pace"] == pace]
            line: dict[str, Any] = {"BM25": "yes" if bm25 else "no", "calls": pace}
            for k in options.PACED_KS:
                line[f"k = {k}"] = f"{100 * _over_tables([row for row in here if row['k'] == k], 'ce_ncg'):.1f}"
            changes = {
                original: [{**row, "change": 100 * (row["ce_ncg"] - of[_key(row)])} for row in here]
                for original, of in base.items()
            }
            small = {name: [row for row in of if row["k"] in options.SMALL_KS] for name, of in changes.items()}
            few = [row for row in changes[options.ONE_BY_ONE] if row["budget"] == min(options.PACED_BUDGETS)]
            cells: dict[tuple[Any, ...], list[float]] = {}
            for row in small[options.FIRST_B]:
                cells.setdefault((row["table"], row["budget"], row["k"]), []).append(row["change"])
            means = [float(np.mean(cell)) for cell in cells.values()]
            line["- one by one"] = _change(changes[options.ONE_BY_ONE])
            line["at B = 10"] = _change(few)
            line["- first B, k <= 20"] = _change(small[options.FIRST_B])
            line["cells below"] = f"{sum(mean < 0 for mean in means)} of {len(means)}, by {max(0.0, -min(means)):.1f}"
            line["- the paper's, k <= 20"] = _change(small[options.PAPERS])
            line |= _by_table(
                small[options.PAPERS], lambda part: "{:+.1f} ({:.1f})".format(*_mean_error(part, "change"))
            )
            found.append(line)
    return found


def _settle(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for k in options.SETTLED_KS:
        here = [row for row in rows if row["k"] == k]
        for threshold in options.THRESHOLDS:
            line: dict[str, Any] = {"k": k, "settle": threshold}
            stopped = options.settled(here, threshold)
            calls = _over_tables(stopped, "calls")
            quality, fixed, same = _over_tables(stopped, "ce_ncg"), [], []
            for name in _names(here):
                part = [row for row in stopped if row["table"] == name]
                trajectory = [row for row in here if row["table"] == name]
                fixed += options.at_fixed_budget(trajectory, float(np.mean([row["calls"] for row in part])))
                same += options.at_fixed_budget(trajectory, calls)
            line["mean calls"] = round(calls, 1)
            line |= {f"calls: {name}": value for name, value in _by_table(stopped, _calls).items()}
            line["share at the cap"] = f"{100 * np.mean([row['calls'] >= options.CAP for row in stopped]):.0f} %"
            line["CE-nCG"] = round(100 * quality, 2)
            line["fixed, same calls a table"] = round(100 * _over_tables(fixed, "ce_ncg"), 2)
            line["fixed, one B everywhere"] = round(100 * _over_tables(same, "ce_ncg"), 2)
            line["expected loss"] = f"{100 * _over_tables(stopped, 'loss'):.1f} %"
            line["real loss"] = f"{100 * (1 - quality):.1f} %"
            ended = [row for row in stopped if row["calls"] < options.CAP and np.isfinite(row["ce_ncg"])]
            above = np.mean([1 - row["ce_ncg"] > 2 * threshold for row in ended]) if ended else np.nan
            line["of those stopped, above twice the threshold"] = f"{100 * above:.0f} %"
            found.append(line)
    return found


def _calls(part: Sequence[Row]) -> float:
    return round(float(np.mean([row["calls"] for row in part])), 1)


def _tokens(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for spread in options.SPREADS:
        for limit in options.LIMITS:
            for budget in options.BUDGETS:
                here = [r for r in rows if (r["spread"], r["limit"], r["budget"]) == (spread, limit, budget)]
                line: dict[str, Any] = {"sd of log length": spread, "limit / mean": limit, "B": budget}
                for how in PACKED:
                    part = [row for row in here if row["how"] == how]
                    line[how] = round(100 * _over_tables(part, "share"), 1)
                base = {(row["table"], row["query"]): row["share"] for row in here if row["how"] == "count"}
                gains = [
                    {**row, "change": 100 * (row["share"] - base[row["table"], row["query"]])}
                    for row in here
                    if row["how"] == "tokens"
                ]
                means = _by_table(gains, lambda part: f"{_mean_error(part, 'change')[0]:+.1f}")
                line |= {f"tokens - count: {name}": mean for name, mean in means.items()}
                line["tokens - count"] = _change(gains)
                found.append(line)
    return found


def _known(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for how, calls in (("from scratch", 50), ("knowing 25", 25), ("knowing 25", 50), ("from scratch", 75)):
        here = [row for row in rows if row["how"] == how and row["calls"] == calls]
        line: dict[str, Any] = {"second request": how, "calls": calls, "scores in all": here[0]["scores"]}
        for k in options.KS:
            line[f"k = {k}"] = round(100 * _over_tables([row for row in here if row["k"] == k], "ce_ncg"), 1)
        line |= _by_table(here, lambda part: round(100 * _mean_error(part, "ce_ncg")[0], 1))
        line[ALL] = round(100 * _over_tables(here, "ce_ncg"), 1)
        found.append(line)
    return found


def _speculation(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for method in METHODS:
        for width in options.WIDTHS:
            here = [row for row in rows if row["method"] == method and row["width"] == width]
            line: dict[str, Any] = {"method": method, "width": width}
            for what in ("trips", "scored"):
                means = _means(here, what)
                line |= {f"{what}: {name}": round(mean, 2) for name, (mean, _) in means.items()}
                line[what] = round(_over_tables(here, what), 2)
            found.append(line)
    return found


def _hybrid(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    base = {_key(row): row["ce_ncg"] for row in rows if row["prior"] == "similarity" and row["feature"]}
    for budget in sorted({row["budget"] for row in rows}):
        for prior in ("similarity", "fused"):
            for feature in (True, False):
                here = [r for r in rows if (r["budget"], r["prior"], r["feature"]) == (budget, prior, feature)]
                line: dict[str, Any] = {"B": budget, "order": prior, "feature": "yes" if feature else "no"}
                line |= _by_table(here, lambda part: f"{100 * _mean_error(part, 'ce_ncg')[0]:.1f}")
                line[ALL] = f"{100 * _over_tables(here, 'ce_ncg'):.1f}"
                changes = [{**row, "change": 100 * (row["ce_ncg"] - base[_key(row)])} for row in here]
                line["change"] = _change(changes)
                found.append(line)
    return found


def _signals(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    base = {_key(row): row["ce_ncg"] for row in rows if row["signal"] == "none"}
    for signal in options.SIGNALS:
        here = [row for row in rows if row["signal"] == signal]
        line: dict[str, Any] = {"signals": signal, "CE-nCG": f"{100 * _over_tables(here, 'ce_ncg'):.1f}"}
        changes = [{**row, "change": 100 * (row["ce_ncg"] - base[_key(row)])} for row in here]
        line |= _by_table(changes, lambda part: "{:+.1f} ({:.1f})".format(*_mean_error(part, "change")))
        line[ALL] = f"{_over_tables(changes, 'change'):+.2f} ({_error_over_tables(changes, 'change'):.2f})"
        found.append(line)
    return found


SUMMARIES: Mapping[str, Callable[[Sequence[Row]], list[dict[str, Any]]]] = {
    "ablations": _ablations,
    "rounds": _rounds,
    "paces": _paces,
    "settle": _settle,
    "tokens": _tokens,
    "known": _known,
    "speculation": _speculation,
    "hybrid": _hybrid,
    "signals": _signals,
}


def _curves(
    rows: Sequence[Row], figures: Sequence[Mapping[str, Any]]
) -> tuple[dict[int, tuple[list[float], list[float]]], dict[int, list[tuple[float, float, float]]]]:
    """By k: quality after each fixed number of calls, and (mean calls, quality, threshold) of each threshold."""
    fixed, stopped = {}, {}
    for k in options.SETTLED_KS:
        here = [row for row in rows if row["k"] == k]
        grid = list(range(0, options.CAP + 1, options.CAP_ROUND))
        fixed[k] = (
            [float(calls) for calls in grid],
            [100 * _over_tables(options.at_fixed_budget(here, calls), "ce_ncg") for calls in grid],
        )
        stopped[k] = [(line["mean calls"], line["CE-nCG"], line["settle"]) for line in figures if line["k"] == k]
    return fixed, stopped


def _plot(
    path: Path,
    fixed: Mapping[int, tuple[Sequence[float], Sequence[float]]],
    stopped: Mapping[int, Sequence[tuple[float, float, float]]],
) -> None:
    """By k: quality (%) along fixed budgets, and where thresholds stop: (mean calls, quality, threshold)."""
    with plots.saved_figure(path, 4.6 * len(fixed) + 0.4, 4.2) as figure:
        panels = figure.subplots(1, len(fixed), sharey=True, squeeze=False)[0]
        for panel, k in zip(panels, fixed, strict=True):
            panel.plot(*fixed[k], color=plots.OURS[0], linewidth=1.8, label="the same budget for every query")
            calls, quality, _ = zip(*stopped[k], strict=True)
            panel.plot(
                calls, quality, "o-", color=plots.OURS[1], linewidth=1.2, label="stopping at an expected loss of ..."
            )
            for number, (x, y, threshold) in enumerate(stopped[k]):
                panel.annotate(
                    f"{100 * threshold:g} %",
                    (x, y),
                    (0, -15 if number % 2 else 9),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7.5,
                )
            panel.set_title(f"k = {k}")
            panel.set_xlabel("cross-encoder calls a query (mean)")
        panels[0].set_ylabel("CE-nCG (%)")
        panels[0].legend(loc="lower right")


def _key(row: Row) -> tuple[Any, ...]:
    return row["table"], row["query"], row["budget"], row["k"]


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["table"] for row in rows))


def _by_table(rows: Sequence[Row], figure: Callable[[Sequence[Row]], Any]) -> dict[str, Any]:
    return {name: figure([row for row in rows if row["table"] == name]) for name in _names(rows)}


def _means(rows: Sequence[Row], key: str) -> dict[str, tuple[float, float]]:
    return _by_table(rows, lambda part: _mean_error(part, key))


def _mean_error(rows: Sequence[Row], key: str) -> tuple[float, float]:
    """Mean over a table's queries (each averaged over its settings first) and its standard error."""
    collected: dict[int, list[float]] = {}
    for row in rows:
        if np.isfinite(row[key]):
            collected.setdefault(row["query"], []).append(row[key])
    values = [float(np.mean(of_query)) for of_query in collected.values()]
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(np.mean(values)), error


def _over_tables(rows: Sequence[Row], key: str) -> float:
    """Each table counts as much."""
    return float(np.mean([mean for mean, _ in _means(rows, key).values()]))


def _error_over_tables(rows: Sequence[Row], key: str) -> float:
    errors = [error for _, error in _means(rows, key).values()]
    return float(np.sqrt(np.sum(np.square(errors))) / len(errors))


def _change(rows: Sequence[Row]) -> str:
    return f"{_over_tables(rows, 'change'):+.1f} ({_error_over_tables(rows, 'change'):.1f})"


if __name__ == "__main__":
    main()
