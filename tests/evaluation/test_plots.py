"""The pictures of a report."""

from pathlib import Path

import pytest
from PIL import Image

from boundarymorph.evaluation import plots

HEIGHTS = {"mips": 0.5, "ss": 0.505, "trend": 0.8}


def test_lines_are_named_at_their_ends_apart_from_each_other(tmp_path: Path) -> None:
    assert plots._apart([50.0, 50.5, 80.0], 2.0, 100.0) == pytest.approx([49.25, 51.25, 80.0])
    assert plots._apart([99.0, 99.5], 2.0, 100.0) == pytest.approx([98.0, 100.0])
    values = {name: {(budget, k): height for budget in (10, 20) for k in (5, 50)} for name, height in HEIGHTS.items()}
    looks = plots.looks(dict.fromkeys(HEIGHTS, "name"), ["trend"])
    assert len({look.colour for look in looks.values()}) == len(HEIGHTS)
    plots.quality_against_budget(tmp_path / "q.png", list(values["ss"]), values, looks, "CE-nCG")
    with Image.open(tmp_path / "q.png") as image:
        assert image.mode == "P" and image.size == (int(130 * 8.4), int(130 * 4.2))
