"""Times sessions of the service version that this process imports, for `bench_selection --beside`.

Reads one session per line, as JSON, and answers with its CPU seconds. The first line describes the pool.
"""

import json
import sys
import time

import numpy as np

from boundarymorph.selection import Pool, SelectionSession
from boundarymorph.selection.methods import METHODS
from tests.selection.pools import Scores, clustered


def pools(size: int, dimension: int, seed: int) -> tuple[dict[bool, Pool], Scores]:
    """Return a pool with and without BM25, and the cross-encoder's scores."""
    pool, scores = clustered(size, dimension, seed, np.float32)
    words = np.maximum(np.random.default_rng(seed).normal(size=size) + 2 * scores - 1, 0.0)
    return {
        False: pool,
        True: Pool.of(pool.ids, pool.embeddings, pool.query, pool.scores, {"bm25": words}),
    }, scores


def main() -> None:
    by_words, scores = pools(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        session = json.loads(line)
        pool, method, rounds = by_words[session["bm25"]], METHODS[session["method"]], session["rounds"]
        start = time.process_time()
        selection = SelectionSession(pool, budget=sum(rounds), k=session["k"], config=method)
        for size in rounds:
            asked = selection.ask(size)
            selection.tell(asked, scores[asked])
        selection.selection()
        selection.expected_loss()
        print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    main()
