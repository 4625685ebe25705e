"""Make and open each tiny model once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from boundarymorph.inference.transformer import Precision
from boundarymorph.scoring.transformer import TransformerCrossEncoder
from tests.scoring.transformer.tiny import CLASSIFIERS, GENERATORS

Folder = Callable[[str], Path]
Opened = Callable[[str, Precision], TransformerCrossEncoder]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Return a function that makes a model by its name, and returns its folder."""

    @cache
    def made(name: str) -> Path:
        return (CLASSIFIERS | GENERATORS)[name](tmp_path_factory.mktemp("models") / name)

    return made


@pytest.fixture(scope="session")
def opened(folder: Folder) -> Opened:
    """Return a function that opens a model by its name and precision."""

    @cache
    def loaded(name: str, precision: Precision) -> TransformerCrossEncoder:
        path = str(folder(name))
        return TransformerCrossEncoder.load(path, precision=precision, device="cpu", threads=1)

    return loaded
