"""The main table of an evaluation: each method's quality by table, B and k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from boundarymorph.evaluation.study import Study, overall

METRIC_TITLES = {"ce_ncg": "CE-nCG", "ncg": "nCG"}
AVERAGE = "mean of tables"
CLOSE = 0.005


@dataclass(frozen=True)
class Cells:
    """One metric as the paper's main table has it: group (a table, or their mean) -> method -> (B, k) -> 0..1."""

    metric: str
    budgets: Sequence[int]
    ks: Sequence[int]
    groups: Mapping[str, Mapping[str, Mapping[tuple[int, int], float | None]]]
    titles: Mapping[str, str]

    @property
    def columns(self) -> list[tuple[int, int]]:
        return [(budget, k) for budget in self.budgets for k in self.ks]

    def best(self, group: str, cell: tuple[int, int]) -> tuple[float, float]:
        """The best and the second-best value of a column; equal ones share a place."""
        values = sorted(
            {round(value, 4) for row in self.groups[group].values() if (value := row[cell]) is not None}, reverse=True
        )
        best, second = [*values, -1.0, -1.0][:2]
        return best, second


def cells(studies: Sequence[Study], metric: str) -> Cells | None:
    """None where no table has the metric."""
    first = studies[0].outcome
    having = [found for found in studies if metric == "ce_ncg" or found.outcome.judged]
    if not having:
        return None
    columns = [(budget, k) for budget in first.budgets for k in first.ks]
    groups: dict[str, dict[str, dict[tuple[int, int], float | None]]] = {}
    for found in having:
        groups[found.name] = {
            contestant.name: {cell: found.outcome.mean(contestant.name, *cell, metric) for cell in columns}
            for contestant in found.outcome.contestants
        }
    if len(having) > 1:
        everywhere = [
            contestant.name
            for contestant in having[0].outcome.contestants
            if all(contestant.name in group for group in groups.values())
        ]
        groups[AVERAGE] = {
            name: {cell: overall(having, name, *cell, metric) for cell in columns} for name in everywhere
        }
    return Cells(metric, first.budgets, first.ks, groups, titles_of(studies))


def titles_of(studies: Sequence[Study]) -> dict[str, str]:
    """What each method is called, by its name."""
    return {contestant.name: contestant.title for found in studies for contestant in found.outcome.contestants}


def ours_of(studies: Sequence[Study]) -> list[str]:
    """The names of the methods that the product has."""
    return [contestant.name for contestant in studies[0].outcome.contestants if contestant.ours]
