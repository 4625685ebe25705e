"""Part of `make evaluation`: is what answers say of unscored documents true, and are small sets as good as large ones?

The default on the tables of a folder, in rounds as the service makes them. Writes calibration.md and calibration.json,
and the reliability diagram to plots/reliability.png.
"""

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from boundarymorph.evaluation import plots, tables
from boundarymorph.evaluation.calibration import BINS, BUDGETS, LEAST, SMALL_KS, calibration, small, threshold
from boundarymorph.evaluation.options import Row
from load_tests import report

HOW = ("first B", "default", "default, no BM25")
METRICS = {"ce_ncg": "CE-nCG@k", "ce_ndcg": "CE-nDCG@10", "ndcg": "nDCG@10, people"}
Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, help="folder of .npz tables")
    parser.add_argument("--every", type=int, default=1, help="only every so many queries")
    parser.add_argument("--out", type=Path, default=Path("build/evaluation"))
    given = parser.parse_args()
    found = {path.stem: tables.read(path) for path in sorted(given.tables.glob("*.npz"))}
    if not found:
        parser.error(f"there is no .npz in {given.tables}")

    def measured(study: Callable[..., list[Row]]) -> dict[str, list[Row]]:
        return {name: study(table, given.every, lambda: None) for name, table in found.items()}

    calibrated, sets, reached = measured(calibration), measured(small), measured(threshold)
    figures = {"calibration": _calibration(calibrated), "loss": _loss(calibrated), "reliability": _bins(calibrated)}
    figures |= {f"small sets, {title}": _small(sets, metric) for metric, title in METRICS.items()}
    figures["min_relevance: F1"] = _threshold(reached)
    (given.out / "plots").mkdir(parents=True, exist_ok=True)
    (given.out / "calibration.json").write_bytes(
        orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
    )
    parts = [f"## {title}\n\n{_grid(lines)}" for title, lines in figures.items()]
    (given.out / "calibration.md").write_text("# What answers say, and small sets\n\n" + "\n\n".join(parts) + "\n")
    diagram = {
        name: [(line[f"{name}: expected"], line[f"{name}: real"]) for line in figures["reliability"]]
        for name in calibrated
    }
    plots.reliability(given.out / "plots" / "reliability.png", diagram)
    print(f"written to {given.out / 'calibration.md'}")


def _grid(rows: Sequence[Line]) -> str:
    head = list(rows[0])
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join('---:' for _ in head)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(str(row[name]) for name in head)} |" for row in rows)])


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
            lines.append({**line, "ratio": f"{expected / real:.2f}"})
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


if __name__ == "__main__":
    report.run(main)
