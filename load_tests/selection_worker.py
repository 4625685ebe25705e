"""Times sessions of the service version that this process imports, for `bench_selection --beside`.

Reads one session per line, as JSON, and answers with its CPU seconds. The first line describes the pool.
"""

import json
import sys
import time
from dataclasses import fields, replace

import numpy as np

from boundarymorph.selection import Pool, SelectionSession
from boundarymorph.selection.methods import METHODS
from tests.selection.pools import Scores, clustered

TERMS, SHARE = 8, 0.2  # of a query, and of the documents that have each


def pools(size: int, dimension: int, seed: int) -> tuple[dict[bool, Pool], Scores]:
    """Return a pool without and with BM25 and words of the query, and the cross-encoder's scores."""
    pool, scores = clustered(size, dimension, seed, np.float32)
    rng = np.random.default_rng(seed)
    words = replace(pool, features={"bm25": np.maximum(rng.normal(size=size) + 2 * scores - 1, 0.0)})
    if "terms" in {field.name for field in fields(Pool)}:  # not in older versions
        words = replace(words, terms=rng.uniform(size=(TERMS, size)) < SHARE)
    return {False: pool, True: words}, scores


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
