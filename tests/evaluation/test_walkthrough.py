"""docs/evaluation.md shows how a selector is added; it runs as it stands there."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.tables import synthetic

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


def test_the_selector_of_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    (tmp_path / "tables").mkdir()
    np.savez(tmp_path / "tables" / "NAME.npz", **synthetic(queries=2, n=80).arrays)  # type: ignore[arg-type]
    (tmp_path / "own.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("own.py")
    printed = capsys.readouterr().out.splitlines()
    assert [line[:20].strip() for line in printed] == ["every so many", "SS", "trend"]
    assert all(0 < float(line[20:]) <= 100 for line in printed)
