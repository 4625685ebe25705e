"""A posterior that learns how this cross-encoder relates to this retriever, with the field.

The paper's prior takes the score to fall from 1 to 0 along the ranking. Most cross-encoders do not: they saturate, most
scores are near 0, and the residual is then little more than the prior itself. Here the score is believed on its
log-odds scale. Its level, its slopes along the ranking, in the similarity and (where there are such) in BM25 and in
signals of the caller's, and the scale of everything are unknown and learned with the field: level and amplitude are
profiled, and fields with and without a signal are averaged by how well they explain the scores so far. The noise, the
weight of the trend and the bandwidth are constants, which were chosen on the tables of docs/evaluation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief
from boundarymorph.selection.covariance import SharedCovariance, SharedRows
from boundarymorph.selection.features import lexical, rank_and_similarity, signals
from boundarymorph.selection.kernels import Kernel
from boundarymorph.selection.link import FLOOR, expected_probability, log_odds, probability, resolution, stretched
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.process import MINIMUM_VARIANCE, GaussianProcess, Rehearsal

NOISE = 0.2
LINEAR_WEIGHT = 0.25
MINIMUM_SQUARES = 1e-12
KNOWN = 1e12  # precision of the level before the first score, which makes it the base
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


@dataclass(eq=False)
class Mixture:
    """What the members believe of N documents on the log-odds scale. weights: (q,); means, variances: (q, N).

    observed: positions of the scored documents; log_odds, scores: (t,) theirs; clip: where scores were held.
    """

    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    variances: NDArray[np.float64]
    observed: NDArray[np.intp]
    log_odds: NDArray[np.float64]
    scores: NDArray[np.float64]
    clip: float

    def belief(self) -> Belief:
        """On the log-odds scale: mean and deviation of the mixture."""
        mean = self.weights @ self.means
        second = self.weights @ (self.variances + np.square(self.means))
        std = np.sqrt(np.maximum(second - np.square(mean), MINIMUM_VARIANCE))
        return Belief.given(mean, std, self.observed, self.log_odds)

    def relevance(self) -> NDArray[np.float64]:
        relevance: NDArray[np.float64] = self.weights @ expected_probability(self.means, self.variances)
        relevance[self.observed] = self.scores
        return relevance

    def gain(self) -> NDArray[np.float64]:
        gain = stretched(self.relevance(), self.clip)
        gain[self.observed] = self.scores
        return gain

    def deviation(self, documents: NDArray[np.intp]) -> NDArray[np.float64]:
        first, second = np.zeros((2, len(documents)))
        means, spreads = self.means[:, documents], np.sqrt(self.variances[:, documents])
        for node, weight in zip(NODES, NODE_WEIGHTS, strict=True):
            values = probability(means + node * spreads)
            first += weight * (self.weights @ values)
            second += weight * (self.weights @ np.square(values))
        deviation = np.sqrt(np.maximum(second - np.square(first), 0.0))
        return np.where(np.isin(documents, self.observed), 0.0, deviation)

    def among(self, documents: NDArray[np.intp]) -> Mixture:
        """Of some documents alone, ascending, every scored one among them."""
        observed = np.searchsorted(documents, self.observed)
        means, variances = self.means[:, documents], self.variances[:, documents]
        return replace(self, means=means, variances=variances, observed=observed)


@dataclass(eq=False)
class TrendFantasy(Mixture):
    """A mixture on some documents. Amplitudes and weights stay what the real scores make them, since a fantasy confirms
    itself; level and slopes are among what each member is uncertain of."""

    rehearsals: Sequence[Rehearsal]

    def fantasise(self, document: int, mean: float) -> None:
        rows, pivots = map(np.concatenate, zip(*(one.condition(document) for one in self.rehearsals), strict=True))
        self.means += (mean - self.means[:, document, None]) / pivots * rows
        self.variances -= np.square(rows)
        self.observed = np.append(self.observed, document)
        self.log_odds = np.append(self.log_odds, mean)
        self.scores = np.append(self.scores, probability(np.array(mean)))


class TrendPosterior:
    """A mixture of Gaussian processes over a pool of N documents, after at most `size` scores.

    Each member believes the log-odds y to be a level (generalised least squares under a flat prior), plus an amplitude
    (maximum likelihood) times a sum: slopes of prior variance `weight` in the features F, and a field of covariance k
    with noise. The members, with and without BM25 and the caller's signals, are one process, whose columns are the
    level and the features: with the lower Cholesky factor of G'G + prior precisions, the leading entries are those of
    the fit without the last columns. Memory: size N numbers of the type of the embeddings.
    """

    def __init__(
        self, pool: Pool, kernel: Kernel, size: int, *, noise: float = NOISE, weight: float = LINEAR_WEIGHT
    ) -> None:
        always, by_words, others = rank_and_similarity(pool), lexical(pool), signals(pool)
        others /= max(len(others), 1)  # the more there are, the less each is expected to say
        features = np.concatenate([always, by_words, others])
        columns = np.concatenate([np.ones((1, len(pool))), np.sqrt(weight) * features])
        self._shared, self._weights = SharedRows(pool, kernel), (0.0, weight)
        self._processes = [
            GaussianProcess(covariance, columns, max(size, 1), noise, dtype=pool.embeddings.dtype)
            for covariance in self._covariances(self._shared)
        ]
        sizes = {1 + len(always), 1 + len(always) + len(by_words), len(columns)}
        self._sizes: list[int] = sorted(sizes)  # columns of each member
        self._scores: dict[int, float] = {}
        self._clip = FLOOR
        self._base = 0.0  # what the process's targets are counted from, so that equal scores make exactly equal means
        self._mixture = self._mixed()

    def observe(self, documents: Sequence[int], scores: Sequence[float]) -> None:
        self._scores.update(zip(documents, scores, strict=True))
        clip = resolution(self._scores.values())
        changed, self._clip = clip != self._clip, clip
        values = log_odds(np.array(list(self._scores.values())), clip)
        self._base = float(values[0]) if values.size else 0.0
        for process in self._processes:
            process.observe(documents, values[len(values) - len(documents) :] - self._base)
            if changed:
                process.retarget(values - self._base)
        self._mixture = self._mixed()

    def belief(self) -> Belief:
        """On the log-odds scale: mean and deviation of the mixture."""
        return self._mixture.belief()

    def relevance(self) -> NDArray[np.float64]:
        return self._mixture.relevance()

    def gain(self) -> NDArray[np.float64]:
        return self._mixture.gain()

    def deviation(self, documents: NDArray[np.intp]) -> NDArray[np.float64]:
        return self._mixture.deviation(documents)

    def ready(self, document: int) -> bool:
        return self._processes[0].ready(document)

    def prepare(self, documents: Sequence[int]) -> None:
        for process in self._processes:
            process.prepare(documents)

    def among(self, documents: NDArray[np.intp]) -> TrendFantasy:
        covariances = self._covariances(self._shared.among(documents))
        rehearsals = [
            fitted.process.rehearsal(
                documents, covariance, [part[:, documents] for part in fitted.parts], fitted.scales
            )
            for fitted, covariance in zip(self._fitted, covariances, strict=True)
        ]
        return TrendFantasy(**vars(self._mixture.among(documents)), rehearsals=rehearsals)

    def _covariances(self, shared: SharedRows) -> list[SharedCovariance]:
        return [SharedCovariance(shared, weight) for weight in self._weights]

    def _mixed(self) -> Mixture:
        self._fitted = [Fitted.of(process, self._sizes) for process in self._processes]
        likelihoods = np.concatenate([fitted.log_likelihoods for fitted in self._fitted])
        weights = np.exp(likelihoods - likelihoods.max())
        weights /= weights.sum()
        means = np.concatenate([fitted.means for fitted in self._fitted])
        means += self._base
        variances = np.concatenate([fitted.variances for fitted in self._fitted])
        process, scores = self._processes[0], np.array(list(self._scores.values()))
        observed, log_odds = np.array(process.observed, dtype=np.intp), process.targets + self._base
        return Mixture(weights, means, variances, observed, log_odds, scores, self._clip)


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """The members that share a process, fitted to what it observed: by least squares in their leading columns under
    the columns' priors, with the amplitude by maximum likelihood.

    parts: of each of q members, the (p, N) whose inner products are what its trend adds to posterior covariances.
    scales: (q,) squared amplitudes. log_likelihoods: (q,) profiled, with the coefficients integrated out. means,
    variances: (q, N) with what is not known of the coefficients.
    """

    process: GaussianProcess
    parts: list[NDArray[np.float64]]
    scales: NDArray[np.float64]
    log_likelihoods: NDArray[np.float64]
    means: NDArray[np.float64]
    variances: NDArray[np.float64]

    @classmethod
    def of(cls, process: GaussianProcess, sizes: Sequence[int]) -> Fitted:
        """sizes: (q,) leading columns of each member. With R the inverse of the lower Cholesky factor of the columns'
        posterior precision, all that concerns a member is in the leading entries."""
        columns, targets = process.whitened_columns, process.whitened_targets
        precision = columns.T @ columns
        precision[0, 0] += 0.0 if process.observed else KNOWN
        precision[1:, 1:] += np.eye(len(precision) - 1)
        inverse = np.linalg.inv(np.linalg.cholesky(precision))
        loads = inverse @ (columns.T @ targets)
        directions = inverse @ process.residuals
        parts = [directions[:size] for size in sizes]

        scales, likelihoods = np.ones(len(sizes)), np.zeros(len(sizes))
        if (free := len(targets) - 1) > 0:
            squares = targets @ targets - np.array([loads[:size] @ loads[:size] for size in sizes])
            scales = (np.maximum(squares, 0.0) + MINIMUM_SQUARES) / free
            volumes = -np.cumsum(np.log(inverse.diagonal()))[np.array(sizes) - 1]
            likelihoods = -free / 2 * np.log(scales) - process.log_determinant - volumes

        means = np.stack([loads[: len(part)] @ part for part in parts])
        means += process.explained
        variances = np.stack([np.einsum("pn,pn->n", part, part) for part in parts])
        variances += np.maximum(process.variance, MINIMUM_VARIANCE)
        variances *= scales[:, None]
        return cls(process, parts, scales, likelihoods, means, variances)
