"""Studies of a memory of the queries of tables. Scores are of CE-nCG; k is 10 and 50."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.evaluation.metrics import normalised_gain
from boundarymorph.evaluation.problem import Question
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.evaluation.taught import remembered
from boundarymorph.memory.memory import REQUESTS, Memory, Observation
from boundarymorph.selection import SelectionSession, TrendConfig
from boundarymorph.selection.pool import DEFAULT_PRIOR, Evidence, TrendPrior

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


def curve(table: ScoreTable, others: Sequence[ScoreTable], draw: int) -> Iterator[Row]:
    """What is gained after 0, 3, 10, ... requests, on a third of the queries, which were no requests."""
    order = np.random.default_rng(draw).permutation(len(table))
    tested, past = order[: len(table) // 3].tolist(), order[len(table) // 3 :]
    for count in (count for count in AFTER if count <= len(past)):
        prior = remembered(table, past[:count], CALLS, max(KS)) or DEFAULT_PRIOR
        for row, budget, k in product(tested, BUDGETS, KS):
            score = gain(table.question(row), budget, k, prior)
            yield {"requests": count, "B": budget, "k": k, "query": row, "ce_ncg": score}


def turned(question: Question, rng: np.random.Generator) -> Scores:
    """What was refused is preferred."""
    order = np.argsort(question.scores, kind="stable")
    scores = np.empty_like(question.scores)
    scores[order] = question.scores[order[::-1]]
    return scores


def shuffled(question: Question, rng: np.random.Generator) -> Scores:
    return rng.permutation(question.scores)


def by(table: ScoreTable, scorer: Scorer | None, draw: int) -> list[Evidence]:
    """Return what each query of the table tells, in random order."""
    rng, told = np.random.default_rng(draw), []
    for row in rng.permutation(len(table)).tolist():
        question = table.question(row)
        scores = None if scorer is None else scorer(question, rng)
        found = session_of(question, CALLS, max(KS), DEFAULT_PRIOR, None, scores).evidence()
        assert found is not None
        told.append(found)
    return told


def wrong(table: ScoreTable, others: Sequence[ScoreTable], draw: int) -> Iterator[Row]:
    """A memory is filled by a scorer that prefers what the table's refuses, by chance, or by the scorer of another
    table, and then a table's queries are asked; "one key": the first of these by one caller, who goes on with three of
    four requests. Gained is on the queries of all others."""
    inverse = by(table, turned, draw)
    fillings = [("another scorer", inverse), ("chance", by(table, shuffled, draw)), ("one key", inverse)]
    for how, filling in fillings + [("another table's scorer", by(other, None, draw)) for other in others]:
        hostile, memory = cycle(filling), Memory()
        for one in islice(hostile, REQUESTS):
            memory = after(memory, one, "filler")
        order = np.random.default_rng(draw + 1).permutation(len(table)).tolist()
        for number, row in enumerate(islice(cycle(order), ASKED)):
            question, k = table.question(row), KS[number % len(KS)]
            for one in islice(hostile, 3 if how == "one key" else 0):
                memory = after(memory, one, "filler")
            prior = memory.prior if memory.in_force and memory.prior is not None else DEFAULT_PRIOR
            session = session_of(question, FEW, k, prior)
            with_it = normalised_gain(session.selection().documents, question.scores)
            without = with_it if prior is DEFAULT_PRIOR else gain(question, FEW, k, DEFAULT_PRIOR)
            in_force = float(prior is not DEFAULT_PRIOR)
            yield {"filled by": how, "query": number, "in force": in_force, "gained": with_it - without}
            if (found := session.evidence()) is not None:
                memory = after(memory, found, f"caller {number % 8}")


def after(memory: Memory, found: Evidence, caller: str) -> Memory:
    memory = memory.record([Observation(found, caller)], REQUESTS)
    return memory.learn() if memory.due else memory


def trips(table: ScoreTable, others: Sequence[ScoreTable], draw: int) -> Iterator[Row]:
    """Few rounds with what half of the queries taught, on the other half, beside growing rounds without."""
    order = np.random.default_rng(draw).permutation(len(table))
    halves = order[::2], order[1::2]
    for past, tested in (halves, halves[::-1]):
        prior = remembered(table, past, CALLS, max(KS)) or DEFAULT_PRIOR
        for row, k, (budget, rounds) in product(tested.tolist(), KS, TRIPS.items()):
            for memory, few in product(("without", "with"), rounds):
                score = gain(table.question(row), budget, k, prior if memory == "with" else DEFAULT_PRIOR, few)
                of = {"B": budget, "rounds": few or "growing", "memory": memory, "k": k}
                yield {**of, "query": row, "ce_ncg": score}
