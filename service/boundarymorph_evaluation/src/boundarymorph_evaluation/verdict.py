"""Decide whether the scorer helps, by people's judgements of simple methods and the default."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph_evaluation.methods.baselines import Hybrid, HybridOrder, Mips, SingleStage
from boundarymorph_evaluation.methods.method import ScoringMethod
from boundarymorph_evaluation.methods.morph import SERVED
from boundarymorph_evaluation.metrics import quality
from boundarymorph_evaluation.problem import Question, Unscored
from boundarymorph_evaluation.run import Watch, run_once
from boundarymorph_evaluation.study import bootstrap_interval
from boundarymorph_evaluation.tables import ScoreTable

LEAST_JUDGED, FEWEST = 0.7, 5  # share of a set's documents, and questions, below which there is no verdict
RETRIEVER, FUSION, NO_CALLS, FIRST, HYBRID, OURS = METHODS = (
    "retriever",
    "fusion",
    "no calls",
    "first B reranked",
    "hybrid, first B reranked",
    "ours",
)
FREE: Mapping[str, str] = {  # the methods without calls, and the setting that uses each in place of the scorer
    RETRIEVER: 'the retriever and no calls ("method": "boundarymorph", "budget": 0)',
    FUSION: 'fusion and no calls ("hybrid": true, "method": "boundarymorph", "budget": 0)',
    NO_CALLS: 'no calls ("budget": 0)',
}
RUNS: Mapping[str, ScoringMethod] = dict(
    zip(METHODS, (Mips(), HybridOrder(Mips()), SERVED, SingleStage(), Hybrid(SingleStage()), SERVED), strict=True)
)
HEAD = ("method", "nCG", "nDCG@10", "judged", "ours minus it")
Answer = Literal["helps", "does not help", "harms"]
Score = Callable[[str, Sequence[str]], Awaitable[NDArray[np.float64]]]


class Change(NamedTuple):
    """A mean difference in points, and its 95 % bootstrap interval over questions."""

    points: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.points:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


@dataclass(frozen=True)
class Verdict:
    """What people's judgements say of a scorer.

    Attributes:
        table: The name of the collection.
        budget: The calls for a question.
        k: The size of the sets.
        values: (Q, 3) nCG, nDCG@10 and the share of judged documents in the set, in percent, by method. NaN for nCG if
            a question has no relevant document.
        unjudged: Pairs in the sets without a judgement, with query, document, and text, if the texts are available.
    """

    table: str
    budget: int
    k: int
    values: Mapping[str, NDArray[np.float64]]
    unjudged: Sequence[Mapping[str, Any]] = ()

    def difference(self, method: str, other: str) -> Change:
        differences = self.values[method][:, 0] - self.values[other][:, 0]
        return Change(float(np.nanmean(differences)), *bootstrap_interval(differences))

    @property
    def questions(self) -> int:
        """The number of questions that have relevant documents."""
        return int(np.isfinite(self.values[OURS][:, 0]).sum())

    @property
    def judged(self) -> float:
        """The smallest share of judged documents that a method has, in percent."""
        return min(float(of[:, 2].mean()) for of in self.values.values())

    @property
    def best(self) -> str:
        """The best method without calls."""
        return max(set(FREE) & self.values.keys(), key=lambda name: float(np.nanmean(self.values[name][:, 0])))

    @property
    def scorer(self) -> dict[str, Change]:
        """The changes that the scorer makes on its own."""
        pairs = [(FIRST, RETRIEVER), (HYBRID, FUSION)]
        return {f"{one} minus {other}": self.difference(one, other) for one, other in pairs if one in self.values}

    @property
    def answer(self) -> Answer | None:
        """Whether the scorer helps, or None if too few documents are judged."""
        if self.questions < FEWEST or self.judged < 100 * LEAST_JUDGED:
            return None
        ours, alone = self.difference(OURS, self.best), self.difference(FIRST, RETRIEVER)
        if ours.low > 0:
            return "helps"
        return "harms" if ours.high < 0 or alone.high < 0 else "does not help"

    @property
    def sentence(self) -> str:
        """Say whether the scorer helps and what to use, or why there is no verdict and what to do."""
        if self.questions < FEWEST:
            return f"No verdict: {self.questions} questions have relevant documents; judge at least {FEWEST}."
        if self.judged < 100 * LEAST_JUDGED:
            return (
                f"No verdict: of the first {self.k} documents of a method only {self.judged:.0f} % are judged, and at "
                f"least {100 * LEAST_JUDGED:.0f} % are needed. Judge the pairs in unjudged.ndjson, or pass --complete "
                "if documents without a judgement are known to be irrelevant."
            )
        change = self.difference(OURS, self.best)
        found = f"The scorer {self.answer} here: with {self.budget} calls for a question, ours is {change} points "
        found += f"against {self.best}, the best without calls."
        if self.answer != "helps":
            more = " More judged questions may show a gain." if change.points > 0 else ""
            found += (
                f" Use {FREE[self.best]}, or run `boundarymorph calibrate`, which measures the trust in the scorer."
            )
            return found + more
        better = [name for name in (FIRST, HYBRID) if name in self.values and self.difference(OURS, name).high < 0]
        if not better:
            return f"{found} Use ours."
        return f"{found} It is better still with {better[0]}: run `boundarymorph calibrate`, or raise `scorer.trust`."

    def lines(self) -> list[list[str]]:
        """Return the lines of the table below HEAD."""
        return [
            [
                name,
                *(f"{value:.1f}" for value in np.nanmean(of, axis=0)),
                "" if name == OURS else str(self.difference(OURS, name)),
            ]
            for name, of in self.values.items()
        ]

    def to_json(self) -> dict[str, Any]:
        means = {name: np.nanmean(of, axis=0).tolist() for name, of in self.values.items()}
        methods = [
            {
                "method": name,
                "ncg": ncg,
                "ndcg_10": ndcg,
                "judged": judged,
                "ours_minus_it": list(self.difference(OURS, name)),
            }
            for name, (ncg, ndcg, judged) in means.items()
        ]
        given = {"budget": self.budget, "k": self.k, "questions": self.questions, "methods": methods}
        alone = {pair: list(change) for pair, change in self.scorer.items()}
        return {**given, "scorer": alone, "answer": self.answer, "sentence": self.sentence}

    def to_judge(self) -> bytes:
        """Return the lines of a file with the pairs without a judgement, for a person to grade."""
        return b"".join(orjson.dumps({**pair, "grade": None}) + b"\n" for pair in self.unjudged)


async def judge(table: ScoreTable, budget: int, k: int, watch: Watch, score: Score | None = None) -> Verdict | None:
    """Compare the methods on a table. Returns None without human judgements.

    Missing scores are computed when the methods need them.

    Args:
        table: The table.
        budget: The calls for a question.
        k: The size of the sets.
        watch: Reports the progress.
        score: Scores texts for a query. It may be None if the table has all scores.
    """
    if "grade" not in table.arrays:
        return None
    methods = {name: method for name, method in RUNS.items() if method.requires <= table.provides}
    rows, unjudged = list[list[tuple[float, float, float]]](), list[Mapping[str, Any]]()
    watch("asking the scorer", 0, len(table))
    for number, question in enumerate(table.questions(), start=1):
        sets: dict[str, NDArray[np.intp]] = {}
        while len(sets) < len(methods):
            name = next(name for name in methods if name not in sets)
            try:
                sets[name] = _ranked(name, question, budget, k)
            except Unscored as missing:
                assert score is not None and question.texts is not None
                scores, texts = question.scores.copy(), question.texts
                wanted = np.flatnonzero(np.isin(question.pool.ids, missing.ids))
                found = await score(texts.query, [texts.documents[place] for place in wanted.tolist()])
                scores[wanted] = np.nan_to_num(found)  # the lowest score, if the scorer gives none
                question = replace(question, scores=scores)
        rows.append([_measured(question, ranking, k) for ranking in sets.values()])
        unjudged += _unjudged(question, sets, k)
        watch("asking the scorer", number, len(table))
    values = 100 * np.array(rows).transpose(1, 0, 2)
    return Verdict(table.name, budget, k, dict(zip(methods, values, strict=True)), unjudged)


def _ranked(name: str, question: Question, budget: int, k: int) -> NDArray[np.intp]:
    return run_once(RUNS[name], question, 0 if name in FREE else budget, k)[1]


def _measured(question: Question, ranking: NDArray[np.intp], k: int) -> tuple[float, float, float]:
    found = quality(question, ranking, k)
    return found.ncg, found.ndcg_10, 1.0 if question.judged is None else float(question.judged[ranking[:k]].mean())


def _unjudged(question: Question, sets: Mapping[str, NDArray[np.intp]], k: int) -> list[Mapping[str, Any]]:
    if question.judged is None or question.texts is None:
        return []
    documents = dict.fromkeys(place for ranking in sets.values() for place in ranking[:k].tolist())
    texts = question.texts
    return [
        {"query": texts.query, "document": question.pool.ids[place], "text": texts.documents[place]}
        for place in documents
        if not question.judged[place]
    ]
