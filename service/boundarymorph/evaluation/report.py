"""What an evaluation leaves behind: report.md with its plots, summary.json, and every number as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import orjson

from boundarymorph.evaluation import calibrated, plots
from boundarymorph.evaluation.markdown import is_variant, markdown
from boundarymorph.evaluation.metrics import Quality
from boundarymorph.evaluation.study import AVERAGE, METRIC_TITLES, Study, cells, ours_of, overall, titles_of
from boundarymorph.selection.methods import DEFAULT, PAPER


def summary(studies: Sequence[Study]) -> dict[str, Any]:
    """The figures for machines: means over tables, each counting as much; ncg is null without human labels. A method
    that could not run on every table is not in it. In a study of calibrations the means are over the judged tables'
    queries that no calibration was learned from, and each row says whether it is calibrated."""
    if found := _calibrated(studies):
        return {"default": DEFAULT, "paper": PAPER, "rows": calibrated.rows(found)}
    first = studies[0].outcome
    rows = []
    for contestant in first.contestants:
        for budget in first.budgets:
            for k in first.ks:
                value = overall(studies, contestant.name, budget, k, "ce_ncg")
                if value is not None:
                    ncg = overall(studies, contestant.name, budget, k, "ncg")
                    rows.append({"method": contestant.name, "budget": budget, "k": k, "ce_ncg": value, "ncg": ncg})
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
    pictures = _draw(studies, out / "plots")
    report = markdown(studies, pictures)
    if made := _calibrated(studies):
        report += "\n" + calibrated.section(made)
    (out / "report.md").write_text(report, encoding="utf-8")


def _calibrated(studies: Sequence[Study]) -> dict[str, calibrated.CalibratedStudy]:
    return {found.name: found.calibrated for found in studies if found.calibrated is not None}


def _json(path: Path, value: Any) -> None:
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _per_query(studies: Sequence[Study]) -> Iterable[dict[str, Any]]:
    for found in studies:
        for row in found.outcome.rows:
            values = {name: getattr(row.quality, name) for name in (field.name for field in fields(Quality))}
            yield {
                "table": found.name,
                "query": row.query,
                "method": row.method,
                "budget": row.budget,
                "k": row.k,
                "calls": row.calls,
                "prompts": row.prompts,
                # Not a number means not defined: an empty field.
                **{name: "" if value != value else f"{value:.6f}" for name, value in values.items()},
                "seconds": f"{row.seconds:.6f}",
                "waiting": f"{row.waiting:.6f}",
            }


def _rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["table"])
        writer.writeheader()
        writer.writerows(rows)


# --- pictures ---------------------------------------------------------------------------------------------------------


def _draw(studies: Sequence[Study], folder: Path) -> dict[str, list[str]]:
    """Paths relative to the report, by table; "" for those over all tables."""
    titles, ours = titles_of(studies), ours_of(studies)
    palette = plots.colours(list(titles), ours)
    drawn: dict[str, list[str]] = {}

    def draw(group: str, name: str, picture: Callable[[Path], None]) -> None:
        path = folder / f"{name}{f'-{group}' if group else ''}.png"
        picture(path)
        drawn.setdefault(group, []).append(f"{folder.name}/{path.name}")

    for metric, title in METRIC_TITLES.items():
        table = cells(studies, metric)
        if table is None:
            continue
        for group, rows in table.groups.items():
            # Variants of one method lie on top of each other; their differences have a table.
            values = {method: row for method, row in rows.items() if not is_variant(method)}
            overall_group = "" if group == AVERAGE or len(studies) == 1 else group
            draw(
                overall_group,
                f"quality-{metric.replace('_', '-')}",
                lambda path, values=values, table=table, title=title: plots.quality_against_budget(  # type: ignore[misc]
                    path, table.budgets, table.ks, values, titles, palette, ours, title
                ),
            )
    for found in studies:
        _draw_table(found, titles, palette, lambda name, picture, found=found: draw(found.name, name, picture))  # type: ignore[misc]
    return drawn


def _draw_table(
    found: Study,
    titles: Mapping[str, str],
    palette: Mapping[str, str],
    draw: Callable[[str, Callable[[Path], None]], None],
) -> None:
    outcome, (budget, k) = found.outcome, found.pictured
    contestants = {contestant.name: contestant for contestant in outcome.contestants}
    shares = {name: share for name, share in found.shares().items() if not is_variant(name)}
    if shares:
        title = f"{found.name}: what came for free (B = {budget}, k = {k})"
        by_title = {titles[name]: share for name, share in shares.items()}
        colours = {titles[name]: palette[name] for name in shares}
        draw("unscored", lambda path: plots.unscored_share(path, by_title, colours, title))
    lines = _against_latency(found)
    if lines:
        title = f"{found.name}, k = {k}"
        ours = [name for name, contestant in contestants.items() if contestant.ours]
        draw("latency", lambda path: plots.quality_against_latency(path, lines, titles, palette, ours, title))


def _against_latency(found: Study) -> dict[str, dict[str, list[tuple[float, float, int]]]]:
    """Metric -> method -> (seconds, value, B); nothing where nobody says how long a call takes."""
    _, k = found.pictured
    lines: dict[str, dict[str, list[tuple[float, float, int]]]] = {}
    for metric, title in METRIC_TITLES.items():
        for one in found.latencies:
            value = found.outcome.mean(one.method, one.budget, k, metric)
            if one.total is not None and value is not None and not is_variant(one.method):
                lines.setdefault(title, {}).setdefault(one.method, []).append((one.total, value, one.budget))
    return lines
