"""What a selector is, to the evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from boundarymorph_evaluation.problem import Ranking, SelectionProblem


class ScoringMethod(ABC):
    """A selector with all its settings made; usually a frozen dataclass whose fields are the settings. Most buy scores,
    and answer for every k at once.

    uses_budget, uses_k: False where the answer is the same whatever B or k is, so that it is computed once.
    requires: keys of a table (`tables.COLUMNS`), or "texts", without which it cannot run.
    """

    uses_budget: ClassVar[bool] = True
    uses_k: ClassVar[bool] = False
    requires: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def rank(self, problem: SelectionProblem) -> Ranking:
        """All N positions, best first. The chosen set is the first k; the rest matters where a set of another size is
        cut from the same run."""


@dataclass(frozen=True)
class Contestant:
    """A line of the tables: one method, or one with a grid of settings, of which each budget gets the best.

    name: as given to --methods; title: as printed; settings: the method with each of its settings; about: what it
    does, in a line; ours: shipped in the product, so with the same constants on all data.
    """

    name: str
    title: str
    settings: Sequence[ScoringMethod]
    about: str = ""
    ours: bool = False

    @property
    def requires(self) -> frozenset[str]:
        return self.settings[0].requires

    @property
    def swept(self) -> bool:
        return len(self.settings) > 1
