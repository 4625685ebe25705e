"""Hold the candidates of one query in retrieval order, with prior means and features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boundarymorph.errors import DuplicateIds, InvalidEmbeddings, InvalidInput

COMPLETE = ("bm25", "similarity")  # features that need a value for every document
COLUMNS = 256  # float32 products summed in float32 before they are added to a float64 sum


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """N candidates C of one query q, best retrieval score first (paper sec. 2, "Setup").

    Build one with `Pool.from_embeddings`, which checks, normalises and orders; the constructor takes arrays unchanged.

    Attributes:
        ids: N document ids, unique.
        embeddings: (N, d) unit rows, float32 or float64.
        query: (d,) unit vector, of the same type.
        scores: (N,) float64 retrieval scores, non-increasing.
        features: Further (N,) float64 signals by name, such as "bm25"; NaN where a document has none.
        terms: (w, N) which words of the query each document has; None if the words are unknown.
    """

    ids: Sequence[str]
    embeddings: NDArray[np.floating]
    query: NDArray[np.floating]
    scores: NDArray[np.float64]
    features: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    terms: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def from_embeddings(
        cls,
        ids: Sequence[str],
        embeddings: ArrayLike,
        query: ArrayLike,
        scores: ArrayLike | None = None,
        features: Mapping[str, ArrayLike] | None = None,
        terms: NDArray[np.bool_] | None = None,
    ) -> Pool:
        """Check the candidates, bring vectors to unit length and sort by score.

        Ties keep the given order. float64 embeddings stay float64, any other type becomes float32.

        Args:
            ids: N document ids.
            embeddings: (N, d) vectors.
            query: (d,) vector.
            scores: (N,) retrieval scores; by default the inner products of unit vectors.
            features: (N,) signals by name.
            terms: (w, N) which words of the query each document has.

        Raises:
            InvalidEmbeddings: If vectors have a wrong shape or no direction. It names the first such document.
            DuplicateIds: If an id occurs twice.
            InvalidInput: If the pool is empty, or if scores, features, or terms do not fit.
        """
        if not ids:
            raise InvalidInput("the pool is empty; give at least one document")
        _refuse_duplicates(ids)
        matrix = unit_rows(embeddings, ids)
        if len(matrix) != len(ids):
            raise InvalidEmbeddings(f"{len(ids)} documents came with {len(matrix)} embeddings; give one for each")
        vector = unit_rows(np.asarray(query).reshape(1, -1), ["the query"])[0].astype(matrix.dtype, copy=False)
        if vector.size != matrix.shape[1]:
            raise InvalidEmbeddings(
                f"the documents' embeddings have {matrix.shape[1]} dimensions and the query's {vector.size}; "
                "use one encoder for both"
            )
        values = _vector(matrix @ vector if scores is None else scores, "score", ids)
        signals = {
            name: _vector(signal, name, ids, missing=name not in COMPLETE) for name, signal in (features or {}).items()
        }

        if terms is not None and (terms.ndim != 2 or terms.shape[1] != len(ids)):
            raise InvalidInput(f"{len(ids)} documents need as many columns of terms, not an array of {terms.shape}")

        order = np.argsort(-values, kind="stable")
        if np.array_equal(order, np.arange(len(ids))):
            return cls(ids, matrix, vector, values, signals, terms)
        return cls(
            [ids[i] for i in order],
            matrix[order],
            vector,
            values[order],
            {name: signal[order] for name, signal in signals.items()},
            None if terms is None else terms[:, order],
        )

    @classmethod
    def from_ids(cls, ids: Sequence[str], scores: ArrayLike | None = None) -> Pool:
        """Return a pool in a given order, without vectors.

        Args:
            ids: N document ids.
            scores: (N,) retrieval scores; all equal by default.

        Raises:
            InvalidInput: If the pool is empty or a score is not finite.
            DuplicateIds: If an id occurs twice.
        """
        if not ids:
            raise InvalidInput("the pool is empty; give at least one document")
        _refuse_duplicates(ids)
        values = _vector(np.zeros(len(ids)) if scores is None else scores, "score", ids)
        order = np.argsort(-values, kind="stable")
        nothing = np.empty((len(ids), 0), dtype=np.float32)
        return cls([ids[i] for i in order], nothing, np.empty(0, dtype=np.float32), values[order])


def unit_rows(embeddings: ArrayLike, names: Sequence[str]) -> NDArray[np.floating]:
    """Return the rows of an (n, d) array divided by their lengths.

    Args:
        embeddings: The (n, d) array.
        names: Names of the rows for error messages.

    Raises:
        InvalidEmbeddings: If the shape is wrong, or a row has no direction.
    """
    given = matrix = np.asarray(embeddings)
    if matrix.ndim != 2 or matrix.shape[1] == 0 or not np.issubdtype(matrix.dtype, np.number):
        raise InvalidEmbeddings(f"embeddings must be numbers of shape (N, d), not {matrix.dtype} of {matrix.shape}")
    matrix = np.ascontiguousarray(matrix, dtype=np.float64 if matrix.dtype == np.float64 else np.float32)
    lengths = row_lengths(matrix)
    bad = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
    if bad.size:
        row = int(bad[0])
        name = repr(names[row]) if row < len(names) else f"row {row}"
        raise InvalidEmbeddings(f"the embedding of {name} has no direction: it is zero, not finite, or huge")
    if np.abs(lengths - 1).max() <= np.finfo(matrix.dtype).eps:
        return matrix
    own = None if np.may_share_memory(matrix, given) else matrix
    unit: NDArray[np.floating] = np.divide(matrix, lengths[:, None].astype(matrix.dtype), out=own)
    return unit


def row_lengths(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the (n,) Euclidean lengths of (n, d) rows, summed in float64."""
    squares = np.zeros(len(rows))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, rows.shape[1], COLUMNS):
            stretch = rows[:, start : start + COLUMNS]
            squares += np.einsum("nd,nd->n", stretch, stretch)
    return np.sqrt(squares)


def _vector(values: ArrayLike, what: str, ids: Sequence[str], *, missing: bool = False) -> NDArray[np.float64]:
    """Return the values as an (N,) float64 array; with `missing`, NaN is a missing value."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (len(ids),):
        raise InvalidInput(f"{what}: an array of {vector.shape} for {len(ids)} documents; give one value for each")
    bad = np.flatnonzero(np.isinf(vector) if missing else ~np.isfinite(vector))
    if bad.size:
        raise InvalidInput(f"the {what!r} of {ids[int(bad[0])]!r} is not a finite number")
    return vector


def _refuse_duplicates(ids: Sequence[str]) -> None:
    if len(set(ids)) == len(ids):
        return
    seen: set[str] = set()
    for identifier in ids:
        if identifier in seen:
            raise DuplicateIds(f"the id {identifier!r} occurs more than once; ids must be unique within a pool")
        seen.add(identifier)


# Measured bytes per pair, per squared call and per candidate, with temporary arrays. Two fields take 8 B N bytes of
# covariances and 16 B^2 of factors, and rounds of many documents take half as much again.
OF_A_PAIR, OF_TWO_CALLS, OF_A_CANDIDATE = 20, 25, 1_500


def footprint(pool: Pool, budget: int) -> int:
    """Return the most bytes that a selection takes.

    These are 20 B N + 25 B^2 + 1,500 N bytes, and the vectors of the pool.
    """
    count = len(pool)
    calls = min(budget, count)
    return OF_A_PAIR * calls * count + OF_TWO_CALLS * calls**2 + OF_A_CANDIDATE * count + pool.embeddings.nbytes


class Normal(NamedTuple):
    mean: float
    deviation: float


class TrendPrior(NamedTuple):
    """The prior of `TrendPosterior`.

    It is normal for the level and the slopes, and inverse gamma for the squared amplitude. The defaults say that most
    cross-encoders accept few documents, and prefer those that the retriever prefers.

    Attributes:
        level: The level of the log-odds. All deviations are in units of the amplitude.
        rank: The slope along the ranking.
        similarity: The slope in the similarity.
        words: The slope in BM25.
        scale: The squared amplitude.
        scores: The number of scores that the scale counts as.
    """

    level: Normal = Normal(-3.0, 4.0)
    rank: Normal = Normal(0.5, 0.3)
    similarity: Normal = Normal(0.5, 0.3)
    words: Normal = Normal(0.3, 0.5)
    scale: float = 1.0
    scores: float = 1.0

    @property
    def slopes(self) -> NDArray[np.float64]:
        """(3,) expected slopes along the ranking, in the similarity and in BM25."""
        return np.array([self.rank.mean, self.similarity.mean, self.words.mean])

    @property
    def deviations(self) -> NDArray[np.float64]:
        """(4,) standard deviations of the level and of the three slopes."""
        return np.array([each.deviation for each in (self.level, self.rank, self.similarity, self.words)])


DEFAULT_PRIOR = TrendPrior()


Trust = Literal["weak", "normal", "strong"]  # how far a scorer is trusted to agree with people
# The weight of the signals beside a scorer, in standard deviations of its log-odds over the pool, by the trust in it.
# The studies `constants` and `strong` of load_tests/studies.py show how they were chosen.
SIGNAL_WEIGHTS: Mapping[Trust, float] = {"weak": 1.0, "normal": 0.5, "strong": 0.15}
BY_WORDS = 0.15  # the share of BM25 in `combined_signals`
SIGNAL_WEIGHT = SIGNAL_WEIGHTS["strong"]


def standardised(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the (N,) values with mean 0 and standard deviation 1; zeros where all are equal.

    The result is finite for any finite values.
    """
    scale = np.abs(values).max(initial=0.0)
    if scale == 0.0:
        return np.zeros(len(values))
    centred = np.asarray(values, dtype=np.float64) / scale
    centred -= centred.mean()
    deviation = centred.std()
    if deviation <= 1e-12:
        return np.zeros(len(centred))
    standard: NDArray[np.float64] = centred / deviation
    return standard


def rank_and_similarity(pool: Pool) -> NDArray[np.float64]:
    """Return (2, N) the retrieval rank and the similarity, standardised.

    The similarity is the feature "similarity" or, for a pool without it, the retrieval score. Documents of one
    retrieval score share a rank, because the order among them means nothing. In a fused ranking the similarity is more
    informative than the fused score (docs/results.md).
    """
    return np.stack([standardised(ranks(pool.scores)), similarity(pool)])


def similarity(pool: Pool) -> NDArray[np.float64]:
    """Return the (N,) similarity to the query, standardised."""
    return standardised(pool.features.get("similarity", pool.scores))


def lexical(pool: Pool) -> NDArray[np.float64]:
    """Return (1, N) the square root of BM25, standardised, or (0, N) for a pool without BM25."""
    if "bm25" not in pool.features:
        return np.empty((0, len(pool)))
    return standardised(np.sqrt(np.maximum(pool.features["bm25"], 0.0)))[None]


def combined_signals(pool: Pool, near: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Combine the signals beside the scorer: nearness and, in a pool with BM25, the words.

    Args:
        pool: The pool.
        near: (N,) nearness with mean 0 and standard deviation 1, as the words have. By default the similarity.

    Returns:
        (N,) their mean, weighted by `BY_WORDS`.
    """
    near, words = similarity(pool) if near is None else near, lexical(pool)
    return (1.0 - BY_WORDS) * near + BY_WORDS * words[0] if len(words) else near


def signals(pool: Pool) -> NDArray[np.float64]:
    """Return the (M, N) other features of the pool, sorted by name, as standardised ranks.

    With ranks, scale and outliers do not matter. The value is 0 where a document lacks the feature.
    """
    others = sorted(pool.features.keys() - set(COMPLETE))
    columns = np.zeros((len(others), len(pool)))
    for column, name in zip(columns, others, strict=True):
        there = ~np.isnan(pool.features[name])
        column[there] = standardised(ranks(pool.features[name][there]))
    return columns


def terms(pool: Pool) -> NDArray[np.floating]:
    """Return (w, N) which words of the query each document has, centred and scaled.

    The columns have a mean squared length of 1. The array is (0, N) if the pool has no words, and has the type of the
    embeddings.
    """
    if pool.terms is None:
        return np.empty((0, len(pool)), dtype=pool.embeddings.dtype)
    centred = pool.terms.astype(pool.embeddings.dtype)
    centred -= centred.mean(axis=1, keepdims=True)
    length = np.sqrt(np.square(centred).sum() / len(pool))
    return centred / length if length > 0 else centred


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n,) ascending ranks; equal values share their mean rank."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return ranks
