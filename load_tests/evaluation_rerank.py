"""What a list of documents loses when only a part of it is scored: nDCG@10 and nCG@50 by human grades.

python -m load_tests.evaluation_rerank TABLES COLLECTIONS --documents 100 1000

TABLES has NAME.npz with scores and grades (`evaluation.tables`), COLLECTIONS has NAME/corpus.jsonl.gz and
NAME/queries.jsonl.gz with the texts. A list is the first documents of a table's pool, in the order of its retrieval;
what ranks it is what the rerank routes run: vectors of the words, the given order, and calls for the order in rounds.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.evaluation import tables
from boundarymorph.evaluation.metrics import normalised_gain
from boundarymorph.evaluation.problem import Question
from boundarymorph.retrieval.fusion import scores_by_rank
from boundarymorph.retrieval.words.lexical import PoolWords
from boundarymorph.retrieval.words.vectors import lexical_vectors
from boundarymorph.selection import Pool, SelectionSession
from boundarymorph.selection.methods import METHODS
from boundarymorph.settings import Settings
from load_tests import report, studies
from tests.selection.pools import play

METRICS = ("nDCG@10", "nCG@50")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path)
    parser.add_argument("collections", type=Path)
    parser.add_argument("--documents", type=int, nargs="+", default=[100, 1_000], help="of a list")
    parser.add_argument("--share", type=float, default=0.2, help="of a list that is scored")
    parser.add_argument("--names", nargs="+", default=["cystic_fibrosis", "trec_dl19_pool"], help="of tables")
    parser.add_argument("--every", type=int, default=1, help="only every so many queries")
    given = parser.parse_args()
    rows, ratios = report.Rows("evaluation-rerank"), {}
    for name in given.names:
        table = tables.read(given.tables / f"{name}.npz")
        documents = _texts(given.collections / name / "corpus.jsonl.gz")
        queries = _texts(given.collections / name / "queries.jsonl.gz")
        for count in given.documents:
            found: dict[str, list[dict[str, float]]] = {"all scored": [], "a share scored": [], "its head scored": []}
            for question in list(table.questions())[:: given.every]:
                texts = [documents[document] for document in question.pool.ids[:count]]
                calls = round(given.share * len(texts))
                scores = question.scores[: len(texts)]
                order = _ranked(queries[question.id], texts, scores, calls)
                everything = studies.by_score(scores, len(texts))
                found["all scored"].append(_quality(everything, question))
                found["a share scored"].append(_quality(order, question))
                found["its head scored"].append(_quality(studies.by_score(scores, calls), question))
            means = {what: _means(each) for what, each in found.items()}
            for what, mean in means.items():
                rows.append({"table": name, "documents": count, "queries": len(found[what]), "what": what, **mean})
            for metric in METRICS:
                kept = means["a share scored"][metric] / means["all scored"][metric]
                ratios[f"{metric}_kept_{name}_{count}"] = kept
    report.write("evaluation-rerank", rows, ratios)


def _ranked(query: str, texts: list[str], scores: NDArray[np.float64], calls: int) -> NDArray[np.intp]:
    """Positions, best first, as the rerank routes have them after so many calls."""
    words = PoolWords.of(texts)
    vectors = lexical_vectors(words, query)
    ids = [str(position) for position in range(len(texts))]
    features = {"bm25": words.bm25(query)}
    pool = Pool.of(ids, *vectors, scores_by_rank(len(texts)), features, words.terms(query))
    session = SelectionSession(pool, budget=calls, k=len(texts), config=METHODS["trend"], order=True)
    return play(session, scores, Settings().rerank.batch_size).ranking().documents


def _quality(order: NDArray[np.intp], question: Question) -> dict[str, float]:
    assert question.grades is not None
    grades = question.grades[: len(order)].astype(np.float64)
    relevant = (grades > 0).astype(np.float64)
    return {
        "nDCG@10": studies.normalised_discounted_gain(order[:10], grades),
        "nCG@50": normalised_gain(order[:50], relevant),
    }


def _means(found: list[dict[str, float]]) -> dict[str, float]:
    """Over the queries that have something relevant in their list."""
    return {metric: float(np.nanmean([each[metric] for each in found])) for metric in METRICS}


def _texts(path: Path) -> Mapping[str, str]:
    """Title and text by id."""
    found = {}
    with gzip.open(path, "rb") as lines:
        for line in lines:
            record: dict[str, Any] = orjson.loads(line)
            identifier = str(record.get("_id", record.get("id")))
            found[identifier] = "\n".join(filter(None, (record.get("title"), record["text"])))
    return found


if __name__ == "__main__":
    report.run(main)
