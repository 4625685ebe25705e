"""Does the scorer work here? What its latest scores on an index say of that."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundarymorph.selection.features import ranks, standardised, witnesses
from boundarymorph.selection.pool import Pool
from boundarymorph.telemetry import metrics

RECENT, PLACES = 30, 256  # queries that are remembered of a place, and places
FEWEST = 5  # scores of a query, from which on they are counted
QUERIES, TO_COMPARE = 3, 10  # that constant or saturated scores need, and those against the witnesses
SAME = 1e-3  # of the greatest score, by which scores that are the same may differ for rounding
EDGE, EDGES = 1e-6, 0.9  # so near to 0 or 1 a score has no order left; the share of such scores that is too many
# A scorer that guesses has a mean rank correlation of 0 with a standard error of .1 over ten queries of ten scores, and
# one whose scores are reversed -.4 to -.9 (docs/evaluation.md).
CONTRARY, ERRORS = -0.2, 3.0  # a mean correlation below 0, and by so many standard errors


class Doubt(StrEnum):
    """Why a scorer seems not to work."""

    CONSTANT = "constant"
    SATURATED = "saturated"
    CONTRARY = "contrary"


@dataclass(frozen=True, slots=True)
class Place:
    """Where scores are compared. scorer: name of the model; index: empty for pools that callers bring."""

    scorer: str
    tenant: str
    index: str


class Seen(NamedTuple):
    """The scores of one query. correlation: of their ranks with those of the witnesses; NaN without any."""

    scores: int
    least: float
    greatest: float
    at_edge: int
    correlation: float


class Trust:
    """Whether scorers work, by place. Kept in the memory of the process."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Place, OrderedDict[int, Seen]] = OrderedDict()

    def warnings(self, place: Place, query: str, pool: Pool, scores: Mapping[int, float]) -> list[str]:
        """Note the scorer's scores of a query, by position in its pool, and say why it seems not to work here."""
        if len(scores) < FEWEST:
            return []
        seen = self._seen.setdefault(place, OrderedDict())
        self._seen.move_to_end(place)
        seen[hash(query)] = _seen(pool, scores)
        seen.move_to_end(hash(query))
        for kept, most in ((seen, RECENT), (self._seen, PLACES)):
            if len(kept) > most:
                kept.popitem(last=False)
        found = _doubt(list(seen.values()))
        if found is None:
            return []
        doubt, text = found
        metrics.scorer_doubts.labels(doubt).inc()
        return [f"the scorer may not work {'on this index' if place.index else 'on these pools'}: {text}"]


def _seen(pool: Pool, scores: Mapping[int, float]) -> Seen:
    documents, values = np.array(list(scores)), np.array(list(scores.values()))
    at_edge = np.count_nonzero((values <= EDGE) | (values >= 1.0 - EDGE))
    correlation = _rank_correlation(values, witnesses(pool)[documents])
    return Seen(len(values), float(values.min()), float(values.max()), int(at_edge), correlation)


def _rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return Spearman's correlation; NaN if one side does not vary."""
    first, second = standardised(ranks(one)), standardised(ranks(other))
    return float(first @ second) / len(one) if first.any() and second.any() else float("nan")


def _doubt(seen: list[Seen]) -> tuple[Doubt, str] | None:
    """Return what is wrong with the scores of these queries, and a sentence about it."""
    if len(seen) < QUERIES:
        return None
    scores, greatest = sum(each.scores for each in seen), max(each.greatest for each in seen)
    if greatest - min(each.least for each in seen) <= SAME * greatest:
        return Doubt.CONSTANT, f"all of its last {scores} scores, of {len(seen)} queries, are {greatest:.3g}"
    share = sum(each.at_edge for each in seen) / scores
    if share >= EDGES:
        return Doubt.SATURATED, (
            f"{share:.0%} of its last {scores} scores, of {len(seen)} queries, are 0 or 1 to six digits, which leaves "
            "no order among them; does it round them, or are they made of numbers that are too large?"
        )
    correlations = np.array([each.correlation for each in seen if not np.isnan(each.correlation)])
    if len(correlations) < TO_COMPARE:
        return None
    mean = float(correlations.mean())
    if mean > CONTRARY or mean + ERRORS * float(correlations.std(ddof=1)) / len(correlations) ** 0.5 >= 0.0:
        return None
    return Doubt.CONTRARY, (
        f"over the last {len(correlations)} queries its scores fall where similarity and words rise (mean rank "
        f'correlation {mean:.2f}); are they reversed? Compare answers with those of "budget": 0'
    )
