"""What a service remembers of a scorer on a collection: what recent requests told, and the prior learned from it, which
is in force while it predicts new requests better than the default.

The prior is learned by empirical Bayes, eight numbers. Given an amplitude a, the log-odds y of a request's scored
documents are normal with mean level + a F m and covariance a^2 (K + noise I + H D^2 H'), with H the level and features
F, m the slopes and D the deviations of `TrendPrior`. Sums of H and y whitened by K (`Evidence`) say how likely y is
under any prior, so that a request is seventeen numbers. The amplitude of each request is integrated out; the prior that
is chosen makes all requests most likely, given how such numbers scatter over collections.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.pool import DEFAULT_PRIOR, Evidence, TrendPrior
from boundarymorph.selection.promise import Audit, Look

AMPLITUDES = np.exp(np.linspace(-2.5, 3.0, 45))  # over which the amplitude of a request is integrated
LEARNED_SCORES = 4.0  # as how many scores a learned amplitude counts
# How such numbers scatter over collections, in the order and on the scale of `_coded`.
SCATTER = np.array([3.0, 1.0, 0.5, 0.5, 0.7, 0.5, 0.7, 1.0])
STEPS, LONGEST = 60, 1.5  # of a search at most, and the length of one, in units of `SCATTER`
CLOSE = 1e-5  # nats that a step must be expected to gain, or the search ends
Cost: TypeAlias = Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]]


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """The evidence of m requests, stacked: products (m, 4, 4), loads (m, 4), squares and counts (m,)."""

    products: NDArray[np.float64]
    loads: NDArray[np.float64]
    squares: NDArray[np.float64]
    counts: NDArray[np.float64]

    @classmethod
    def of(cls, evidence: Sequence[Evidence]) -> Self:
        return cls(
            np.array([one.products for one in evidence]),
            np.array([one.loads for one in evidence]),
            np.array([one.square for one in evidence]),
            np.array([one.count for one in evidence], dtype=np.float64),
        )


def log_likelihoods(prior: TrendPrior, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return (m,) the log-densities in nats of the scores of m requests under a prior, each but for a constant of the
    request."""
    return _likelihoods(prior, Sums.of(evidence))[0]


def _likelihoods(prior: TrendPrior, sums: Sums) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the `log_likelihoods`, and (8,) the gradient of their sum by what `_coded` returns."""
    deviations, slopes = prior.deviations, prior.slopes
    # Of y less the level, and of F m, whitened by K and noise; then by what the uncertainty of level and slopes adds.
    sides = np.empty((len(sums.counts), 4, 2))
    sides[:, :, 0] = sums.loads - prior.level * sums.products[:, :, 0]
    sides[:, :, 1] = sums.products[:, :, 1:] @ slopes
    squares = np.empty((len(sums.counts), 3))  # of y less the level, of it and F m, and of F m
    squares[:, 0] = sums.squares - prior.level * (sums.loads[:, 0] + sides[:, 0, 0])
    squares[:, 1:] = slopes @ sides[:, 1:]
    inverse = np.linalg.inv(sums.products * np.multiply.outer(deviations, deviations) + np.eye(4))
    scaled = sides * deviations[:, None]
    solved = inverse @ scaled
    squares -= (scaled[:, :, [0, 0, 1]] * solved[:, :, [0, 1, 1]]).sum(axis=1)
    volumes = -np.linalg.slogdet(inverse)[1] / 2.0

    a = AMPLITUDES
    before = -prior.scores * (np.log(a) + prior.scale / (2.0 * a**2))
    before -= np.log(np.exp(before - before.max()).sum()) + before.max()
    log_densities = squares @ np.stack([-0.5 / a**2, 1.0 / a, np.full_like(a, -0.5)])
    log_densities += before - sums.counts[:, None] * np.log(a)
    most = log_densities.max(axis=1)
    densities = np.exp(log_densities - most[:, None])
    totals = densities.sum(axis=1)
    values: NDArray[np.float64] = most + np.log(totals) - volumes

    # By the means over the amplitude, given the scores, of 1/a^2 and 1/a. The inverse of the whole covariance changes
    # with log D_i by -2 z_i z_i', z being what is solved.
    precision, root = (densities @ np.stack([1.0 / a**2, 1.0 / a], axis=1) / totals[:, None]).T
    left = sides - sums.products @ (deviations[:, None] * solved)
    by_level = precision * left[:, 0, 0] - root * left[:, 0, 1]
    by_slopes = root[:, None] * left[:, 1:, 0] - left[:, 1:, 1]
    of_y, of_means = solved[:, :, 0], solved[:, :, 1]
    by_deviations = precision[:, None] * of_y**2 - 2.0 * root[:, None] * of_y * of_means + of_means**2
    by_deviations += np.diagonal(inverse, axis1=1, axis2=2) - 1.0
    by_scale = -prior.scores * prior.scale / 2.0 * (precision - np.exp(before) @ (1.0 / a**2))
    rank, similarity, words = by_slopes.sum(axis=0)
    level_deviation, *slope_deviations, words_deviation = by_deviations.sum(axis=0)
    by_slope_deviation = sum(slope_deviations)
    return values, np.array(
        [by_level.sum(), level_deviation, rank, similarity, by_slope_deviation, words, words_deviation, by_scale.sum()]
    )


def fitted(evidence: Sequence[Evidence]) -> TrendPrior:
    """Return the prior that these requests make likely, to a hundredth of its `SCATTER`, for the one model that their
    evidence is of. Of a scorer with a few grades the slopes alone: its level and amplitude are those of its grades."""
    graded = sum(one.graded for one in evidence) > len(evidence) / 2
    start, sums = _coded(replace(DEFAULT_PRIOR, scores=LEARNED_SCORES)), Sums.of(evidence)
    free = np.array([not graded, not graded, True, True, not graded, True, not graded, not graded])
    scatter = SCATTER[free]

    def decoded(unusual: NDArray[np.float64]) -> TrendPrior:
        code = start.copy()
        code[free] += scatter * unusual
        return _decoded(code, DEFAULT_PRIOR.scores if graded else LEARNED_SCORES)

    def cost(unusual: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        likelihoods, gradient = _likelihoods(decoded(unusual), sums)
        return float(unusual @ unusual / 2.0 - likelihoods.sum()), unusual - scatter * gradient[free]

    return replace(decoded(_minimum(cost, len(scatter))), averaged=graded)


def _minimum(cost: Cost, size: int) -> NDArray[np.float64]:
    """Return where a function is least, searched from 0 on by the method of Broyden, Fletcher, Goldfarb and Shanno."""
    at, inverse = np.zeros(size), np.eye(size)
    value, gradient = cost(at)
    for number in range(STEPS):
        step = -inverse @ gradient
        step *= min(1.0, LONGEST / max(float(np.linalg.norm(step)), 1e-300))
        slope = float(gradient @ step)
        if slope > -CLOSE:
            break
        below, there = cost(at + step)
        while not below <= value + 1e-4 * slope:
            step, slope = step / 2.0, slope / 2.0
            if slope > -CLOSE:
                return at
            below, there = cost(at + step)
        change = there - gradient
        at, value, gradient = at + step, below, there
        if (curvature := float(change @ step)) > 0.0:
            if number == 0:
                inverse *= curvature / float(change @ change)
            left = np.eye(size) - np.multiply.outer(step, change) / curvature
            inverse = left @ inverse @ left.T + np.multiply.outer(step, step) / curvature
    return at


def _coded(prior: TrendPrior) -> NDArray[np.float64]:
    """(8,) with the logarithms of what is positive."""
    level_deviation, slope_deviation, words_deviation, scale = np.log(
        [prior.level_deviation, prior.slope_deviation, prior.words_deviation, prior.scale]
    )
    slopes = prior.rank, prior.similarity
    return np.array([prior.level, level_deviation, *slopes, slope_deviation, prior.words, words_deviation, scale])


def _decoded(code: NDArray[np.float64], scores: float) -> TrendPrior:
    level, level_deviation, rank, similarity, slope_deviation, words, words_deviation, scale = code.tolist()
    deviations = np.exp([level_deviation, slope_deviation, words_deviation]).tolist()
    return TrendPrior(
        level, deviations[0], rank, similarity, deviations[1], words, deviations[2], float(np.exp(scale)), scores
    )


REQUESTS = 64  # that are remembered
AUDITS = 200  # that are remembered
LOOKS, ALL_LOOKS = 64, 3_000  # at most of an audit, and of all
MOST_AT_ONCE = 32  # requests that a process records together
DIGITS = 6  # significant ones of what is kept of an audit
FEWEST_SCORES = 5  # of a request that tells something
FIRST = 10  # requests before a prior is learned; many more tell little more (docs/results.md)
EARLY = (10, 20, 40)  # numbers of requests after which it is learned anew, and then after each 64
EVERY = 64
FADE = 0.96  # of the advantage of the learned prior with each request, so that some 25 decide
# Nats a request by which the learned prior must predict better: with less, sets became worse (docs/results.md).
LEAST_AHEAD = 1.0
# Nats that one request counts at most: more where it is behind, and most where it has the order wrong, so that a few
# requests to another scorer decide, and one caller's are outweighed by those of others.
MOST_AHEAD, MOST_BEHIND, OUT_OF_ORDER = 3.0, 4.0, 32.0
FAR_WORSE = 0.5  # by which a correlation with scores is below that of the default where the order is wrong
SHARE = 4  # one part in so many of the requests is one caller's at most, where there are others
SYMMETRIC = np.triu_indices(4)
Entry = TypeVar("Entry", "Observation", "Audited")


@dataclass(frozen=True, slots=True)
class Observation:
    """What one request told. caller: a digest of who asked; gained: the nats by which the learned prior predicted it
    better than the default, None before there was one."""

    evidence: Evidence
    caller: str
    gained: float | None = None


@dataclass(frozen=True, slots=True)
class Audited:
    """An audit, of a request of a kind (`selector.task.kind_of`). caller: as in `Observation`."""

    kind: str
    audit: Audit
    caller: str

    def to_json(self) -> list[Any]:
        looks = [
            [look.calls, None if math.isinf(look.believed) else _rounded(look.believed), _rounded(look.real)]
            for look in self.audit.looks
        ]
        return [self.kind, self.caller, looks]

    @classmethod
    def of_json(cls, values: Sequence[Any]) -> Self:
        """Raises TypeError or ValueError for what is none."""
        kind, caller, given = values
        looks = [
            Look(int(calls), math.inf if believed is None else float(believed), float(real))
            for calls, believed, real in given
        ]
        steps = [look.calls for look in looks]
        if not 1 <= len(looks) <= LOOKS or steps != sorted(set(steps)) or steps[0] < 0:
            raise ValueError(f"an audit has 1 to {LOOKS} looks, by their calls")
        if not all(look.believed >= 0 and 0 <= look.real <= 1 for look in looks):
            raise ValueError("a loss is from 0 to 1, and what is believed of it not below 0")
        return cls(str(kind), Audit(tuple(looks)), str(caller))


@dataclass(frozen=True, slots=True)
class Memory:
    """observations: of recent requests, oldest first; requests: of all times; prior: learned, if there were enough;
    learned_at: the number of requests then; ahead, weight: sums that fade, of what the observations `gained` and of
    their number; audits: the latest ones, oldest first."""

    observations: tuple[Observation, ...] = ()
    requests: int = 0
    prior: TrendPrior | None = None
    learned_at: int = 0
    ahead: float = 0.0
    weight: float = 0.0
    audits: tuple[Audited, ...] = ()

    @property
    def in_force(self) -> bool:
        return self.prior is not None and self.ahead > LEAST_AHEAD * self.weight

    @property
    def due(self) -> bool:
        """Whether the prior is to be learned anew."""
        since = self.requests - self.learned_at
        early = any(self.learned_at < number <= self.requests for number in EARLY)
        return len(self.observations) >= FIRST and (since >= EVERY or early)

    def record(self, observations: Sequence[Observation], most: int) -> Memory:
        """Return the memory after requests, each of which is predicted before it is learned from. most: requests that
        are kept; the oldest goes, of a caller who has more than a share of them."""
        gained: list[float | None] = [None] * len(observations)
        if self.prior is not None:
            gained = _ahead(self.prior, [one.evidence for one in observations]).tolist()
        kept = self.observations
        for one, nats in zip(observations, gained, strict=True):
            kept = _kept(kept, replace(one, gained=nats), most)
        return replace(self, requests=self.requests + len(observations))._with(kept)

    def _with(self, observations: tuple[Observation, ...]) -> Memory:
        """Return the memory with these observations. One caller's share in them is its share in what decides."""
        gained = np.array([one.gained for one in observations if one.gained is not None])
        weights = FADE ** np.arange(len(gained))[::-1]
        return replace(self, observations=observations, ahead=float(weights @ gained), weight=float(weights.sum()))

    def record_audit(self, audited: Audited) -> Memory:
        """Return the memory with one more audit; the oldest go, as of requests, and where audits are long."""
        audits = _kept(self.audits, audited, AUDITS)
        looks = sum(len(one.audit.looks) for one in audits)
        while looks > ALL_LOOKS:
            looks -= len(audits[0].audit.looks)
            audits = audits[1:]
        return replace(self, audits=audits)

    def learn(self) -> Memory:
        """Return the memory with a prior learned from what was told. The first one is held against what it was not
        learned from: each half of the requests is predicted from the other."""
        evidence = [one.evidence for one in self.observations]
        learned = replace(self, prior=fitted(evidence), learned_at=self.requests)
        if self.prior is not None:
            return learned
        gained = np.empty(len(evidence))
        halves = slice(0, None, 2), slice(1, None, 2)
        for half, other in (halves, halves[::-1]):
            gained[half] = _ahead(fitted(evidence[other]), evidence[half])
        return learned._with(
            tuple(replace(one, gained=nats) for one, nats in zip(self.observations, gained.tolist(), strict=True))
        )

    def taking(self, learned: Memory) -> Memory:
        """Return this memory with the prior of a state of it that has learned since then."""
        taken = replace(self, prior=learned.prior, learned_at=learned.learned_at)
        if self.prior is not None:
            return taken
        since = self.observations[max(0, len(self.observations) - self.requests + learned.requests) :]
        return taken._with((learned.observations + since)[-len(self.observations) :])

    def to_json(self) -> dict[str, Any]:
        return {
            "observations": observations_to_json(self.observations),
            "gained": [None if one.gained is None else _rounded(one.gained) for one in self.observations],
            "requests": self.requests,
            "prior": None if self.prior is None else asdict(self.prior),
            "learned_at": self.learned_at,
            "ahead": self.ahead,
            "weight": self.weight,
            "audits": [one.to_json() for one in self.audits],
        }

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for what is none."""
        prior = None if values["prior"] is None else prior_of_json(values["prior"])
        observations = observations_of_json(values["observations"])
        gained = values.get("gained", [None] * len(observations))
        return cls(
            tuple(
                replace(one, gained=None if nats is None else float(nats))
                for one, nats in zip(observations, gained, strict=True)
            ),
            int(values["requests"]),
            prior,
            int(values["learned_at"]),
            float(values["ahead"]),
            float(values["weight"]),
            tuple(Audited.of_json(one) for one in values.get("audits", ())),
        )


def _kept(entries: tuple[Entry, ...], new: Entry, most: int) -> tuple[Entry, ...]:
    """Return the latest entries with a new one, for which a caller who has more than a share gives its two oldest. Of
    too many, the oldest of who has most goes, or of all if nobody has more than a share."""
    kept = list(entries)
    kept.append(new)
    share = max(most // SHARE, 1)
    own = [place for place, one in enumerate(kept) if one.caller == new.caller]
    if len(own) < len(kept):
        leaving = own[: max(0, len(own) - share)][:2]
        kept = [one for place, one in enumerate(kept) if place not in leaving]
    while len(kept) > most:
        ((caller, count),) = Counter(one.caller for one in kept).most_common(1)
        kept.pop(next(place for place, one in enumerate(kept) if count <= share or one.caller == caller))
    return tuple(kept)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _ahead(prior: TrendPrior, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return (m,) the nats by which a prior predicts each request better than the default, as they count."""
    sums = Sums.of(evidence)
    gained = _likelihoods(prior, sums)[0] - _likelihoods(DEFAULT_PRIOR, sums)[0]
    far_worse = _in_order(prior, sums) < _in_order(DEFAULT_PRIOR, sums) - FAR_WORSE
    return np.where(far_worse, -OUT_OF_ORDER, np.clip(gained, -MOST_BEHIND, MOST_AHEAD))


def _in_order(prior: TrendPrior, sums: Sums) -> NDArray[np.float64]:
    """Return (m,) the correlations of scores with what the slopes expect of them, both whitened, given any level."""
    level, across = np.maximum(sums.products[:, 0, :1], 1e-12), sums.products[:, 0, 1:]
    products = sums.products[:, 1:, 1:] - across[:, :, None] * across[:, None] / level[:, None]
    loads = sums.loads[:, 1:] - across * sums.loads[:, :1] / level
    squares = sums.squares - sums.loads[:, 0] ** 2 / level[:, 0]
    lengths = (products @ prior.slopes @ prior.slopes) * squares
    return loads @ prior.slopes / np.sqrt(np.maximum(lengths, 1e-12))


def prior_of_json(values: Mapping[str, Any]) -> TrendPrior:
    """Raises TypeError or ValueError for what is none."""
    numbers = {name: float(value) for name, value in values.items() if name != "averaged"}
    prior = TrendPrior(**numbers, averaged=bool(values.get("averaged", True)))
    if not np.isfinite(list(asdict(prior).values())).all() or min(*prior.deviations, prior.scale, prior.scores) <= 0:
        raise ValueError("numbers of a prior are finite, and deviations positive")
    return prior


def observations_to_json(observations: Sequence[Observation]) -> list[Any]:
    """Return a row of each: caller, whether graded, count, z'z, the four loads, and the ten products."""
    if not observations:
        return []
    products = np.array([one.evidence.products[SYMMETRIC] for one in observations]).tolist()
    return [
        [one.caller, one.evidence.graded, one.evidence.count, one.evidence.square, *one.evidence.loads.tolist(), *row]
        for one, row in zip(observations, products, strict=True)
    ]


def observations_of_json(rows: Sequence[Sequence[Any]]) -> list[Observation]:
    """Raises TypeError or ValueError for what is none."""
    if not rows:
        return []
    callers, graded, counts, *_ = zip(*rows, strict=True)
    numbers = np.array([row[3:] for row in rows], dtype=np.float64)
    if max(len(caller) for caller in callers) > 64:
        raise ValueError("a caller is a digest of 64 characters at most")
    if numbers.shape != (len(rows), 15) or min(map(int, counts)) < 1 or not np.isfinite(numbers).all():
        raise ValueError("the sums of a request are a count and 1, 4 and 10 finite numbers")
    products = np.empty((len(rows), 4, 4))
    products[:, *SYMMETRIC] = products[:, *SYMMETRIC[::-1]] = numbers[:, 5:]
    if (np.linalg.eigvalsh(products)[:, 0] < -1e-6 * np.maximum(1.0, products.max(axis=(1, 2)))).any():
        raise ValueError("products of columns are positive semidefinite")
    sums = zip(products, numbers[:, 1:5], numbers[:, 0].tolist(), counts, graded, callers, strict=True)
    return [
        Observation(Evidence(matrix, loads, square, int(count), bool(of_grades)), str(caller))
        for matrix, loads, square, count, of_grades, caller in sums
    ]
