"""Sets that say different things: alpha-nDCG and CE-nCG on tables with subtopics and injected near copies.

python -m load_tests.evaluation_diversity TABLES --collections FOLDER --every 4

Subtopics of a document are the values of the field `city` or `mesh` of its line in corpus.jsonl, and
itself with its copies.
alpha-nDCG (Clarke et al. 2008) has alpha = .5 and the scorer's score as the gain, a share of which a set has for each
subtopic; distinct is the share of the set that is not a copy of another document in it.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph.evaluation.problem import Question
from boundarymorph.selection import Pool, SelectionSession, TrendConfig
from boundarymorph.selection.capacity import CANDIDATES, MORE_CANDIDATES, diverse
from boundarymorph.selection.geometry import median_distance
from load_tests import studies
from load_tests.studies import Row, markdown

BUDGETS, SIZES, ALPHA = (25, 50), (10, 20), 0.5
SHARES = (0.1, 0.3, 0.5, 0.7)
COPIED, MOST_COPIES, NOISE = (
    0.5,
    4,
    0.1,
)  # share of the first 300 and of the best 60; of each; length of a vector's change
FIELDS = ("city", "mesh")
COMMON = 0.1  # of a collection: a subtopic of more of its documents distinguishes nothing
Chosen = NDArray[np.intp]


def subtopics(corpus: Path) -> dict[str, list[str]]:
    """Return the subtopics of each document of a corpus.jsonl or corpus.jsonl.gz, without common ones."""
    found = {}
    with (gzip.open if corpus.suffix == ".gz" else open)(corpus, "rb") as lines:
        for line in lines:
            document = orjson.loads(line)
            values = [document[field] for field in FIELDS if field in document]
            parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
            found[document["_id"]] = sorted({part.partition(":")[0] for part in parts})
    counts = Counter(topic for topics in found.values() for topic in topics)
    return {id: [topic for topic in topics if counts[topic] <= COMMON * len(found)] for id, topics in found.items()}


def with_copies(question: Question, rng: np.random.Generator) -> tuple[Pool, NDArray[np.float64], Chosen]:
    """Return the pool with near copies, all scores, and the position of the original of each document."""
    pool, scores = question.pool, question.scores
    liked = np.argsort(-scores)[:60]
    firsts = rng.permutation(min(300, len(pool)))[: int(COPIED * 300)]
    originals = np.union1d(firsts, liked[rng.uniform(size=len(liked)) < COPIED])
    source = np.concatenate(
        [np.arange(len(pool)), np.repeat(originals, rng.integers(1, MOST_COPIES + 1, len(originals)))]
    )
    changed = np.arange(len(source)) >= len(pool)
    vectors = pool.embeddings[source]
    vectors += (
        changed[:, None] * NOISE / np.sqrt(vectors.shape[1]) * rng.normal(size=vectors.shape).astype(vectors.dtype)
    )
    held = np.clip(scores[source], 1e-6, 1 - 1e-6)
    odds = np.log(held / (1 - held)) + changed * 3 * NOISE * rng.normal(size=len(source))
    retrieval = pool.scores[source] + changed * 1e-6 * rng.normal(size=len(source))
    order = np.argsort(-retrieval, kind="stable")
    source = source[order]
    features = {name: values[source] for name, values in pool.features.items()}
    terms = None if pool.terms is None else pool.terms[:, source]
    ids = [f"{pool.ids[position]}#{number}" for number, position in enumerate(source.tolist())]
    copied = Pool.of(ids, vectors[order], pool.query, retrieval[order], features, terms)
    return copied, 1 / (1 + np.exp(-odds[order])), source


def alpha_dcg(order: Sequence[int], gains: NDArray[np.float64], topics: Sequence[Sequence[object]]) -> float:
    """Of documents in this order."""
    seen: Counter[object] = Counter()
    total = 0.0
    for rank, document in enumerate(order):
        new = sum(gains[document] * (1 - ALPHA) ** seen[topic] for topic in topics[document])
        total += new / np.log2(2 + rank)
        for topic in topics[document]:
            seen[topic] += gains[document]
    return total


def ideal(k: int, gains: NDArray[np.float64], topics: Sequence[Sequence[object]]) -> list[int]:
    """Return the greedy best order, among the 400 with the largest gains."""
    left, seen, chosen = set(np.argsort(-gains)[:400].tolist()), Counter[object](), list[int]()
    while len(chosen) < k:
        best = max(left, key=lambda one: sum(gains[one] * (1 - ALPHA) ** seen[topic] for topic in topics[one]))
        left.remove(best)
        chosen.append(best)
        for topic in topics[best]:
            seen[topic] += gains[best]
    return chosen


def marginal(vectors: NDArray[np.floating], relevance: NDArray[np.float64], count: int, share: float) -> Chosen:
    """Maximal marginal relevance (Carbonell and Goldstein 1998), relevance as a share of the largest, by cosine."""
    few = np.argsort(-relevance, kind="stable")[: CANDIDATES * count + MORE_CANDIDATES]
    near, worth, chosen = np.zeros(len(few)), relevance[few] / relevance.max(), list[int]()
    while len(chosen) < min(count, len(few)):
        value = (1 - share) * worth - share * near
        value[chosen] = -np.inf
        chosen.append(int(value.argmax()))
        near = np.maximum(near, vectors[few] @ vectors[few[chosen[-1]]])
    return few[chosen]


def by_posterior(session: SelectionSession, count: int, share: float) -> Chosen:
    """By the covariances that are left after the scores: each chosen one costs the others theirs with it."""
    belief, pool = session.belief, session.pool
    few = np.argsort(-belief.mean, kind="stable")[: CANDIDATES * count + MORE_CANDIDATES]
    kappa = 2 * np.log(2) / median_distance(pool.embeddings)
    points, scored = pool.embeddings[few].astype(np.float64), pool.embeddings[belief.scored].astype(np.float64)
    prior, rows = (np.exp(-kappa * (1 - points @ other.T)) for other in (points, scored))
    observed = np.exp(-kappa * (1 - scored @ scored.T)) + 0.2 * np.eye(len(scored))
    left = prior - rows @ np.linalg.solve(observed, rows.T)
    deviations = belief.std[few] / np.sqrt(np.maximum(left.diagonal(), 1e-9))
    covariance = left * np.outer(deviations, deviations)
    chosen: list[int] = []
    for _ in range(min(count, len(few))):
        value = (1 - share) * belief.mean[few] - 2 * share * covariance[:, chosen].sum(axis=1)
        value[chosen] = -np.inf
        chosen.append(int(value.argmax()))
    return few[chosen]


def ways(session: SelectionSession, k: int) -> dict[str, Callable[[], Chosen]]:
    """Return the ways to choose a set after a session."""
    vectors, relevance = session.pool.embeddings, np.clip(session.belief.mean, 0.0, 1.0)
    found: dict[str, Callable[[], Chosen]] = {"relevance alone": lambda: np.argsort(-relevance, kind="stable")[:k]}
    for share in SHARES:
        found[f"determinant {share}"] = lambda share=share: diverse(vectors, relevance, k, share)  # type: ignore[misc]
        found[f"MMR {share}"] = lambda share=share: marginal(vectors, relevance, k, share)  # type: ignore[misc]
        found[f"posterior {share}"] = lambda share=share: by_posterior(session, k, share)  # type: ignore[misc]
    return found


def measured(question: Question, topics_of: dict[str, list[str]], rng: np.random.Generator | None) -> list[Row]:
    """Return a row for each way, budget and size. rng: for the copies, None for none."""
    pool, scores, source = question.pool, question.scores, np.arange(len(question.pool))
    if rng is not None:
        pool, scores, source = with_copies(question, rng)
    topics = [[*topics_of.get(id.partition("#")[0], []), int(own)] for id, own in zip(pool.ids, source, strict=True)]
    rows: list[Row] = []
    for k in SIZES:
        best, whole = np.sort(scores)[-k:].sum(), alpha_dcg(ideal(k, scores, topics), scores, topics)
        for budget in BUDGETS:
            session = SelectionSession(pool, budget=budget, k=k, config=TrendConfig())
            while (asked := session.ask(4)).size:
                session.tell(asked, scores[asked])
            for name, choose in ways(session, k).items():
                chosen = choose()
                chosen = chosen[np.argsort(-session.belief.mean[chosen], kind="stable")]
                gained = alpha_dcg(chosen.tolist(), scores, topics) / whole
                distinct = len(set(source[chosen])) / k
                rows.append({"way": name, "alpha": gained, "ce_ncg": scores[chosen].sum() / best, "distinct": distinct})
    return rows


def main() -> None:
    given = studies.parsed(studies.parser(__doc__))
    for table in given.tables:
        corpus = next(iter(given.collections.glob(f"{table.name}/corpus.jsonl*")), None)
        topics = {} if corpus is None else subtopics(corpus)
        if not any(topics.values()):
            continue
        for copies in (False, True):
            rng = np.random.default_rng(1) if copies else None
            rows = [
                row
                for number in range(0, len(table), given.every)
                for row in measured(table.question(number), topics, rng)
            ]
            lines: list[Row] = []
            for name in dict.fromkeys(row["way"] for row in rows):
                of = [row for row in rows if row["way"] == name]
                means = {
                    key: f"{100 * np.mean([row[key] for row in of]):.1f}" for key in ("alpha", "ce_ncg", "distinct")
                }
                lines.append(
                    {
                        "way": name,
                        "alpha-nDCG": means["alpha"],
                        "CE-nCG": means["ce_ncg"],
                        "distinct": means["distinct"],
                    }
                )
            print(f"\n## {table.name}, {'with near copies' if copies else 'as it is'}\n\n{markdown(lines)}", flush=True)


if __name__ == "__main__":
    main()
