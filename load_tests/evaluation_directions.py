"""What vectors reduced to the main directions of their index cost: CE-nCG@k against the whole vectors, on tables.

python -m load_tests.evaluation_directions TABLES --collections FOLDER

The directions are learned from a sample of the documents of all pools of a table, as an index learns them. Sessions
know the words and grow their rounds; a cell is the mean over k of 20 and 50, with its standard error over queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from boundarymorph.evaluation.metrics import normalised_gain
from boundarymorph.evaluation.problem import Question
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.retrieval.local.directions import SAMPLE, Directions
from boundarymorph.selection import Pool, SelectionSession
from boundarymorph.selection.methods import DEFAULT, METHODS
from boundarymorph.selection.rounds import growing
from load_tests import studies
from load_tests.studies import Row, markdown

BUDGETS, KS = (10, 25, 50, 100, 150), (20, 50)


def main() -> None:
    given = studies.parsed(studies.parser(__doc__))
    print(markdown(list(compared(given.tables, given.every))))


def compared(found: list[ScoreTable], every: int) -> Iterator[Row]:
    """One row a table."""
    for table in found:
        rows = range(0, len(table), every)
        vectors = np.concatenate([table.question(row).pool.embeddings for row in rows])
        sample = np.random.default_rng(0).permutation(len(vectors))[:SAMPLE]
        directions = Directions.of(vectors[sample].astype(np.float32))
        cells: dict[int, list[float]] = {budget: [] for budget in BUDGETS}
        for row in rows:
            question = table.question(row)
            reduced = replace(
                question.pool,
                embeddings=directions.units(question.pool.embeddings),
                query=directions.units(question.pool.query[None])[0],
            )
            for budget in BUDGETS:
                gains = [gain(question, reduced, budget, k) - gain(question, question.pool, budget, k) for k in KS]
                cells[budget].append(100 * float(np.mean(gains)))
        yield {"table": table.name} | {
            f"B = {budget}": f"{np.mean(cell):+.2f} ({np.std(cell, ddof=1) / len(cell) ** 0.5:.2f})"
            for budget, cell in cells.items()
        }


def gain(question: Question, pool: Pool, budget: int, k: int) -> float:
    """Return CE-nCG@k of the default's set."""
    session = SelectionSession(pool, budget=budget, k=k, config=METHODS[DEFAULT])
    while (left := budget - session.spent) and (asked := session.ask(growing(session.spent, left, budget))).size:
        session.tell(asked, question.scores[asked])
    return normalised_gain(session.selection().documents, question.scores)


if __name__ == "__main__":
    main()
