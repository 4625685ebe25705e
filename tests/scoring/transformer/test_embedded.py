"""Trained weights: what rounding and batches do to the order of real documents."""

from __future__ import annotations

import inspect
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kendalltau

from boundarymorph.scoring.scorer import OnnxCrossEncoder
from boundarymorph.scoring.transformer import Precision, TransformerCrossEncoder
from tests.scoring.transformer import embedded

QUERY = "extract all members of an archive"
METHODS = [value for kind in (tarfile.TarFile, zipfile.ZipFile, str) for _, value in inspect.getmembers(kind, callable)]
TEXTS = sorted({text for text in map(inspect.getdoc, METHODS) if text and len(text) < 150})[::3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.save(tmp_path_factory.mktemp("embedded"))


def scores(folder: Path, precision: Precision = "fp32") -> NDArray[np.float64]:
    encoder = TransformerCrossEncoder.load(str(folder), precision=precision, device="cpu", threads=1)
    found = encoder.run(encoder.tokenize(QUERY, TEXTS))
    encoder.close()
    return found


@pytest.fixture(scope="module")
def exact(folder: Path) -> NDArray[np.float64]:
    return scores(folder)


def test_it_is_the_embedded_model(exact: NDArray[np.float64]) -> None:
    onnx = OnnxCrossEncoder.embedded(threads=1)
    rounded = onnx.run(onnx.tokenize(QUERY, TEXTS))
    onnx.close()
    assert len(TEXTS) > 25
    assert kendalltau(rounded, exact).statistic > 0.8
    assert "archive" in TEXTS[exact.argmax()]


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "log_odds"), [("bf16", 0.15), ("fp16", 0.02)])
def test_half_precision_is_near(
    folder: Path, exact: NDArray[np.float64], precision: Precision, log_odds: float
) -> None:
    half = scores(folder, precision)
    off = np.abs(np.log(half / (1 - half)) - np.log(exact / (1 - exact)))
    assert 0 < off.max() < log_odds
    assert list(np.argsort(-half)[:2]) == list(np.argsort(-exact)[:2])
