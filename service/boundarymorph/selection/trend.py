"""Define the default posterior: a Gaussian process with a learned trend of the log-odds.

The paper's prior mean falls from 1 to 0 along the ranking. The scores of most cross-encoders do not: most are near 0,
so the residual is little more than the prior itself. Here the log-odds of the score have a trend: a level, and slopes
along the ranking, in the similarity and, where a pool has them, in BM25 and in the caller's own signals. Level, slopes,
and amplitude are learned with the field. All have proper priors, by which scores fall along the ranking and with the
similarity, so a few scores change the posterior only a little. The amplitude is at its mode. Models with and without a
signal are averaged by their marginal likelihood. Noise, priors, and bandwidth are constants that were chosen on the
collections of docs/results.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.belief import Belief, Scale
from boundarymorph.selection.capacity import top_k
from boundarymorph.selection.pool import (
    DEFAULT_PRIOR,
    SIGNAL_WEIGHT,
    Pool,
    TrendPrior,
    combined_signals,
    lexical,
    rank_and_similarity,
    signals,
    similarity,
    standardised,
)
from boundarymorph.selection.process import (
    MINIMUM_VARIANCE,
    GaussianProcesses,
    Kernel,
    Rehearsal,
    SharedRows,
    WeightedCovariances,
)

NOISE = 0.2
LINEAR_WEIGHT = 0.25
# Number of scores at which half of the differences in variance count in expected scores. The logistic function raises
# the expectation of uncertain documents, so the first calls would otherwise go to the far end of the ranking.
HALF_KNOWN = 2.5
FEEDBACK, BEST = 1.0, 3  # constants of `_nearness`
UNLIKELY = 1e-9  # weight below which a member is ignored
# The share of a document's variance that counts in its outcomes, at the first and the last score, and the number
# of scores at which it is midway. At first neighbours share much of it; later, scores have heavier tails than a normal
# distribution. Fitted to real losses (docs/results.md). For a scorer with a few grades all of it counts.
FIRST_APART, LAST_APART, HALF_APART = 0.65, 1.05, 20
# The share that counts in the expected loss, with the uncertainty of the trend, at the first and the last score in a
# pool of TYPICAL_SIZE documents whose trend is flat. One amplitude explains both the trend and what it leaves. So the
# more the trend explains, the more variance the rest is thought to have, most of all in large pools, whose tail differs
# from their head. Fitted to real losses in pools of 100 to 8,000 (docs/results.md).
FIRST_COUNTED, LAST_COUNTED, TYPICAL_SIZE = 0.5, 1.3, 1_000
BY_SIZE, BY_TREND = 1 / 6, 0.4  # powers of one over the pool's size, and of the share that the trend leaves


@dataclass(frozen=True, slots=True, eq=False)
class HumanRelevance:
    """The relevance that people are expected to find in N documents.

    Attributes:
        offsets: (N,) numbers that are added to the log-odds of the mixture.
        factor: A factor of the sums, which then vary as much as the scorer's log-odds.
        scores: (t,) relevance of the scored documents, in place of their scores.
        scale: The scale of the products, without levels.
    """

    offsets: NDArray[np.float64]
    factor: float
    scores: NDArray[np.float64]
    scale: Scale


class Residuals(NamedTuple):
    """The uncertainty that remains for a known trend.

    Attributes:
        variances: (q, N) variances.
        typical: (q, 1) their means over the pool.
        noise: (q, 1) variances of an observation.
    """

    variances: NDArray[np.float64]
    typical: NDArray[np.float64]
    noise: NDArray[np.float64]


@dataclass(eq=False)
class Mixture:
    """A mixture of q members that have normal posteriors of the log-odds of N documents.

    Attributes:
        weights: (q,) weights of the members.
        means: (q, N) means of the log-odds.
        variances: (q, N) variances of the log-odds.
        residuals: The uncertainty for a known trend.
        observed: Positions of the t scored documents.
        scores: (t,) their scores.
        scale: The scale of the log-odds.
        judge: Returns the values that are reported and decide the set instead of scores, if any. `belief`, which
            decides the calls, always uses scores.
    """

    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    variances: NDArray[np.float64]
    residuals: Residuals
    observed: NDArray[np.intp]
    scores: NDArray[np.float64]
    scale: Scale
    judge: Callable[[Mixture], HumanRelevance | None] = lambda mixture: None

    @cached_property
    def human_relevance(self) -> HumanRelevance | None:
        return self.judge(self)

    def belief(self) -> Belief:
        return self._belief

    @cached_property
    def _belief(self) -> Belief:
        return Belief.from_observations(*self.moments(), self.observed, self.scores)

    def moments(self, fantasies: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the (N,) expected scores and standard deviations, without using known scores.

        `fantasies` is the number of further documents that count as scored.
        """
        likely = self.weights > UNLIKELY
        of = slice(None) if likely.all() else likely
        mean, variance = self.scale.moments(self.weights[of], self.means[of], self._spread(fantasies)[of])
        return mean, np.sqrt(np.maximum(variance, MINIMUM_VARIANCE))

    def _read(
        self, variances: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], Scale]:
        """Return means, variances, scores, and scale of the reported values.

        Args:
            variances: (q, N) variances of the scores' log-odds.

        Returns:
            (q, N) means, (q, N) variances, (t,) scores, and the scale.
        """
        human = self.human_relevance
        if human is None:
            return self.means, variances, self.scores, self.scale
        means = human.factor * (self.means + human.offsets)
        return means, human.factor**2 * variances, human.scores, human.scale

    def deciding_belief(self) -> Belief:
        return self._belief if self.human_relevance is None else self._judgement

    @cached_property
    def _judgement(self) -> Belief:
        means, variances, scores, scale = self._read(self._spread())
        mean, variance = scale.moments(self.weights, means, variances)
        return Belief.from_observations(mean, np.sqrt(np.maximum(variance, MINIMUM_VARIANCE)), self.observed, scores)

    def _spread(self, fantasies: int = 0) -> NDArray[np.float64]:
        """Return (q, N) variances for expected scores, with noise; all equal without scores."""
        known = len(self.observed) + fantasies
        counting = known**2 / (known**2 + HALF_KNOWN**2)
        spread = counting * self.variances
        spread += (1.0 - counting) * self.residuals.typical + self.residuals.noise
        return spread

    def reported_belief(self) -> Belief:
        if self.human_relevance is not None or not self.scale.levels:
            return self.deciding_belief()
        shares, levels = self.scale.outcomes(self.weights, self.means, self.variances + self.residuals.noise)
        mean, second = (shares * levels).sum(axis=0), (shares * np.square(levels)).sum(axis=0)
        std = np.sqrt(np.maximum(second - np.square(mean), MINIMUM_VARIANCE))
        return Belief.from_observations(mean, std, self.observed, self.scores)

    def reaching_belief(self, least: float) -> Belief:
        means, variances, scores, scale = self._read(self.variances + self.residuals.noise)
        shares = scale.reach_probabilities(least, self.weights, means, variances)
        return Belief.from_probabilities(shares, self.observed, scores >= least)

    def scorer_belief(self, least: float) -> Belief:
        return replace(self, judge=lambda mixture: None).reaching_belief(least)

    def outcomes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self._outcomes

    @cached_property
    def _outcomes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        fading = HALF_APART / (HALF_APART + len(self.observed))
        apart = 1.0 if self.scale.levels else LAST_APART - (LAST_APART - FIRST_APART) * fading
        return self._discrete(apart * (self.residuals.variances + self.residuals.noise))

    def prospects(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self._prospects

    @cached_property
    def _prospects(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        fading = HALF_APART / (HALF_APART + len(self.observed))
        counted = 1.0 if self.scale.levels else LAST_COUNTED - (LAST_COUNTED - FIRST_COUNTED) * fading
        rest = self.residuals.typical + self.residuals.noise
        unexplained = rest / (rest + self.means.var(axis=1, keepdims=True))
        counted *= (TYPICAL_SIZE / self.means.shape[1]) ** BY_SIZE
        return self._discrete(counted * unexplained**BY_TREND * (self.variances + self.residuals.noise), heavy=True)

    def _discrete(
        self, variances: NDArray[np.float64], *, heavy: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return (m, N) probabilities and scores of outcomes with these (q, N) variances.

        A known score is certain. One normal distribution with the mean and the variance of the mixture stands for it,
        at a quarter of the cost.
        """
        means, variances, known, scale = self._read(variances)
        centre = self.weights @ means
        spread = self.weights @ (variances + np.square(means - centre))
        shares, scores = scale.outcomes(np.ones(1), centre[None], spread[None], heavy=heavy)
        shape = len(scores), means.shape[1]
        values: NDArray[np.float64] = np.broadcast_to(scores, shape).astype(np.float64)
        values[:, self.observed] = known
        return np.broadcast_to(shares, shape), values

    def subset(self, documents: NDArray[np.intp]) -> Mixture:
        """Return the mixture over a subset: ascending positions, with every scored document."""
        observed = np.searchsorted(documents, self.observed)
        means, variances = self.means[:, documents], self.variances[:, documents]
        residuals = self.residuals._replace(variances=self.residuals.variances[:, documents])

        def judge(mixture: Mixture) -> HumanRelevance | None:
            human = self.human_relevance
            return None if human is None else replace(human, offsets=human.offsets[documents])

        return replace(self, means=means, variances=variances, residuals=residuals, observed=observed, judge=judge)


class TrendFantasy:
    """A mixture on some documents, conditioned on fantasies.

    Amplitudes and weights are not updated, because a fantasy would confirm itself. Level and slopes are updated. A
    fantasy is the mean of the mixture, so the means of a member move only by its difference from that mean.
    """

    def __init__(self, mixture: Mixture, expected: NDArray[np.float64], rehearsal: Rehearsal) -> None:
        """Start from a mixture, which is changed in place.

        Args:
            mixture: The mixture over N documents.
            expected: (N,) expected scores before any fantasy.
            rehearsal: The members to condition on fantasies.
        """
        self.mixture = mixture
        self._expected = expected
        self._rehearsal = rehearsal
        self._scored = np.zeros(len(expected), dtype=np.bool_)
        self._scored[mixture.observed] = True
        self._means: dict[int, float] = {}  # log-odds of the fantasies

    def belief(self) -> Belief:
        std = self.mixture.moments(len(self._means))[1]
        std[self._scored] = 0.0
        return Belief(self._expected, std, self._scored.copy())

    def reaching_belief(self, least: float) -> Belief:
        mixture, human = self.mixture, self.mixture.human_relevance
        documents = np.array(list(self._means), dtype=np.intp)
        if human is not None:
            read = human.scale.scores(human.factor * (np.array(list(self._means.values())) + human.offsets[documents]))
            human = replace(human, scores=np.append(human.scores, read))
        observed = np.append(mixture.observed, documents)
        scores = np.append(mixture.scores, self._expected[documents])
        return replace(mixture, observed=observed, scores=scores, judge=lambda mixture: human).reaching_belief(least)

    def fantasise(self, document: int) -> None:
        mixture = self.mixture
        mean = float(mixture.weights @ mixture.means[:, document])
        rows, pivots = self._rehearsal.condition(document)
        mixture.means += (mean - mixture.means[:, document, None]) / pivots * rows
        mixture.variances -= np.square(rows)
        np.maximum(mixture.variances, MINIMUM_VARIANCE, out=mixture.variances)
        self._means[document] = mean
        self._scored[document] = True


class TrendPosterior:
    """A mixture of Gaussian processes over a pool of N documents.

    A member models the log-odds y as the level of the prior plus its amplitude times the sum of a level, slopes in the
    features F, and a noisy field of covariance k. Slopes along the ranking, in the similarity and in BM25 have the
    means of the prior; those in the caller's signals have mean 0.

    Members with and without BM25 and the caller's signals share one process, whose columns are the level and the
    features: the leading entries of the Cholesky factor of `G'G + I` are those of the fit without the last columns. The
    posterior takes `size` x N numbers of the type of the embeddings.
    """

    def __init__(
        self,
        pool: Pool,
        kernel: Kernel,
        size: int,
        *,
        noise: float = NOISE,
        weight: float = LINEAR_WEIGHT,
        human: bool = False,
        signal_weight: float = SIGNAL_WEIGHT,
        prior: TrendPrior = DEFAULT_PRIOR,
    ) -> None:
        """Start without scores.

        Args:
            pool: The N candidates.
            kernel: The kernel of the field.
            size: The most scores.
            noise: The variance of an observation, relative to the field's variance of 1.
            weight: The prior variance of the trend, relative to the field's.
            human: Whether relevance is the one that people are expected to find, instead of the score. Similarity,
                nearness and BM25 then add to the log-odds, and a score counts by its document's belief, given its
                noise.
            signal_weight: The weight of these signals, in standard deviations of the scorer's log-odds over the pool.
            prior: The prior of level, slopes, and amplitude.
        """
        always, by_words, others = rank_and_similarity(pool), lexical(pool), signals(pool)
        others /= max(len(others), 1)  # the more signals, the smaller the slope of each
        level, share = np.ones((1, len(pool))), np.sqrt(weight / LINEAR_WEIGHT)
        followed = np.concatenate([always, by_words])
        deviations = prior.deviations[: 1 + len(followed)]
        self._units = np.concatenate([deviations[:1], share * deviations[1:]])  # units of the level and the slopes
        columns = np.concatenate([self._units[:, None] * np.concatenate([level, followed]), np.sqrt(weight) * others])
        self._expected = np.zeros(len(columns))
        self._expected[1 : 1 + len(followed)] = prior.slopes[: len(followed)] / deviations[1:]
        self._prior = prior
        self._covariances = WeightedCovariances(SharedRows(pool, kernel), np.array([0.0, weight]))
        self._processes = GaussianProcesses(
            self._covariances, columns, max(size, 1), noise, dtype=pool.embeddings.dtype
        )
        sizes = {1 + len(always), 1 + len(followed), len(columns)}
        self._members = np.tri(len(columns))[np.array(sorted(sizes)) - 1]  # (q, p), 1 for the columns of each member
        self._scores: dict[int, float] = {}
        self._scale = Scale()
        self._people, self._signal_weight = pool if human else None, signal_weight
        self._mixture: Mixture | None = None  # None from a new score until the mixture is needed

    def observe(self, documents: Sequence[int], scores: Sequence[float]) -> None:
        self._scores.update(zip(documents, scores, strict=True))
        scale = Scale.from_scores(self._scores.values())
        changed, self._scale = scale.clip != self._scale.clip, scale
        values = scale.log_odds(np.array(list(self._scores.values()))) - self._prior.level.mean
        self._processes.observe(documents, values[len(values) - len(documents) :])
        if changed:
            self._processes.retarget(values)
        self._mixture = None

    @property
    def beliefs(self) -> Mixture:
        if self._mixture is None:
            self._mixture = self._mixed()
        return self._mixture

    def is_ready(self, document: int) -> bool:
        return self._processes.is_ready(document)

    def prepare(self, documents: Sequence[int]) -> None:
        self._processes.prepare(documents)

    def subset(self, documents: NDArray[np.intp], size: int) -> TrendFantasy:
        mixture, fitted = self.beliefs, self._fitted
        directions = fitted.directions[:, :, documents]
        covariances = self._covariances.subset(documents)
        rehearsal = Rehearsal(self._processes, covariances, documents, size, directions, self._members, fitted.scales)
        return TrendFantasy(mixture.subset(documents), mixture.belief().mean[documents], rehearsal)

    def _mixed(self) -> Mixture:
        self._fitted = fitted = FittedMembers.fit(self._processes, self._members, self._expected, self._prior)
        weights = np.exp(fitted.log_likelihoods - fitted.log_likelihoods.max()).ravel()
        weights /= weights.sum()
        means = fitted.means
        means += self._prior.level.mean
        noise = self._processes.noise * fitted.scales.reshape(-1, 1)
        observed, scores = np.array(list(self._scores), dtype=np.intp), np.array(list(self._scores.values()))
        scale = self._scale
        if scale.levels:
            scale = scale.cut(
                scores, weights, _flat(fitted.foreseen) + self._prior.level.mean, _flat(fitted.deviations)
            )
        means, variances, own = _flat(means), _flat(fitted.variances), _flat(fitted.own)
        residuals = Residuals(own, own.mean(axis=1, keepdims=True), noise)
        return Mixture(weights, means, variances, residuals, observed, scores, scale, self._judge)

    def _judge(self, mixture: Mixture) -> HumanRelevance | None:
        """Return the relevance that people are expected to find.

        The documents believed best raise the relevance of those near them.
        """
        if self._people is None:
            return None
        pool, scale = self._people, mixture.scale
        centre = mixture.weights @ mixture.means
        continuous = replace(scale, levels=(), cuts=())
        unknown = (mixture.weights @ mixture.residuals.variances).mean()
        middle, spread = centre.mean(), np.sqrt(centre.var() + unknown)
        share = spread * self._signal_weight
        added = share * combined_signals(pool, _nearness(pool, centre + share * combined_signals(pool)))
        factor = float(spread / np.sqrt((centre + added).var() + unknown))
        offsets = added + (1.0 / factor - 1.0) * middle
        relevance = continuous.scores(factor * (centre + offsets)[mixture.observed])
        return HumanRelevance(offsets, factor, relevance, continuous)


@dataclass(frozen=True, slots=True, eq=False)
class FittedMembers:
    """The members of g processes, q of each, fitted to their observations.

    They are fitted by least squares in their leading columns under the priors of the columns, at the mode of the
    amplitude.

    Attributes:
        directions: (g, p, N), whose inner products are the posterior covariance of the trend of all columns.
        scales: (g, q) squared amplitudes.
        log_likelihoods: (g, q) log-likelihoods at these amplitudes, with the coefficients integrated out.
        means: (g, q, N) means.
        variances: (g, q, N) variances with the uncertainty of the coefficients.
        own: (g, q, N) variances without it.
        foreseen: (g, q, t) predictive mean of each target conditional on those before it.
        deviations: (g, q, t) predictive standard deviation of each target.
    """

    directions: NDArray[np.float64]
    scales: NDArray[np.float64]
    log_likelihoods: NDArray[np.float64]
    means: NDArray[np.float64]
    variances: NDArray[np.float64]
    own: NDArray[np.float64]
    foreseen: NDArray[np.float64]
    deviations: NDArray[np.float64]

    @classmethod
    def fit(
        cls,
        processes: GaussianProcesses,
        members: NDArray[np.float64],
        expected: NDArray[np.float64],
        prior: TrendPrior,
    ) -> FittedMembers:
        """Fit the members to the observations of the processes.

        With R the inverse of the lower Cholesky factor of the columns' posterior precision, a member depends on the
        leading entries only. Let u = R G'z, v = R e and e the expected coefficients. Under an amplitude a, the loads of
        the columns are u + a v. Twice the negated log-density of the targets is, but for a constant, 2 n log a + (z'z -
        u'u) / a^2 - 2 u'v / a + e'e - v'v. With the prior of a, it is least where n a^2 + (u'v) a = z'z - u'u, each
        with the prior's contribution.

        Args:
            processes: The g processes.
            members: (q, p), 1 for the leading columns that each member has.
            expected: (p,) coefficients before any score, in units of the amplitude, each with variance 1.
            prior: The prior of the amplitude.
        """
        columns, targets = processes.whitened_columns, processes.whitened_targets[:, :, None]
        transposed = columns.swapaxes(1, 2)
        inverse = np.linalg.inv(np.linalg.cholesky(transposed @ columns + np.eye(len(expected))))
        from_scores = members * (inverse @ (transposed @ targets)).swapaxes(1, 2)
        from_prior = members * (inverse @ expected)[:, None]
        directions = inverse @ processes.residuals

        free = len(processes.targets) + prior.scores
        lengths = np.square(targets).sum(axis=1)
        squares = np.maximum(lengths - np.square(from_scores).sum(axis=2), 0.0) + prior.scores * prior.scale
        cross = (from_scores * from_prior).sum(axis=2)
        amplitudes = (np.sqrt(np.square(cross) + 4.0 * free * squares) - cross) / (2.0 * free)
        scales = np.square(amplitudes)
        loads = from_scores + amplitudes[:, :, None] * from_prior
        left = members @ np.square(expected) - np.square(from_prior).sum(axis=2)
        fit = squares / scales / 2.0 - cross / amplitudes + left / 2.0
        volumes = -np.log(inverse.diagonal(axis1=1, axis2=2)) @ members.T
        likelihoods = -free * np.log(amplitudes) - fit - processes.log_determinants[:, None] - volumes

        means = loads @ directions
        means += processes.explained[:, None]
        own = scales[:, :, None] * np.maximum(processes.variance, MINIMUM_VARIANCE)[:, None]
        variances = members @ np.square(directions)
        variances *= scales[:, :, None]
        variances += own
        pivots = processes.pivots[:, None]
        surprises = targets.swapaxes(1, 2) - loads @ inverse @ transposed
        foreseen = processes.targets - pivots * surprises
        return cls(directions, scales, likelihoods, means, variances, own, foreseen, amplitudes[:, :, None] * pivots)


def _nearness(pool: Pool, believed: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (N,) similarity to the query and to the documents believed best, standardised.

    The mean of those documents, `BEST` or a tenth of the pool, is weighted by `FEEDBACK`: Rocchio's feedback (1971), on
    vectors.

    Args:
        pool: The pool.
        believed: (N,) believed relevance.
    """
    best = top_k(believed, min(BEST, -(-len(pool) // 10)))
    towards = pool.embeddings @ pool.embeddings[best].mean(axis=0)
    return standardised(similarity(pool) + FEEDBACK * standardised(towards))


def _flat(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a (g, q, n) array as (g q, n)."""
    return values.reshape(-1, values.shape[-1])
