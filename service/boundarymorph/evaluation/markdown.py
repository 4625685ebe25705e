"""report.md: what an evaluation says in words and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from boundarymorph.evaluation import calibrated
from boundarymorph.evaluation.analyses import Comparison, Latency, changes
from boundarymorph.evaluation.grids import grid
from boundarymorph.evaluation.metrics import quality
from boundarymorph.evaluation.run import Cell, Outcome
from boundarymorph.evaluation.study import AVERAGE, METRIC_TITLES, Cells, Study, cells, mean_of, ours_of, titles_of
from boundarymorph.selection.methods import DEFAULT, METHODS, PAPER

CLOSE = 0.005
HEADINGS = {"ce_ncg": "CE-nCG: how well the calls were spent", "ncg": "nCG: what people would say of the set"}
LEGEND = "**Best** and <u>second</u> of each column and table."
EXPLAINED = {
    "ce_ncg": "Cross-encoder scores of the chosen k documents, summed, over the best sum that k documents of the pool "
    f"can have. Needs no human labels. {LEGEND}",
    "ncg": "Documents with a human label above 0 in the chosen set, over the most that k documents of the pool can "
    "hold. Where the cross-encoder and people disagree, following the one more closely loses the other: compare with "
    f"CE-nCG, and with the line *cross-encoder itself* under each table's heading below. {LEGEND} Graded gains, "
    "and gains against all relevant documents of the collection, are in per_query.csv.",
}


def markdown(studies: Sequence[Study], pictures: Mapping[str, Sequence[str]]) -> str:
    """The report. pictures: paths of plots by the name of their table, and of all tables by the empty name."""
    parts = [
        "# Evaluation",
        *_preamble(studies),
        "## The methods",
        _methods(studies),
        "## At a glance",
        _glance(studies),
        *_images(pictures.get("", ())),
    ]
    for metric in METRIC_TITLES:
        table = cells(studies, metric)
        if table is not None:
            parts += [f"## {HEADINGS[metric]}", EXPLAINED[metric], _main_table(table, titles_of(studies))]
    varied = _variants(studies)
    if varied:
        parts += ["## Ablations, kernels and rounds", *varied]
    parts += ["## Is it more than noise?", *_differences(studies), "## Settings of the baselines", *_settings(studies)]
    for found in studies:
        parts += [
            f"## {found.name}",
            _cross_encoder_itself(found.outcome),
            *_latencies(found.latencies, titles_of([found])),
        ]
        parts += _images(pictures.get(found.name, ()))
    parts += ["## What was left out, and what to keep in mind", _notes(studies)]
    if made := {found.name: found.calibrated for found in studies if found.calibrated is not None}:
        parts += ["## Calibrated by a few judgements", *calibrated.section(made)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _preamble(studies: Sequence[Study]) -> list[str]:
    first = studies[0].outcome
    tables = [found.outcome.table for found in studies]
    rows = [
        (
            table.name,
            f"{len(table):,}",
            f"{table.depth:,}",
            f"{len(table.arrays['doc_emb']):,}",
            "yes" if "grade" in table.arrays else "no: CE-nCG only",
        )
        for table in tables
    ]
    budgets, ks = (", ".join(str(value) for value in values) for values in (first.budgets, first.ks))
    return [
        "A query has a pool of N candidates from a retriever. A method may buy at most **B** scores from a "
        "cross-encoder and then has to name **k** documents. Every method gets the same pools and pays for every "
        "score; nothing but the choice of calls and of the set differs.",
        grid(("table", "queries", "N", "documents", "human labels"), rows),
        f"B: {budgets}. k: {ks}. All figures are percentages, means over queries.",
    ]


def _methods(studies: Sequence[Study]) -> str:
    contestants = {one.name: one for found in studies for one in found.outcome.contestants}.values()
    rows = [(_bold(one.title, one.ours), f"`{one.name}`", one.about) for one in contestants]
    return grid(("method", "`--methods`", "what it does"), rows, texts=3)


def _images(paths: Iterable[str]) -> list[str]:
    return [f"![{Path(path).stem}]({path})" for path in paths]


def _glance(studies: Sequence[Study]) -> str:
    titles, ours = titles_of(studies), ours_of(studies)
    lines = []
    for metric, title in METRIC_TITLES.items():
        table = cells(studies, metric)
        if table is None:
            continue
        means = {method: mean for method, row in table.overall.items() if (mean := mean_of(row.values())) is not None}
        order = sorted(means, key=lambda method: -means[method])
        lines.append(
            f"- **{title}**, mean over all B and k{' and tables' if AVERAGE in table.groups else ''}: "
            + ", ".join(f"{titles[method]} {_bold(f'{100 * means[method]:.1f}', method in ours)}" for method in order)
            + "."
        )
        for method in dict.fromkeys((PAPER, studies[0].reference)):
            if method not in means:
                continue
            others = [name for name in order if name.partition("@")[0] != method]
            if method == PAPER:
                others = [name for name in others if name not in ours]
            leads = _leads(table, method, others)
            against = "every baseline" if method == PAPER else "every other method"
            lines.append(
                f"  - {titles[method]} is at least as good as {against} in {sum(lead >= 0 for lead in leads)} of "
                f"{len(leads)} cells (table, B, k), and within {100 * CLOSE:.1f} points in "
                f"{sum(lead >= -CLOSE for lead in leads)}."
            )
    return "\n".join(lines)


def _leads(table: Cells, method: str, others: Sequence[str]) -> list[float]:
    """How far a method is above the best of others, in every cell of every table."""
    return [
        (rows[method][cell] or 0.0) - max((rows[other][cell] or 0.0 for other in others if other in rows), default=0.0)
        for group, rows in table.groups.items()
        if group != AVERAGE
        for cell in table.columns
    ]


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _points(one: Comparison) -> str:
    """The difference, and a star if it is significant."""
    return f"{100 * one.difference:+.1f}" + ("\\*" if one.significant else "")


def _heads(columns: Iterable[Cell]) -> list[str]:
    return [f"B={budget}, k={k}" for budget, k in columns]


def _main_table(table: Cells, titles: Mapping[str, str]) -> str:
    lines = []
    for group, rows in table.groups.items():
        for number, (method, row) in enumerate(rows.items()):
            shown = []
            for cell in table.columns:
                value, text = row[cell], _percent(row[cell])
                best, second = table.best(group, cell)
                if value is not None and round(value, 4) == best:
                    text = f"**{text}**"
                elif value is not None and round(value, 4) == second:
                    text = f"<u>{text}</u>"
                shown.append(text)
            name = f"**{group}**" if number == 0 else ""
            title = _bold(titles[method], method in METHODS)
            lines.append([name, title, *shown, _percent(mean_of(row.values()))])
    return grid(["", "method", *_heads(table.columns), "mean"], lines, texts=2)


def _differences(studies: Sequence[Study]) -> list[str]:
    titles, columns = titles_of(studies), studies[0].outcome.cells
    parts = [
        f"{titles[studies[0].reference]} minus each other method, in points, with the 95 % bootstrap interval over "
        "queries. \\* marks q < 0.05: paired Wilcoxon signed-rank tests, Benjamini-Hochberg over all of a table and "
        "metric."
    ]
    for found in studies:
        for metric, title in METRIC_TITLES.items():
            here = [one for one in found.comparisons if one.metric == metric]
            if here:
                better = sum(one.significant and one.difference > 0 for one in here)
                worse = sum(one.significant and one.difference < 0 for one in here)
                rows = _by_cell(
                    here, columns, lambda one: f"{_points(one)} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
                )
                parts += [
                    f"<details><summary>{found.name}, {title}: better in {better}, worse in {worse}, undecided in "
                    f"{len(here) - better - worse} of {len(here)} comparisons</summary>",
                    grid(["against", *_heads(columns)], ([titles[other], *row] for (_, other), row in rows.items())),
                    "</details>",
                ]
    return parts


def _by_cell(
    found: Sequence[Comparison], columns: Sequence[Cell], shown: Callable[[Comparison], str]
) -> dict[tuple[str, str], list[str]]:
    """What is shown of each pair of methods in each column."""
    texts = {(one.method, one.other, one.budget, one.k): shown(one) for one in found}
    pairs = dict.fromkeys((one.method, one.other) for one in found)
    return {pair: [texts.get((*pair, *cell), "") for cell in columns] for pair in pairs}


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


def _variants(studies: Sequence[Study]) -> list[str]:
    """What a method loses or wins when one thing about it changes; nothing if no variant ran beside its original."""
    outcomes = [found.outcome for found in studies]
    ran = set.intersection(*({one.name for one in outcome.contestants} for outcome in outcomes))
    pairs = [
        (one.name, original)
        for one in outcomes[0].contestants
        if (original := VARIANTS.get(one.name, one.name.partition("@")[0])) != one.name and {one.name, original} <= ran
    ]
    if not pairs:
        return []
    titles, columns = titles_of(studies), outcomes[0].cells
    parts = [
        "The change in points from the original to the variant, over the queries of all tables together. \\* marks "
        "q < 0.05 (paired Wilcoxon, Benjamini-Hochberg over a metric's changes)."
    ]
    for metric, title in METRIC_TITLES.items():
        having = [outcome for outcome in outcomes if outcome.has(metric)]
        if having and (found := changes(having, pairs, metric)):
            rows = _by_cell(found, columns, _points)
            lines = ([titles[name], titles[original], *row] for (name, original), row in rows.items())
            parts.append(grid([f"{title}: variant", "of", *_heads(columns)], lines, texts=2))
    return parts


def _settings(studies: Sequence[Study]) -> list[str]:
    outcomes = [found.outcome for found in studies]
    swept = [contestant for contestant in outcomes[0].contestants if contestant.swept]
    if not swept:
        return ["No method with a grid of settings was run."]
    budgets = outcomes[0].budgets
    rows = [
        [
            contestant.title,
            str(len(contestant.settings)),
            outcome.table.name,
            *(f"`{outcome.settings[contestant.name, budget]}`" for budget in budgets),
        ]
        for contestant in swept
        for outcome in outcomes
        if (contestant.name, budgets[0]) in outcome.settings
    ]
    return [
        "Methods with settings get the best of their grid on each table and budget, selected on CE-nCG@50 of the very "
        "queries that are reported, as in the paper: an advantage that nobody has in practice. The product's methods "
        "run with one fixed configuration everywhere.",
        grid(
            ["method", "grid", "table", *(f"selected at B = {budget}" for budget in budgets)],
            rows,
            texts=3 + len(budgets),
        ),
    ]


def _cross_encoder_itself(outcome: Outcome) -> str:
    """The nCG of the sets that a scorer with an unlimited budget would choose."""
    if not outcome.judged:
        return ""
    questions = list(outcome.table.questions())
    orders = [np.argsort(-question.scores, kind="stable") for question in questions]
    shown = []
    for k in outcome.ks:
        values = [quality(question, order, k).ncg for question, order in zip(questions, orders, strict=True)]
        shown.append(f"{100 * np.nanmean(values):.1f} at k = {k}")
    return f"**Cross-encoder itself.** With every document scored, its own best k have an nCG of {', '.join(shown)}."


def _latencies(found: Sequence[Latency], titles: Mapping[str, str]) -> list[str]:
    if not found:
        return []
    asking = any(one.prompts for one in found)
    rows = [
        [
            titles[one.method],
            str(one.budget),
            f"{one.calls:.0f}",
            _milliseconds(one.scorer),
            *([f"{one.prompts:.0f}", _milliseconds(one.model)] if asking else []),
            "" if one.total is None else f"{100 * (1 - one.algorithm / one.total):.0f} %",
            f"{1000 * one.algorithm:,.1f} ms",
        ]
        for one in found
    ]
    return [
        "**Latency**, medians a query. Calls are one after the other; their share is that of the models in the whole. "
        "Algorithm is the CPU time of all else, with neighbour graphs built beforehand."
        + ("" if found[0].total else " The table does not say how long a call takes; --call-seconds tells."),
        grid(
            ["method", "B", "calls", "cross-encoder"]
            + (["prompts", "language model"] if asking else [])
            + ["their share", "algorithm"],
            rows,
        ),
    ]


def _milliseconds(seconds: float | None) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds else ""


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
