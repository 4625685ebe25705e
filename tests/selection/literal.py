"""The paper's Algorithms 1 and 2 word for word: the whole kernel, a whole solve a step, the whole cross product.

Slow on purpose, and sharing nothing with the product but the pool. The conventions where the paper is silent are those
of docs/architecture.md: nothing ranks above the query, so its percentile is 1; scored documents sit at their score with
sigma 0, two scored documents are no contested pair, ties go by retrieval rank and equal sigmas to the incumbent.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from boundarymorph.selection import Pool

JITTER = 1e-4


@dataclass
class LiteralRun:
    """What the literal algorithm did: picks in order, the set (best first), the mean after every step."""

    picks: list[int] = field(default_factory=list)
    selected: list[int] = field(default_factory=list)
    means: list[NDArray[np.float64]] = field(default_factory=list)


def distances_to_kernel(distance: NDArray[np.float64], median: float, name: str) -> NDArray[np.float64]:
    degenerate = median <= 1e-6
    if name == "vmf":
        return np.exp(-(1.0 if degenerate else np.log(2) / median) * distance)
    squared_length = 1.0 if degenerate else median
    if name == "rbf":
        return np.exp(-distance / squared_length)
    rho = np.sqrt(5 * np.maximum(distance, 0) / squared_length)
    return (1 + rho + rho**2 / 3) * np.exp(-rho)


def augmented_kernel(pool: Pool, kernel: str = "vmf", median: float | None = None) -> NDArray[np.float64]:
    """(N + 1, N + 1) with the query last; the median is over all document pairs i < j unless given."""
    points = np.vstack([pool.embeddings, pool.query[None]]).astype(np.float64)
    points /= np.linalg.norm(points, axis=1)[:, None]
    distinct, which = np.unique(points, axis=0, return_inverse=True)
    distance = (1.0 - distinct @ distinct.T)[
        np.ix_(which, which)
    ]  # equal vectors have equal distances, to the last bit
    if median is None:
        upper = distance[:-1, :-1][np.triu_indices(len(pool), 1)]
        median = float(np.median(upper)) if upper.size else 0.0
    matrix = distances_to_kernel(distance, median, kernel)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def percentile_prior(count: int) -> NDArray[np.float64]:
    """(N + 1,) mu_0 with the query last: (N - 1 - pos) / (N - 1), the MIPS percentile rank (app. C.3)."""
    ranks = np.arange(count)
    documents = (count - 1 - ranks) / (count - 1) if count > 1 else np.ones(count)
    return np.append(documents, 1.0)


def zero_prior(count: int) -> NDArray[np.float64]:
    """(N + 1,) "the MIPS percentile prior mean becomes a zero mean" (sec. 5.2), at the query as everywhere."""
    return np.zeros(count + 1)


def posterior(
    observed: list[int], scores: list[float], prior: NDArray[np.float64], matrix: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Algorithm 1, POSTERIOR(A, y, mu_0, K, C): mean and standard deviation (N,) of every document.

    observed: A, where N is the query; scores: y; prior: (N + 1,) mu_0; matrix: (N + 1, N + 1) K.
    """
    count = len(prior) - 1
    if not observed:
        return prior[:count].copy(), np.ones(count)
    residuals = np.array(scores) - prior[observed]
    centre, spread = residuals.mean(), residuals.std()
    if spread <= 1e-12:  # one residual, or equal ones
        spread = 1.0
    z = (residuals - centre) / spread
    factor = cho_factor(matrix[np.ix_(observed, observed)] + JITTER * np.eye(len(observed)), lower=True)
    cross = matrix[observed, :count]
    mean = cross.T @ cho_solve(factor, z)
    variance = matrix.diagonal()[:count] - np.einsum("tn,tn->n", cross, cho_solve(factor, cross))
    return prior[:count] + centre + spread * mean, spread * np.sqrt(np.maximum(variance, 0.0))


def run(
    pool: Pool,
    scores: NDArray[np.float64],
    budget: int,
    k: int,
    *,
    kernel: str = "vmf",
    prior: NDArray[np.float64] | None = None,
    anchored: bool = True,
    matrix: NDArray[np.float64] | None = None,
) -> LiteralRun:
    """Algorithm 2 against a table of true scores (N,). prior: (N + 1,) mu_0, the percentile unless given."""
    count = len(pool)
    mu_0 = percentile_prior(count) if prior is None else prior
    gram = augmented_kernel(pool, kernel) if matrix is None else matrix
    result = LiteralRun()
    # "A <- {q}, y <- {1}: query enters as a zero-cost observation at y = 1"
    observed, y = ([count], [1.0]) if anchored else ([], [])

    def believe() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        mean, std = posterior(observed, y, mu_0, gram)
        mean[result.picks], std[result.picks] = scores[result.picks], 0.0
        result.means.append(mean)
        return mean, std

    mean, std = believe()
    while k < count and len(result.picks) < min(budget, count):
        ranking = np.argsort(-mean, kind="stable")
        incumbents, challengers = np.sort(ranking[:k]), np.sort(ranking[k:])
        gap = mean[incumbents][:, None] - mean[challengers][None, :]
        spread = std[incumbents][:, None] + std[challengers][None, :]
        ratio = np.full(gap.shape, np.inf)
        np.divide(gap, spread, out=ratio, where=spread > 0)
        row, column = np.unravel_index(np.argmin(ratio), ratio.shape)
        j, i = int(incumbents[row]), int(challengers[column])
        document = j if std[j] >= std[i] else i
        result.picks.append(document)
        observed.append(document)
        y.append(float(scores[document]))
        mean, std = believe()
    result.selected = [int(d) for d in np.argsort(-mean, kind="stable")[: min(k, count)]]
    return result
