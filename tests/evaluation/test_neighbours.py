import numpy as np

from boundarymorph.evaluation.neighbours import ALPHA, Neighbourhood
from tests.evaluation.tables import on_a_circle
from tests.selection.pools import clustered


def test_nearest_against_all_cosines() -> None:
    pool, _ = clustered(120, 8, seed=3)
    positions, cosines = Neighbourhood(pool).nearest(7)
    products = pool.embeddings @ pool.embeddings.T
    np.fill_diagonal(products, -np.inf)
    assert np.array_equal(positions, np.argsort(-products, axis=1)[:, :7])
    assert np.allclose(cosines, -np.sort(-products, axis=1)[:, :7], atol=1e-6)


def test_more_neighbours_than_documents_is_all_others() -> None:
    positions, _ = Neighbourhood(on_a_circle([0, 10, 30], [0, 0, 0]).pool).nearest(16)
    assert positions.tolist() == [[1, 2], [0, 2], [1, 0]]


def _literal_prune(document: int, candidates: list[int], distance: np.ndarray, degree: int) -> list[int]:
    kept: list[int] = []
    waiting = sorted(candidates, key=lambda other: (distance[document, other], other))
    while waiting and len(kept) < degree:
        kept.append(waiting.pop(0))
        waiting = [other for other in waiting if ALPHA * distance[kept[-1], other] > distance[document, other]]
    return kept


def test_the_graph_against_a_literal_one() -> None:
    pool, _ = clustered(60, 6, seed=1)
    distance = 1 - pool.embeddings @ pool.embeddings.T
    forward = [_literal_prune(one, [other for other in range(60) if other != one], distance, 5) for one in range(60)]
    both = [set(forward[one]) | {other for other in range(60) if one in forward[other]} for one in range(60)]
    expected = [_literal_prune(one, list(both[one]), distance, 5) for one in range(60)]
    found = [[int(other) for other in row if other >= 0] for row in Neighbourhood(pool).graph(5)]
    assert found == expected
