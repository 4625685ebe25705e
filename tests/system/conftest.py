from pathlib import Path

import pytest

from tests.scoring.transformer import tiny


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder as a folder: a BERT of 3 layers with random weights."""
    return tiny.bert(tmp_path_factory.mktemp("model") / "tiny-bert")
