"""Small synthetic tables and problems."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection import Pool
from boundarymorph_evaluation.problem import Question, SelectionProblem
from boundarymorph_evaluation.tables import ScoreTable
from tests.selection.pools import clustered


def synthetic(
    queries: int = 4, n: int = 60, seed: int = 0, *, name: str = "made-up", without: Sequence[str] = ()
) -> ScoreTable:
    """Return a table of clustered pools over one set of documents; labels follow the scorer."""
    pool, _ = clustered(n, 16, seed)
    rng = np.random.default_rng(seed)
    documents = pool.embeddings
    arrays: dict[str, NDArray[Any]] = {
        "doc_ids": np.array([f"d{number}" for number in range(n)]),
        "doc_emb": documents.astype(np.float16),
        "query_ids": np.array([f"q{number}" for number in range(queries)]),
    }
    rows: dict[str, list[NDArray[Any]]] = {
        key: [] for key in ("query_emb", "pool", "mips", "score", "bm25", "terms", "grade")
    }
    for _ in range(queries):
        query, taste = documents[rng.integers(n, size=2)] + 0.1 * rng.normal(size=(2, 16))
        products = documents @ query
        order = np.argsort(-products, kind="stable")
        scores = 1 / (1 + np.exp(-8 * (documents @ (query + taste) - 0.8)))
        rows["query_emb"].append(query.astype(np.float16))
        rows["pool"].append(order.astype(np.int32))
        rows["mips"].append(products[order].astype(np.float32))
        rows["score"].append(scores[order].astype(np.float32))
        rows["bm25"].append(rng.uniform(size=n).astype(np.float32))
        rows["terms"].append(np.arange(n, dtype=np.uint64) * np.uint64(7) % np.uint64(8))
        rows["grade"].append((scores[order] > 0.5).astype(np.uint8) * 2)
    arrays |= {key: np.array(values) for key, values in rows.items()}
    arrays["n_relevant"] = (arrays["grade"] > 0).sum(axis=1) + 3
    return ScoreTable(name, {key: values for key, values in arrays.items() if key not in without})


def on_a_circle(degrees: Sequence[float], scores: Sequence[float], query: float = 0.0) -> Question:
    """Return documents at angles in the plane, in retrieval order; near angles are similar."""
    angles = np.deg2rad(degrees)
    embeddings = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    direction = np.array([np.cos(np.deg2rad(query)), np.sin(np.deg2rad(query))])
    pool = Pool.from_embeddings(
        [f"d{i}" for i in range(len(angles))], embeddings, direction, -np.arange(len(angles), dtype=float)
    )
    return Question("circle", pool, np.array(scores, dtype=np.float64))


def problem(question: Question, budget: int, k: int = 2) -> SelectionProblem:
    return SelectionProblem(question, budget, k)
