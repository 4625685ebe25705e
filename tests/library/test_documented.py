"""The examples of docs/library.md print what stands below them."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.documented import check_printed

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
EXAMPLE = re.compile(r"(?ms)^```python\n(.*?)^```\n+```text\n(.*?)^```")


def test_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOUNDARYMORPH_RELEVANCE", raising=False)  # readers have the default
    names: dict[str, Any] = {}
    examples = EXAMPLE.findall(PAGE.read_text())
    assert len(examples) == 3
    for code, shown in examples:
        printed = StringIO()
        with redirect_stdout(printed):
            exec(code, names)
        check_printed(printed.getvalue(), shown)
