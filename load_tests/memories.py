"""`python -m load_tests.studies memory --tables TABLES [--collections FOLDER]`: a memory of the queries of tables.

- curve: what is gained after 0, 3, 10, ... requests, on a third of the queries, which were no requests.
- wrong: a memory is filled by a scorer that prefers what the table's refuses, by chance, or by the scorer of another
  table, and then a table's queries are asked; "one key": the first of these by one caller, who goes on with three of
  four requests. Gained is on the queries of all others.
- trips: few rounds with what half of the queries taught, on the other half, beside growing rounds without.

Means of CE-nCG over queries, then draws, k = 10 and 50, and tables, in points. `memory.json` has each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from boundarymorph.evaluation.grids import grid
from boundarymorph.evaluation.metrics import normalised_gain
from boundarymorph.evaluation.problem import Question
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.evaluation.taught import remembered
from boundarymorph.memory.memory import REQUESTS, Memory, Observation
from boundarymorph.selection import SelectionSession, TrendConfig
from boundarymorph.selection.pool import DEFAULT_PRIOR, Evidence, TrendPrior
from load_tests import report

KS, CALLS = (10, 50), 25  # calls: of a request that is learned from
AFTER, BUDGETS = (0, 3, 10, 30, 100, 300), (0, 1, 5, 10, 25)
ASKED, FEW = 50, 10  # requests to a wrong memory, and the calls of each
TRIPS = {20: (None, 2), 50: (None, 3)}  # rounds by budget; None: growing
Row = dict[str, Any]
Scores = NDArray[np.float64]
Scorer = Callable[[Question, np.random.Generator], Scores]


def session_of(
    question: Question, budget: int, k: int, prior: TrendPrior, rounds: int | None = None, scores: Scores | None = None
) -> SelectionSession:
    """Play a session to its end, by these scores or those of the table."""
    told = question.scores if scores is None else scores
    session = SelectionSession(question.pool, budget=budget, k=k, config=TrendConfig(prior=prior))
    while (asked := session.ask_round(rounds)).size:
        session.tell(asked, told[asked])
    return session


def gain(question: Question, *of: Any) -> float:
    return normalised_gain(session_of(question, *of).selection().documents, question.scores)


def curve(table: ScoreTable, draw: int) -> Iterator[Row]:
    order = np.random.default_rng(draw).permutation(len(table))
    tested, past = order[: len(table) // 3].tolist(), order[len(table) // 3 :]
    for count in (count for count in AFTER if count <= len(past)):
        prior = remembered(table, past[:count], CALLS, max(KS)) or DEFAULT_PRIOR
        for row, budget, k in product(tested, BUDGETS, KS):
            yield {"requests": count, "B": budget, "k": k, "query": row,
                   "ce_ncg": gain(table.question(row), budget, k, prior)}  # fmt: skip


def turned(question: Question, rng: np.random.Generator) -> Scores:
    """What was refused is preferred."""
    order = np.argsort(question.scores, kind="stable")
    scores = np.empty_like(question.scores)
    scores[order] = question.scores[order[::-1]]
    return scores


def shuffled(question: Question, rng: np.random.Generator) -> Scores:
    return rng.permutation(question.scores)


def evidence(question: Question, scores: Scores | None = None) -> Evidence:
    found = session_of(question, CALLS, max(KS), DEFAULT_PRIOR, None, scores).evidence()
    assert found is not None
    return found


def by(table: ScoreTable, scores: Scorer | None, draw: int) -> list[Evidence]:
    """Return what each query of the table tells, in random order."""
    rng = np.random.default_rng(draw)
    questions = [table.question(row) for row in rng.permutation(len(table)).tolist()]
    return [evidence(question, None if scores is None else scores(question, rng)) for question in questions]


def wrong(table: ScoreTable, others: Sequence[ScoreTable], draw: int) -> Iterator[Row]:
    inverse = by(table, turned, draw)
    fillings = {"another scorer": inverse, "chance": by(table, shuffled, draw), "one key": inverse}
    of_tables = [("another table's scorer", by(other, None, draw)) for other in others]
    for how, filling in [*fillings.items(), *of_tables]:
        hostile = cycle(filling)

        def told(memory: Memory, count: int, caller: str, hostile: Iterator[Evidence] = hostile) -> Memory:
            for one in islice(hostile, count):
                memory = after(memory, one, caller)
            return memory

        memory = told(Memory(), REQUESTS, "filler")
        order = np.random.default_rng(draw + 1).permutation(len(table)).tolist()
        for number, row in enumerate(islice(cycle(order), ASKED)):
            question, k = table.question(row), KS[number % len(KS)]
            memory = told(memory, 3 if how == "one key" else 0, "filler")
            prior = memory.prior if memory.in_force and memory.prior is not None else DEFAULT_PRIOR
            session = session_of(question, FEW, k, prior)
            with_it = normalised_gain(session.selection().documents, question.scores)
            without = with_it if prior is DEFAULT_PRIOR else gain(question, FEW, k, DEFAULT_PRIOR)
            yield {"filled by": how, "number": number, "in force": float(prior is not DEFAULT_PRIOR),
                   "gained": with_it - without}  # fmt: skip
            if (found := session.evidence()) is not None:
                memory = after(memory, found, f"caller {number % 8}")


def after(memory: Memory, found: Evidence, caller: str) -> Memory:
    memory = memory.record([Observation(found, caller)], REQUESTS)
    return memory.learn() if memory.due else memory


def trips(table: ScoreTable, draw: int) -> Iterator[Row]:
    order = np.random.default_rng(draw).permutation(len(table))
    halves = order[::2], order[1::2]
    for past, tested in (halves, halves[::-1]):
        prior = remembered(table, past, CALLS, max(KS)) or DEFAULT_PRIOR
        for row, k, (budget, rounds) in product(tested.tolist(), KS, TRIPS.items()):
            for memory, few in product(("without", "with"), rounds):
                of = budget, k, prior if memory == "with" else DEFAULT_PRIOR, few
                yield {"B": budget, "rounds": few or "growing", "memory": memory, "k": k, "query": row,
                       "ce_ncg": gain(table.question(row), *of)}  # fmt: skip


def text_of(rows: dict[str, list[Row]]) -> str:
    """Return the three tables."""
    parts = {part: pd.DataFrame(of) for part, of in rows.items()}
    means = parts["curve"].groupby(["requests", "B", "table"])["ce_ncg"].mean()
    change = 100 * (means - means.xs(0).reindex(means.index.droplevel("requests")).to_numpy())
    gained = change.groupby(["requests", "B"]).mean().unstack("B")
    counts = change.reset_index().groupby("requests")["table"].nunique()
    lines = [[f"{at} ({counts[at]} tables)", *(f"{value:+.1f}" for value in gained.loc[at])] for at in gained.index]
    text = f"{grid(['requests', *(f'B = {budget}' for budget in gained)], lines)}\n\n"

    of = parts["wrong"].groupby(["filled by", "table"], sort=False)
    lines = [
        [how, name, f"{100 * one['in force'].mean():.0f} %", f"{100 * one['in force'].iloc[-1]:.0f} %",
         f"{100 * one['gained'].mean():+.2f}"]
        for (how, name), one in of
    ]  # fmt: skip
    text += f"{grid(['filled by', 'table', 'in force', 'at the end', 'gained'], lines, texts=2)}\n\n"

    few = parts["trips"].groupby(["B", "rounds", "memory", "table"], sort=False)["ce_ncg"].mean()
    means = few.groupby(["B", "rounds", "memory"], sort=False).mean()
    lines = [[*map(str, how), f"{100 * mean:.1f}"] for how, mean in means.items()]
    return text + grid(["B", "rounds", "memory", "CE-nCG"], lines)


def main(arguments: Sequence[str], read: Callable[[Path, Path | None], list[ScoreTable]]) -> None:
    """read: the tables of a folder, with their texts."""
    parser = argparse.ArgumentParser(
        prog="studies memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, required=True, help="folder of .npz tables")
    parser.add_argument("--collections", type=Path, help="folder of BEIR folders with their texts")
    parser.add_argument("--draws", type=int, default=1, help="random orders of the queries")
    parser.add_argument("--out", type=Path, default=Path("build/evaluation"))
    given = parser.parse_args(arguments)
    found, rows = read(given.tables, given.collections), dict[str, list[Row]](curve=[], wrong=[], trips=[])
    for table, draw in product(found, range(given.draws)):
        setting = {"table": table.name, "draw": draw}
        others = [other for other in found if other is not table]
        rows["curve"] += [setting | row for row in curve(table, draw)]
        rows["wrong"] += [setting | row for row in wrong(table, others, draw)]
        rows["trips"] += [setting | row for row in trips(table, draw)]
        print(f"memory: {table.name}", flush=True)
    report.study(given.out, "memory", "What earlier requests teach", text_of(rows), rows)
