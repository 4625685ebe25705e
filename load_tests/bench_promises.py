"""`make bench NAME=promises`: is a promise kept by a service whose scorer is a table of known scores?

    make bench NAME=promises OPTIONS="--table TABLE.npz --collection FOLDER --k 10 --loss 0.1"

An index holds the documents of the table. Half of the queries are asked as anybody would, and the service audits them
while nobody waits. The others ask for the promise. What their sets lose is told by the service, too: it scores the
whole pool and says what each candidate is worth.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from boundarymorph.access.learned import SECONDS
from boundarymorph.evaluation import datasets, tables
from boundarymorph.evaluation.problem import Question
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.local.catalog import LocalCatalog
from load_tests import processes, report

CALLS, IN, INDEX = 200, 0.9, "table"
UNTIL = 3_600.0  # seconds, for the audits


def filled(data: Path, table: ScoreTable) -> None:
    """Make an index of all documents of a table, with its vectors."""
    assert table.texts is not None
    ids, vectors = table.arrays["doc_ids"].astype(str).tolist(), table.arrays["doc_emb"].astype(np.float32)
    catalog = LocalCatalog(data / "indexes")
    index = catalog.create(INDEX, encoder=None, dimension=vectors.shape[1])
    index.upsert([Document(id, table.texts[1][id]) for id in ids], vectors)
    catalog.close()


def scores_of(questions: Sequence[Question]) -> Callable[[str, str], float]:
    """Return a scorer that knows the scores of a table by the texts of query and document.

    It says 0 for other queries, as a service probes its scorer, and for the few documents that the service finds in
    place of others at the end of a pool.
    """
    known = {
        question.texts.query: dict(zip(question.texts.documents, question.scores.tolist(), strict=True))
        for question in questions
        if question.texts is not None
    }
    return lambda query, text: known.get(query, {}).get(text, 0.0)


class Asked:
    """The service, asked about the queries of a table."""

    def __init__(self, url: str, depth: int, k: int, loss: float) -> None:
        self._client = httpx.Client(base_url=url, timeout=UNTIL)
        self._fields = {"index": INDEX, "depth": depth, "k": k, "return_documents": False}
        self._promise = {"lose_at_most": loss, "in": IN}

    def select(self, question: Question, **fields: Any) -> dict[str, Any]:
        """Return an answer."""
        assert question.texts is not None
        body = {
            "query": question.texts.query,
            "query_embedding": question.pool.query.tolist(),
            **self._fields,
            **fields,
        }
        answer: dict[str, Any] = self._client.post("/select", json=body).raise_for_status().json()
        return answer

    def audited(self) -> int:
        """Return how many audits selections can learn from."""
        learned = self._client.get(f"/indexes/{INDEX}/learned").raise_for_status().json()
        return sum(kind["audits"] for memory in learned["memories"] for kind in memory["audited"])

    def promised(self, question: Question, size: int) -> dict[str, Any]:
        """Return what came of a promise: whether it is certified, the calls, and what the set loses in truth."""
        answer = self.select(question, budget=CALLS, objective=self._promise)
        whole = self.select(question, budget=size, learn=False, explain="pool")["pool"]
        worth = {id: relevance or 0.0 for id, relevance in zip(whole["ids"], whole["relevance"], strict=True)}
        best = sum(sorted(worth.values(), reverse=True)[: len(answer["documents"])])
        return {
            "certified": answer["promise"]["status"] == "certified",
            "missing": answer["promise"]["missing"],
            "audits": answer["promise"]["audits"],
            "calls": answer["usage"]["cross_encoder_calls"] + answer["usage"]["cached_scores"],
            "loss": 1.0 - sum(worth[document["id"]] for document in answer["documents"]) / best,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True, help="an .npz, as `boundarymorph evaluate` reads")
    parser.add_argument("--collection", required=True, help="its texts, as a BEIR folder")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--loss", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0, help="of the halves")
    given = parser.parse_args()
    table = tables.with_texts(tables.read(given.table), [datasets.load(given.collection)])
    questions = list(table.questions())
    rows = report.Rows("promises")
    order = np.random.default_rng(given.seed).permutation(len(questions)).tolist()
    half, rest = order[: len(order) // 2], order[len(order) // 2 :]
    settings = {
        "MEMORY__ENABLED": "true",
        "MEMORY__AUDITS": "1",
        "MEMORY__AUDIT_POOL": str(table.depth),
        "MEMORY__AUDIT_CALLS": str(len(half) * table.depth),
        "SCORER__SELF_TEST": "false",
        "LIMITS__BUDGET": str(max(CALLS, table.depth)),
    }
    with tempfile.TemporaryDirectory() as folder, processes.scorer(scores_of(questions)) as scorer:
        filled(Path(folder), table)
        variables = {
            f"BOUNDARYMORPH_{name}": value for name, value in {**settings, "SCORER__URL": f'["{scorer}"]'}.items()
        }
        with processes.serving(["serve", "--data-directory", folder], variables=variables) as service:
            asked = Asked(service.url, table.depth, given.k, given.loss)
            for place in half:
                asked.select(questions[place], budget="auto")
            deadline = time.monotonic() + UNTIL
            while asked.audited() < len(half) and time.monotonic() < deadline:
                time.sleep(1.0)
            time.sleep(SECONDS)
            for place in rest:
                found = asked.promised(questions[place], table.depth)
                rows.append({"table": table.name, "k": given.k, "query": questions[place].id, **found})
    certified = [row for row in rows if row["certified"]]
    rows.write(
        {
            "certified": len(certified) / len(rows),
            "broken": statistics.fmean(row["loss"] > given.loss for row in certified) if certified else 0.0,
            "broken_without_a_certificate": statistics.fmean(row["loss"] > given.loss for row in rows),
            "calls": statistics.fmean(row["calls"] for row in rows),
        }
    )


if __name__ == "__main__":
    report.run(main)
