"""Make vectors of a pool without an encoder, by latent semantic analysis.

The TF-IDF of the pool's own words (Deerwester et al. 1990) is reduced by a truncated singular value decomposition with
numpy alone: one pass of the method of Lanczos with full reorthogonalization (Golub and Van Loan, *Matrix Computations*,
10.3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.inference.concurrency import check_awaited
from boundarymorph.retrieval.words import PoolWords

DIMENSIONS = 128
STEPS = 2 * DIMENSIONS - 1  # steps of the decomposition; more did not improve selections
NEGLIGIBLE = 1e-4  # fraction of the largest singular value below which others are rounding errors
ROUNDING = 1e-6  # rounding of float32, relative to the largest number
SEED = 0


class LexicalVectors(NamedTuple):
    """Unit vectors in float32, with d at most DIMENSIONS.

    Attributes:
        documents: (N, d) rows.
        query: (d,).
    """

    documents: NDArray[np.float32]
    query: NDArray[np.float32]


def lexical_vectors(words: PoolWords, query: str) -> LexicalVectors:
    """Return the vectors of a pool's texts and of a query; deterministic.

    Texts without a word are equal and orthogonal to all others. A query without a word of the pool is orthogonal to all
    texts with words.
    """
    vocabulary, numbers = np.unique(words.hashes, return_inverse=True)
    counts = _Sparse.from_numbers(numbers, words.lengths, len(vocabulary))
    asked = PoolWords.from_texts([query], query=True).hashes
    places = np.minimum(np.searchsorted(vocabulary, asked), max(len(vocabulary) - 1, 0))
    known = places[vocabulary[places] == asked] if len(vocabulary) else places[:0]
    frequencies = np.bincount(counts.columns, minlength=len(vocabulary))
    weights = (1.0 + np.log((1 + counts.shape[0]) / (1 + frequencies))).astype(np.float32)
    documents = _weighted(counts, weights)
    question = _weighted(_Sparse.from_numbers(known, np.array([len(known)]), len(vocabulary)), weights)
    return LexicalVectors(*_directions(*_reduced(documents, question.row(0))))


class _Sparse(NamedTuple):
    """An (n, m) matrix by its entries, row by row.

    `starts` has (n + 1,) starts of rows, and the end.
    """

    values: NDArray[np.float32]
    columns: NDArray[np.intp]
    starts: NDArray[np.intp]
    shape: tuple[int, int]

    @classmethod
    def from_numbers(cls, numbers: NDArray[np.intp], lengths: NDArray[np.int64], vocabulary: int) -> _Sparse:
        texts = np.repeat(np.arange(len(lengths)), lengths)
        entries, counts = np.unique(texts * vocabulary + numbers, return_counts=True)
        texts, columns = np.divmod(entries, max(vocabulary, 1))
        return cls(counts.astype(np.float32), columns, _starts(texts, len(lengths)), (len(lengths), vocabulary))

    @property
    def rows(self) -> NDArray[np.intp]:
        return np.repeat(np.arange(self.shape[0]), np.diff(self.starts))

    def row(self, number: int) -> NDArray[np.float32]:
        entries = slice(*self.starts[number : number + 2])
        row = np.zeros(self.shape[1], dtype=np.float32)
        row[self.columns[entries]] = self.values[entries]
        return row

    def transposed(self) -> _Sparse:
        order = np.argsort(self.columns, kind="stable")
        return _Sparse(self.values[order], self.rows[order], _starts(self.columns, self.shape[1]), self.shape[::-1])

    def times(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (n,) the product with a (m,) vector. Raises CallerGone."""
        check_awaited()
        product = np.zeros(self.shape[0], dtype=np.float32)
        filled = np.flatnonzero(np.diff(self.starts))
        if len(filled):
            product[filled] = np.add.reduceat(self.values * vector[self.columns], self.starts[filled])
        return product


def _starts(numbers: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return (count + 1,) where each of `count` numbers begins in sorted order, and the end."""
    return np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=count))])


def _weighted(counts: _Sparse, weights: NDArray[np.float32]) -> _Sparse:
    """Return TF-IDF in rows of unit length: the weight of a word times 1 + log of its count."""
    values = (1.0 + np.log(counts.values)) * weights[counts.columns]
    lengths = np.sqrt(np.bincount(counts.rows, weights=np.square(values), minlength=counts.shape[0]))
    return counts._replace(values=(values / lengths[counts.rows]).astype(np.float32))


def _reduced(documents: _Sparse, question: NDArray[np.float32]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return (N, d) and (d,) coordinates along the leading right singular vectors."""
    count, vocabulary = documents.shape
    components = DIMENSIONS - 1
    if vocabulary <= components:
        coordinates = np.zeros(documents.shape, dtype=np.float32)
        coordinates[documents.rows, documents.columns] = documents.values
        return coordinates, question
    if count <= components:
        products = [documents.times(documents.row(number)) for number in range(count)]
        squares, left = np.linalg.eigh(np.array(products, dtype=np.float64))
    else:
        basis, projected = _lanczos(documents, min(STEPS, count))
        squares, mixed = np.linalg.eigh(projected)
        squares, left = squares[-components:], basis.T @ mixed[:, -components:].astype(np.float32)
    lengths = np.sqrt(np.maximum(squares, 0.0))
    kept = lengths > NEGLIGIBLE * lengths.max()
    left, lengths = left[:, kept], lengths[kept]
    return left * lengths, (documents.times(question) @ left) / lengths


def _lanczos(matrix: _Sparse, steps: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return up to (steps, n) orthonormal rows.

    Also return the matrix times its transpose in that basis, which is tridiagonal.
    """
    transposed, rng = matrix.transposed(), np.random.default_rng(SEED)
    basis = np.zeros((steps, matrix.shape[0]), dtype=np.float32)
    projected = np.zeros((steps, steps))
    following, length = basis[0], 0.0
    for step in range(steps):
        if length > ROUNDING * projected.max():
            projected[step, step - 1] = projected[step - 1, step] = length
        else:  # at first, and if no other direction can be reached from there
            anywhere = matrix.times(transposed.times(rng.standard_normal(matrix.shape[0]).astype(np.float32)))
            following = _orthogonal_part(basis[:step], anywhere)
            length = float(np.linalg.norm(following))
            if length <= ROUNDING * np.linalg.norm(anywhere):
                return basis[:step], projected[:step, :step]
        basis[step] = following / length
        following = matrix.times(transposed.times(basis[step]))
        projected[step, step] = basis[step] @ following
        following = _orthogonal_part(basis[: step + 1], following)
        length = float(np.linalg.norm(following))
    return basis, projected


def _orthogonal_part(basis: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
    remaining = vector.copy()
    for _ in range(2):  # the second time against rounding errors
        remaining -= (basis @ remaining) @ basis
    return remaining


def _directions(
    documents: NDArray[np.floating], query: NDArray[np.floating]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Normalize to unit length.

    Rows without a direction get one in an extra dimension, opposite for the query.
    """
    rows = np.pad(np.vstack([documents, query]), ((0, 0), (0, 1))).astype(np.float64)
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    without = lengths <= NEGLIGIBLE**2
    rows[without] = 0.0
    rows[without, -1] = 1.0
    if without[-1]:
        rows[-1, -1] = -1.0
    lengths[without] = 1.0
    rows /= lengths[:, None]
    unit = rows.astype(np.float32)
    return unit[:-1], unit[-1]


def _warm_up() -> None:
    """Let BLAS allocate its memory now.

    Later, OpenBLAS might try that for ever while it holds the interpreter.
    """
    lexical_vectors(PoolWords.from_texts(f"{number} {number % 7}" for number in range(2 * DIMENSIONS)), "1")


_warm_up()
