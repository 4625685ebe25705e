"""Test which files of a folder, or of a revision on the hub, are opened."""

import shutil
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from boundarymorph.errors import InvalidConfiguration, ModelUnavailable
from boundarymorph.inference.transformer import Repository
from boundarymorph.retrieval.encoders.transformer import TransformerDualEncoder
from boundarymorph.scoring.transformer import TransformerCrossEncoder
from tests.scoring.transformer import tiny

NAME = "maker/bge-tiny"
OLD, NEW = "0" * 40, "1" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a cache of the unreachable hub.

    It has two commits of one model, of which the main branch has the newer one.
    """
    repository = tmp_path / "models--maker--bge-tiny"
    made = tiny.bert(tmp_path / "made")
    for commit in (OLD, NEW):
        shutil.copytree(made, repository / "snapshots" / commit)
    newer = repository / "snapshots" / NEW / "config_sentence_transformers.json"
    newer.write_text('{"prompts": {"query": "new: "}, "default_prompt_name": null}')
    (repository / "refs").mkdir()
    for ref, commit in (("main", NEW), ("v1", OLD)):
        (repository / "refs" / ref).write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert huggingface_hub.constants.is_offline_mode()


@pytest.mark.parametrize(("revision", "commit"), [(None, NEW), ("main", NEW), ("v1", OLD), (OLD, OLD)])
def test_model_files_and_name_come_from_the_revision(hub: None, revision: str | None, commit: str) -> None:
    encoder = TransformerDualEncoder.load(NAME, revision=revision, device="cpu")
    assert encoder.name.startswith(f"{NAME}@{commit[:12]}/fp32/")
    new = len(encoder.tokenize_query("a tram")) > len(encoder.tokenize_documents(["a tram"])[0])
    assert new == (commit == NEW)
    encoder.close()
    scorer = TransformerCrossEncoder.load(NAME, revision=revision, device="cpu")
    assert scorer.name.startswith(f"{NAME}@{commit[:12]}/fp32/")
    scorer.close()


def test_repository_refuses_an_unknown_revision(hub: None) -> None:
    with pytest.raises(ModelUnavailable):
        _ = Repository(NAME, revision="v2").config


def test_repository_refuses_a_revision_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="leave the revision out"):
        Repository(str(tmp_path), revision="main")


def test_repository_revision_of_a_folder_depends_on_its_code(tmp_path: Path) -> None:
    folder = tiny.bert(tmp_path / "model")
    before = Repository(str(folder)).revision
    (folder / "modeling.py").write_text("print()")
    assert Repository(str(folder)).revision != before
