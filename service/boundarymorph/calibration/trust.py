"""Measure from judgements how far to trust a scorer, or whether to make no calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from boundarymorph.reading import quantity
from boundarymorph.selection.pool import Trust

Choice = Literal["none", Trust]  # none: make no calls
CHOICES: tuple[Choice, ...] = ("none", *get_args(Trust))
FEWEST = 5  # queries that have relevant and other documents
RESAMPLES, INTERVAL, SEED = 2_000, (2.5, 97.5), 0  # for the bootstrap; the interval is in percentiles


def pairs_in_order(key: NDArray[np.float64], relevant: NDArray[np.bool_]) -> float:
    """Return the share of pairs of a relevant and another document that the keys order rightly.

    Equal keys count half. This is the area under the ROC curve.

    Args:
        key: (n,) keys.
        relevant: (n,) mask of the relevant documents.
    """
    above, below = key[relevant][:, None], key[~relevant][None]
    return float(((above > below) + 0.5 * (above == below)).mean())


@dataclass(frozen=True, slots=True)
class OrderShares:
    """The shares of pairs in order of one query, by each order.

    Attributes:
        retriever: The share by the retriever's order.
        scorer: The share by the score alone.
        choices: The shares by relevance under each choice.
    """

    retriever: float
    scorer: float
    choices: Mapping[Choice, float]


@dataclass(frozen=True, slots=True)
class MeasuredTrust:
    """The evidence of judgements about a scorer.

    Attributes:
        chosen: The choice to use. None keeps the declared trust.
        queries: The number of queries that have relevant and other documents.
        pairs: The mean share of pairs in order, in percent, by the retriever, the scorer, and each choice.
        behind: Points by which the scorer orders fewer pairs than the retriever, and their 95 % interval.
        gain: Points by which the choice orders more pairs than the declared trust, on queries that were left out.
        needed: The number of further queries that would decide, if nothing was chosen.
    """

    chosen: Choice | None
    queries: int
    pairs: Mapping[str, float]
    behind: tuple[float, float, float]
    gain: tuple[float, float, float]
    needed: int | None

    @classmethod
    def measure(cls, queries: Sequence[OrderShares], declared: Trust) -> MeasuredTrust:
        """Choose the trust that orders more pairs than `declared`.

        The gain must exceed a standard error, and hold on queries that were left out.
        """
        if len(queries) < FEWEST:
            return cls(None, len(queries), {}, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), FEWEST - len(queries))
        shares = 100 * np.array([[query.choices[choice] for choice in CHOICES] for query in queries])
        alone = 100 * np.array([[query.retriever, query.scorer] for query in queries])
        place = CHOICES.index(declared)
        chosen = _chosen(shares, place)
        others = [_chosen(np.delete(shares, number, axis=0), place) for number in range(len(queries))]
        gains = shares[np.arange(len(queries)), others] - shares[:, place]
        if gains.mean() <= 0.0:
            chosen = place
        pairs = dict(zip(("retriever", "scorer"), alone.mean(axis=0).tolist(), strict=True))
        pairs |= dict(zip(CHOICES, shares.mean(axis=0).tolist(), strict=True))
        needed = None if chosen != place else _needed(shares, place)
        named = None if chosen == place else CHOICES[chosen]
        return cls(named, len(queries), pairs, _interval(alone[:, 0] - alone[:, 1]), _interval(gains), needed)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def advice(self, declared: Trust) -> str:
        """Say what was measured, and what changes."""
        if self.queries < FEWEST:
            return (
                f"{quantity(self.queries, 'query has', 'queries have')} relevant and other documents: judge "
                f"{self.needed} more to measure the trust in the scorer, which stays {declared}"
            )
        behind, low, high = self.behind
        worse = "worse" if behind >= 0 else "better"
        if behind < 0:
            behind, low, high = -behind, -high, -low
        found = f"your scorer ranks {behind:.0f} points {worse} than your retriever here"
        found += f" (95 % interval {low:.0f} to {high:.0f})"
        if self.chosen is None:
            kept = f"{found}; the trust in it stays {declared}"
            return kept if self.needed is None else f"{kept}, and {_queries(self.needed)} would decide"
        if self.chosen == "none":
            return f"{found}: selections will make no calls, unless a request names a budget"
        return f"{found}: the trust in it is now {self.chosen}, not {declared}"


def _chosen(shares: NDArray[np.float64], declared: int) -> int:
    """Return the column of (q, 4) shares with the largest gain over the declared one.

    The gain is counted less a standard error.
    """
    gains = shares - shares[:, [declared]]
    errors = gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
    sure = gains.mean(axis=0) - errors
    sure[declared] = 0.0
    return int(np.argmax(sure)) if sure.max() > 0.0 else declared


def _needed(shares: NDArray[np.float64], declared: int) -> int | None:
    """Return how many more queries would make the best gain as large as its standard error.

    None means that nothing gains.
    """
    gains = shares - shares[:, [declared]]
    best = int(np.argmax(gains.mean(axis=0)))
    mean, deviation = gains[:, best].mean(), gains[:, best].std(ddof=1)
    return max(1, int(np.ceil((deviation / mean) ** 2)) + 1 - len(gains)) if mean > 0.0 else None


def _queries(count: int) -> str:
    return f"about {quantity(count, 'more judged query', 'more judged queries')}"


def _interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean of (q,) values and its interval by a bootstrap over queries."""
    drawn = np.random.default_rng(SEED).choice(values, (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.percentile(drawn, INTERVAL)
    return float(values.mean()), float(low), float(high)
