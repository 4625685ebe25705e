"""What a service remembers of a scorer on a collection: what recent requests told, and the prior learned from it, which
is in force while it predicts new requests better than the default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from boundarymorph.memory.fitting import fitted, log_likelihoods
from boundarymorph.selection.prior import DEFAULT_PRIOR, Evidence, TrendPrior
from boundarymorph.selection.promise import Audit, Look

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
MOST_AHEAD = 8.0  # nats that one request counts at most, in either direction
SHARE = 4  # one part in so many of the requests is one caller's at most, where there are others
SYMMETRIC = np.triu_indices(4)
Entry = TypeVar("Entry", "Observation", "Audited")


@dataclass(frozen=True, slots=True)
class Observation:
    """What one request told. caller: a digest of who asked."""

    evidence: Evidence
    caller: str


@dataclass(frozen=True, slots=True)
class Audited:
    """An audit, of a request of a kind (`selector.audit.kind_of`). caller: as in `Observation`."""

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
    learned_at: the number of requests then; ahead, weight: the fading sums of the nats by which it predicted requests
    better than the default did, and of their number; audits: the latest ones, oldest first."""

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
        ahead, weight, kept = self.ahead, self.weight, self.observations
        if self.prior is not None:
            for gained in _ahead(self.prior, [one.evidence for one in observations]).tolist():
                ahead, weight = FADE * ahead + gained, FADE * weight + 1.0
        for one in observations:
            kept = _kept(kept, one, most)
        requests = self.requests + len(observations)
        return replace(self, observations=kept, requests=requests, ahead=ahead, weight=weight)

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
        ahead, weight = self.ahead, self.weight
        if self.prior is None:
            halves = evidence[::2], evidence[1::2]
            ahead = sum(float(_ahead(fitted(one), other).sum()) for one, other in (halves, halves[::-1]))
            weight = float(len(evidence))
        return replace(self, prior=fitted(evidence), learned_at=self.requests, ahead=ahead, weight=weight)

    def taking(self, learned: Memory) -> Memory:
        """Return this memory with the prior of a state of it that has learned since then."""
        if self.prior is None:
            return replace(
                self, prior=learned.prior, learned_at=learned.learned_at, ahead=learned.ahead, weight=learned.weight
            )
        return replace(self, prior=learned.prior, learned_at=learned.learned_at)

    def to_json(self) -> dict[str, Any]:
        return {
            "observations": observations_to_json(self.observations),
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
        return cls(
            tuple(observations_of_json(values["observations"])),
            int(values["requests"]),
            prior,
            int(values["learned_at"]),
            float(values["ahead"]),
            float(values["weight"]),
            tuple(Audited.of_json(one) for one in values.get("audits", ())),
        )


def _kept(entries: tuple[Entry, ...], new: Entry, most: int) -> tuple[Entry, ...]:
    """Return the latest entries with a new one. Of a caller who has more than a share, the oldest goes."""
    kept = list(entries)
    kept.append(new)
    own = [place for place, one in enumerate(kept) if one.caller == new.caller]
    if len(own) > max(most // SHARE, 1) and len(own) < len(kept):
        del kept[own[0]]
    return tuple(kept[-most:])


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _ahead(prior: TrendPrior, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """Return (m,) the nats by which a prior predicts each request better than the default."""
    gained = log_likelihoods(prior, evidence) - log_likelihoods(DEFAULT_PRIOR, evidence)
    return np.clip(gained, -MOST_AHEAD, MOST_AHEAD)


def prior_of_json(values: Mapping[str, Any]) -> TrendPrior:
    """Raises TypeError or ValueError for what is none."""
    prior = TrendPrior(**{name: float(value) for name, value in values.items()})
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
