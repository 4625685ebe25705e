"""Part of `make evaluation`: is what answers say of unscored documents true, and are small sets as good as large ones?

The default on the tables of a folder, in rounds as the service makes them. Writes calibration.md and calibration.json,
and the reliability diagram to plots/reliability.png.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.evaluation import plots
from boundarymorph.evaluation.metrics import normalised_gain
from boundarymorph.evaluation.problem import Question
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection import Pool, SelectionSession
from boundarymorph.selection.methods import DEFAULT, METHODS
from boundarymorph.selection.rounds import growing
from load_tests import report, studies
from load_tests.studies import Row, markdown, normalised_discounted_gain

BUDGETS = (10, 25, 50)
CALIBRATED_KS, SMALL_KS = (10, 50, 100), (5, 10, 20)
LEAST, AT_MOST = (0.3, 0.5, 0.8), 200  # min_relevance, and k with it
HEAD = 10  # documents whose order counts in nDCG
BINS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
HOW = ("first B", "default", "default, no BM25")
METRICS = {"ce_ncg": "CE-nCG@k", "ce_ndcg": "CE-nDCG@10", "ndcg": "nDCG@10, people"}
Line = dict[str, Any]


def main() -> None:
    parser = studies.parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/evaluation"))
    given = studies.parsed(parser)

    def measured(study: Callable[..., list[Row]]) -> dict[str, list[Row]]:
        return {table.name: study(table, given.every) for table in given.tables}

    calibrated, sets, reached = measured(calibration), measured(small), measured(threshold)
    figures = {"calibration": _calibration(calibrated), "loss": _loss(calibrated), "reliability": _bins(calibrated)}
    figures |= {f"small sets, {title}": _small(sets, metric) for metric, title in METRICS.items()}
    figures["min_relevance: F1"] = _threshold(reached)
    (given.out / "plots").mkdir(parents=True, exist_ok=True)
    (given.out / "calibration.json").write_bytes(
        orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
    )
    parts = [f"## {title}\n\n{markdown(lines)}" for title, lines in figures.items()]
    (given.out / "calibration.md").write_text("# What answers say, and small sets\n\n" + "\n\n".join(parts) + "\n")
    diagram = {
        name: [(line[f"{name}: expected"], line[f"{name}: real"]) for line in figures["reliability"]]
        for name in calibrated
    }
    _plot(given.out / "plots" / "reliability.png", diagram)
    print(f"written to {given.out / 'calibration.md'}")


def calibration(table: ScoreTable, every: int) -> list[Row]:
    """Of the unscored documents of each set: how many, what was expected of them, what they score, and how many lie
    within one and two standard deviations; by bins of what was expected; and the expected loss beside the real one."""
    found: list[Row] = []
    for row, question, budget in _settings(table, every):
        for k in (k for k in CALIBRATED_KS if k < len(question.pool)):
            session = _played(question.pool, question.scores, budget, k)
            chosen = session.selection()
            free = ~chosen.scored
            expected, real = chosen.relevance[free], question.scores[chosen.documents][free]
            off = np.abs(expected - real)
            bins = np.clip(np.searchsorted(BINS, expected, side="right") - 1, 0, len(BINS) - 2)
            setting = {"query": row, "budget": budget, "k": k, "unscored": int(free.sum())}
            found.append(
                {
                    **setting,
                    "expected": float(expected.sum()),
                    "real": float(real.sum()),
                    "within_1": int((off <= chosen.std[free]).sum()),
                    "within_2": int((off <= 2 * chosen.std[free]).sum()),
                    "bins": [
                        (int((bins == at).sum()), float(expected[bins == at].sum()), float(real[bins == at].sum()))
                        for at in range(len(BINS) - 1)
                    ],
                    "expected_loss": session.expected_loss(),
                    "real_loss": 1.0 - normalised_gain(chosen.documents, question.scores),
                }
            )
    return found


def small(table: ScoreTable, every: int) -> list[Row]:
    """Sets of k up to B, where reranking the first B is the alternative: CE-nCG@k and nDCG@10, by the scorer and by
    people, of the default in its own rounds with and without BM25, and of the first B."""
    found: list[Row] = []
    for row, question, budget in _settings(table, every):
        first = np.concatenate([np.argsort(-question.scores[:budget], kind="stable"), np.arange(budget, budget + 20)])
        pools = {"default": question.pool, "default, no BM25": studies.without_words(question.pool)}
        for k in (k for k in SMALL_KS if k < len(question.pool)):
            played = {how: _played(pool, question.scores, budget, k) for how, pool in pools.items()}
            ranked = {how: session.selection().documents for how, session in played.items()}
            for how, documents in {"first B": first[:k], **ranked}.items():
                found.append(
                    {
                        "query": row,
                        "budget": budget,
                        "k": k,
                        "how": how,
                        "ce_ncg": normalised_gain(documents, question.scores),
                        "ce_ndcg": _ndcg(documents, question.scores),
                        "ndcg": float("nan") if question.grades is None else _ndcg(documents, question.grades),
                    }
                )
    return found


def threshold(table: ScoreTable, every: int) -> list[Row]:
    """F1 of "everything that scores at least so much" against all scores: of `min_relevance`, of reranking the first B,
    and of the default's set thresholded. To find nothing where there is nothing is right."""
    found: list[Row] = []
    for row, question, budget in _settings(table, every):
        pool, scores = question.pool, question.scores
        default = _played(pool, scores, budget, AT_MOST).selection()
        for least in LEAST:
            right = np.flatnonzero(scores >= least)
            sets = {
                "first B": np.flatnonzero(scores[:budget] >= least),
                "default": default.documents[default.relevance >= least],
                "min_relevance": _played(pool, scores, budget, AT_MOST, least).selection().documents,
            }
            for how, chosen in sets.items():
                total = len(chosen) + len(right)
                f1 = 2.0 * np.isin(chosen, right).sum() / total if total else 1.0
                setting = {"query": row, "budget": budget, "least": least, "how": how, "right": len(right)}
                found.append({**setting, "returned": len(chosen), "f1": float(f1)})
    return found


def _settings(table: ScoreTable, every: int) -> Iterator[tuple[int, Question, int]]:
    for row in range(0, len(table), every):
        for budget in BUDGETS:
            yield row, table.question(row), budget


def _played(
    pool: Pool, scores: NDArray[np.float64], budget: int, k: int, least: float | None = None
) -> SelectionSession:
    """A session to its end, in rounds as the service makes them."""
    session = SelectionSession(pool, budget=budget, k=k, config=METHODS[DEFAULT], min_relevance=least)
    while (left := budget - session.spent) and (asked := session.ask(growing(session.spent, left, budget))).size:
        session.tell(asked, scores[asked])
    return session


def _ndcg(documents: NDArray[np.intp], gains: NDArray[np.float64]) -> float:
    """Of the first ten; nan for sets of fewer."""
    return normalised_discounted_gain(documents[:HEAD], gains) if len(documents) >= HEAD else float("nan")


def _calibration(found: dict[str, list[Row]]) -> list[Line]:
    lines = []
    for name, rows in found.items():
        for budget in BUDGETS:
            here = [row for row in rows if row["budget"] == budget]
            count = sum(row["unscored"] for row in here)
            expected, real = (sum(row[key] for row in here) / count for key in ("expected", "real"))
            one, two = (100 * sum(row[key] for row in here) / count for key in ("within_1", "within_2"))
            line = {"table": name, "B": budget, "expected": f"{expected:.3f}", "real": f"{real:.3f}"}
            lines.append({**line, "within 1 std": f"{one:.0f} %", "within 2 std": f"{two:.0f} %"})
    return lines


def _loss(found: dict[str, list[Row]]) -> list[Line]:
    lines = []
    for name, rows in found.items():
        for budget in BUDGETS:
            here = [row for row in rows if row["budget"] == budget]
            expected, real = (float(np.nanmean([row[key] for row in here])) for key in ("expected_loss", "real_loss"))
            line = {"table": name, "B": budget, "expected loss": f"{expected:.3f}", "real loss": f"{real:.3f}"}
            lines.append({**line, "ratio": f"{expected / real:.2f}" if real else "-"})
    return lines


def _bins(found: dict[str, list[Row]]) -> list[Line]:
    lines: list[Line] = []
    for at, (low, high) in enumerate(pairwise(BINS)):
        line: Line = {"expected": f"{low:g} to {high:g}"}
        for name, rows in found.items():
            count, expected, real = np.sum([row["bins"][at] for row in rows], axis=0)
            line[f"{name}: expected"] = round(expected / count, 3) if count else None
            line[f"{name}: real"] = round(real / count, 3) if count else None
        lines.append(line)
    return lines


def _small(found: dict[str, list[Row]], metric: str) -> list[Line]:
    lines: list[Line] = []
    for name, rows in found.items():
        for budget in BUDGETS:
            line: Line = {"table": name, "B": budget}
            for k in SMALL_KS:
                for how in HOW:
                    values = [row[metric] for row in rows if (row["budget"], row["k"], row["how"]) == (budget, k, how)]
                    if np.isfinite(values).any():
                        line[f"k = {k}: {how}"] = f"{100 * np.nanmean(values):.1f}"
            lines.append(line)
    return lines


def _threshold(found: dict[str, list[Row]]) -> list[Line]:
    lines: list[Line] = []
    for name, rows in found.items():
        for budget in BUDGETS:
            line: Line = {"table": name, "B": budget}
            for least in LEAST:
                here = [row for row in rows if (row["budget"], row["least"]) == (budget, least)]
                line[f"{least:g}: reach it"] = f"{np.mean([row['right'] for row in here]):.0f}"
                for how in dict.fromkeys(row["how"] for row in here):
                    of_how = [row["f1"] for row in here if row["how"] == how]
                    line[f"{least:g}: {how}"] = f"{100 * np.mean(of_how):.1f}"
            lines.append(line)
    return lines


def _plot(path: Path, tables: Mapping[str, Sequence[tuple[float | None, float | None]]]) -> None:
    """Expected score against the real one, in the mean of bins of what was expected; one line a table."""
    with plots.saved_figure(path, 5.2, 4.8) as figure:
        panel = figure.subplots()
        panel.plot([0, 1], [0, 1], color=plots.MUTED, linewidth=1.0)
        for name, bins in tables.items():
            known = [(expected, real) for expected, real in bins if expected is not None and real is not None]
            panel.plot(*zip(*known, strict=True), marker="o", markersize=4, label=name)
        panel.set_xlabel("expected score of unscored documents in the set")
        panel.set_ylabel("real score")
        panel.legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    report.run(main)
