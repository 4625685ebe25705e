"""The likeliest next documents of a session, which what reads ahead may ask for."""

import numpy as np
import pytest

from boundarymorph.selection import Config, Distinct, SelectionConfig, SelectionSession, TrendConfig
from tests.selection.pools import clustered


@pytest.mark.parametrize("config", [SelectionConfig(), TrendConfig()], ids=("boundarymorph", "trend"))
def test_the_shortlist_is_a_hint(config: Config) -> None:
    pool, scores = clustered(80, 8, 0)
    session = SelectionSession(pool, budget=20, k=15, config=config)
    while (asked := session.ask()).size:
        likely = session.shortlist(7)
        assert likely.size == len(set(likely.tolist())) == 7
        assert not session.belief.scored[likely].any()
        assert session.ask().tolist() == asked.tolist()
        session.tell(asked, scores[asked])
    assert session.shortlist(7).size == session.shortlist(0).size == 0


@pytest.mark.parametrize("config", [SelectionConfig(), TrendConfig()], ids=("boundarymorph", "trend"))
def test_shortlist_of_a_threshold_with_groups_names_documents_that_can_be_asked(config: Config) -> None:
    pool, scores = clustered(80, 8, 3)
    groups = np.arange(80) // 2
    session = SelectionSession(
        pool, budget=40, k=60, config=config, min_relevance=0.5, distinct=Distinct(groups), order=False
    )
    named = 0
    while (asked := session.ask()).size:
        likely = session.shortlist(7)
        assert not session.scored[likely].any()
        assert asked[0] in likely
        named += len(likely)
        session.tell(asked, scores[asked])
    assert named > 7
