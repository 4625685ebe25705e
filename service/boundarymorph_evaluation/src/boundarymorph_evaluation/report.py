"""Write the results of an evaluation: report.md with its plots, summary.json and CSV files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd

from boundarymorph.selection.methods import DEFAULT, HUMAN, PAPER
from boundarymorph_evaluation import plots, promised
from boundarymorph_evaluation.grids import grid
from boundarymorph_evaluation.methods.baselines import MIPS, SINGLE_STAGE
from boundarymorph_evaluation.methods.morph import PRODUCT
from boundarymorph_evaluation.metrics import quality
from boundarymorph_evaluation.run import Cell, Outcome, records
from boundarymorph_evaluation.study import (
    AVERAGE,
    METRIC_TITLES,
    SIGNIFICANT,
    Study,
    changes,
    overall,
    quality_by_table,
    titles_of,
)
from boundarymorph_evaluation.verdict import HEAD, Verdict

HEADINGS = {
    "ncg": "nCG: what people would say of the set",
    "ndcg_10": "nDCG@10: what people would say of its first ten",
    "ce_ncg": "CE-nCG: how well the calls were spent",
}
LEGEND = "**Best** and <u>second</u> of each column and table."
EXPLAINED = {
    "ce_ncg": "Cross-encoder scores of the chosen k documents, summed, over the best sum that k documents of the pool "
    f"can have. Needs no human labels. {LEGEND}",
    "ncg": "Documents with a human label above 0 in the chosen set, over the most that k documents of the pool can "
    "hold. Where the cross-encoder and people disagree, following the one more closely loses the other: compare with "
    f"CE-nCG, and with the line *cross-encoder itself* under each table's heading below. {LEGEND} Graded gains, "
    "and gains against all relevant documents of the collection, are in per_query.csv.",
    "ndcg_10": "The first ten of the set in its order, with grades as gains, against the best order of the pool. "
    f"{LEGEND}",
}
VARIANTS = {
    "no-acquisition": PAPER,
    "no-prior": PAPER,
    "independent": PAPER,
    "boundarymorph-rbf": PAPER,
    "boundarymorph-matern52": PAPER,
    "bagel-rbf": "bagel",
    "bagel-matern52": "bagel",
}


def summary(studies: Sequence[Study]) -> dict[str, Any]:
    """Return the figures for machines.

    They are means over tables, with equal weights; `ncg` and ndcg_10 are null without human labels. A method that
    could not run on every table is left out.
    """
    scored = quality_by_table(studies, "ce_ncg")
    rows = overall(scored).stack(["budget", "k"], future_stack=True).dropna().rename("ce_ncg").to_frame()
    for metric in ("ncg", "ndcg_10"):
        judged = quality_by_table(studies, metric)
        rows[metric] = overall(judged).stack(["budget", "k"], future_stack=True) if judged else np.nan
    return {"default": HUMAN, "paper": PAPER, "rows": records(rows.reset_index())}


def write(studies: Sequence[Study], verdicts: Sequence[Verdict], out: Path) -> None:
    """Write report.md, plots/, summary.json, per_query.csv and comparisons.csv.

    With several tables, each has a summary of its own as well. Without studies, this writes only the verdicts, and the
    pairs that have no judgement. The same tables and methods give the same JSON and CSV, to the digit: only the report
    has measured times.
    """
    out.mkdir(parents=True, exist_ok=True)
    several = {f"summary-{found.name}.json": summary([found]) for found in studies} if len(studies) > 1 else {}
    whole = {
        "scorer": {verdict.table: verdict.to_json() for verdict in verdicts},
        **(summary(studies) if studies else {}),
    }
    for name, figures in {"summary.json": whole, **several}.items():
        (out / name).write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    (out / "unjudged.ndjson").write_bytes(b"".join(verdict.to_judge() for verdict in verdicts))
    first = ["# Evaluation", *(part for verdict in verdicts for part in section(verdict))]
    if not studies:
        (out / "report.md").write_text("\n\n".join(first) + "\n", encoding="utf-8")
        return
    rows = pd.concat({found.name: found.outcome.rows for found in studies}, names=["table"])
    rows.reset_index("table").drop(columns="seconds").to_csv(out / "per_query.csv", index=False)
    compared = pd.concat({found.name: found.comparisons for found in studies}, names=["table"])
    compared.reset_index("table").to_csv(out / "comparisons.csv", index=False)
    (out / "report.md").write_text(markdown(studies, first, _draw(studies, out / "plots")), encoding="utf-8")


def title_of(verdict: Verdict) -> str:
    return f"{verdict.table}: does the scorer help here? k = {verdict.k}, {verdict.budget} calls (%)"


def section(verdict: Verdict) -> list[str]:
    """Return the first section of a report."""
    alone = "; ".join(f"{pair} is {change}" for pair, change in verdict.scorer.items())
    return [
        f"## {title_of(verdict)}",
        f"**{verdict.sentence}**",
        grid(HEAD, verdict.lines()),
        f"Means over {verdict.questions} questions by people's judgements. *Judged* is the share of the documents in "
        "the set that a person judged. Differences are points of nCG, with paired 95 % bootstrap intervals. The scorer "
        f"alone: {alone}.",
    ]


def markdown(studies: Sequence[Study], first: Sequence[str], pictures: Mapping[str, Sequence[str]]) -> str:
    """Return the report.

    Args:
        studies: The results by table.
        first: The beginning of the report.
        pictures: Paths of plots by the name of their table, and of plots of the means by the empty name.
    """
    parts = [*first, "## All methods", *_preamble(studies), "## The methods", _methods(studies)]
    images = {name: [f"![{Path(path).stem}]({path})" for path in paths] for name, paths in pictures.items()}
    parts += images.get("", ())
    for metric in METRIC_TITLES:
        if tables := quality_by_table(studies, metric):
            parts += [f"## {HEADINGS[metric]}", EXPLAINED[metric], main_table(tables, titles_of(studies))]
    if varied := _variants(studies):
        parts += ["## Ablations, kernels and rounds", *varied]
    parts += ["## Is It Noise?", *_differences(studies), "## Settings of the Baselines", *_settings(studies)]
    for found in studies:
        parts += [f"## {found.name}", _cross_encoder_itself(found.outcome), *_latencies(found)]
        parts += images.get(found.name, ())
    parts += ["## Limits of These Figures", _notes(studies)]
    if kept := {one.name: one.promised for one in studies if one.promised is not None}:
        parts += ["## Promised", *promised.section(kept)]
    return "\n\n".join(part for part in parts if part) + "\n"


def main_table(tables: Mapping[str, pd.DataFrame], titles: Mapping[str, str]) -> str:
    """Return the quality of each method by table as Markdown.

    The best and the second of each column are marked.
    """
    lines = []
    for group, table in tables.items():
        places = table.round(4).rank(method="dense", ascending=False)
        for number, (method, row) in enumerate(table.iterrows()):
            shown = [_placed(value, places.loc[method, cell]) for cell, value in row.items()]
            name = f"**{group}**" if number == 0 else ""
            lines.append([name, _bold(titles[method], method in PRODUCT), *shown, _placed(row.mean())])
    return grid(["", "method", *_heads(overall(dict(tables)).columns), "mean"], lines, texts=2)


def _placed(value: float, place: float = 0) -> str:
    if np.isnan(value):
        return ""
    mark, end = {1: ("**", "**"), 2: ("<u>", "</u>")}.get(int(place), ("", ""))
    return f"{mark}{100 * value:.1f}{end}"


def _preamble(studies: Sequence[Study]) -> list[str]:
    first = studies[0].outcome
    rows = []
    for table in (found.outcome.table for found in studies):
        sizes = (f"{size:,}" for size in (len(table), table.depth, len(table.arrays["doc_emb"])))
        rows.append((table.name, *sizes, "yes" if "grade" in table.arrays else "no: CE-nCG only"))
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


def _differences(studies: Sequence[Study]) -> list[str]:
    titles, columns = titles_of(studies), studies[0].outcome.cells
    parts = [
        f"{titles[studies[0].reference]} minus each other method, in points, with the 95 % bootstrap interval over "
        "queries. \\* marks q < 0.05: paired Wilcoxon signed-rank tests, Benjamini-Hochberg over all of a table and "
        "metric."
    ]
    for found in studies:
        for metric, here in found.comparisons.groupby("metric", sort=False):
            significant = here["q"] < SIGNIFICANT
            better, worse = ((significant & sign).sum() for sign in (here["difference"] > 0, here["difference"] < 0))
            rows = _by_cell(here, columns, lambda one: f"{_points(one)} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]")
            parts += [
                f"<details><summary>{found.name}, {METRIC_TITLES[metric]}: better in {better}, worse in {worse}, "
                f"undecided in {len(here) - better - worse} of {len(here)} comparisons</summary>",
                grid(["against", *_heads(columns)], ([titles[other], *row] for (_, other), row in rows.items())),
                "</details>",
            ]
    return parts


def _variants(studies: Sequence[Study]) -> list[str]:
    """Return how a method changes when one of its parts changes.

    This is empty if no variant ran beside its original.
    """
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
        having = [outcome for outcome in outcomes if outcome.has_metric(metric)]
        if having and len(found := changes(having, pairs, metric)):
            rows = _by_cell(found, columns, _points)
            lines = ([titles[name], titles[original], *row] for (name, original), row in rows.items())
            parts.append(grid([f"{title}: variant", "of", *_heads(columns)], lines, texts=2))
    return parts


def _by_cell(
    found: pd.DataFrame, columns: Sequence[Cell], shown: Callable[[Any], str]
) -> dict[tuple[str, str], list[str]]:
    """Return the text of each pair of methods in each column."""
    texts = {(one.method, one.other, one.budget, one.k): shown(one) for one in found.itertuples()}
    pairs = dict.fromkeys((method, other) for method, other, _, _ in texts)
    return {pair: [texts.get((*pair, *cell), "") for cell in columns] for pair in pairs}


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
    head = ["method", "grid", "table", *(f"selected at B = {budget}" for budget in budgets)]
    return [
        "Methods with settings get the best of their grid on each table and budget, selected on CE-nCG@50 of the very "
        "queries that are reported, as in the paper: an advantage that nobody has in practice. The product's methods "
        "run with one fixed configuration everywhere.",
        grid(head, rows, texts=len(head)),
    ]


def _cross_encoder_itself(outcome: Outcome) -> str:
    """Return the nCG of the sets that a scorer with an unlimited budget would choose."""
    if not outcome.judged:
        return ""
    questions = list(outcome.table.questions())
    orders = [np.argsort(-question.scores, kind="stable") for question in questions]
    shown = []
    for k in outcome.ks:
        values = [quality(question, order, k).ncg for question, order in zip(questions, orders, strict=True)]
        shown.append(f"{100 * np.nanmean(values):.1f} at k = {k}")
    return f"**Cross-encoder itself.** With every document scored, its own best k have an nCG of {', '.join(shown)}."


def _latencies(study: Study) -> list[str]:
    found, titles = study.latencies, titles_of([study])
    if found.empty:
        return []
    untimed = found["scorer"].isna().any()
    rows = [
        [
            titles[one.method],
            str(one.budget),
            f"{one.calls:.0f}",
            "" if untimed else f"{1000 * one.scorer:,.0f} ms",
            "" if untimed else f"{100 * (1 - one.algorithm / one.total):.0f} %",
            f"{1000 * one.algorithm:,.1f} ms",
        ]
        for one in found.itertuples()
    ]
    return [
        "**Latency**, medians a query. Calls are one after the other; their share is that of the models in the whole. "
        "Algorithm is the CPU time of all else, with neighbour graphs built beforehand."
        + (" The table does not say how long a call takes; --call-seconds tells." if untimed else ""),
        grid(["method", "B", "calls", "cross-encoder", "their share", "algorithm"], rows),
    ]


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
        grades = (question.grades for question in found.outcome.table.questions())
        if missing := sum(each is not None and not each.any() for each in grades):
            lines.append(f"- {found.name}: {missing} queries have no relevant document in their pool and no nCG.")
    lines += [
        "- SS with B ≤ k is the retrieval order: reranking the head changes the order, not the set.",
        "- Queries on which a metric is not defined (no gain to win) are left out of its means.",
        "- Times of algorithms are CPU time of one process, whatever else the machine was doing.",
    ]
    return "\n".join(lines)


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text


def _points(one: Any) -> str:
    """Return the difference of a comparison, and a star if it is significant."""
    return f"{100 * one.difference:+.1f}" + ("\\*" if one.q < SIGNIFICANT else "")


def _heads(columns: Iterable[Cell]) -> list[str]:
    return [f"B={budget}, k={k}" for budget, k in columns]


def _is_variant(name: str) -> bool:
    return name in VARIANTS or "@" in name


# --- pictures ---------------------------------------------------------------------------------------------------------


def _draw(studies: Sequence[Study], folder: Path) -> dict[str, list[str]]:
    """Draw all plots, and return their paths relative to the report, by table.

    Plots of the means have the name "".
    """
    titles = titles_of(studies)
    drawn: dict[str, list[str]] = {}

    def path_of(group: str, name: str) -> Path:
        path = folder / f"{name}{f'-{group}' if group else ''}.png"
        drawn.setdefault(group, []).append(f"{folder.name}/{path.name}")
        return path

    def highlighted(means: pd.Series) -> dict[str, str]:
        named = (studies[0].reference, SINGLE_STAGE.name, MIPS.name)
        return {name: titles[name] for name in named if name in means.index}

    for metric, title in METRIC_TITLES.items():
        for group, table in quality_by_table(studies, metric).items():
            # Variants of one method lie on top of each other; their differences have a table.
            shown = table[[not _is_variant(name) for name in table.index]]
            of_all = group == AVERAGE or len(studies) == 1
            path = path_of("" if of_all else group, f"quality-{metric.replace('_', '-')}")
            labels = highlighted(shown.mean(axis=1))
            plots.quality_against_budget(path, shown, labels, f"{title}: {group}", title)
    return drawn
