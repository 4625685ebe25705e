"""Where a map puts documents, and what it shows of a large pool."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from boundarymorph.evaluation import plots
from boundarymorph.evaluation.methods.baselines import SingleStage
from boundarymorph.evaluation.run import run_once
from tests.evaluation.tables import synthetic

HEIGHTS = {"mips": 0.5, "ss": 0.505, "trend": 0.8}


def test_a_handful_of_documents_lies_along_its_principal_components() -> None:
    line = (np.linspace(-1, 1, 9)[:, None] * np.array([[3.0, 4.0, 0.0]])).astype(np.float32)
    places = plots._layout(line + 7, seed=0)
    assert places.shape == (9, 2)
    assert np.abs(places[:, 0]) == pytest.approx(5 * np.abs(np.linspace(-1, 1, 9)), abs=1e-5)
    assert places[:, 1] == pytest.approx(0, abs=1e-5)


def test_more_documents_keep_their_groups_and_their_places() -> None:
    rng = np.random.default_rng(0)
    groups = np.arange(50) % 2
    embeddings = (rng.normal(size=(50, 6)) + 30 * groups[:, None]).astype(np.float32)
    places = plots._layout(embeddings, seed=0)
    centres = np.array([places[groups == group].mean(axis=0) for group in (0, 1)])
    nearest = np.linalg.norm(places[:, None] - centres, axis=2).argmin(axis=1)
    assert nearest.tolist() == groups.tolist()
    np.testing.assert_array_equal(plots._layout(embeddings, seed=0), places)


def test_lines_are_named_at_their_ends_apart_from_each_other(tmp_path: Path) -> None:
    assert plots._apart([50.0, 50.5, 80.0], 2.0, 100.0) == pytest.approx([49.25, 51.25, 80.0])
    assert plots._apart([99.0, 99.5], 2.0, 100.0) == pytest.approx([98.0, 100.0])
    values = {name: {(budget, k): height for budget in (10, 20) for k in (5, 50)} for name, height in HEIGHTS.items()}
    palette = plots.colours(list(HEIGHTS), ["trend"])
    assert len(set(palette.values())) == len(HEIGHTS)
    plots.quality_against_budget(
        tmp_path / "q.png", [10, 20], [5, 50], values, dict.fromkeys(HEIGHTS, "name"), palette, ["trend"], "CE-nCG"
    )
    with Image.open(tmp_path / "q.png") as image:
        assert image.mode == "P" and image.size == (int(130 * 8.4), int(130 * 4.2))


def test_a_large_pool_shows_what_matters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    laid: list[int] = []

    def in_a_row(embeddings: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
        laid.append(len(embeddings))
        return np.stack([np.arange(len(embeddings))] * 2, axis=1).astype(np.float64)

    monkeypatch.setattr(plots, "_layout", in_a_row)
    monkeypatch.setattr(plots, "MAPPED", 10)
    question = synthetic(n=60).question(0)
    problem, ranking = run_once(SingleStage(), question, 7, 5)
    plots.document_map(tmp_path / "map.png", question, {"SS": (problem, ranking)}, "title")
    shown = set(np.argsort(-question.scores, kind="stable")[:10]) | set(problem.calls) | set(ranking[:5])
    assert laid == [len(shown)] and len(shown) < 60
    with Image.open(tmp_path / "map.png") as image:
        assert image.mode == "P" and min(image.size) > 400
