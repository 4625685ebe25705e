"""What answers say of scores that are all low."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from boundarymorph.scoring.scorer import Scores
from boundarymorph.selector.selector import Selector
from tests.scoring.fakes import SeededScorer
from tests.selector.fakes import FakeRetriever, task


class Low(SeededScorer):
    """All scores are low, but for that of the last document of a selection."""

    def __init__(self, last: float) -> None:
        super().__init__()
        self.last, self.scored = last, 0

    async def score(self, query: str, texts: Sequence[str], *, deadline: float | None = None) -> Scores:
        self.scored += len(texts)
        return Scores(np.array([self.last if self.scored == 10 else 0.001] * len(texts)))


@pytest.mark.parametrize(("budget", "last", "said"), [(10, 0.049, True), (10, 0.05, False), (9, 0.001, False)])
async def test_that_nothing_was_found(
    budget: int, last: float, said: bool, selector_of: Callable[..., Selector]
) -> None:
    result = await selector_of(FakeRetriever(), Low(last)).select(task(budget=budget))
    assert len(result.history) == budget
    assert any("no document is relevant" in warning for warning in result.warnings) == said
