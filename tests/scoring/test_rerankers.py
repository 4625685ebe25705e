"""Test the rerankers with a short name, with tiny models in place of the hub's files."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
from numpy.typing import NDArray

from boundarymorph.scoring.build import build_local_scorer
from boundarymorph.scoring.rerankers import ENGLISH, RERANKERS, repository_of
from boundarymorph.settings import Settings
from tests.scoring.transformer import reference, tiny
from tests.scoring.transformer.tiny import QUERY

Reference = Callable[[Path, str, Sequence[str]], NDArray[np.float64]]
MAIN = "a" * 40  # a commit
TEXTS = [text for text in tiny.TEXTS if text and len(text) < 120]  # short enough for every tokenizer
WEIGHTS: dict[str, tuple[Callable[..., Path], Reference]] = {
    "bge-reranker-v2-m3": (tiny.xlm_roberta, reference.classifier_scores),
    "gte-reranker-modernbert-base": (tiny.modernbert, reference.classifier_scores),
    "qwen3-reranker-0.6b": (tiny.qwen3, reference.yes_against_no),
    "mxbai-rerank-base-v2": (tiny.qwen2, reference.one_against_zero),
}
PAGE = Path(__file__).parents[2] / "docs/models.md"


def snapshot(hub: Path, name: str) -> Path:
    return hub / f"models--{RERANKERS[name].replace('/', '--')}" / "snapshots" / MAIN


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache of the hub with the main branch of each model."""
    hub = tmp_path_factory.mktemp("hub")
    for name, (make, _) in WEIGHTS.items():
        make(snapshot(hub, name))
        branch = snapshot(hub, name).parents[1] / "refs/main"
        branch.parent.mkdir()
        branch.write_text(MAIN)
    return hub


@pytest.fixture
def offline(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


async def scored(**chosen: Any) -> tuple[str, NDArray[np.float64]]:
    """Return the name of a scorer with these settings, and its scores."""
    settings = Settings.model_validate({"scorer": {"device": "cpu", "precision": "fp32", **chosen}, "threads": 1})
    scorer = build_local_scorer(settings)
    try:
        return scorer.name, (await scorer.score(QUERY, TEXTS)).values
    finally:
        await scorer.close()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", RERANKERS)
async def test_short_name_loads_the_model_with_its_own_scoring(hub: Path, name: str) -> None:
    full, found = await scored(model=name)
    expected = WEIGHTS[name][1](snapshot(hub, name), QUERY, TEXTS)
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert full.startswith(f"{RERANKERS[name]}@{MAIN[:12]}/")
    assert (await scored(model=RERANKERS[name]))[0] == full


def test_folder_takes_precedence_over_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "bge-reranker-v2-m3"
    assert repository_of(name) == "BAAI/bge-reranker-v2-m3"
    (tmp_path / name).mkdir()
    assert repository_of(name) == name
    assert repository_of("someone/else") == "someone/else"


def test_models_page_lists_the_rerankers() -> None:
    rows = re.findall(
        r"^\| \[`([\w.-]+)`\]\(https://huggingface.co/([\w./-]+)\) \| \d+ M \| (\S+) \|", PAGE.read_text(), re.M
    )
    assert {name: repository for name, repository, _ in rows} == RERANKERS
    english = {repository for _, repository, languages in rows if languages == "English"}
    assert english == set(ENGLISH) & set(RERANKERS.values())
