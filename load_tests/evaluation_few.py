"""`make evaluation-few`: is a request with few calls ever worse than one with none? On a folder of tables.

python -m load_tests.evaluation_few TABLES

CE-nCG@k of the default in growing rounds, with the words of the documents and without, minus the better of two things
that need no selection: the retriever's first k, and the first B by their scores with the rest as they came. In "rare
yes" one document in 200 of the same pools, the best one, is a yes and all others a no. Beside it, what the session
expects to miss and what it misses, and how often it asks a document of the second half of the ranking.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from boundarymorph.evaluation.metrics import normalised_gain
from boundarymorph.evaluation.problem import Question
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection import SelectionSession
from boundarymorph.selection.methods import DEFAULT, METHODS
from boundarymorph.selection.rounds import growing
from load_tests import report, studies
from load_tests.studies import Row, by_score, markdown

BUDGETS, KS = (0, 1, 2, 3, 5, 10, 25, 50, 100), (5, 10, 50, 100)
FEW = (1, 2, 3, 5)
RARE, ONE_IN = "rare yes", 200


def main() -> None:
    parser = studies.parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/evaluation"))
    parser.add_argument("--budgets", type=_numbers, default=BUDGETS)
    parser.add_argument("--ks", type=_numbers, default=KS)
    given = studies.parsed(parser)
    rows = [row for table in given.tables for row in few(table, given)]
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "few.json").write_bytes(orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY))
    parts = {"Minus the better baseline, in points": _gains(rows), "Mean over k": _means(rows)}
    text = "\n\n".join(f"## {title}\n\n{markdown(lines)}" for title, lines in parts.items())
    (given.out / "few.md").write_text(f"# Few calls\n\n{text}\n", encoding="utf-8")
    print(text)


def few(table: ScoreTable, given: argparse.Namespace) -> Iterator[Row]:
    """One row a question, words or none, k and B."""
    for row in range(0, len(table), given.every):
        whole = table.question(row)
        for name, question in ((table.name, whole), (RARE, _rare(whole))):
            for words in (True, False):
                asked = question if words else replace(question, pool=studies.without_words(question.pool))
                for k in (k for k in given.ks if k < len(question.pool)):
                    for budget in given.budgets:
                        found = _played(asked, budget, k)
                        yield {"table": name, "of": table.name, "query": row, "words": words, **found}


def _rare(question: Question) -> Question:
    """The same pool with a scorer that says yes to one document in 200, the best ones, and no to the others."""
    scores = np.zeros(len(question.scores))
    scores[np.argsort(-question.scores, kind="stable")[: max(len(scores) // ONE_IN, 1)]] = 1.0
    return replace(question, scores=scores)


def _played(question: Question, budget: int, k: int) -> Mapping[str, Any]:
    session = SelectionSession(question.pool, budget=budget, k=k, config=METHODS[DEFAULT])
    deepest = 0
    while (left := budget - session.spent) and (asked := session.ask(growing(session.spent, left, budget))).size:
        session.tell(asked, question.scores[asked])
        deepest = max(deepest, int(asked.max()))
    first = {"retriever": np.arange(k), "first B": by_score(question.scores, budget)[:k]}
    return {
        "k": k,
        "budget": budget,
        "ce_ncg": normalised_gain(session.selection().documents, question.scores),
        **{name: normalised_gain(documents, question.scores) for name, documents in first.items()},
        "expected_loss": session.expected_loss(),
        "deepest": deepest / len(question.pool),
    }


def _gains(rows: list[Row]) -> list[dict[str, Any]]:
    lines = []
    for name, words, k in dict.fromkeys((row["table"], row["words"], row["k"]) for row in rows):
        line: dict[str, Any] = {"table": name, "words": "yes" if words else "no", "k": k}
        for budget, here in _by_budget(rows, table=name, words=words, k=k):
            best = max(_mean(here, "retriever"), _mean(here, "first B"))
            line[f"B = {budget}"] = f"{100 * (_mean(here, 'ce_ncg') - best):+.1f}"
        lines.append(line)
    return lines


def _means(rows: list[Row]) -> list[dict[str, Any]]:
    lines = []
    for name, words in dict.fromkeys((row["table"], row["words"]) for row in rows):
        of = list(_by_budget(rows, table=name, words=words))
        line: dict[str, Any] = {"table": name, "words": "yes" if words else "no"}
        line |= {f"B = {budget}": f"{100 * _mean(here, 'ce_ncg'):.1f}" for budget, here in of}
        for budget, here in of:
            if budget >= 10:
                told, real = _mean(here, "expected_loss"), 1.0 - _mean(here, "ce_ncg")
                line[f"loss at {budget}"] = f"{told:.3f} / {real:.3f}"
        few_calls = [row["deepest"] for row in rows if row["table"] == name and row["budget"] in FEW]
        line["asks beyond the middle"] = f"{100 * np.mean(np.array(few_calls) > 0.5):.0f} %"
        lines.append(line)
    return lines


def _by_budget(rows: list[Row], **where: Any) -> Iterator[tuple[int, list[Row]]]:
    here = [row for row in rows if all(row[key] == value for key, value in where.items())]
    for budget in dict.fromkeys(row["budget"] for row in here):
        yield budget, [row for row in here if row["budget"] == budget]


def _mean(rows: list[Row], key: str) -> float:
    """Nan stands for questions that have nothing to win."""
    return float(np.nanmean([row[key] for row in rows]))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    report.run(main)
