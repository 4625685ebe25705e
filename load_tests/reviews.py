"""`python -m load_tests.studies reviews --data FOLDER`: find what is relevant to a review, and know when it is found.

FOLDER is in BEIR's layout; the ids of a review's records begin with its name and a dash. Records are in a random order,
vectors are made from their words, and answers are the labels. Read are 1 + t / 20 documents at a time after t. With
--asreview PYTHON, an interpreter that has the package `asreview`, its models read the same records.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from boundarymorph.evaluation import datasets
from boundarymorph.evaluation.grids import grid
from boundarymorph.inference.concurrency import in_default_thread
from boundarymorph.retrieval.document import Document, GivenCandidates
from boundarymorph.selection import Pool, SelectionSession, Target
from boundarymorph.selection.methods import DEFAULT, METHODS, TO_FIND
from load_tests import report

AT, LEAST = (50, 100, 200), 0.5
TARGETS = (Target(0.8, 0.9), Target(0.9, 0.9), Target(0.95, 0.9), Target(0.95, 0.8))
MODELS = {"elas_u3": "ASReview, naive Bayes", "elas_u4": "ASReview, SVM, its default"}
# By whose labels the constants of `selection.outlook.Search` were chosen. The noise of `methods.TO_FIND` was chosen on
# all reviews, so only what is said when a search stops is held out.
CHOSEN_ON = ("ADHD", "CalciumChannelBlockers", "NSAIDS", "SkeletalMuscleRelaxants", "UrinaryIncontinence")
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Review:
    """documents: in a random order; labels: (N,) 1 where relevant; seed: a relevant one that is known from the start,
    None for none."""

    name: str
    query: str
    documents: Sequence[str]
    labels: NDArray[np.float64]
    seed: int | None

    async def pool(self) -> Pool:
        """Return the pool of a request with these documents, whose ids are positions here."""
        named = [Document(str(place), text) for place, text in enumerate(self.documents)]
        candidates: Any = GivenCandidates(None, self.query, named, words=True)  # type: ignore[arg-type]
        pool: Pool = (await candidates.retrieve(in_default_thread)).pool
        return pool

    def recall(self, order: Sequence[int]) -> NDArray[np.float64]:
        """Return what share is found after 1, 2, ... documents, without the seed."""
        found = np.cumsum(self.labels[list(order)])
        return found / (self.labels.sum() - (self.seed is not None))  # type: ignore[no-any-return]


def reviews(folder: Path, draws: int) -> Iterator[Review]:
    """Yield each review with a seed and without one, in so many random orders."""
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
    """Return recall after some documents, and the work saved over random reading at 95 % recall (Cohen 2006)."""
    recall = review.recall(order)
    row: Row = {f"recall@{read}": recall[min(read, len(recall)) - 1] for read in AT}
    enough = np.flatnonzero(recall >= 0.95 - 1e-9)
    row["wss@95"] = 0.95 - (enough[0] + 1) / len(review.labels) if enough.size else np.nan
    return {"review": review.name, "how": how, "seed": "no" if review.seed is None else "yes", **row}


def ours(review: Review, pool: Pool) -> Iterator[Row]:
    """Yield the row of a search through all documents, and what each target would have said."""
    places = np.array([int(id) for id in pool.ids])
    labels = review.labels[places]
    known = dict.fromkeys(np.flatnonzero(places == review.seed).tolist(), 1.0)
    nearly = Target(1.0, 1.0 - 1e-12)  # is not reached before the end
    session = SelectionSession(
        pool, budget=len(pool), k=len(pool), config=TO_FIND, known=known, min_relevance=LEAST, target=nearly
    )
    stopped: dict[Target, Row] = {}
    while (asked := session.ask(1 + session.known // 20)).size:
        session.tell(asked, labels[asked])
        for target in TARGETS:
            if target not in stopped and (session.search.recall(target).probability or 0.0) >= target.probability:
                share = float(labels[session.belief.scored].sum() / labels.sum())
                stopped[target] = {"read": session.known / len(pool), "found": share, "true": share >= target.share}
    yield measured(review, "find", places[[seen.document for seen in session.history]].tolist())
    for target in TARGETS:
        said = stopped.get(target, {"read": 1.0, "found": 1.0, "true": True})
        name = f"find {target.share:g} in {target.probability:g}"
        yield {"review": review.name, "how": name, "seed": "no" if review.seed is None else "yes", **said}


def others(review: Review, pool: Pool, asreview: str | None) -> Iterator[Row]:
    """Yield rows of what else could be done: the order of BM25, calls where the default doubts, and ASReview."""
    places = np.array([int(id) for id in pool.ids])
    yield measured(review, "BM25", [place for place in places.tolist() if place != review.seed])
    known = dict.fromkeys(np.flatnonzero(places == review.seed).tolist(), 1.0)
    doubting = SelectionSession(
        pool, budget=max(AT), k=len(pool), config=METHODS[DEFAULT], known=known, min_relevance=LEAST
    )
    while (asked := doubting.ask(1 + doubting.known // 20)).size:
        doubting.tell(asked, review.labels[places[asked]])
    doubted = measured(review, "min_relevance alone", places[[seen.document for seen in doubting.history]].tolist())
    yield doubted | {"wss@95": np.nan}
    for model, name in MODELS.items() if asreview else ():
        records = [
            dict(zip(("title", "abstract"), text.partition("\n")[::2], strict=True)) for text in review.documents
        ]
        given = {"records": records, "labels": review.labels.astype(int).tolist(), "seed": review.seed, "model": model}
        program = [str(asreview), str(Path(__file__).with_name("asreview_order.py"))]
        sent = json.dumps(given | {"read": len(records)})
        done = subprocess.run(program, input=sent, stdout=subprocess.PIPE, text=True, check=True)
        yield measured(review, name, json.loads(done.stdout))


def table(rows: Sequence[Row]) -> str:
    """Return the means over reviews: of all, and of those that are held out."""
    frame, lines = pd.DataFrame(rows), []
    held_out = frame[~frame.review.isin(CHOSEN_ON)]
    metrics = [name for name in frame.columns if name not in ("review", "how", "seed")]
    for part, of in (("all", frame), ("held out", held_out)):
        means = of.groupby(["how", "seed", "review"], sort=False)[metrics].mean()
        for (how, seed), mean in means.groupby(["how", "seed"], sort=False).mean().iterrows():
            lines.append(
                [part, how, seed, *("" if np.isnan(mean[name]) else f"{100 * mean[name]:.1f}" for name in metrics)]
            )
    return grid(["reviews", "how", "seed", *metrics], lines, texts=3)


async def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="studies reviews", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of reviews in BEIR's layout")
    parser.add_argument("--asreview", help="interpreter of an environment that has asreview")
    parser.add_argument("--draws", type=int, default=1, help="random orders and seeds of each review")
    parser.add_argument("--out", type=Path, default=Path("build/evaluation"))
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    for review in reviews(given.data, given.draws):
        pool = await review.pool()
        rows += [*ours(review, pool), *others(review, pool, given.asreview)]
        print(f"reviews: {review.name}", flush=True)
    report.study(given.out, "reviews", "Find all of them", table(rows), rows)
