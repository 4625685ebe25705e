"""What a selection is said to take is what it takes, and not many times as much."""

import tracemalloc

import numpy as np
import pytest

from boundarymorph.selection import Pool, SelectionSession
from boundarymorph.selection.methods import METHODS
from boundarymorph.selection.pool import footprint

pytestmark = pytest.mark.strangers


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("count", "budget", "at_once"), [(3_000, 20, 8), (1_500, 150, 32), (400, 300, 256)])
def test_of_the_peak(method: str, count: int, budget: int, at_once: int) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((count, 32), dtype=np.float32)
    ids, bm25, terms = [str(number) for number in range(count)], draw.random(count), draw.random((8, count)) < 0.1
    pool = Pool.of(ids, vectors, vectors[0] + 0.1, np.arange(count, 0, -1.0), {"bm25": bm25}, terms)
    tracemalloc.start()
    session = SelectionSession(pool, budget=budget, k=50, config=METHODS[method], order=True)
    while (asked := session.ask(at_once)).size:
        session.tell(asked, draw.random(len(asked)))
    session.ranking()
    session.outlook()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= footprint(pool, budget) <= 4 * peak + pool.embeddings.nbytes


def test_a_budget_of_more_calls_than_candidates_takes_no_more() -> None:
    pool = Pool.listed([str(number) for number in range(10)])
    assert footprint(pool, 10) == footprint(pool, 2_000) == 20 * 100 + 25 * 100 + 15_000 + pool.embeddings.nbytes
