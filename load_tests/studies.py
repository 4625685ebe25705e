"""Measure the parts and options of a session on known scores: `make evaluation STUDY=name`.

python -m load_tests.studies rounds few --tables TABLES [--collections FOLDER] [--every 4]
python -m load_tests.studies reviews --data FOLDER [--asreview PYTHON]

A study is an entry of STUDIES: a function that yields rows of one question, of a table or of a folder (settings and
measurements), and how to make a table of them. The means are over the settings and questions of a table, then over
tables, in %; a change is paired by question, with its standard error. Writes NAME.md and NAME.json. Without the texts
of a table in --collections (BEIR folders), which words of the query a document has is unknown.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from boundarymorph.calibration.trust import pairs_in_order
from boundarymorph.selection import Config, Exploration, Pool, SelectionConfig, TrendConfig
from boundarymorph.selection.methods import HUMAN_CONFIG, METHODS, PAPER
from boundarymorph.selection.outlook import ENOUGH
from boundarymorph.selection.pool import standardised
from boundarymorph_evaluation import datasets, tables
from boundarymorph_evaluation.grids import grid
from boundarymorph_evaluation.metrics import normalised_gain
from boundarymorph_evaluation.problem import Question, fused_order, reorder
from boundarymorph_evaluation.tables import ScoreTable
from load_tests import boosts, lists, passages, probability, registered, report, reviews, tokens
from load_tests.sessions import chosen, first_by_score, only, played

Row = dict[str, Any]
Scores = NDArray[np.float64]
BUDGETS, KS = (25, 50), (50, 100, 200)
SMALL_KS = (5, 10, 20, 50, 100, 200)
LOG_ODDS = 11.5  # range of the widest score of common cross-encoders
BINS = 10  # intervals of probabilities
CAP, CAP_ROUND, LOOKS = (
    200,
    5,
    2,
)  # limits of sessions that stop by themselves; rounds in a row without an expected loss


@dataclass(frozen=True)
class Study:
    """A study and its table.

    Attributes:
        title: The title of the table.
        rows: Yields the rows of a question, whose number seeds the random draws, or of an item of `of`.
        by: The settings that make a line.
        metrics: The columns of measurements.
        columns: The setting whose values become columns of the first metric.
        base: Settings of the lines from which changes are counted.
        of: The items that `rows` receives.
    """

    title: str
    rows: Callable[..., Iterator[Row]]
    by: tuple[str, ...]
    metrics: tuple[str, ...] = ("ce_ncg",)
    columns: str | None = None
    base: Mapping[str, Any] | None = None
    of: Literal["questions", "tables", "reviews"] = "questions"

    def measured(self, found: Sequence[ScoreTable], given: argparse.Namespace) -> Iterator[Row]:
        """Yield the rows of all tables, or of the reviews in the given folder."""
        if self.of == "reviews":
            yield from self.rows(given.data, given.draws, given.asreview)
            return
        for table in found:
            setting = {"table": table.name}
            if self.of == "questions":
                for number in range(0, len(table), given.every):
                    rows = self.rows(table.question(number), number)
                    yield from (setting | {"query": number} | row for row in rows)
                continue
            others = [other for other in found if other is not table]
            for draw in range(given.draws):
                yield from (setting | row for row in self.rows(table, others, draw))

    def table(self, rows: Sequence[Row]) -> list[Row]:
        """Return the lines of the study's table."""
        frame = pd.DataFrame(rows)
        by, lines = list(self.by), []
        of_questions = frame.groupby([*by, "table", "query"])[list(self.metrics)].mean()
        for key in frame[by].drop_duplicates().itertuples(index=False, name=None):
            line: Row = dict(zip(by, key, strict=True))
            mine = of_questions.loc[key]
            if self.columns:
                mine_by = frame[(frame[by] == list(key)).all(axis=1)].groupby(
                    [self.columns, "table", "query"], sort=False
                )
                means = mine_by[self.metrics[0]].mean().groupby([self.columns, "table"], sort=False).mean()
                for value, mean in means.groupby(self.columns, sort=False).mean().items():
                    line[f"{self.columns} = {value}"] = _percent(mean)
            for metric in self.metrics:
                by_table = mine[metric].groupby("table", sort=False).mean()
                line |= {f"{metric}: {name}": _percent(mean) for name, mean in by_table.items()}
                line[metric] = _percent(by_table.mean())
                if self.base is not None:
                    original = of_questions.loc[tuple((line | dict(self.base))[name] for name in by)]
                    line[f"{metric}, change"] = _change(mine[metric] - original[metric])
            lines.append(line)
        return lines


def _percent(share: float) -> str:
    return "" if np.isnan(share) else f"{100 * share:.1f}"


def _change(changes: pd.Series) -> str:
    """Return the mean over tables of paired changes by (table, query), and its standard error.

    They are in points, and "" if no question has both.
    """
    if changes.isna().all():
        return ""
    groups = changes.dropna().groupby("table", sort=False)
    errors = groups.std(ddof=1) / np.sqrt(groups.count())
    return f"{100 * groups.mean().mean():+.2f} ({100 * np.sqrt(np.square(errors).sum()) / len(errors):.2f})"


def without_words(pool: Pool) -> Pool:
    """Return the pool without BM25 and without the words of the query in each document."""
    return replace(pool, features={name: of for name, of in pool.features.items() if name != "bm25"}, terms=None)


def gains(
    setting: Row, pool: Pool, scores: Scores, k: int, at: Sequence[int] = BUDGETS, **options: Any
) -> Iterator[Row]:
    """Yield the setting with the gain after each number of calls."""
    for budget, session in played(pool, scores, k, at, **options):
        gain = normalised_gain(session.selection().documents, scores)
        yield {**setting, "B": budget, "k": k, "ce_ncg": gain}


def by_both(question: Question, documents: NDArray[np.intp]) -> Row:
    """Return the gain of a set by the scorer, and by people if there are grades."""
    relevant = None if question.grades is None else (question.grades > 0).astype(np.float64)
    by_people = np.nan if relevant is None else normalised_gain(documents, relevant)
    return {"ce_ncg": normalised_gain(documents, question.scores), "ncg": by_people}


@dataclass(frozen=True)
class Reliability(Study):
    """A study of probabilities.

    The metrics are a probability and the event. Lines have the expected calibration error over BINS bins of equal
    width, and the area under the ROC curve, for every question and in each table.
    """

    def table(self, rows: Sequence[Row]) -> list[Row]:
        lines = []
        for key, frame in pd.DataFrame(rows).groupby(list(self.by), sort=False):
            line: Row = dict(zip(self.by, key, strict=True)) | {"questions": len(frame)}
            for name, some in [("all", frame), *frame.groupby("table", sort=False)]:
                said, happened = (some[metric].to_numpy(np.float64) for metric in self.metrics)
                error, area = calibration_error(said, happened), ranked_right(said, happened)
                line |= {f"ECE: {name}": f"{error:.3f}", f"AUC: {name}": f"{area:.3f}"}
            lines.append(line)
        return lines


@dataclass(frozen=True)
class Registered(Study):
    """A study whose table `lines` makes."""

    lines: Callable[[Sequence[Row]], list[Row]] = registered.lines

    def table(self, rows: Sequence[Row]) -> list[Row]:
        return self.lines(rows)


def calibration_error(said: Scores, happened: Scores) -> float:
    """Return the expected calibration error of (n,) probabilities of events.

    The events happened (1) or not (0).
    """
    bins = np.minimum((said * BINS).astype(np.intp), BINS - 1)
    return float(np.abs(np.bincount(bins, said - happened, BINS)).sum() / len(said))


def ranked_right(said: Scores, happened: Scores) -> float:
    """Return the area under the ROC curve of (n,) probabilities of events.

    It is how often an event that happened was more probable than one that did not.
    """
    yes = happened > 0
    return pairs_in_order(said, yes) if yes.any() and not yes.all() else float("nan")


def answerable(question: Question, number: int) -> Iterator[Row]:
    """Study whether there is an answer.

    A third of the questions lose all documents that the scorer or people accept. The others lose as many that neither
    accepts, and keep all answers or a single one. Then those that only people accept are removed.
    """
    rng, scores = np.random.default_rng(number), question.scores
    relevant = np.zeros(len(scores), dtype=np.bool_) if question.grades is None else question.grades > 0
    accepted = scores >= ENOUGH
    for removed, left, answers in (
        ("scorer's and people's", "all", relevant | accepted),
        ("scorer's and people's", "one", relevant | accepted),
        ("people's", "all", relevant),
    ):
        truth = relevant if removed == "people's" else accepted
        others = np.flatnonzero(~answers)
        if not truth.any() or not len(others):
            continue
        if number % 3 == 0:
            kept = others
        elif left == "all":
            kept = np.concatenate([np.flatnonzero(answers), rng.permutation(others)[answers.sum() :]])
        else:
            kept = np.append(others, rng.choice(np.flatnonzero(truth)))
        asked, answered = only(question, np.sort(kept)), float(truth[kept].any())
        for budget in (0, 1, 5, 10, 25, 50):
            ((_, session),) = played(asked.pool, asked.scores, 10, (budget,), size=None)
            said = {"answerable": session.outlook().answerable, "answered": answered}
            yield {"removed": removed, "left": left, "B": budget, **said}


VARIANTS: Mapping[str, Config] = {
    "default": TrendConfig(),
    "default, without BM25 and words": TrendConfig(),
    "default, without the query's words": TrendConfig(),
    "default, without a trend": TrendConfig(weight=0.0),
    "default, boundary gap throughout": TrendConfig(acquisition=Exploration(gap_calls=1_000_000)),
    "default, value at the cutoff throughout": TrendConfig(acquisition=Exploration(gap_calls=0)),
    "default, without the retrieval bonus": TrendConfig(bonus=0.0),
    "the paper's": SelectionConfig(),
    "the paper's, told log-odds": SelectionConfig(),
}


def ablations(question: Question, number: int) -> Iterator[Row]:
    """Study the default without one of its parts, and the paper's method with log-odds.

    The latter are on a linear scale.
    """
    with np.errstate(divide="ignore"):
        odds = np.log(question.scores) - np.log1p(-question.scores)
    for (name, config), k in product(VARIANTS.items(), KS):
        pool = without_words(question.pool) if name.endswith("BM25 and words") else question.pool
        pool = replace(pool, terms=None) if name.endswith("query's words") else pool
        told = np.clip(0.5 + odds / (2 * LOG_ODDS), 0.0, 1.0) if name.endswith("log-odds") else question.scores
        for budget, session in played(pool, told, k, BUDGETS, config=config):
            yield {"variant": name, "B": budget, "k": k, **by_both(question, session.selection().documents)}


def rounds(question: Question, number: int) -> Iterator[Row]:
    """Study rounds of n; n = 1 is the sequential session."""
    for (method, config), size, k in product(METHODS.items(), (1, 2, 5, 10, 25), KS):
        setting = {"method": method, "round": size}
        yield from gains(setting, question.pool, question.scores, k, config=config, size=size)


def trips(question: Question, number: int) -> Iterator[Row]:
    """Study a budget in growing rounds, or in few, and the head of the list alone.

    The first of few rounds takes the head of the list.
    """
    pool, scores, rows = question.pool, question.scores, list[Row]()
    for budget, k in product((10, 25, 50), (10, 50)):
        sets = {"the first B, reranked": first_by_score(scores, budget)[:k]}
        for rounds in (None, 3, 2, 1):
            sets[str(rounds or "growing")] = chosen(pool, scores, k, budget, rounds=rounds)
        for how, documents in sets.items():
            rows.append({"B": f"{budget}", "k": f"{k}", "rounds": how, **by_both(question, documents)})
    yield from rows
    yield from (row | {"B": "all", "k": "all"} for row in rows)


def equal(question: Question, number: int) -> Iterator[Row]:
    """Study how many calls make a set as good as the first hundred, reranked.

    A session by scores is measured by the scores, and a session by people by people.
    """
    pool, scores = question.pool, question.scores
    human = question.configured(HUMAN_CONFIG)
    for k in (10, 50):
        first = first_by_score(scores, 100)[:k]
        yield {"k": k, "B": 100, "rounds": "reranked", **by_both(question, first)}
        for calls, rounds in product((10, 15, 20, 25, 30, 40, 64), (None, 3, 2, 1)):
            row = by_both(question, chosen(pool, scores, k, calls, rounds=rounds, config=human))
            row["ce_ncg"] = normalised_gain(chosen(pool, scores, k, calls, rounds=rounds), scores)
            yield {"k": k, "B": calls, "rounds": str(rounds or "growing"), **row}


def paces(question: Question, number: int) -> Iterator[Row]:
    """Study growing rounds, single calls, the paper's method and the first B reranked.

    Each is with and without words.
    """
    options: dict[str, dict[str, Any]] = {
        "one by one": {},
        "growing rounds": {"size": None},
        "rounds of 5": {"size": 5},
    }
    options["the paper's, one by one"] = {"config": METHODS[PAPER]}
    at = (10, 25, 50)
    for words, k in product(("yes", "no"), SMALL_KS):
        pool = question.pool if words == "yes" else without_words(question.pool)
        for budget in at:
            first = normalised_gain(first_by_score(question.scores, budget)[:k], question.scores)
            yield {"words": words, "calls": "the first B, reranked", "B": budget, "k": k, "ce_ncg": first}
        for calls, each in options.items():
            yield from gains({"words": words, "calls": calls}, pool, question.scores, k, at, **each)


def few(question: Question, number: int) -> Iterator[Row]:
    """Study one to a hundred calls against none and against the first B.

    The expected loss is beside the actual one. The scorers are the table's, and one that accepts the best document of
    each 200, and rejects the others.
    """
    yes = np.zeros(len(question.scores))
    yes[np.argsort(-question.scores, kind="stable")[: max(len(yes) // 200, 1)]] = 1.0
    scorers, at = {"as it is": question.scores, "one yes in 200": yes}, (0, 1, 2, 3, 5, 10, 25, 50, 100)
    for (scorer, scores), words, k, budget in product(scorers.items(), ("yes", "no"), (5, 10, 50, 100), at):
        pool = question.pool if words == "yes" else without_words(question.pool)
        ((_, session),) = played(pool, scores, k, (budget,), size=None)
        expected = session.expected_loss()
        sets = {
            "default": session.selection().documents,
            "first B": first_by_score(scores, budget)[:k],
            "retriever": np.arange(min(k, len(pool))),
        }
        for how, documents in sets.items():
            gain = normalised_gain(documents, scores)
            losses = {"loss": 1 - gain, "expected_loss": expected if how == "default" else np.nan}
            yield {"scorer": scorer, "words": words, "how": how, "B": budget, "k": k, "ce_ncg": gain, **losses}


def settle(question: Question, number: int) -> Iterator[Row]:
    """Study where sessions stop by a threshold, of at most 200 calls in rounds of 5.

    Budgets for all are beside this. `calls` is a share of 200. One long session is enough, because it does not look at
    its budget to choose a document.
    """
    for k in (50, 100):
        looks, cautious = list[Row](), list[float]()
        at = range(0, CAP + 1, CAP_ROUND)
        for calls, session in played(question.pool, question.scores, k, at, size=CAP_ROUND):
            gain = normalised_gain(session.selection().documents, question.scores)
            losses = {"expected_loss": session.expected_loss(), "loss": 1 - gain}
            looks.append({"calls": calls / CAP, "ce_ncg": gain, **losses})
            cautious.append(session.cautious_loss() if session.enough_scores else np.inf)
        for limit in (0.1, 0.05, 0.02, 0.01, 0.005):
            ends = [at for at in range(LOOKS - 1, len(looks)) if max(cautious[at - LOOKS + 1 : at + 1]) <= limit]
            yield {"k": k, "stops": f"at {limit:.1%}", **looks[ends[0] if ends else -1]}
        for at_look in range(10, len(looks), 10):
            yield {"k": k, "stops": f"after {at[at_look]}", **looks[at_look]}


def hybrid(question: Question, number: int) -> Iterator[Row]:
    """Study words as a signal, in the order of the pool, or both.

    It is the same pool, so documents that only BM25 would find do not show.
    """
    order, fused = fused_order(question.pool)
    pools = {"similarity": question.pool, "fused": reorder(question.pool, order, fused)}
    for (how, pool), signal, k in product(pools.items(), ("yes", "no"), KS):
        told = question.scores if how == "similarity" else question.scores[order]
        seen = pool if signal == "yes" else without_words(pool)
        yield from gains({"order": how, "signal": signal}, seen, told, k, (0, *BUDGETS))


def signals(question: Question, number: int) -> Iterator[Row]:
    """Study signals of the caller: noise, and one with a correlation of one half.

    The correlation is with the log-odds.
    """
    rng, count = np.random.default_rng(number), len(question.pool)
    noise = {f"noise {at:02}": rng.standard_normal(count) for at in range(16)}
    held = np.clip(question.scores, 1e-5, 1 - 1e-5)
    odds = standardised(np.log(held) - np.log1p(-held))
    useful = {"useful": odds / 2 + np.sqrt(0.75) * rng.standard_normal(count)}
    given = {"none": {}, "1 noise": dict(list(noise.items())[:1]), "16 noise": noise, "useful": useful,
             "useful and 15 noise": {**dict(list(noise.items())[:15]), **useful}}  # fmt: skip
    for (name, features), k in product(given.items(), KS):
        pool = replace(question.pool, features={**question.pool.features, **features})
        yield from gains({"signals": name}, pool, question.scores, k)


ANSWERS = ("answerable", "answered")
WORDS = {"order": "similarity", "signal": "yes"}
LOSS, HUMAN = ("ce_ncg", "loss", "expected_loss"), ("ce_ncg", "ncg")
STUDIES = {
    "ablations": Study("What each part brings", ablations, ("variant",), HUMAN, None, {"variant": "default"}),
    "rounds": Study("Rounds of several documents", rounds, ("method", "round"), base={"round": 1}),
    "equal": Study("As good as the first hundred, reranked", equal, ("k", "B", "rounds"), HUMAN),
    "trips": Study("Few trips", trips, ("B", "k", "rounds"), HUMAN, base={"rounds": "growing"}),
    "paces": Study("Rounds and small sets", paces, ("words", "calls"), columns="k", base={"calls": "one by one"}),
    "few": Study("Few calls", few, ("scorer", "words", "how"), LOSS, "B", {"how": "retriever"}),
    "settle": Study("Stopping when settled", settle, ("k", "stops"), (*LOSS, "calls")),
    "hybrid": Study("Words as a signal, or in the order", hybrid, ("B", "order", "signal"), base=WORDS),
    "signals": Study("Signals of the caller's", signals, ("signals",), base={"signals": "none"}),
    "answerable": Reliability("Whether there is an answer", answerable, ("removed", "left", "B"), ANSWERS),
    "registered": Registered("Beside simple methods, by people", registered.registered, ("scorer", "method"), ("ncg",)),
    "constants": Registered(
        "Constants of a weak scorer, by people", registered.constants, ("method",), ("ncg",), lines=registered.left_out
    ),
    "collections": Registered(
        "Sets of ten, by people",
        registered.collections,
        ("method",),
        ("precision", "ncg", "ndcg_10"),
        lines=registered.by_collection,
    ),
    "strong": Registered(
        "A strong scorer, by people", registered.strong, ("method",), ("ncg",), lines=registered.beside_strong
    ),
    "probability": Registered(
        "Relevance as a probability", probability.documents, (), ("relevance",), lines=probability.lines
    ),
    "lists": Study(
        "Lists for a reranker, by people", lists.lists, ("method",), ("ndcg_10",), base={"method": "as given"}
    ),
    "passages": Study(
        "Long documents by their best passages",
        passages.passages,
        ("joined", "method"),
        ("ndcg_10",),
        base={"method": passages.EVERY},
    ),
    "boosts": Study(
        "Boosts in the value of the set, or afterwards",
        boosts.boosts,
        ("boosts", "method"),
        ("found",),
        base={"method": boosts.AFTER},
    ),
    "tokens": Study(
        "Sets with a limit on their tokens, by people",
        tokens.tokens,
        ("tokens", "B", "method"),
        ("found",),
        base={"method": tokens.RETRIEVED},
    ),
    "reviews": Study("Find all of them", reviews.rows, ("how", "seed"), reviews.METRICS, of="reviews"),
}


def read(folder: Path | None, collections: Path | None) -> list[ScoreTable]:
    """Return the tables of a folder, with texts and terms if a BEIR folder has all of them.

    The BEIR folders are in `collections`.
    """
    found = [tables.read(path) for path in sorted(folder.glob("*.npz"))] if folder else []
    if not found:
        raise SystemExit(f"there is no .npz in {folder}")
    folders = sorted(collections.glob("*/corpus.jsonl*")) if collections else []
    texts = [datasets.load(str(path.parent)) for path in folders]
    found = [tables.with_texts(table, texts) for table in found]
    for table in found:
        if "terms" not in table.provides:
            print(f"{table.name}: without its texts, which words of a query a document has is unknown")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help=f"of {', '.join(STUDIES)}; all of tables without")
    parser.add_argument("--tables", type=Path, help="folder of .npz tables")
    parser.add_argument("--collections", type=Path, help="folder of BEIR folders with their texts")
    parser.add_argument("--every", type=int, default=1, help="use one question in this many")
    parser.add_argument("--data", type=Path, help="folder of reviews in BEIR's layout")
    parser.add_argument(
        "--asreview", help="interpreter of an environment that has `asreview`, to read the reviews, too"
    )
    parser.add_argument("--draws", type=int, default=1, help="random orders of the queries of a table, or of a review")
    parser.add_argument("--out", type=Path, default=Path("build/evaluation"))
    given = parser.parse_args()
    if unknown := set(given.studies) - STUDIES.keys():
        parser.error(f"there is no study {', '.join(unknown)}; there are {', '.join(STUDIES)}")
    names = given.studies or [name for name in STUDIES if name != "reviews"]
    found = [] if names == ["reviews"] else read(given.tables, given.collections)
    for name in names:
        study, rows = STUDIES[name], list[Row]()
        for row in study.measured(found, given):
            if not rows or row["table"] != rows[-1]["table"]:
                print(f"{name}: {row['table']}", flush=True)
            rows.append(row)
        lines = study.table(rows)
        head = list(dict.fromkeys(key for line in lines for key in line))
        table = grid(head, ([str(line.get(key, "")) for key in head] for line in lines), texts=0)
        report.study(given.out, name, study.title, table, rows)


if __name__ == "__main__":
    report.run(main)
