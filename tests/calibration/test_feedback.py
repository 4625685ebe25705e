"""What is kept of what people say."""

from pathlib import Path

import pytest

from boundarymorph.calibration.belongings import JUDGMENTS, Belongings, Event, grades_of
from boundarymorph.errors import LimitExceeded, StorageUnavailable, UnknownIndex


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
