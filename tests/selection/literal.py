"""Implement Algorithms 1 and 2 of the paper as they are printed.

The kernel is whole, the factorisation starts from scratch at every step, and every incumbent meets every challenger.
This is slow, and shares nothing with the code that is tested against it.

It was written from the paper's text alone (section 3, appendices C.1, C.3 and C.4). The text does not say the
following. The query has the prior mean 1 under the percentile prior, as nothing ranks above it, and 0 under a zero
prior. A scored document has its score as the mean and no deviation, so it is not scored again. Two scored documents are
no contested pair.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection import Pool

Array = NDArray[np.float64]

JITTER, ESCALATED_JITTER = 1e-4, 1e-2
DEGENERATE = 1e-6  # a smaller median distance is rounding of equal vectors
EQUAL = 1e-12  # a smaller deviation means one observation, or equal ones


@dataclass
class LiteralRun:
    """The result of a run.

    Attributes:
        picks: The documents in the order of their calls.
        selected: The set, best first.
        means: The means (N,) before and after every call.
    """

    picks: list[int] = field(default_factory=list)
    selected: list[int] = field(default_factory=list)
    means: list[Array] = field(default_factory=list)


def run(
    pool: Pool,
    scores: Array,
    budget: int,
    k: int,
    *,
    kernel: str = "vmf",
    zero_prior: bool = False,
    anchored: bool = True,
    matrix: Array | None = None,
) -> LiteralRun:
    """Run Algorithm 2 with a table (N,) of the cross-encoder's scores.

    The query is row N of the kernel. `matrix` is the kernel (N + 1, N + 1), if it is known, and `anchored` says whether
    the query is observed.
    """
    n = len(pool)
    gram = augmented_kernel(pool, kernel) if matrix is None else matrix
    prior = np.zeros(n + 1) if zero_prior else percentile_prior(n)
    observed, y = ([n], [1.0]) if anchored else ([], [])
    result = LiteralRun()
    mean, deviation = believed(observed, y, prior, gram)
    result.means.append(mean)
    while k < n and len(result.picks) < min(budget, n):
        ranked = by_mean(mean)
        document = least_certain(mean, deviation, np.sort(ranked[:k]), np.sort(ranked[k:]))
        result.picks.append(document)
        observed, y = [*observed, document], [*y, float(scores[document])]
        mean, deviation = believed(observed, y, prior, gram)
        result.means.append(mean)
    result.selected = by_mean(mean)[:k].tolist()
    return result


def posterior(observed: list[int], y: list[float], prior: Array, kernel: Array) -> tuple[Array, Array]:
    """Return the mean and the standard deviation (N,) of all documents by Algorithm 1."""
    if not observed:
        return prior[:-1].copy(), np.ones(len(prior) - 1)
    e = np.array(y) - prior[observed]
    spread = e.std() if e.std() > EQUAL else 1.0
    z = (e - e.mean()) / spread
    across = kernel[observed, :-1]  # (t, N)
    solved = solve(kernel[np.ix_(observed, observed)], np.column_stack([z, across]))
    mean = prior[:-1] + e.mean() + spread * (across.T @ solved[:, 0])
    variance = spread**2 * np.maximum(1.0 - np.sum(across * solved[:, 1:], axis=0), 0.0)
    return mean, np.sqrt(variance)


def believed(observed: list[int], y: list[float], prior: Array, kernel: Array) -> tuple[Array, Array]:
    """Return the posterior, with scored documents at their true score."""
    mean, deviation = posterior(observed, y, prior, kernel)
    for document, score in zip(observed, y, strict=True):
        if document < len(mean):
            mean[document], deviation[document] = score, 0.0
    return mean, deviation


def solve(observed: Array, right: Array) -> Array:
    """Return (K + jitter I)^-1 right.

    If the factorisation fails, the jitter grows, and a pseudo-inverse is the last resort.
    """
    identity = np.eye(len(observed))
    for jitter in (JITTER, ESCALATED_JITTER):
        try:
            lower = np.linalg.cholesky(observed + jitter * identity)
        except np.linalg.LinAlgError:
            continue
        return np.asarray(np.linalg.solve(lower.T, np.linalg.solve(lower, right)))
    return np.asarray(np.linalg.pinv(observed + ESCALATED_JITTER * identity) @ right)


def least_certain(mean: Array, deviation: Array, incumbents: NDArray[np.intp], challengers: NDArray[np.intp]) -> int:
    """Return the document of the pair with the smallest standardized boundary gap.

    Of the two, it is the one with the larger deviation.
    """
    gap = mean[incumbents, None] - mean[challengers]
    together = deviation[incumbents, None] + deviation[challengers]
    ratio = np.where(together > 0, gap / np.where(together > 0, together, 1.0), np.inf)
    row, column = np.unravel_index(ratio.argmin(), ratio.shape)
    j, i = int(incumbents[row]), int(challengers[column])
    return j if deviation[j] >= deviation[i] else i


def by_mean(mean: Array) -> NDArray[np.intp]:
    """Order documents by posterior mean, and equal means by MIPS percentile."""
    return np.argsort(-mean, kind="stable")


def percentile_prior(n: int) -> Array:
    """Return (N + 1,) MIPS percentile ranks of the documents and the query."""
    return np.append((n - 1 - np.arange(n)) / (n - 1) if n > 1 else np.ones(n), 1.0)


def augmented_kernel(pool: Pool, kernel: str = "vmf", median: float | None = None) -> Array:
    """Return the kernel (N + 1, N + 1) of the documents and the query.

    Unless a median distance is given, it is that of all pairs of documents.
    """
    u = cosine_distances(pool)
    if median is None:
        pairs = u[:-1, :-1][np.triu_indices(len(pool), 1)]
        median = float(np.median(pairs)) if pairs.size else 0.0
    scale = median if median > DEGENERATE else 1.0
    if kernel == "vmf":
        gram = np.exp((np.log(2.0) / scale if median > DEGENERATE else 1.0) * -u)
    elif kernel == "rbf":
        gram = np.exp(-u / scale)
    else:
        rho = np.sqrt(5.0 * np.maximum(u, 0.0) / scale)
        gram = (1.0 + rho + rho**2 / 3.0) * np.exp(-rho)
    np.fill_diagonal(gram, 1.0)
    return np.asarray(gram)


def cosine_distances(pool: Pool) -> Array:
    """Return (N + 1, N + 1) distances 1 - cos.

    The distances of equal vectors are equal to the last bit, so that ties remain ties.
    """
    vectors = np.vstack([pool.embeddings, pool.query]).astype(np.float64)
    distinct, which = np.unique(vectors / np.linalg.norm(vectors, axis=1)[:, None], axis=0, return_inverse=True)
    return np.asarray((1.0 - distinct @ distinct.T)[np.ix_(which, which)])
