"""Decide when to stop so that a promised loss is kept: conformal risk control by audits.

A request promises that the set loses at most a share of the best set's relevance, with the probability `1 - alpha`.
Past requests were audited: the belief about the loss at each checkpoint, and the loss itself. Assume that requests are
exchangeable, and that a larger threshold on the belief never keeps a promise that a smaller one breaks. Stop by the
largest threshold that v of n audited requests break, with (v + 1) / (n + 1) <= alpha. Then a new request breaks its
promise with a probability of at most alpha (Angelopoulos, Bates, Fisch, Lei and Schuster 2024, theorem 1). The second
assumption holds because a request counts as broken from the smallest threshold on that breaks it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

# The number of latest audits to test. If the share of them that breaks a promise is unlikely by all audits, the earlier
# ones are of another scorer or of other questions.
RECENT = 16
UNLIKELY = 0.005
ROUNDING = 1e-9

Missing = Literal["audits", "calls", "scorer"]


@dataclass(frozen=True, slots=True)
class Promise:
    """Lose at most this share, in (0, 1), with this probability, in (0, 1)."""

    loss: float
    probability: float

    @property
    def fewest(self) -> int:
        """The number of audits from which it can be certified."""
        return math.ceil(1.0 / (1.0 - self.probability) - 1.0 - ROUNDING)

    def allowed(self, audits: int) -> int:
        """Return how many of these audits may break the promise; -1 if there are too few."""
        return math.floor((1.0 - self.probability) * (audits + 1) + ROUNDING) - 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state of a session between two rounds.

    Attributes:
        calls: Calls made so far.
        believed: The threshold from which a session stops here.
        real: The loss of its set.
    """

    calls: int
    believed: float
    real: float


@dataclass(frozen=True, slots=True)
class Audit:
    """A request that was scored further than its session would have gone.

    There are one or more checkpoints, by calls. After all its calls, a session stops at the last one in any case.
    """

    checkpoints: tuple[Checkpoint, ...]

    def breaking_bound(self, loss: float, budget: int) -> float:
        """Return the smallest threshold that loses more than `loss` within `budget` calls.

        It is `math.inf` if none does, and `-math.inf` if all do, which is presumed if there is no checkpoint within the
        budget.
        """
        checkpoints = [checkpoint for checkpoint in self.checkpoints if checkpoint.calls <= budget]
        if not checkpoints or checkpoints[-1].real > loss:
            return -math.inf
        smallest = breaks = math.inf
        for checkpoint in checkpoints:
            if checkpoint.believed < smallest:  # otherwise a session that stops by such a threshold has stopped before
                smallest = checkpoint.believed
                breaks = smallest if checkpoint.real > loss else breaks
        return breaks


@dataclass(frozen=True, slots=True)
class Certificate:
    """When sessions may stop.

    Attributes:
        threshold: Stops a session; None if the promise cannot be kept.
        audits: Number of audits that this rests on.
        missing: What would help if the promise cannot be kept.
    """

    threshold: float | None
    audits: int
    missing: Missing | None = None


def certify(audits: Sequence[Audit], promise: Promise, budget: int) -> Certificate:
    """Return the certificate of a promise with at most `budget` calls.

    The audits are from the oldest to the latest. If more of the latest audits break it than is likely, the earlier ones
    do not count any more.
    """
    found = _certificate(audits, promise, budget)
    latest = audits[-RECENT:]
    if found.threshold is None or len(audits) <= RECENT:
        return found
    broken = sum(audit.breaking_bound(promise.loss, budget) <= found.threshold for audit in latest)
    return found if _likely(broken, len(latest), 1.0 - promise.probability) else _certificate(latest, promise, budget)


def _certificate(audits: Sequence[Audit], promise: Promise, budget: int) -> Certificate:
    count, allowed = len(audits), promise.allowed(len(audits))
    breaking = np.sort([audit.breaking_bound(promise.loss, budget) for audit in audits])
    if allowed >= 0 and breaking[allowed] > -math.inf:
        return Certificate(float(np.nextafter(breaking[allowed], -math.inf)), count)
    always = int(np.count_nonzero(breaking == -math.inf))
    if count < promise.fewest or always <= (1.0 - promise.probability) * count + ROUNDING:
        return Certificate(None, count, "audits")
    most = max(checkpoint.calls for audit in audits for checkpoint in audit.checkpoints)
    with_more = sum(audit.breaking_bound(promise.loss, most) == -math.inf for audit in audits)
    return Certificate(None, count, "scorer" if with_more > allowed else "calls")


def _likely(broken: int, count: int, share: float) -> bool:
    """Return whether `broken` or more of `count` may be due to chance.

    Each breaks with the probability `share`.
    """
    below = sum(math.comb(count, n) * share**n * (1.0 - share) ** (count - n) for n in range(broken))
    return 1.0 - below >= UNLIKELY
