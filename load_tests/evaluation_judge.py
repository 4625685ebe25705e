"""`boundarymorph evaluate` with a language model as the scorer -> build/evaluation-judge/NAME.txt.

python -m load_tests.evaluation_judge COLLECTION TABLE --queries 20 --documents 150 --depth 500

COLLECTION is a BEIR folder, TABLE an .npz of it with scores and human grades (`evaluation.tables`). A language model is
played over a real socket: it grades as the table scores. The truth is the table's grades. How near are the sets of a
fifth of the calls to those of a scorer that is asked about every document? Of the collection there are the first
documents of each query's pool in the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import numpy as np
import orjson

from boundarymorph.evaluation import datasets, tables
from boundarymorph.evaluation.analyses import bootstrap_interval
from boundarymorph.evaluation.datasets import Collection
from boundarymorph.evaluation.metrics import quality
from boundarymorph.evaluation.problem import Question
from boundarymorph.selection import SelectionSession
from boundarymorph.selection.methods import METHODS
from load_tests import report
from load_tests.command import output_of
from tests.faults import stand_in
from tests.scoring.judge.scripted import MODEL, Chat
from tests.selection.pools import play

OUT = Path("build/evaluation-judge")
SHARE, BATCH_SIZE = 0.2, 5
KS = (10, 20, 50)
PRICES = {  # of a million tokens
    "BOUNDARYMORPH_SCORER__JUDGE__INPUT_PRICE": "0.40",
    "BOUNDARYMORPH_SCORER__JUDGE__OUTPUT_PRICE": "1.60",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--documents", type=int, default=150, help="of each query's pool")
    parser.add_argument("--depth", type=int, default=500, help="candidates of a query, of all these documents")
    given = parser.parse_args()
    name, budget = given.table.stem, int(SHARE * given.depth)
    questions = list(tables.read(given.table).first(given.queries).questions())
    collection = datasets.load(str(given.collection))
    ids = {document for question in questions for document in question.pool.ids[: given.documents]}
    folder = _prepared(OUT / name, collection, questions, ids)
    scores = {
        (collection.queries[question.id], collection.documents[document]): float(score)
        for question in questions
        for document, score in zip(question.pool.ids, question.scores, strict=True)
    }
    with stand_in.running(Chat(lambda query, passage: scores.get((query, passage), 0.0))) as server:
        command = ["boundarymorph", "evaluate", "--data", str(folder), "--max-cost", "100", "--depth", str(given.depth)]
        command += ["--scorer", f"openai+http://127.0.0.1:{server.port}/v1?model={MODEL}"]
        command += ["--methods", "mips,ss,trend@5", "--budgets", str(budget), "--k", ",".join(map(str, KS))]
        shown = output_of([*command, "--out", str(OUT / name)], **PRICES)
        asked = len(server.asked)
    lines = [f"$ {' '.join(command)}", shown, f"The language model was asked {asked:,} times.", ""]
    lines += _compared(tables.read(OUT / name / f"{folder.name}.npz"), budget)
    (OUT / f"{name}.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def _prepared(out: Path, collection: Collection, questions: Sequence[Question], ids: Set[str]) -> Path:
    """A BEIR folder of these questions and documents, with the human grades of the table."""
    folder = out / "collection"
    folder.mkdir(parents=True, exist_ok=True)
    documents = [{"_id": id, "text": text} for id, text in collection.documents.items() if id in ids]
    queries = [{"_id": question.id, "text": collection.queries[question.id]} for question in questions]
    for name, records in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)) + b"\n")
    qrels = ["query-id\tcorpus-id\tscore"]
    for question in questions:
        assert question.grades is not None, "the table has no human grades"
        graded = zip(question.pool.ids, question.grades.tolist(), strict=True)
        qrels += [f"{question.id}\t{id}\t{int(grade)}" for id, grade in graded if grade > 0 and id in ids]
    (folder / "qrels.tsv").write_text("\n".join(qrels) + "\n")
    return folder


def _compared(table: tables.ScoreTable, budget: int) -> list[str]:
    """A fifth of the calls against all of them, by question: the differences, and how far they are from noise."""
    full, share = [], []
    for question in table.questions():
        everything = np.argsort(-question.scores, kind="stable")
        full.append(_ncg(question, {k: everything[:k] for k in KS}))
        sessions = {k: SelectionSession(question.pool, budget=budget, k=k, config=METHODS["trend"]) for k in KS}
        played = {k: play(session, question.scores, BATCH_SIZE) for k, session in sessions.items()}
        share.append(_ncg(question, {k: session.selection().documents for k, session in played.items()}))
    lines = [f"Relevant documents in the set by human grades (nCG, %), {len(full)} questions:", ""]
    lines += [f"| k | every document graded ({table.depth} calls) | {budget} calls | difference | 95 % interval |"]
    lines += ["|---:|---:|---:|---:|---:|"]
    for column, k in enumerate(KS):
        whole, part = np.array(full)[:, column], np.array(share)[:, column]
        low, high = bootstrap_interval(100 * (part - whole))
        means = f"{100 * np.nanmean(whole):.1f} | {100 * np.nanmean(part):.1f} | {100 * np.nanmean(part - whole):+.1f}"
        lines.append(f"| {k} | {means} | {low:+.1f} to {high:+.1f} |")
    return lines


def _ncg(question: Question, chosen: Mapping[int, np.ndarray]) -> list[float]:
    return [quality(question, documents, k).ncg for k, documents in chosen.items()]


if __name__ == "__main__":
    report.run(main)
