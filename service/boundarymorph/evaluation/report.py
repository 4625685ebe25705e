"""What an evaluation leaves behind: report.md with its plots, summary.json, and every number as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import orjson

from boundarymorph.evaluation import plots
from boundarymorph.evaluation.analyses import changes
from boundarymorph.evaluation.methods.method import Contestant
from boundarymorph.evaluation.methods.morph import Morph, play
from boundarymorph.evaluation.metrics import Quality, quality
from boundarymorph.evaluation.run import run_once
from boundarymorph.evaluation.statistics import bootstrap_interval
from boundarymorph.evaluation.study import Study, overall
from boundarymorph.selection.methods import DEFAULT, METHODS, PAPER

METRIC_TITLES = {"ce_ncg": "CE-nCG", "ncg": "nCG"}
AVERAGE = "mean of tables"
CLOSE = 0.005


@dataclass(frozen=True)
class Cells:
    """One metric as the paper's main table has it: group (a table, or their mean) -> method -> (B, k) -> 0..1."""

    metric: str
    budgets: Sequence[int]
    ks: Sequence[int]
    groups: Mapping[str, Mapping[str, Mapping[tuple[int, int], float | None]]]
    titles: Mapping[str, str]

    @property
    def columns(self) -> list[tuple[int, int]]:
        return [(budget, k) for budget in self.budgets for k in self.ks]

    def best(self, group: str, cell: tuple[int, int]) -> tuple[float, float]:
        """The best and the second-best value of a column; equal ones share a place."""
        values = sorted(
            {round(value, 4) for row in self.groups[group].values() if (value := row[cell]) is not None}, reverse=True
        )
        best, second = [*values, -1.0, -1.0][:2]
        return best, second


def cells(studies: Sequence[Study], metric: str) -> Cells | None:
    """None where no table has the metric."""
    first = studies[0].outcome
    having = [found for found in studies if metric == "ce_ncg" or found.outcome.judged]
    if not having:
        return None
    columns = [(budget, k) for budget in first.budgets for k in first.ks]
    groups: dict[str, dict[str, dict[tuple[int, int], float | None]]] = {}
    for found in having:
        groups[found.name] = {
            contestant.name: {cell: found.outcome.mean(contestant.name, *cell, metric) for cell in columns}
            for contestant in found.outcome.contestants
        }
    if len(having) > 1:
        everywhere = [
            contestant.name
            for contestant in having[0].outcome.contestants
            if all(contestant.name in group for group in groups.values())
        ]
        groups[AVERAGE] = {
            name: {cell: overall(having, name, *cell, metric) for cell in columns} for name in everywhere
        }
    return Cells(metric, first.budgets, first.ks, groups, _titles(studies))


def summary(studies: Sequence[Study]) -> dict[str, Any]:
    """The figures for machines: means over tables, each counting as much; ncg is null without human labels. A method
    that could not run on every table is not in it."""
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
    if any(found.audit for found in studies):
        _rows(out / "audit.csv", ({"table": found.name} | asdict(pair) for found in studies for pair in found.audit))
    pictures = _draw(studies, out / "plots")
    (out / "report.md").write_text(_markdown(studies, pictures), encoding="utf-8")


def _titles(studies: Sequence[Study]) -> dict[str, str]:
    return {contestant.name: contestant.title for found in studies for contestant in found.outcome.contestants}


def _ours(studies: Sequence[Study]) -> list[str]:
    return [contestant.name for contestant in studies[0].outcome.contestants if contestant.ours]


# --- figures for machines ---------------------------------------------------------------------------------------------


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
                # Not a number means not defined: an empty field.
                **{name: "" if value != value else f"{value:.6f}" for name, value in values.items()},
                "seconds": f"{row.seconds:.6f}",
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
    titles, ours = _titles(studies), _ours(studies)
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
            values = {method: row for method, row in rows.items() if not _variant(method)}
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
    question = outcome.table.question(found.example)
    contestants = {contestant.name: contestant for contestant in outcome.contestants}
    shown = [name for name in dict.fromkeys(("ss", "bagel", PAPER, found.reference)) if name in contestants]
    runs = {titles[name]: run_once(outcome.settings[name, budget], question, budget, k) for name in shown}
    draw(
        "map",
        lambda path: plots.document_map(
            path, question, runs, f"{found.name}, query {question.id}: {len(question.pool):,} candidates, B = {budget}"
        ),
    )
    for name in (name for name in dict.fromkeys((PAPER, found.reference)) if name in contestants):
        method = outcome.settings[name, budget]
        if isinstance(method, Morph):
            prior, posterior, chosen = play(method, question, budget, k)
            title = f"{titles[name]} on {found.name}, query {question.id}: B = {budget}, k = {k}"
            draw(
                f"belief-{name}",
                lambda path, prior=prior, posterior=posterior, chosen=chosen, title=title: plots.belief_along_rank(  # type: ignore[misc]
                    path, prior, posterior, chosen, title
                ),
            )
    if found.capacity is not None:
        curves, title = found.capacity, f"{titles[found.reference]} on {found.name}: told one k, judged at another"
        draw("capacity", lambda path: plots.capacity(path, curves, f"{title} (B = {budget})"))
    shares = {name: share for name, share in found.shares().items() if not _variant(name)}
    if shares:
        title = f"{found.name}: what came for free (B = {budget}, k = {k})"
        by_title = {titles[name]: share for name, share in shares.items()}
        colours = {titles[name]: palette[name] for name in shares}
        draw("unscored", lambda path: plots.unscored_share(path, by_title, colours, title))
    if found.multimodality is not None:
        modes = found.multimodality
        title = f"{found.name}: Spearman's rho {modes.rho:+.2f}, p = {modes.p:.2g}"
        draw("multimodality", lambda path: plots.gain_against_mass(path, modes, title, titles[found.reference]))


# --- words ------------------------------------------------------------------------------------------------------------


def _markdown(studies: Sequence[Study], pictures: Mapping[str, Sequence[str]]) -> str:
    parts = [
        "# Evaluation",
        _preamble(studies),
        "## The methods",
        _methods(studies),
        "## At a glance",
        _glance(studies),
        *_images(pictures.get("", ())),
    ]
    for metric in METRIC_TITLES:
        table = cells(studies, metric)
        if table is not None:
            parts += [f"## {_heading(metric)}", _explained(metric), _main_table(table)]
    varied = _variants(studies)
    if varied:
        parts += ["## Ablations, kernels and rounds", varied]
    parts += ["## Is it more than noise?", _differences(studies), "## Settings of the baselines", _settings(studies)]
    for found in studies:
        parts += [f"## {found.name}", *_details(found, pictures.get(found.name, ()))]
    parts += ["## What was left out, and what to keep in mind", _notes(studies)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _preamble(studies: Sequence[Study]) -> str:
    first = studies[0].outcome
    lines = [
        "A query has a pool of N candidates from a retriever. A method may buy at most **B** scores from a "
        "cross-encoder and then has to name **k** documents. Every method gets the same pools and pays for every "
        "score; nothing but the choice of calls and of the set differs.",
        "",
        "| table | queries | N | documents | human labels |",
        "|---|---:|---:|---:|---|",
    ]
    for found in studies:
        table = found.outcome.table
        lines.append(
            f"| {found.name} | {len(table):,} | {table.depth:,} | {len(table.arrays['doc_emb']):,} | "
            f"{'yes' if found.outcome.judged else 'no: CE-nCG only'} |"
        )
    budgets, ks = (", ".join(str(value) for value in values) for values in (first.budgets, first.ks))
    return "\n".join([*lines, "", f"B: {budgets}. k: {ks}. All figures are percentages, means over queries."])


def _methods(studies: Sequence[Study]) -> str:
    contestants = {one.name: one for found in studies for one in found.outcome.contestants}.values()
    return "\n".join(
        ["| method | `--methods` | what it does |", "|---|---|---|"]
        + [f"| {_bold(one.title, one.ours)} | `{one.name}` | {one.about} |" for one in contestants]
    )


def _glance(studies: Sequence[Study]) -> str:
    titles, reference = _titles(studies), studies[0].reference
    ours = _ours(studies)
    lines = []
    for metric, title in METRIC_TITLES.items():
        table = cells(studies, metric)
        if table is None:
            continue
        group = AVERAGE if AVERAGE in table.groups else next(iter(table.groups))
        means = {
            method: fmean(value for value in row.values() if value is not None)
            for method, row in table.groups[group].items()
            if any(value is not None for value in row.values())
        }
        order = sorted(means, key=lambda method: -means[method])
        lines.append(
            f"- **{title}**, mean over all B and k{' and tables' if group == AVERAGE else ''}: "
            + ", ".join(f"{titles[method]} {_bold(f'{100 * means[method]:.1f}', method in ours)}" for method in order)
            + "."
        )
        single = [name for name in table.groups if name != AVERAGE]
        total = len(single) * len(table.columns)
        for method in dict.fromkeys((PAPER, reference)):
            if method not in means:
                continue
            others = [name for name in order if name.partition("@")[0] != method]
            if method == PAPER:
                others = [name for name in others if name not in ours]
            wins = near = 0
            for name in single:
                rows = table.groups[name]
                for cell in table.columns:
                    mine = rows[method][cell] or 0.0
                    best = max((rows[other][cell] or 0.0 for other in others if other in rows), default=0.0)
                    wins += mine >= best
                    near += mine >= best - CLOSE
            against = "every baseline" if method == PAPER else "every other method"
            lines.append(
                f"  - {titles[method]} is at least as good as {against} in {wins} of {total} cells "
                f"(table, B, k), and within {100 * CLOSE:.1f} points in {near}."
            )
    return "\n".join(lines)


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text


def _heading(metric: str) -> str:
    return {"ce_ncg": "CE-nCG: how well the calls were spent", "ncg": "nCG: what people would say of the set"}[metric]


def _explained(metric: str) -> str:
    legend = "**Best** and <u>second</u> of each column and table."
    if metric == "ce_ncg":
        return (
            "Cross-encoder scores of the chosen k documents, summed, over the best sum that k documents of the pool "
            f"can have. Needs no human labels. {legend}"
        )
    return (
        "Documents with a human label above 0 in the chosen set, over the most that k documents of the pool can hold. "
        "Where the cross-encoder and people disagree, following the one more closely loses the other: compare with "
        f"CE-nCG, and with the line *cross-encoder itself* under each table's heading below. {legend} Graded gains, "
        "and gains against all relevant documents of the collection, are in per_query.csv."
    )


def _main_table(table: Cells) -> str:
    head = " | ".join(f"B={budget}, k={k}" for budget, k in table.columns)
    lines = [f"| | method | {head} | mean |", f"|---|---|{'---:|' * (len(table.columns) + 1)}"]
    for group, rows in table.groups.items():
        for number, (method, row) in enumerate(rows.items()):
            shown = []
            for cell in table.columns:
                value = row[cell]
                best, second = table.best(group, cell)
                text = "" if value is None else f"{100 * value:.1f}"
                if value is not None and round(value, 4) == best:
                    text = f"**{text}**"
                elif value is not None and round(value, 4) == second:
                    text = f"<u>{text}</u>"
                shown.append(text)
            known = [value for value in row.values() if value is not None]
            mean = f"{100 * fmean(known):.1f}" if known else ""
            name = f"**{group}**" if number == 0 else ""
            title = _bold(table.titles[method], method in METHODS)
            lines.append(f"| {name} | {title} | {' | '.join(shown)} | {mean} |")
    return "\n".join(lines)


def _differences(studies: Sequence[Study]) -> str:
    titles, reference = _titles(studies), studies[0].reference
    first = studies[0].outcome
    columns = [(budget, k) for budget in first.budgets for k in first.ks]
    lines = [
        f"{titles[reference]} minus each other method, in points, with the 95 % bootstrap interval over queries. "
        "\\* marks q < 0.05: paired Wilcoxon signed-rank tests, Benjamini-Hochberg over all of a table and metric."
    ]
    for found in studies:
        for metric in METRIC_TITLES:
            here = [one for one in found.comparisons if one.metric == metric]
            if not here:
                continue
            by_cell = {(one.other, one.budget, one.k): one for one in here}
            lines += [
                "",
                f"<details><summary>{found.name}, {METRIC_TITLES[metric]}: better in "
                f"{sum(one.significant and one.difference > 0 for one in here)}, worse in "
                f"{sum(one.significant and one.difference < 0 for one in here)}, undecided in "
                f"{sum(not one.significant for one in here)} of {len(here)} comparisons</summary>",
                "",
                f"| against | {' | '.join(f'B={budget}, k={k}' for budget, k in columns)} |",
                f"|---|{'---:|' * len(columns)}",
            ]
            for other in dict.fromkeys(one.other for one in here):
                row = []
                for cell in columns:
                    one = by_cell[other, *cell]
                    star = "\\*" if one.significant else ""
                    row.append(f"{100 * one.difference:+.1f}{star} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]")
                lines.append(f"| {titles[other]} | {' | '.join(row)} |")
            lines += ["", "</details>"]
    return "\n".join(lines)


VARIANTS = {
    "no-acquisition": PAPER,
    "no-prior": PAPER,
    "independent": PAPER,
    "boundarymorph-rbf": PAPER,
    "boundarymorph-matern52": PAPER,
    "bagel-rbf": "bagel",
    "bagel-matern52": "bagel",
}


def _variant(name: str) -> bool:
    return name in VARIANTS or "@" in name


def _variants(studies: Sequence[Study]) -> str:
    """What a method loses or wins when one thing about it changes; nothing if no variant ran beside its original."""
    running = [one.name for one in studies[0].outcome.contestants]
    originals = VARIANTS | {name: name.partition("@")[0] for name in running if "@" in name}
    outcomes = [found.outcome for found in studies]
    pairs = [
        (name, originals[name])
        for name in running
        if name in originals
        and all(
            (one, outcome.budgets[0]) in outcome.settings for outcome in outcomes for one in (name, originals[name])
        )
    ]
    if not pairs:
        return ""
    titles, columns = _titles(studies), [(budget, k) for budget in outcomes[0].budgets for k in outcomes[0].ks]
    head = " | ".join(f"B={budget}, k={k}" for budget, k in columns)
    lines = [
        "The change in points from the original to the variant, over the queries of all tables together. \\* marks "
        "q < 0.05 (paired Wilcoxon, Benjamini-Hochberg over a metric's changes)."
    ]
    for metric, title in METRIC_TITLES.items():
        having = [outcome for outcome in outcomes if metric == "ce_ncg" or outcome.judged]
        found = changes(having, pairs, metric) if having else []
        by_cell = {(one.method, one.budget, one.k): one for one in found}
        if found:
            lines += ["", f"| {title}: variant | of | {head} |", f"|---|---|{'---:|' * len(columns)}"]
            for name, original in pairs:
                cells_of = (by_cell.get((name, *cell)) for cell in columns)
                shown = (
                    "" if one is None else f"{100 * one.difference:+.1f}" + ("\\*" if one.significant else "")
                    for one in cells_of
                )
                lines.append(f"| {titles[name]} | {titles[original]} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _settings(studies: Sequence[Study]) -> str:
    swept = [contestant for contestant in studies[0].outcome.contestants if contestant.swept]
    if not swept:
        return "No method with a grid of settings was run."
    lines = [
        "Methods with settings get the best of their grid on each table and budget, selected on CE-nCG@50 of the very "
        "queries that are reported, as in the paper: an advantage that nobody has in practice. The product's methods "
        "run with one fixed configuration everywhere.",
        "",
        "| method | grid | table | "
        + " | ".join(f"selected at B = {budget}" for budget in studies[0].outcome.budgets)
        + " |",
        f"|---|---:|---|{'---|' * len(studies[0].outcome.budgets)}",
    ]
    for contestant in swept:
        for found in studies:
            if (contestant.name, found.outcome.budgets[0]) in found.outcome.settings:
                picks = (
                    _varied(contestant, found.outcome.settings[contestant.name, budget])
                    for budget in found.outcome.budgets
                )
                lines.append(
                    f"| {contestant.title} | {len(contestant.settings)} | {found.name} | {' | '.join(picks)} |"
                )
    return "\n".join(lines)


def _varied(contestant: Contestant, method: Any) -> str:
    """The settings in which the grid's methods differ."""
    flat = [_flattened(setting) for setting in contestant.settings]
    mine = flat[list(contestant.settings).index(method)]
    return ", ".join(f"{name} = {mine[name]}" for name in mine if len({str(one[name]) for one in flat}) > 1)


def _flattened(value: Any) -> dict[str, Any]:
    """The settings of a method, those of its configuration and acquisition among them."""
    found: dict[str, Any] = {}
    for one in fields(value):
        if one.compare:
            inner = getattr(value, one.name)
            found |= _flattened(inner) if is_dataclass(inner) else {one.name: inner}
    return found


CAPTIONS = {
    "map": "The pool in two dimensions (t-SNE of the embeddings; of large pools the part that matters). "
    "Blue is what the cross-encoder likes; a cross is a "
    "call that was spent, a red ring a document in the chosen set. Calls inside a dense blue group confirm what was "
    "likely anyway; rings without a cross were inferred from neighbours.",
    "belief": "What the method believes of each candidate, in retrieval order: before any call (grey line) and after "
    "all calls. Documents above the dashed line are chosen; a grey band instead of a line means that uncertainty "
    "counts too, so that within the band some are chosen and others not.",
    "capacity": "Each line is one run that was told a k; its star should be on the line at 0, because there it is "
    "judged at the k that it was told.",
    "unscored": "Share of the chosen set's cross-encoder score that was never paid for.",
    "multimodality": "Each dot is a query. To the right are queries whose relevant documents form several separate "
    "groups.",
    "quality": "",
}


def _images(paths: Iterable[str]) -> list[str]:
    lines = []
    for path in paths:
        kind = Path(path).stem.partition("-")[0]
        lines.append(f"![{Path(path).stem}]({path})" + (f"\n\n{CAPTIONS[kind]}" if CAPTIONS.get(kind) else ""))
    return lines


def _details(found: Study, pictures: Sequence[str]) -> list[str]:
    titles = {contestant.name: contestant.title for contestant in found.outcome.contestants}
    budget, k = found.pictured
    parts = [_intervals(found, titles), _cross_encoder_itself(found)]
    if found.capacity is not None:
        parts.append(
            f"**Capacity.** {titles[found.reference]} at B = {budget}, told k = "
            f"{', '.join(str(told) for told in found.capacity.optimised)}: in "
            f"{100 * found.capacity.best_where_told:.0f} % of these no run beats the one that was told the k at which "
            "it is judged (to 0.1 points)."
        )
    shares = found.shares()
    if shares:
        parts.append(
            f"**Unscored share** of the set's CE gain at B = {budget}, k = {k}: "
            + ", ".join(f"{titles[name]} {100 * share:.0f} %" for name, share in shares.items())
            + "."
        )
    if found.multimodality is not None:
        modes = found.multimodality
        parts.append(
            f"**Multimodality.** {int((modes.peaks > 1).sum())} of {len(modes.peaks)} queries have more than one peak "
            f"(median {median(modes.peaks.tolist()):.0f}); Spearman's rho of multimodal mass with the gain over BAGEL "
            f"is {modes.rho:+.2f} (p = {modes.p:.2g})."
        )
    if found.audit:
        read = [pair.agreement for pair in found.audit if pair.agreement is not None]
        parts.append(
            f"**Audit of peaks.** {len(found.audit)} pairs of peaks, {len(read)} answers could be read"
            + (f"; adjusted Rand index: mean {fmean(read):.3f}, median {median(read):.3f}." if read else ".")
        )
    if found.latencies:
        parts.append(_latency_table(found, titles))
    return parts + _images(pictures)


def _intervals(found: Study, titles: Mapping[str, str]) -> str:
    budget, k = found.pictured
    shown = []
    for method in titles:
        low, high = bootstrap_interval(found.outcome.values(method, budget, k))
        mean = found.outcome.mean(method, budget, k)
        if mean is not None:
            shown.append(f"{titles[method]} {100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    return f"**CE-nCG@{k} at B = {budget}** with 95 % bootstrap intervals over queries: " + ", ".join(shown) + "."


def _cross_encoder_itself(found: Study) -> str:
    """The nCG of the sets that a scorer with an unlimited budget would choose."""
    if not found.outcome.judged:
        return ""
    values: dict[int, list[float]] = {k: [] for k in found.outcome.ks}
    for question in found.outcome.table.questions():
        order = np.argsort(-question.scores, kind="stable")
        everything = np.ones(len(order), dtype=np.bool_)
        for k in values:
            values[k].append(quality(question, order, k, everything).ncg)
    shown = ", ".join(f"{100 * np.nanmean(line):.1f} at k = {k}" for k, line in values.items())
    return f"**Cross-encoder itself.** With every document scored, its own best k have an nCG of {shown}."


def _latency_table(found: Study, titles: Mapping[str, str]) -> str:
    measured = found.latencies[0].scorer is not None
    lines = [
        "**Latency**, medians a query. Algorithm is everything but the cross-encoder, with neighbour graphs built "
        "beforehand; its parts are update (conditioning the process), acquisition (choosing) and, the rest, setting up."
        + ("" if measured else " The table does not say how long a call takes; --call-seconds tells."),
        "",
        "| method | B | cross-encoder | its share | algorithm | update | acquisition |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in found.latencies:
        scorer = f"{1000 * one.scorer:,.0f} ms" if one.scorer is not None else ""
        share = f"{100 * one.scorer / (one.scorer + one.algorithm):.0f} %" if one.scorer is not None else ""
        parts = (
            f"{1000 * seconds:,.1f} ms" if seconds else "" for seconds in (one.algorithm, one.update, one.acquisition)
        )
        lines.append(f"| {titles[one.method]} | {one.budget} | {scorer} | {share} | {' | '.join(parts)} |")
    return "\n".join(lines)


def _notes(studies: Sequence[Study]) -> str:
    lines = [
        f"- {found.name}: `{method}` was left out, because {reason}."
        for found in studies
        for method, reason in found.outcome.left_out.items()
    ]
    judged = [found for found in studies if found.outcome.judged]
    if len(judged) < len(studies):
        lines.append("- Tables without human labels have no nCG; means of nCG are over the others.")
    for found in judged:
        missing = sum(
            not question.grades.any() for question in found.outcome.table.questions() if question.grades is not None
        )
        if missing:
            lines.append(f"- {found.name}: {missing} queries have no relevant document in their pool and no nCG.")
    lines += [
        "- SS with B ≤ k is the retrieval order: reranking the head changes the order, not the set.",
        "- Queries on which a metric is not defined (no gain to win) are left out of its means.",
        "- Times are of this run, on whatever else the machine was doing.",
    ]
    return "\n".join(lines)
