"""A posterior that learns how this cross-encoder relates to this retriever, with the field.

The paper's prior takes the score to fall from 1 to 0 along the ranking. Most cross-encoders do not: they saturate, most
scores are near 0, and the residual is then little more than the prior itself. Here the score is believed on its
log-odds scale. Its level, its slopes along the ranking, in the similarity and (where there is one) in BM25, and the
scale of everything are unknown and learned with the field: level and amplitude are profiled, and fields with and
without a signal are averaged by how well they explain the scores so far. The noise, the weight of the trend and the
bandwidth are constants, which were chosen on the tables of docs/evaluation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief
from boundarymorph.selection.covariance import SharedRows, TrendCovariance
from boundarymorph.selection.features import lexical, rank_and_similarity
from boundarymorph.selection.kernels import Kernel
from boundarymorph.selection.link import FLOOR, expected_probability, log_odds, probability, resolution, stretched
from boundarymorph.selection.pool import Pool
from boundarymorph.selection.process import Checkpoint, GaussianProcess

NOISE = 0.2
LINEAR_WEIGHT = 0.25
MINIMUM_VARIANCE = 1e-12
MINIMUM_SQUARES = 1e-12
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One member's posterior on the log-odds scale: mean and variance (N,), its weight among the members."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    weight: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What the scores say of one member: the amplitude of its field and the log of its marginal likelihood."""

    amplitude: float
    log_likelihood: float


class TrendPosterior:
    """A mixture of Gaussian processes over a pool of N documents, after at most `size` scores.

    Each member believes the log-odds y to be a level (generalised least squares under a flat prior), plus an amplitude
    (maximum likelihood) times a field of covariance k + w F'F with noise. The members differ in their signals: with
    and without BM25, with and without a reweighted query. Memory: 8 size N bytes a member, of which there are 2 or 4.
    """

    def __init__(
        self, pool: Pool, kernel: Kernel, size: int, *, noise: float = NOISE, weight: float = LINEAR_WEIGHT
    ) -> None:
        shared = SharedRows(pool, kernel)
        always, sometimes = rank_and_similarity(pool), lexical(pool)
        feature_sets = [always, np.concatenate([always, sometimes])] if len(sometimes) else [always]
        self._members = [
            GaussianProcess(
                TrendCovariance(shared, features, reweighted=reweighted, weight=weight), max(size, 1), noise
            )
            for features, reweighted in product(feature_sets, (False, True))
        ]
        self._scores: dict[int, float] = {}
        self._clip = FLOOR
        self._base = 0.0  # what the members' targets are counted from, so that equal scores make exactly equal means
        self._moment: tuple[list[Checkpoint], list[Fit]] | None = None

    def observe(self, document: int, score: float) -> None:
        self._scores[document] = score
        clip = resolution(self._scores.values())
        changed, self._clip = clip != self._clip, clip
        values = log_odds(np.array(list(self._scores.values())), clip)
        self._base = float(values[0])
        for member in self._members:
            member.observe(document, float(values[-1]) - self._base)
            if changed:
                member.retarget(values - self._base)

    def fantasise(self, document: int, mean: float) -> None:
        for member in self._members:
            member.observe(document, mean - self._base)

    def belief(self) -> Belief:
        """On the log-odds scale: mean and deviation of the mixture."""
        fields = self._fields()
        mean = np.zeros_like(fields[0].mean)
        second = np.zeros_like(mean)
        for field in fields:
            mean += field.weight * field.mean
            second += field.weight * (field.variance + np.square(field.mean))
        std = np.sqrt(np.maximum(second - np.square(mean), MINIMUM_VARIANCE))
        scored = np.zeros(len(mean), dtype=np.bool_)
        observed = self._members[0].observed
        mean[observed] = self._members[0].targets + self._base
        std[observed] = 0.0
        scored[observed] = True
        return Belief(mean, std, scored)

    def relevance(self) -> NDArray[np.float64]:
        expected = sum(field.weight * expected_probability(field.mean, field.variance) for field in self._fields())
        relevance = np.asarray(expected)
        relevance[list(self._scores)] = list(self._scores.values())
        return relevance

    def gain(self) -> NDArray[np.float64]:
        gain = stretched(self.relevance(), self._clip)
        gain[list(self._scores)] = list(self._scores.values())
        return gain

    def deviation(self, documents: NDArray[np.intp]) -> NDArray[np.float64]:
        first, second = np.zeros(len(documents)), np.zeros(len(documents))
        for field in self._fields():
            spread = np.sqrt(field.variance[documents])
            for node, weight in zip(NODES, NODE_WEIGHTS, strict=True):
                values = probability(field.mean[documents] + node * spread)
                first += field.weight * weight * values
                second += field.weight * weight * np.square(values)
        deviation = np.sqrt(np.maximum(second - np.square(first), 0.0))
        return np.where(np.isin(documents, self._members[0].observed), 0.0, deviation)

    def ready(self, document: int) -> bool:
        return all(member.ready(document) for member in self._members)

    def prepare(self, documents: Sequence[int]) -> None:
        for member in self._members:
            member.prepare(documents)

    def checkpoint(self) -> None:
        """Amplitudes and weights stay what the real scores make them until `restore`: a fantasy confirms itself."""
        self._moment = [member.checkpoint() for member in self._members], [_fit(member) for member in self._members]

    def restore(self) -> None:
        assert self._moment is not None
        for member, moment in zip(self._members, self._moment[0], strict=True):
            member.restore(moment)
        self._moment = None

    def _fields(self) -> list[Field]:
        fits = self._moment[1] if self._moment else [_fit(member) for member in self._members]
        likelihoods = np.array([fit.log_likelihood for fit in fits])
        weights = np.exp(likelihoods - likelihoods.max())
        weights /= weights.sum()
        return [
            _field(member, fit.amplitude, self._base, float(weight))
            for member, fit, weight in zip(self._members, fits, weights, strict=True)
        ]


def _fit(member: GaussianProcess) -> Fit:
    """Amplitude by maximum likelihood given the level, and the profiled likelihood with the level integrated out."""
    observations = len(member.observed)
    if observations < 2:
        return Fit(1.0, 0.0)
    precision = float(member.beta @ member.beta)
    residual = member.alpha - (member.beta @ member.alpha) / precision * member.beta
    amplitude = float(np.sqrt((residual @ residual + MINIMUM_SQUARES) / (observations - 1)))
    likelihood = -(observations - 1) * np.log(amplitude) - member.log_determinant - 0.5 * np.log(precision)
    return Fit(amplitude, float(likelihood))


def _field(member: GaussianProcess, amplitude: float, base: float, weight: float) -> Field:
    """Posterior given the amplitude; the variance includes what is not known of the level."""
    if not member.observed:
        return Field(np.full_like(member.weighted_ones, base), amplitude**2 * member.variance, weight)
    precision = float(member.beta @ member.beta)
    level = float(member.beta @ member.alpha) / precision
    mean = base + level + member.weighted_targets - level * member.weighted_ones
    variance = amplitude**2 * (member.variance + np.square(1.0 - member.weighted_ones) / precision)
    return Field(mean, variance, weight)
