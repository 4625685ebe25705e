"""Study whether a set is better than by simple methods, by people, and never much worse.

These are the studies "registered", "collections", "constants" and "strong".

The criterion was fixed before the constants of `selection.pool` and `selection.trend` were chosen: the mean nCG over
tables and cells (k = 10 and 50; 10, 25 and 50 calls), less the largest regret of a table. The regret is what the mean
over the cells of a table lacks of the best of four simple methods: the retriever, its fusion with BM25, and the first
documents of either, reranked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import sigmoid
from boundarymorph.selection import pool, trend
from boundarymorph.selection.methods import HUMAN_CONFIG, METHODS, PAPER, Config
from boundarymorph.selection.pool import SIGNAL_WEIGHTS, standardised
from boundarymorph_evaluation.metrics import normalised_gain, quality
from boundarymorph_evaluation.problem import Question, fused_order
from boundarymorph_evaluation.study import bootstrap_interval
from load_tests.sessions import chosen, first_by_score

Row = dict[str, Any]
Scores = NDArray[np.float64]
CALLS, KS, ROUNDS = (10, 25, 50), (10, 50), 3
FIRST, NOISY = "first B, reranked", "grades and noise"
SIMPLE = ("retriever", "fusion", FIRST, "hybrid, first B reranked")
TEN, MOST = KS[0], CALLS[-1]  # calls of the study "collections"
# Constants of a weak scorer that were tried: the weights of the signals, of the feedback, and of words in the signals.
TRIED = tuple(product((0.25, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0), (1.0, 2.0), (0.15, 0.25)))
STRONG = (0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 1.0)  # weights of the signals beside a strong scorer


def scorers(question: Question, number: int) -> Mapping[str, Scores]:
    """Return the table's scores, and those of a good, a random, and a wrong scorer."""
    random, scores = np.random.default_rng(number), question.scores
    assert question.grades is not None
    noisy = standardised(question.grades) + random.normal(size=len(scores))
    return {
        "as it is": scores,
        NOISY: sigmoid(2.0 * noisy - 4.0),
        "at random": random.uniform(size=len(scores)),
        "inverted": 1.0 - scores,
    }


def simple(question: Question, scores: Scores, calls: int) -> dict[str, NDArray[np.intp]]:
    """Return the orders of the simple methods."""
    listed, fused = np.arange(len(scores)), fused_order(question.pool)[0]
    orders = listed, fused, *(order[first_by_score(scores[order], calls)] for order in (listed, fused))
    return dict(zip(SIMPLE, orders, strict=True))


def selected(question: Question, scores: Scores, k: int, calls: int, config: Config) -> NDArray[np.intp]:
    """Return the set of a session.

    The paper's method has growing rounds, and others have a few.
    """
    rounds = None if config is METHODS[PAPER] else ROUNDS
    return chosen(question.pool, scores, k, calls, config=config, rounds=rounds)


def registered(question: Question, number: int) -> Iterator[Row]:
    """Study every method with every scorer."""
    if question.grades is None or not (question.grades > 0).any():
        return
    methods: dict[str, Config] = {
        f"trust {trust}": replace(HUMAN_CONFIG, signal_weight=weight) for trust, weight in SIGNAL_WEIGHTS.items()
    }
    methods |= {"by the score alone": METHODS["trend"], "the paper's": METHODS[PAPER]}
    relevant = (question.grades > 0).astype(np.float64)
    for (scorer, scores), k, calls in product(scorers(question, number).items(), KS, CALLS):
        sets = {name: order[:k] for name, order in simple(question, scores, calls).items()}
        sets["no calls"] = selected(question, scores, k, 0, methods["trust weak"])
        sets |= {name: selected(question, scores, k, calls, config) for name, config in methods.items()}
        for name, documents in sets.items():
            yield {"scorer": scorer, "method": name, "k": k, "B": calls, "ncg": normalised_gain(documents, relevant)}


def constants(question: Question, number: int) -> Iterator[Row]:
    """Study the default with the constants that were tried, beside the simple methods."""
    if question.grades is None or not (question.grades > 0).any():
        return
    relevant, scores = (question.grades > 0).astype(np.float64), question.scores
    for k, calls in product(KS, CALLS):
        sets = {name: order[:k] for name, order in simple(question, scores, calls).items()}
        for weight, feedback, words in TRIED:
            with mock.patch.object(trend, "FEEDBACK", feedback), mock.patch.object(pool, "BY_WORDS", words):
                config = replace(HUMAN_CONFIG, signal_weight=weight)
                sets[f"{weight:g}, {feedback:g}, {words:g}"] = selected(question, scores, k, calls, config)
        for name, documents in sets.items():
            yield {
                "scorer": "as it is",
                "method": name,
                "k": k,
                "B": calls,
                "ncg": normalised_gain(documents, relevant),
            }


def collections(question: Question, number: int) -> Iterator[Row]:
    """Study the service's default beside simple methods, for sets of ten."""
    if question.grades is None or not (question.grades > 0).any():
        return
    scores, config = question.scores, question.configured(HUMAN_CONFIG)
    rankings = simple(question, scores, MOST)
    rankings |= {str(calls): selected(question, scores, TEN, calls, config) for calls in (0, *CALLS)}
    for method, ranking in rankings.items():
        found = quality(question, ranking, TEN)
        precision = float((question.grades[ranking[:TEN]] > 0).mean())
        yield {"method": method, "precision": precision, "ncg": found.ncg, "ndcg_10": found.ndcg_10}


def strong(question: Question, number: int) -> Iterator[Row]:
    """Study grades plus noise, with weights of the signals, beside reranking the first B."""
    if question.grades is None or not (question.grades > 0).any():
        return
    relevant, scores = (question.grades > 0).astype(np.float64), scorers(question, number)[NOISY]
    for k, calls in product(KS, CALLS):
        sets = {FIRST: first_by_score(scores, calls)[:k]}
        for weight in STRONG:
            config = replace(HUMAN_CONFIG, signal_weight=weight)
            sets[f"{weight:g}"] = selected(question, scores, k, calls, config)
        for method, documents in sets.items():
            yield {"method": method, "k": k, "B": calls, "ncg": normalised_gain(documents, relevant)}


@dataclass(frozen=True)
class Criterion:
    """The means of one scorer, by method and table, in percent."""

    means: pd.DataFrame

    @property
    def regrets(self) -> pd.DataFrame:
        """The differences of the best simple method to each method, by table."""
        return self.means.loc[[*SIMPLE]].max() - self.means

    @property
    def values(self) -> pd.Series:
        """The criterion of each method."""
        return self.means.mean(axis=1) - self.regrets.max(axis=1).clip(lower=0.0)

    def without(self, table: str) -> Criterion:
        return Criterion(self.means.drop(columns=table))


def lines(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each scorer and method.

    It has the mean of each table, and in brackets the 95 % interval of its change against the best simple method, in
    points, by a bootstrap over questions; then the mean, the largest regret and the criterion.
    """
    frame, found = pd.DataFrame(rows), list[Row]()
    for scorer, some in frame.groupby("scorer", sort=False):
        of_questions = 100 * some.groupby(["method", "table", "query"])["ncg"].mean()
        criterion = Criterion(of_questions.groupby(["method", "table"]).mean().unstack())
        for method in criterion.means.index:
            line: Row = {"scorer": scorer, "method": method}
            for table, mean in criterion.means.loc[method].items():
                best = criterion.means.loc[[*SIMPLE], table].idxmax()
                mine, simplest = (of_questions.xs((one, table)) for one in (method, best))
                low, high = bootstrap_interval((mine - simplest).to_numpy())
                line[str(table)] = f"{mean:.1f} ({low:+.1f} to {high:+.1f})"
            line["mean"] = f"{criterion.means.loc[method].mean():.1f}"
            line["largest regret"] = f"{criterion.regrets.loc[method].max():.1f}"
            line["criterion"] = f"{criterion.values[method]:.2f}"
            found.append(line)
    return found


def left_out(rows: Sequence[Row]) -> list[Row]:
    """Return the `lines`, best first.

    Before them there is one for each table, with the constants that the others choose.
    """
    frame = pd.DataFrame(rows)
    means = 100 * frame.groupby(["method", "table"])["ncg"].mean().unstack()
    criterion, chosen = Criterion(means), list[Row]()
    for table in means.columns if len(means.columns) > 1 else ():
        best = criterion.without(table).values.idxmax()
        regret = criterion.regrets.loc[best, table]
        chosen.append({"scorer": f"{table} left out", "method": best, str(table): f"{means.loc[best, table]:.1f}",
                       "largest regret": f"{regret:.1f}"})  # fmt: skip
    return chosen + sorted(lines(rows), key=lambda line: -float(line["criterion"]))


def by_collection(rows: Sequence[Row]) -> list[Row]:
    """Return three lines for each collection, one for each metric, in order of gain.

    The gain of the default with most calls over the best simple method increases.
    """
    frame = pd.DataFrame(rows)
    means, found = 100 * frame.groupby(["table", "method"], sort=False)[["precision", "ncg", "ndcg_10"]].mean(), []
    for table, own in means.groupby("table", sort=False):
        of = own.droplevel("table")
        gained = float(of.loc[str(MOST), "ncg"] - of.loc[[*SIMPLE], "ncg"].max())
        count = int((frame["table"] == table).sum() / len(of))
        for metric in of.columns:
            line = {"collection": table, "questions": count, "metric": metric}
            found.append((gained, line | {name: f"{value:.1f}" for name, value in of[metric].items()}))
    return [line for _, line in sorted(found, key=lambda pair: pair[0])]


def beside_strong(rows: Sequence[Row]) -> list[Row]:
    """Return a line for each table, with its means and three differences.

    They are of the weight of `strong` to the best weight of the table, to the best weight of the other tables, and to
    the first B. It also counts the cells in which that weight is below one of these at 95 %.
    """
    frame, found, declared = pd.DataFrame(rows), list[Row](), f"{SIGNAL_WEIGHTS['strong']:g}"
    weights = [f"{weight:g}" for weight in STRONG]
    cells = 100 * frame.groupby(["table", "method", "k", "B", "query"])["ncg"].mean()
    questions = cells.groupby(["table", "method", "query"]).mean()
    means = questions.groupby(["method", "table"]).mean().unstack()

    def change(of: pd.Series, other: str) -> tuple[float, float, float]:
        differences = (of.xs(declared, level="method") - of.xs(other, level="method")).to_numpy()
        return float(differences.mean()), *bootstrap_interval(differences)

    for table in means.columns:
        line: Row = {"table": table} | {name: f"{mean:.1f}" for name, mean in means[table].items()}
        against = {"the best": means.loc[weights, table].idxmax(), "the first B": FIRST}
        if len(means.columns) > 1:
            against["left out"] = means.loc[weights].drop(columns=table).mean(axis=1).idxmax()
        for name, other in against.items():
            points, low, high = change(questions[table], other)
            line[f"{declared} minus {name}"] = f"{points:+.1f} ({low:+.1f} to {high:+.1f})"
        line |= {"best": against["the best"], "of the others": against.get("left out", "")}
        below = [
            f"k = {k}, B = {calls}: {other}"
            for (k, calls), of in cells[table].groupby(["k", "B"])
            for other in (*weights, FIRST)
            if other != declared and change(of, other)[2] < 0
        ]
        line["significantly below"] = "; ".join(below)
        found.append(line)
    return [*found, {"table": "mean"} | {name: f"{mean:.1f}" for name, mean in means.mean(axis=1).items()}]
