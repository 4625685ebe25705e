"""Test the file of an index's artifacts: atomic writes, damage, and files of version 0.1."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from boundarymorph.calibration.calibration import Calibration, ProbabilityMap
from boundarymorph.errors import CorruptIndex, UnknownIndex
from boundarymorph.retrieval.artifacts import FILE, ArtifactFile, Artifacts

MADE = Calibration("scorer", None, {"human": ProbabilityMap(0.5, -1.0, 1e-6)}, created="2026-11-28T10:00:00+00:00")
ALL = {"description": "Photos.", "distinct": "page", "calibration": MADE}


def held(folder: Path, index: str = "photos") -> ArtifactFile:
    return ArtifactFile(folder, index)


def test_artifact_file_changes_one_artifact_at_a_time(tmp_path: Path) -> None:
    assert held(tmp_path).read() == Artifacts() and not list(tmp_path.iterdir())
    for name, value in ALL.items():
        held(tmp_path).change(**{name: value})
    assert held(tmp_path).read() == Artifacts("Photos.", "page", MADE)
    held(tmp_path).change(distinct=None)
    assert held(tmp_path).read() == Artifacts("Photos.", None, MADE)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_artifact_file_keeps_concurrent_changes(tmp_path: Path) -> None:
    for _ in range(20):
        with ThreadPoolExecutor(3) as threads:
            done = [threads.submit(held(tmp_path).change, **{name: value}) for name, value in ALL.items()]
        for one in done:
            one.result()
        assert held(tmp_path).read() == Artifacts("Photos.", "page", MADE)
        (tmp_path / FILE).unlink()


@pytest.mark.parametrize(
    "content",
    [b"", b"[1", b"[]", b"{}", b'{"description": 7, "distinct": null, "calibration": null}',
     b'{"description": null, "distinct": null, "calibration": {"version": 2}}',
     b'{"description": null, "distinct": null, "calibration": null, "more": 1}'],
)  # fmt: skip
def test_damaged_artifact_file_is_named_and_left_unchanged(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(CorruptIndex, match=f"{FILE} is damaged"):
        held(tmp_path).read()
    with pytest.raises(CorruptIndex, match=f"{FILE} is damaged"):
        held(tmp_path).change(description="new")
    with pytest.raises(CorruptIndex, match=f"{FILE} is damaged"):
        held(tmp_path).copy_to(tmp_path / "copy.json")
    assert held(tmp_path).read_if_sound() is None
    assert "'photos'" in caplog.text and FILE in caplog.text
    assert (tmp_path / FILE).read_bytes() == content and len(list(tmp_path.iterdir())) == 1


def test_artifact_change_for_a_deleted_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownIndex, match="'photos'"):
        held(tmp_path / "gone").change(description="Photos.")
    assert not list(tmp_path.iterdir())
    of_table = ArtifactFile(tmp_path / "new" / "table", "table", create=True)
    assert of_table.read() == Artifacts() and not list(tmp_path.iterdir())
    of_table.change(description="Photos.")
    assert of_table.read().description == "Photos."
