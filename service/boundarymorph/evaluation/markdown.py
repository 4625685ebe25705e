"""report.md: what an evaluation says in words and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from statistics import fmean
from typing import Any

from boundarymorph.evaluation.analyses import changes
from boundarymorph.evaluation.details import details, images
from boundarymorph.evaluation.methods.method import Contestant
from boundarymorph.evaluation.study import AVERAGE, METRIC_TITLES, Cells, Study, cells, ours_of, titles_of
from boundarymorph.selection.methods import DEFAULT, METHODS, PAPER

CLOSE = 0.005


def markdown(studies: Sequence[Study], pictures: Mapping[str, Sequence[str]]) -> str:
    """The report. pictures: paths of plots by the name of their table, and of all tables by the empty name."""
    parts = [
        "# Evaluation",
        _preamble(studies),
        "## The methods",
        _methods(studies),
        "## At a glance",
        _glance(studies),
        *images(pictures.get("", ())),
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
        parts += [f"## {found.name}", *details(found, pictures.get(found.name, ()))]
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
    titles, reference = titles_of(studies), studies[0].reference
    ours = ours_of(studies)
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
    titles, reference = titles_of(studies), studies[0].reference
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


def is_variant(name: str) -> bool:
    """Whether this is a variant of another method."""
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
    titles, columns = titles_of(studies), [(budget, k) for budget in outcomes[0].budgets for k in outcomes[0].ks]
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


def _notes(studies: Sequence[Study]) -> str:
    lines = [
        f"- {found.name}: `{method}` was left out, because {reason}."
        for found in studies
        for method, reason in found.outcome.left_out.items()
    ]
    lines += [
        f"- {found.name}: its texts were not at hand (`--texts`), so `{DEFAULT}` did not know which words of a query a "
        "document has."
        for found in studies
        if "terms" not in found.outcome.table.provides
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
        "- Times of algorithms are CPU time of one process, whatever else the machine was doing.",
    ]
    return "\n".join(lines)
