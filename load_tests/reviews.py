"""Study reviews: find the relevant records, and know when they are found.

Records are in a random order, vectors are made from their words, and answers are the labels. After t records, the next
1 + t / 20 are read at a time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import run_in_default_thread
from boundarymorph.retrieval.candidates import GivenCandidates, PoolSource
from boundarymorph.retrieval.document import Document
from boundarymorph.selection import BestBoundary, DocumentCapacity, Pool, SearchBoundary, SearchTarget, Session
from boundarymorph.selection.methods import TO_FIND
from boundarymorph.selector.task import Target
from boundarymorph_evaluation import datasets

AT, LEAST = (50, 100, 200), 0.5
TARGETS = (Target(0.8, 0.9), Target(0.9, 0.9), Target(0.95, 0.9), Target(0.95, 0.8))
# Writes the positions of records in the order in which a model reads them, without the seed's. Until it can be fitted,
# they are read in the given order, as in ASReview's own simulation.
ASREVIEW = """
import asreview, json, pandas, sys
from asreview.models import models, queriers, stoppers
given = json.load(sys.stdin)
first = asreview.ActiveLearningCycle(querier=queriers.TopDown(), stopper=stoppers.IsFittable())
learning = asreview.ActiveLearningCycle.from_meta(models.get_ai_config(given["model"])["value"])
learning.n_query = lambda results: max(1, len(results) // 20)
records, seed = pandas.DataFrame(given["records"]), given["seed"]
simulation = asreview.Simulate(records, given["labels"], [first, learning], stopper=len(records), print_progress=False)
if seed is not None:
    simulation.label([seed])
simulation.review()
json.dump([int(place) for place in simulation._results["record_id"] if place != seed], sys.stdout)
"""
MODELS = {"elas_u3": "ASReview, naive Bayes", "elas_u4": "ASReview, SVM, its default"}
# The constants of `selection.outlook.Search` were chosen by the labels of these reviews. The noise of `methods.TO_FIND`
# was chosen on all reviews, so only the claims at the end of a search are held out.
CHOSEN_ON = ("ADHD", "CalciumChannelBlockers", "NSAIDS", "SkeletalMuscleRelaxants", "UrinaryIncontinence")
METRICS = (*(f"recall@{read}" for read in AT), "wss@95", "read", "found", "true")
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Review:
    """A review.

    Attributes:
        name: The name of the review.
        query: Its question.
        documents: The records, in a random order.
        labels: (N,) 1 for relevant records.
        seed: A relevant record that is known from the start, if any.
    """

    name: str
    query: str
    documents: Sequence[str]
    labels: NDArray[np.float64]
    seed: int | None

    def pool(self) -> Pool:
        """Return the pool of a request with these documents, whose ids are positions here."""
        named = [Document(str(place), text) for place, text in enumerate(self.documents)]
        candidates: Any = GivenCandidates(None, PoolSource(self.query, named, words=True))  # type: ignore[arg-type]
        pool: Pool = asyncio.run(candidates.retrieve(run_in_default_thread)).pool
        return pool


def reviews(folder: Path, draws: int) -> Iterator[Review]:
    """Yield each review with a seed and without one, in `draws` random orders."""
    collection = datasets.load(str(folder))
    assert collection.judgments is not None
    for name, query in collection.queries.items():
        ids = [id for id in collection.documents if id.startswith(f"{name}-")]
        for draw in range(draws):
            rng = np.random.default_rng(draw)
            shuffled = [ids[place] for place in rng.permutation(len(ids))]
            documents = [collection.documents[id] for id in shuffled]
            labels = np.array([float(id in collection.judgments[name]) for id in shuffled])
            for seed in (None, int(rng.choice(np.flatnonzero(labels)))):
                yield Review(name, query, documents, labels, seed)


def measured(review: Review, how: str, order: Sequence[int]) -> Row:
    """Return recall after some documents, and the work saved at 95 % recall (Cohen 2006).

    The seed does not count.
    """
    recall = np.cumsum(review.labels[list(order)]) / (review.labels.sum() - (review.seed is not None))
    row: Row = {f"recall@{read}": recall[min(read, len(recall)) - 1] for read in AT}
    enough = np.flatnonzero(recall >= 0.95 - 1e-9)
    row["wss@95"] = 0.95 - (enough[0] + 1) / len(review.labels) if enough.size else np.nan
    return {"how": how, **row}


def ours(review: Review, pool: Pool) -> Iterator[Row]:
    """Yield the row of a search through all documents, and the answer for each target."""
    places = np.array([int(id) for id in pool.ids])
    labels = review.labels[places]
    known = dict.fromkeys(np.flatnonzero(places == review.seed).tolist(), 1.0)
    best, count = BestBoundary(DocumentCapacity(len(pool)), TO_FIND), len(pool)
    stop = SearchTarget(count, 1.0 - 1e-12)  # the target is not reached before the end
    session = Session(pool, TO_FIND.posterior(pool, count), SearchBoundary(best, LEAST, 1.0), stop, known=known)
    stopped: dict[Target, Row] = {target: {"read": 1.0, "found": 1.0, "true": 1.0} for target in TARGETS}
    going_on = list(TARGETS)
    while (asked := session.ask(1 + session.observation_count // 20)).size:
        session.tell(asked, labels[asked])
        for target in list(going_on):
            if SearchBoundary(best, LEAST, target.share).division(session.state).found >= target.probability:
                going_on.remove(target)
                share = float(labels[session.belief.scored].sum() / labels.sum())
                said = {"found": share, "true": float(share >= target.share)}
                stopped[target] = {"read": session.observation_count / len(pool), **said}
    yield measured(review, "find", places[[seen.document for seen in session.history]].tolist())
    for target, said in stopped.items():
        yield {"how": f"find {target.share:g} in {target.probability:g}", **said}


def others(review: Review, pool: Pool, asreview: str | None) -> Iterator[Row]:
    """Yield rows of the alternatives: the order of BM25, and those of ASReview."""
    places = np.array([int(id) for id in pool.ids])
    yield measured(review, "BM25", [place for place in places.tolist() if place != review.seed])
    for model, name in MODELS.items() if asreview else ():
        parts = [text.partition("\n") for text in review.documents]
        records = [{"title": title, "abstract": abstract} for title, _, abstract in parts]
        given = {"records": records, "labels": review.labels.astype(int).tolist(), "seed": review.seed, "model": model}
        command, sent = [str(asreview), "-c", ASREVIEW], json.dumps(given)
        done = subprocess.run(command, input=sent, stdout=subprocess.PIPE, text=True, check=True)
        yield measured(review, name, json.loads(done.stdout))


def rows(folder: Path, draws: int, asreview: str | None) -> Iterator[Row]:
    """Yield the rows of the reviews in a folder in BEIR's layout.

    The ids of their records begin with the review's name and a dash. `asreview` is an interpreter that has this
    package, whose models then read the same records.
    """
    for review in reviews(folder, draws):
        pool = review.pool()
        table = "chosen on" if review.name in CHOSEN_ON else "held out"
        setting = {"table": table, "query": review.name, "seed": "no" if review.seed is None else "yes"}
        yield from (setting | row for row in (*ours(review, pool), *others(review, pool, asreview)))
