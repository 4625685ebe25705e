"""Grades and clicks: what is kept of them, and what clicks say."""

from pathlib import Path

import numpy as np
import pytest

from boundarymorph.calibration.belongings import JUDGMENTS, Belongings
from boundarymorph.calibration.calibration import Calibration
from boundarymorph.calibration.feedback import Event, examined, grades_of, merged
from boundarymorph.calibration.judgments import JudgedQuery
from boundarymorph.calibration.learning import debiased, learn
from boundarymorph.errors import LimitExceeded, StorageUnavailable, UnknownIndex
from tests.calibration.worlds import World


def test_events_are_kept_counted_and_deleted(tmp_path: Path) -> None:
    feedback, other = (Belongings(tmp_path / "belongings", "index").judgments for _ in range(2))
    assert (feedback.count(), feedback.delete(), list(tmp_path.iterdir())) == (0, 0, [])
    events = [Event("q", "a", 2.0), Event("q", "b", None, 3, True), Event("r", "a", 0.0)]
    assert feedback.add(events, "caller", 1.0, 4) == 3
    assert other.events() == events
    with pytest.raises(LimitExceeded, match="3 judgements of at most 4"):
        other.add(events[:2], "caller", 2.0, 4)
    assert other.add(events[:1], "caller", 2.0, 4) == 4  # at the edge
    assert [number for number, _ in other.page(1, 2)] == [2, 3]
    assert feedback.delete("q") == 3
    assert feedback.events() == [Event("r", "a", 0.0)]
    assert feedback.delete() == 1


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / JUDGMENTS).mkdir()
    with pytest.raises(StorageUnavailable):
        Belongings(tmp_path, "index").judgments.count()


@pytest.mark.strangers
def test_of_an_index_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(UnknownIndex):
        Belongings(tmp_path / "gone" / "belongings", "gone").judgments.add([Event("q", "a", 2.0)], "caller", 1.0, 4)
    assert not list(tmp_path.iterdir())


def test_what_clicks_say() -> None:
    events = [
        Event("q", "clicked", None, 4, True),
        Event("q", "first", None, 1, False),
        Event("q", "far", None, 100, False),
        Event("q", "both", None, 2, True),
        Event("q", "both", None, 1, False),
        Event("q", "graded", None, 1, True),
        Event("q", "graded", 0.0),
    ]
    found = grades_of(events, {("q", "far"): 0.7})["q"]
    assert found["clicked"] == 1.0
    assert found["first"] == 0.0  # everybody looks at the first
    assert found["far"] == pytest.approx(0.7 * 0.99 / (1 - 0.7 * 0.01))  # hardly anybody looked
    assert found["both"] == 0.5
    assert found["graded"] == 0.0
    assert merged({"q": found}, {"q": {"first": 2.0}, "r": {"a": 1.0}})["q"]["first"] == 2.0


def test_clicks_debiased_by_position_teach_what_grades_do() -> None:
    """Documents are shown in the scorer's order, and people look at few below the first: taken at their word, clicks
    say that the scorer is right."""
    world = World(0.15, 1.5, level=-1.0, seed=3)
    random, queries, events, graded = np.random.default_rng(0), [], [], []
    for number in range(100):
        pool, scores, grades = world.query(60)
        shown = np.sort(np.argsort(-scores)[:20])
        query = JudgedQuery.of(pool, shown, scores[shown], grades[shown])
        ids = [f"d{position}" for position in range(20)]
        ranks = np.argsort(np.argsort(-query.scores)) + 1
        looked = random.random(20) < [examined(rank) for rank in ranks]
        clicked = looked & (query.grades > 0)
        events += [
            Event(f"q{number}", id, None, int(rank), bool(click))
            for id, rank, click in zip(ids, ranks, clicked, strict=True)
        ]
        queries.append((f"q{number}", query, ids, clicked.astype(np.float64)))
        graded.append(query)

    def learned(judged: object) -> Calibration:
        return learn("any", judged, scorer="s", encoder=None)  # type: ignore[arg-type]

    start = grades_of(events, {})
    believed = [
        (text, JudgedQuery(query.scores, query.signals, np.array([start[text][id] for id in ids])), ids)
        for text, query, ids, _ in queries
    ]
    truth = learned(graded)
    naive = learned([JudgedQuery(query.scores, query.signals, clicks) for _, query, _, clicks in queries])
    corrected = learned(debiased(believed, events, "relevant"))

    def ratio(made: Calibration) -> float:
        return made.full.slope / made.full.weights["similarity"]

    assert abs(ratio(corrected) - ratio(truth)) < abs(ratio(naive) - ratio(truth)) / 2
    assert corrected.full.intercept == pytest.approx(truth.full.intercept, abs=0.8)
    assert naive.full.intercept < truth.full.intercept - 1
