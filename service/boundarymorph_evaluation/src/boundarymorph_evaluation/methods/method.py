"""Define a selector, as the evaluation sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from boundarymorph_evaluation.problem import Ranking, SelectionProblem


class ScoringMethod(ABC):
    """A selector with all its settings made, usually a frozen dataclass of settings.

    Most of them use scores, and answer for every k at once.

    Attributes:
        uses_budget: False if the answer is the same for every B, so that it is computed once.
        uses_k: False if the answer is the same for every k.
        requires: Keys of a table (`tables.COLUMNS`), or "texts", without which it cannot run.
    """

    uses_budget: ClassVar[bool] = True
    uses_k: ClassVar[bool] = False
    requires: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def rank(self, problem: SelectionProblem) -> Ranking:
        """Return all N positions, best first.

        The chosen set is the first k. The rest matters if a set of another size is cut from the same run.
        """


@dataclass(frozen=True)
class Contestant:
    """A line of the tables: a method, or a method with a grid of settings.

    Of a grid, each budget gets the best setting.

    Attributes:
        name: The name for --methods.
        title: The name in the tables.
        settings: The method with each of its settings.
        about: Its description in a line.
        ours: Whether it is shipped in the product, and so has the same constants on all data.
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
