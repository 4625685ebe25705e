"""The memory of a selection."""

from __future__ import annotations

from boundarymorph.selection.pool import Pool

# As measured, with what is there for a while: two fields take 8 B N bytes of covariances and 16 B^2 of factors, and
# rounds of many documents take half as much again.
OF_A_PAIR, OF_TWO_CALLS, OF_A_CANDIDATE = 20, 25, 1_500


def footprint(pool: Pool, budget: int) -> int:
    """Return the most bytes that a selection takes: 20 B N + 25 B^2 + 1,500 N, and the vectors of the pool."""
    count = len(pool)
    calls = min(budget, count)
    return OF_A_PAIR * calls * count + OF_TWO_CALLS * calls**2 + OF_A_CANDIDATE * count + pool.embeddings.nbytes
