"""Learn a calibration from judgements, and measure it on queries that were left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boundarymorph.calibration.calibration import Calibration, ProbabilityMap, RelevanceKind, log_odds, sigmoid
from boundarymorph.calibration.trust import Choice, MeasuredTrust, OrderShares, pairs_in_order
from boundarymorph.errors import InvalidInput
from boundarymorph.reading import quantity
from boundarymorph.selection.pool import Trust

FEWEST_QUERIES = 3
FOLDS = 20
SLOPE_RIDGE, INTERCEPT_RIDGE = 0.1, 0.01
BINS = 10
REPORTED_AT = (5, 10, 50)


@dataclass(frozen=True, slots=True, eq=False)
class JudgedQuery:
    """The n judged documents of one query, in retrieval order.

    Attributes:
        scores: (n,) the scorer's scores, in [0, 1].
        relevance: (n,) the relevance that people are expected to find, in [0, 1], by the trust in these scores; "none"
            is without them.
        grades: (n,) grades from 0; between 0 and 1, the probability that the document is relevant.
    """

    scores: NDArray[np.float64]
    relevance: Mapping[Choice, NDArray[np.float64]]
    grades: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.grades)

    @property
    def targets(self) -> NDArray[np.float64]:
        """(n,) whether each document is relevant, in [0, 1]."""
        return np.minimum(self.grades, 1.0)

    def ncg(self, key: NDArray[np.float64], k: int) -> float:
        """Return the gain of the k documents with the largest keys, over the best possible gain."""
        best = np.sort(self.targets)[::-1][:k].sum()
        return float(self.targets[np.argsort(-key, kind="stable")[:k]].sum() / best)

    def order_shares(self) -> OrderShares | None:
        """Return how well each order separates relevant documents from others.

        None means that the query lacks either.
        """
        relevant = self.grades > 0
        if relevant.all() or not relevant.any():
            return None
        return OrderShares(
            pairs_in_order(-np.arange(len(self), dtype=np.float64), relevant),
            pairs_in_order(self.scores, relevant),
            {choice: pairs_in_order(values, relevant) for choice, values in self.relevance.items()},
        )


def learn(
    queries: Sequence[JudgedQuery], *, scorer: str, encoder: str | None, declared: Trust = "normal", created: str = ""
) -> Calibration:
    """Learn the trust in a scorer, and a map for each kind of relevance where it helps.

    A map helps if it predicts queries better that were left out.

    Args:
        queries: The judged queries.
        scorer: The name of the scorer.
        encoder: The name of the encoder, as in `Calibration`.
        declared: The trust in the scorer before.
        created: The time, as in `Calibration`.

    Raises:
        InvalidInput: If there are too few judgements.
    """
    queries = [query for query in queries if len(query)]
    _check(queries)
    trust = MeasuredTrust.measure([one for query in queries if (one := query.order_shares()) is not None], declared)
    chosen: Choice = trust.chosen or declared
    measured = {
        "human": _FittedMap.measure([query.relevance[chosen] for query in queries], queries),
        "scorer": _FittedMap.measure([query.scores for query in queries], queries),
    }
    maps: dict[RelevanceKind, ProbabilityMap] = {}
    for kind in ("human", "scorer"):
        if measured[kind].helps:
            maps[kind] = measured[kind].learned
    ncg = [row for k in REPORTED_AT if (row := _ncg(queries, k, chosen)) is not None]
    advice = f"{trust.advice(declared)}. {_advice(maps)}"
    report: dict[str, Any] = {"trust": trust.to_json(), "ncg": ncg, "advice": advice}
    report |= {kind: one.report() for kind, one in measured.items()}
    judgments = sum(map(len, queries))
    return Calibration(scorer, encoder, maps, len(queries), judgments, created, report, trust.chosen)


def fit(values: NDArray[np.float64], targets: NDArray[np.float64]) -> tuple[float, float]:
    """Fit a logistic regression of targets on log-odds, and return its slope and intercept.

    Args:
        values: (n,) log-odds.
        targets: (n,) targets in [0, 1].

    Returns:
        The slope, 0 or more, and the intercept.
    """
    from scipy.optimize import minimize

    def objective(free: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        predicted = values * free[0] + free[1]
        errors, ridges = sigmoid(predicted) - targets, np.array([SLOPE_RIDGE, INTERCEPT_RIDGE])
        gradient = np.array([values @ errors, errors.sum()]) + ridges * free
        return float(log_loss(predicted, targets).sum() + ridges @ free**2 / 2), gradient

    bounds = [(0.0, None), (None, None)]
    slope, intercept = minimize(objective, np.zeros(2), jac=True, method="L-BFGS-B", bounds=bounds).x
    return float(slope), float(intercept)


def log_loss(predicted: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (n,) losses of predicted log-odds, in `nats`, for (n,) targets in [0, 1]."""
    losses: NDArray[np.float64] = np.logaddexp(0.0, predicted) - targets * predicted
    return losses


def clip_of(values: NDArray[np.float64]) -> float:
    """Return half the smallest distance of a value from 0 or 1, between 1e-7 and 1/4.

    With it the levels of a coarse scorer are about evenly spaced in log-odds.
    """
    distances = np.minimum(values, 1.0 - values)
    seen = distances[distances > 0]
    return float(np.clip(seen.min() / 2 if seen.size else 0.25, 1e-7, 0.25))


def reliability(predicted: NDArray[np.float64], targets: NDArray[np.float64]) -> list[tuple[int, float, float]]:
    """Return documents, mean prediction and mean target for each tenth of [0, 1] in use."""
    tenth = np.minimum((predicted * BINS).astype(int), BINS - 1)
    return [
        (int(np.count_nonzero(here)), float(predicted[here].mean()), float(targets[here].mean()))
        for here in (tenth == number for number in range(BINS))
        if here.any()
    ]


def calibration_error(predicted: NDArray[np.float64], targets: NDArray[np.float64]) -> float:
    """Return the expected calibration error over tenths of [0, 1]."""
    bins = reliability(predicted, targets)
    return sum(count * abs(expected - real) for count, expected, real in bins) / max(len(targets), 1)


@dataclass(frozen=True, slots=True)
class _FittedMap:
    """A map fitted to all queries, and predictions for each query by a map fitted to the others.

    Attributes:
        learned: The map of all queries; its slope may be 0.
        before: (n,) relevance of all judged documents.
        after: (n,) probabilities of all judged documents.
        targets: (n,) whether they are relevant.
        losses: (q, 2) the mean log loss of each query before and after.
    """

    learned: ProbabilityMap
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    targets: NDArray[np.float64]
    losses: NDArray[np.float64]

    @classmethod
    def measure(cls, relevance: Sequence[NDArray[np.float64]], queries: Sequence[JudgedQuery]) -> _FittedMap:
        """Fit the maps to the (n,) relevance of each query."""
        clip = clip_of(np.concatenate(relevance))
        values, targets = [log_odds(one, clip) for one in relevance], [query.targets for query in queries]

        def fitted(among: Sequence[int]) -> tuple[float, float]:
            return fit(np.concatenate([values[one] for one in among]), np.concatenate([targets[one] for one in among]))

        everything = range(len(queries))
        folds = min(len(queries), FOLDS)
        after = list(values)
        for fold in range(folds):
            slope, intercept = fitted([number for number in everything if number % folds != fold])
            for number in everything[fold::folds]:
                after[number] = slope * values[number] + intercept
        losses = [
            [float(log_loss(predicted, of).mean()) for predicted in both]
            for *both, of in zip(values, after, targets, strict=True)
        ]
        learned = ProbabilityMap(*fitted(everything), clip)
        predicted = sigmoid(np.concatenate(values)), sigmoid(np.concatenate(after))
        return cls(learned, *predicted, np.concatenate(targets), np.array(losses))

    @property
    def helps(self) -> bool:
        """Whether the map increases, and predicts queries better that were left out."""
        before, after = self.losses.mean(axis=0)
        return bool(self.learned.slope > 0 and after < before)

    def report(self) -> dict[str, Any]:
        """Return the measurements before and after, as JSON."""
        found: dict[str, Any] = {}
        for place, (when, predicted) in enumerate((("before", self.before), ("after", self.after))):
            found |= {
                f"log_loss_{when}": float(self.losses[:, place].mean()),
                f"error_{when}": calibration_error(predicted, self.targets),
                f"reliability_{when}": reliability(predicted, self.targets),
            }
        return found


def _ncg(queries: Sequence[JudgedQuery], k: int, chosen: Choice) -> dict[str, float] | None:
    """Return the mean nCG@k of judged documents by three orders.

    None means that no query has more than k judged documents, some of them relevant.
    """
    seen = [query for query in queries if len(query) > k and query.targets.any()]
    if not seen:
        return None
    orders = {
        "scorer": [query.ncg(query.scores, k) for query in seen],
        "retriever": [query.ncg(-np.arange(len(query), dtype=np.float64), k) for query in seen],
        "human": [query.ncg(query.relevance[chosen], k) for query in seen],
    }
    return {"k": k, **{name: float(np.mean(values)) for name, values in orders.items()}}


def _advice(maps: Mapping[RelevanceKind, ProbabilityMap]) -> str:
    if "human" in maps:
        return "Relevance is now the probability that a person agrees"
    if maps:
        return 'With "relevance": "scorer", relevance is now the probability that a person agrees'
    return "These judgements do not show that probabilities would be better, so relevance stays as it is"


def _check(queries: Sequence[JudgedQuery]) -> None:
    if len(queries) < FEWEST_QUERIES:
        raise InvalidInput(
            f"there are judgements of {quantity(len(queries), 'query', 'queries')} that can be used; calibrating takes "
            f"{FEWEST_QUERIES} or more, and ten are a good number"
        )
    targets = np.concatenate([query.targets for query in queries])
    if targets.min() == 1 or targets.max() == 0:
        which = "all" if targets.max() else "none"
        raise InvalidInput(
            f"{which} of the {len(targets)} judged documents are relevant; judge relevant ones and others (--suggest)"
        )
