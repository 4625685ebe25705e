"""Of report.md, what concerns one table alone, and what the plots show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from boundarymorph.evaluation.analyses import bootstrap_interval
from boundarymorph.evaluation.metrics import quality
from boundarymorph.evaluation.study import Study, titles_of

CAPTIONS = {
    "unscored": "Share of the chosen set's cross-encoder score that was never paid for.",
    "latency": "What a query's seconds buy, with the calls one after the other. Each line is a method with a growing "
    "budget; above and to the left is better.",
    "quality": "",
}


def images(paths: Iterable[str]) -> list[str]:
    """Plots with their captions."""
    lines = []
    for path in paths:
        kind = Path(path).stem.partition("-")[0]
        lines.append(f"![{Path(path).stem}]({path})" + (f"\n\n{CAPTIONS[kind]}" if CAPTIONS.get(kind) else ""))
    return lines


def details(found: Study, pictures: Sequence[str]) -> list[str]:
    """The parts of one table's section."""
    titles = titles_of([found])
    budget, k = found.pictured
    parts = [_intervals(found, titles), _cross_encoder_itself(found)]
    shares = found.shares()
    if shares:
        parts.append(
            f"**Unscored share** of the set's CE gain at B = {budget}, k = {k}: "
            + ", ".join(f"{titles[name]} {100 * share:.0f} %" for name, share in shares.items())
            + "."
        )
    if found.latencies:
        parts.append(_latency_table(found, titles))
    return parts + images(pictures)


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
    timed = found.latencies[0].scorer is not None
    asking = any(one.prompts for one in found.latencies)
    lines = [
        "**Latency**, medians a query. Calls are one after the other; their share is that of the models in the whole. "
        "Algorithm is the CPU time of all else, with neighbour graphs built beforehand; its parts are update "
        "(conditioning the process), acquisition (choosing) and, the rest, setting up."
        + ("" if timed else " The table does not say how long a call takes; --call-seconds tells."),
        "",
        "| method | B | calls | cross-encoder |"
        + (" prompts | language model |" if asking else "")
        + " their share | algorithm | update | acquisition |",
        f"|---|{'---:|' * (9 if asking else 7)}",
    ]
    for one in found.latencies:
        total = one.total
        cells = [titles[one.method], str(one.budget), f"{one.calls:.0f}", _milliseconds(one.scorer)]
        cells += [f"{one.prompts:.0f}", _milliseconds(one.model)] if asking else []
        cells += ["" if total is None else f"{100 * (1 - one.algorithm / total):.0f} %"]
        cells += [
            f"{1000 * seconds:,.1f} ms" if seconds else "" for seconds in (one.algorithm, one.update, one.acquisition)
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _milliseconds(seconds: float | None) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds else ""
