"""A calibration on a pool, as JSON and in its folder."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundarymorph.calibration.belongings import Belongings, CalibrationFolder
from boundarymorph.calibration.calibration import Calibration, Trust
from boundarymorph.errors import InvalidInput, UnknownIndex
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


@pytest.mark.strangers
def test_of_an_index_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(UnknownIndex):
        Belongings(tmp_path / "gone" / "belongings", "gone").describe("Photos.")
    assert not list(tmp_path.iterdir())
