"""What an evaluation leaves behind: report.md with its plots, summary.json, and every number as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import Any

import orjson

from boundarymorph.evaluation import calibrated, plots
from boundarymorph.evaluation.markdown import is_variant, markdown
from boundarymorph.evaluation.run import near_50
from boundarymorph.evaluation.study import AVERAGE, METRIC_TITLES, Study, cells, ours_of, titles_of
from boundarymorph.selection.methods import DEFAULT, PAPER


def summary(studies: Sequence[Study]) -> dict[str, Any]:
    """The figures for machines: means over tables, each counting as much; ncg is null without human labels. A method
    that could not run on every table is not in it. In a study of calibrations the means are over the judged tables'
    queries that no calibration was learned from, and each row says whether it is calibrated."""
    if found := {found.name: found.calibrated for found in studies if found.calibrated is not None}:
        return {"default": DEFAULT, "paper": PAPER, "rows": calibrated.rows(found)}
    scored, judged = (cells(studies, metric) for metric in METRIC_TITLES)
    assert scored is not None, "every table has CE-nCG"
    rows = []
    for method, row in scored.overall.items():
        ncg = {} if judged is None else judged.overall.get(method, {})
        for (budget, k), value in row.items():
            if value is not None:
                rows.append({"method": method, "budget": budget, "k": k, "ce_ncg": value, "ncg": ncg.get((budget, k))})
    return {"default": DEFAULT, "paper": PAPER, "rows": rows}


def write(studies: Sequence[Study], out: Path) -> None:
    """report.md, plots/, summary.json (and one a table, if there are several), per_query.csv, comparisons.csv."""
    out.mkdir(parents=True, exist_ok=True)
    _json(out / "summary.json", summary(studies))
    if len(studies) > 1:
        for found in studies:
            _json(out / f"summary-{found.name}.json", summary([found]))
    _rows(out / "per_query.csv", _per_query(studies))
    _rows(
        out / "comparisons.csv",
        ({"table": found.name} | asdict(comparison) for found in studies for comparison in found.comparisons),
    )
    (out / "report.md").write_text(markdown(studies, _draw(studies, out / "plots")), encoding="utf-8")


def _json(path: Path, value: Any) -> None:
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _per_query(studies: Sequence[Study]) -> Iterable[dict[str, Any]]:
    for found in studies:
        for row in found.outcome.rows:
            values: dict[str, Any] = {"table": found.name}
            for name, value in asdict(row).items():
                values |= value if name == "quality" else {name: value}
            yield {name: _figure(value) for name, value in values.items()}


def _figure(value: object) -> object:
    """As it stands in a CSV file: nothing where a metric is not defined."""
    if not isinstance(value, float):
        return value
    return "" if isnan(value) else f"{value:.6f}"


def _rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["table"])
        writer.writeheader()
        writer.writerows(rows)


# --- pictures ---------------------------------------------------------------------------------------------------------


def _draw(studies: Sequence[Study], folder: Path) -> dict[str, list[str]]:
    """Paths relative to the report, by table; "" for those over all tables."""
    looks = plots.looks(titles_of(studies), ours_of(studies))
    drawn: dict[str, list[str]] = {}

    def path_of(group: str, name: str) -> Path:
        path = folder / f"{name}{f'-{group}' if group else ''}.png"
        drawn.setdefault(group, []).append(f"{folder.name}/{path.name}")
        return path

    for metric, title in METRIC_TITLES.items():
        table = cells(studies, metric)
        if table is None:
            continue
        for group, rows in table.groups.items():
            # Variants of one method lie on top of each other; their differences have a table.
            values = {method: row for method, row in rows.items() if not is_variant(method)}
            of_all = group == AVERAGE or len(studies) == 1
            path = path_of("" if of_all else group, f"quality-{metric.replace('_', '-')}")
            plots.quality_against_budget(path, table.columns, values, looks, title)
    for found in studies:
        if lines := _against_latency(found):
            title = f"{found.name}, k = {near_50(found.outcome.ks)}"
            plots.quality_against_latency(path_of(found.name, "latency"), lines, looks, title)
    return drawn


def _against_latency(found: Study) -> dict[str, dict[str, list[tuple[float, float, int]]]]:
    """Metric -> method -> (seconds, value, B); nothing where nobody says how long a call takes."""
    k = near_50(found.outcome.ks)
    lines: dict[str, dict[str, list[tuple[float, float, int]]]] = {}
    for metric, title in METRIC_TITLES.items():
        for one in found.latencies:
            value = found.outcome.mean(one.method, one.budget, k, metric)
            if one.total is not None and value is not None and not is_variant(one.method):
                lines.setdefault(title, {}).setdefault(one.method, []).append((one.total, value, one.budget))
    return lines
