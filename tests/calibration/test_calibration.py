"""A calibration on a pool, as JSON, in its folder, and what is kept of what people say."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundarymorph.calibration.belongings import JUDGMENTS, Belongings, CalibrationFolder, Event, grades_of
from boundarymorph.calibration.calibration import Calibration, Trust
from boundarymorph.errors import InvalidInput, LimitExceeded, StorageUnavailable, UnknownIndex
from boundarymorph.selection import Pool
from tests.calibration.worlds import World

MADE = Calibration(
    "made", "signals", "scorer", "encoder", 1e-6, Trust(0.5, -1.0, {"similarity": 1.0, "bm25": 0.5}), Trust(0.7, -0.5)
)
POOL = World(1.0, 1.0).query(50)[0]


def test_the_formula() -> None:
    scores, documents = np.array([0.2, 0.9]), np.array([3, 40])
    similarity = (POOL.scores - POOL.scores.mean()) / POOL.scores.std()
    evidence = similarity[documents] + 0.5 * np.log1p(POOL.features["bm25"][documents])
    expected = 1 / (1 + np.exp(-(0.5 * np.log(scores / (1 - scores)) + evidence - 1.0)))
    assert np.allclose(MADE.on(POOL).probability(scores, documents), expected)
    alone = replace(MADE, form="scale").on(POOL)
    assert np.allclose(alone.read(scores), 1 / (1 + np.exp(-(0.7 * np.log(scores / (1 - scores)) - 0.5))))


def test_a_pool_without_evidence_is_read_on_the_scale_of_the_scorer() -> None:
    bare = MADE.on(Pool.listed(POOL.ids))
    assert bare.missing == ("bm25", "similarity")
    assert not bare.told
    assert bare.read(np.array([0.5]))[0] == pytest.approx(1 / (1 + np.exp(0.5)))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.floats(0, 3), st.floats(-5, 5))
def test_a_higher_score_is_never_less_probable(scores: list[float], slope: float, weight: float) -> None:
    made = replace(MADE, full=Trust(slope, -1.0, {"similarity": weight}))
    ordered = np.sort(scores)
    found = made.on(POOL).probability(ordered, np.full(len(scores), 7))
    assert (np.diff(found) >= 0).all()
    assert ((found >= 0) & (found <= 1)).all()


@given(st.floats(0.001, 0.999))
def test_a_threshold_on_the_probability_is_one_on_the_score(probability: float) -> None:
    calibrated = replace(MADE, form="scale").on(POOL)
    score = calibrated.reaching(probability)
    if 1e-5 < score < 1 - 1e-5:
        assert calibrated.read(np.array([score]))[0] == pytest.approx(probability, rel=1e-6)
    assert calibrated.read(np.array([min(1.0, score * 1.01)]))[0] >= min(
        probability, calibrated.read(np.array([1.0]))[0]
    )


def test_another_model_makes_it_stale() -> None:
    assert MADE.stale("scorer", "encoder") is None
    assert MADE.stale(None, None) is None
    assert "'other' is in use" in str(MADE.stale("other", "encoder"))
    assert "the encoder 'encoder'" in str(MADE.stale("scorer", "other"))


def test_it_is_kept_and_read_again_when_it_changes(tmp_path: Path) -> None:
    folder, other = (CalibrationFolder(tmp_path / "calibrations") for _ in range(2))
    assert folder.get("made") is None
    folder.keep(MADE)
    assert other.get("made") == MADE
    folder.keep(replace(MADE, form="scale"))
    assert folder.names() == ["made"]
    assert other.get("made") == replace(MADE, form="scale")


@pytest.mark.strangers
def test_the_default_of_an_index_goes_by_the_name_of_the_index(tmp_path: Path) -> None:
    Belongings(tmp_path / "belongings", "made").keep(replace(MADE, index="made"))
    Belongings(tmp_path / "belongings", "made").keep(replace(MADE, name="more", index="made"))
    renamed = Belongings(tmp_path / "belongings", "new")
    assert renamed.calibration() == renamed.calibration("new") == replace(MADE, name="new", index="new")
    assert renamed.names() == ["new", "more"]
    assert renamed.calibration("made") is None


@pytest.mark.parametrize("name", ["", "../made", "Made", ".made", "a" * 65, "a/b"])
def test_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="not a name"):
        CalibrationFolder(tmp_path).get(name)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"full": {"slope": -1.0, "intercept": 0.0}},
        {"alone": {"slope": None, "intercept": 0.0}},
        {"clip": None},
        {"clip": 1.0},
        {"full": 7},
        {"surprise": 1},
    ],
)
def test_damaged_files(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "made.json").write_bytes(orjson.dumps({**MADE.to_json(), **change}))
    with pytest.raises(InvalidInput, match="'made' cannot be used"):
        CalibrationFolder(tmp_path).get("made")
    (tmp_path / "made.json").write_bytes(b"[1")
    with pytest.raises(InvalidInput, match="'made' cannot be used"):
        CalibrationFolder(tmp_path).get("made")
    (tmp_path / "calibration.json").write_bytes(b"[1")
    with pytest.raises(InvalidInput, match="'texts' cannot be used"):
        Belongings(tmp_path, "texts").calibration()


def test_events_are_kept_counted_and_deleted(tmp_path: Path) -> None:
    feedback, other = (Belongings(tmp_path / "belongings", "index").judgments for _ in range(2))
    assert (feedback.count(), feedback.delete(), list(tmp_path.iterdir())) == (0, 0, [])
    events = [Event("q", "a", 2.0), Event("q", "b", 1.0), Event("r", "a", 0.0)]
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


def test_the_last_grade_of_a_pair_counts_and_those_given_go_first() -> None:
    events = [Event("q", "a", 2.0), Event("q", "b", 1.0), Event("q", "a", 0.0), Event("r", "a", 3.0)]
    found = grades_of(events, {"q": {"b": 2.0}, "s": {"a": 1.0}})
    assert found == {"q": {"a": 0.0, "b": 2.0}, "s": {"a": 1.0}, "r": {"a": 3.0}}


def test_a_file_with_clicks_of_an_earlier_version_is_read_and_written(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / JUDGMENTS)) as database:
        database.execute(
            "create table judgments (number integer primary key, at real not null, query text not null, "
            "document text not null, grade real, rank integer, clicked integer, caller text not null)"
        )
        rows = [("a", 2.0, None, 0), ("b", None, 1, 1)]
        database.executemany("insert into judgments values (null, 1.0, 'q', ?, ?, ?, ?, 'c')", rows)
        database.commit()
    feedback = Belongings(tmp_path, "index").judgments
    feedback.add([Event("q", "c", 1.0)], "caller", 2.0, 9)
    assert feedback.events() == [Event("q", "a", 2.0), Event("q", "c", 1.0)]
