"""What a service remembers of a scorer on a collection: what recent requests told, and the prior learned from it, which
is in force while it predicts new requests better than the default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np

from boundarymorph.memory.fitting import fitted, log_likelihoods
from boundarymorph.selection.prior import DEFAULT_PRIOR, Evidence, TrendPrior
from boundarymorph.selection.promise import Audit, Look

REQUESTS = 64  # that are remembered
AUDITS = 200  # that are remembered
LOOKS = 64  # at most of an audit
DIGITS = 6  # significant ones of what is kept of an audit
FEWEST_SCORES = 5  # of a request that tells something
FIRST = 10  # requests before a prior is learned; many more tell little more (docs/results.md)
EARLY = (10, 20, 40)  # numbers of requests after which it is learned anew, and then after each 32
EVERY = 32
FADE = 0.96  # of the advantage of the learned prior with each request, so that some 25 decide
# Nats a request by which the learned prior must predict better: with less, sets became worse (docs/results.md).
LEAST_AHEAD = 1.0
MOST_AHEAD = 8.0  # nats that one request counts at most, in either direction
SHARE = 4  # one part in so many of the requests is one caller's at most, where there are others
SYMMETRIC = np.triu_indices(4)
Entry = TypeVar("Entry", "Told", "Audited")


@dataclass(frozen=True, slots=True)
class Told:
    """What one request told. caller: a digest of who asked."""

    evidence: Evidence
    caller: str


@dataclass(frozen=True, slots=True)
class Audited:
    """An audit, of a request of a kind (`selector.audit.kind_of`). caller: as in `Told`."""

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
    """told: by recent requests, oldest first; requests: of all times; prior: learned, if there were enough; learned_at:
    the number of requests then; ahead, weight: the fading sums of the nats by which it predicted requests better than
    the default did, and of their number; audits: the latest ones, oldest first."""

    told: tuple[Told, ...] = ()
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
        return len(self.told) >= FIRST and (since >= EVERY or early)

    def hear(self, evidence: Evidence, caller: str, most: int) -> Memory:
        """Return the memory after a request, which is predicted before it is learned from. most: requests that are
        kept; the oldest goes, of a caller who has more than a share of them."""
        ahead, weight = self.ahead, self.weight
        if self.prior is not None:
            ahead, weight = FADE * ahead + _ahead(self.prior, [evidence]), FADE * weight + 1.0
        told = _kept(self.told, Told(evidence, caller), most)
        return replace(self, told=told, requests=self.requests + 1, ahead=ahead, weight=weight)

    def audited(self, audited: Audited) -> Memory:
        """Return the memory with one more audit; the oldest goes, as of requests."""
        return replace(self, audits=_kept(self.audits, audited, AUDITS))

    def learn(self) -> Memory:
        """Return the memory with a prior learned from what was told. The first one is held against what it was not
        learned from: each half of the requests is predicted from the other."""
        evidence = [one.evidence for one in self.told]
        ahead, weight = self.ahead, self.weight
        if self.prior is None:
            halves = evidence[::2], evidence[1::2]
            ahead = sum(_ahead(fitted(one), other) for one, other in (halves, halves[::-1]))
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
            "told": [[one.caller, evidence_to_json(one.evidence)] for one in self.told],
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
        told = tuple(Told(evidence_of_json(one), str(caller)) for caller, one in values["told"])
        prior = None if values["prior"] is None else prior_of_json(values["prior"])
        return cls(
            told,
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


def _ahead(prior: TrendPrior, evidence: Sequence[Evidence]) -> float:
    """Return the nats by which a prior predicts these requests better than the default."""
    gained = log_likelihoods(prior, evidence) - log_likelihoods(DEFAULT_PRIOR, evidence)
    return float(np.clip(gained, -MOST_AHEAD, MOST_AHEAD).sum())


def prior_of_json(values: Mapping[str, Any]) -> TrendPrior:
    """Raises TypeError or ValueError for what is none."""
    prior = TrendPrior(**{name: float(value) for name, value in values.items()})
    if not np.isfinite(list(asdict(prior).values())).all() or min(*prior.deviations, prior.scale, prior.scores) <= 0:
        raise ValueError("numbers of a prior are finite, and deviations positive")
    return prior


def evidence_to_json(evidence: Evidence) -> dict[str, Any]:
    return {
        "products": evidence.products[SYMMETRIC].tolist(),
        "loads": evidence.loads.tolist(),
        "square": evidence.square,
        "count": evidence.count,
        "graded": evidence.graded,
    }


def evidence_of_json(values: Mapping[str, Any]) -> Evidence:
    """Raises KeyError, TypeError or ValueError for what is none."""
    products, loads = np.zeros((4, 4)), np.array(values["loads"], dtype=np.float64)
    products[SYMMETRIC] = values["products"]
    products += np.triu(products, 1).T
    square, count = float(values["square"]), int(values["count"])
    if loads.shape != (4,) or count < 1 or not np.isfinite([*products.flat, *loads, square]).all():
        raise ValueError("the sums of a request are 10, 4 and 1 finite numbers and a count")
    if np.linalg.eigvalsh(products).min() < -1e-6 * max(1.0, float(products.max())):
        raise ValueError("products of columns are positive semidefinite")
    return Evidence(products, loads, square, count, bool(values["graded"]))
