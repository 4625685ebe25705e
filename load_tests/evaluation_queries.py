"""Several queries with one budget, on tables whose queries have all documents as candidates.

python -m load_tests.evaluation_queries TABLES --collections FOLDER --every 6

A group is a question with the four nearest to it; a document is as relevant as to the question that it answers best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from boundarymorph.evaluation.problem import Question
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection import JointSession, SelectionSession, TrendConfig
from boundarymorph.selection.rounds import growing
from load_tests import studies
from load_tests.studies import markdown

TOGETHER, BUDGETS, SIZES = 5, (25, 50, 100), (20, 50)
Scores = NDArray[np.float64]


def groups(table: ScoreTable, every: int) -> Iterator[list[Question]]:
    """Yield a group of questions for every so many of the table."""
    questions = [table.question(row) for row in range(len(table))]
    queries = np.array([question.pool.query for question in questions])
    for row in range(0, len(questions), every):
        nearest = np.argsort(-(queries @ queries[row]), kind="stable")
        yield [questions[row], *(questions[other] for other in nearest if other != row)][:TOGETHER]


def alone(question: Question, budget: int, k: int) -> SelectionSession:
    """Return the session of one question, played to its end."""
    session = SelectionSession(question.pool, budget=budget, k=k, config=TrendConfig(), order=True)
    while (asked := session.ask(max(1, growing(session.known, budget - session.spent, budget)))).size:
        session.tell(asked, question.scores[asked])
    return session


def together(group: Sequence[Question], ids: Sequence[str], budget: int, k: int) -> JointSession:
    """Return the session of all, played to its end."""
    sessions = [
        SelectionSession(question.pool, budget=budget, k=k, config=TrendConfig(), order=True) for question in group
    ]
    joint = JointSession(sessions, ids, budget=budget, k=k)
    while True:
        asked = joint.ask(max(1, growing(joint.spent, budget - joint.spent, budget)))
        if not any(documents.size for documents in asked):
            return joint
        for session, question, documents in zip(sessions, group, asked, strict=True):
            session.tell(documents, question.scores[documents])


def fused(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Return ids by reciprocal rank."""
    worth: dict[str, float] = {}
    for ranking in rankings:
        for rank, id in enumerate(ranking, start=1):
            worth[id] = worth.get(id, 0.0) + 1 / (60 + rank)
    return sorted(worth, key=lambda id: -worth[id])


def in_turn(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Return ids: the first of each ranking, then the second of each."""
    return list(dict.fromkeys(id for rank in zip(*rankings, strict=True) for id in rank))


def sets(group: Sequence[Question], ids: Sequence[str], budget: int, k: int) -> dict[str, list[str]]:
    """Return the k documents that each way chooses."""
    found: dict[str, list[str]] = {}
    share = budget // len(group)
    for name, size in (("k", k), ("k / 5", k // len(group))):
        played = [alone(question, share, size) for question in group]
        rankings = [[session.pool.ids[place] for place in session.ranking().documents] for session in played]
        merged = JointSession(played, ids, budget=0, k=k).selection().selection.documents
        found |= {
            f"equal shares, sessions of {name}, by reciprocal rank": fused(rankings)[:k],
            f"equal shares, sessions of {name}, in turn": in_turn(rankings)[:k],
            f"equal shares, sessions of {name}, by the best relevance": [ids[place] for place in merged],
        }
    joint = together(group, ids, budget, k)
    found["calls where they bring most"] = [ids[place] for place in joint.selection().selection.documents]
    return found


def carried(question: Question, other: Question, budget: int, k: int) -> dict[str, float]:
    """Return the CE-nCG of a question alone, and with what a session of another one believes as a signal."""
    relevance = alone(other, budget, k).belief.mean
    believed = dict(zip(other.pool.ids, relevance.tolist(), strict=True))
    signal = np.array([believed[id] for id in question.pool.ids])
    pool = question.pool
    with_it = type(pool)(
        pool.ids, pool.embeddings, pool.query, pool.scores, {**pool.features, "earlier": signal}, pool.terms
    )
    best = np.sort(question.scores)[-k:].sum()
    found = {}
    for name, asked in (
        ("alone", question),
        ("with the earlier session", Question(question.id, with_it, question.scores)),
    ):
        found[name] = question.scores[alone(asked, budget, k).selection().documents].sum() / best
    return found


def table_of(names: Sequence[str], rows: Sequence[tuple[tuple[int, int], dict[str, float]]]) -> str:
    """Return means in percent by way, and by budget and size."""
    cells = sorted({cell for cell, _ in rows})
    lines = []
    for name in names:
        means = {cell: 100 * float(np.mean([of[name] for at, of in rows if at == cell])) for cell in cells}
        columns = {f"B {budget}, k {k}": f"{means[budget, k]:.1f}" for budget, k in cells}
        lines.append({"way": name, **columns, "mean": f"{np.mean(list(means.values())):.1f}"})
    return markdown(lines)


def measured(
    of: Callable[[Sequence[Question], int, int], dict[str, float]], groups: Sequence[Sequence[Question]]
) -> list[tuple[tuple[int, int], dict[str, float]]]:
    """Return what each group comes to in each cell."""
    return [((budget, k), of(group, budget, k)) for group in groups for budget in BUDGETS for k in SIZES]


def gained(group: Sequence[Question], budget: int, k: int) -> dict[str, float]:
    """Return the CE-nCG of each way, by the largest of the scores that a document has."""
    ids = group[0].pool.ids
    score_of = [dict(zip(question.pool.ids, question.scores.tolist(), strict=True)) for question in group]
    truth = {id: max(scores[id] for scores in score_of) for id in ids}
    best = sum(sorted(truth.values())[-k:])
    return {name: sum(truth[id] for id in chosen) / best for name, chosen in sets(group, ids, budget, k).items()}


def main() -> None:
    given = studies.parsed(studies.parser(__doc__))
    for table in given.tables:
        if len(set(map(tuple, np.sort(table.arrays["pool"], axis=1).tolist()))) > 1:
            continue
        found = list(groups(table, given.every))
        rows = measured(gained, found)
        print(f"\n## {table.name}: {len(found)} groups of {TOGETHER}\n\n{table_of(list(rows[0][1]), rows)}", flush=True)
        rows = measured(lambda group, budget, k: carried(group[0], group[1], budget, k), found)
        print(f"\nThe nearest question's session as a signal:\n\n{table_of(list(rows[0][1]), rows)}", flush=True)


if __name__ == "__main__":
    main()
