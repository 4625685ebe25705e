"""Grades and clicks: what is kept of them, and what clicks say."""

from pathlib import Path

import numpy as np
import pytest

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.calibration.feedback import Event, Feedback, examined, grades_of, merged
from boundarymorph.calibration.judgments import JudgedQuery
from boundarymorph.calibration.learning import debiased, learn
from boundarymorph.errors import LimitExceeded, StorageUnavailable
from tests.calibration.worlds import World


def test_events_are_kept_counted_and_deleted(tmp_path: Path) -> None:
    feedback, other = (Feedback(tmp_path / "new" / "judgments.sqlite3", most=4) for _ in range(2))
    events = [Event("q", "a", 2.0), Event("q", "b", None, 3, True), Event("r", "a", 0.0)]
    assert feedback.add("index", events, "caller", 1.0) == 3
    assert other.events("index") == events
    assert other.count("another") == 0
    with pytest.raises(LimitExceeded, match="3 judgements of at most 4"):
        other.add("index", events[:2], "caller", 2.0)
    assert other.add("index", events[:1], "caller", 2.0) == 4  # at the edge
    assert feedback.add("another", events, "caller", 2.0) == 3
    assert feedback.delete("index", "q") == 3
    assert feedback.events("index") == [Event("r", "a", 0.0)]
    assert feedback.delete("index") == 1
    assert feedback.count("another") == 3


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "judgments.sqlite3").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "judgments.sqlite3", tmp_path / "file" / "judgments.sqlite3"):
        with pytest.raises(StorageUnavailable):
            Feedback(path, most=4).count("index")


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
