"""Test that the examples of README.md, docs/library.md and the notebook print their outputs."""

import json
import platform
import re
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.documented import NUMBER, check_printed

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
EXAMPLE = re.compile(r"(?ms)^```python\n(.*?)^```\n+```text\n(.*?)^```")


@pytest.fixture(autouse=True)
def _default_relevance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOUNDARYMORPH_RELEVANCE", raising=False)  # readers use the default


def printed_by(code: str, names: dict[str, Any]) -> str:
    printed = StringIO()
    with redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def without_numbers(printed: str) -> Counter[str]:
    """Count the printed lines, with their numbers removed."""
    return Counter(NUMBER.sub("", line) for line in printed.splitlines())


@pytest.mark.parametrize(("page", "count"), [("README.md", 2), ("docs/library.md", 2)])
def test_documented_examples_print_the_shown_output(page: str, count: int) -> None:
    names: dict[str, Any] = {}
    found = EXAMPLE.findall((ROOT / page).read_text())
    examples = [(code, shown) for code, shown in found if "localhost" not in code]  # those run in tests/clients
    assert len(examples) == count
    for code, shown in examples:
        check_printed(printed_by(code, names), shown)


@pytest.mark.slow
def test_notebook_cells_print_the_shown_output() -> None:
    """Three quarters of the lines must agree, since scores vary a little between processors.

    The texts come from one version of Python; another version prints other lines.
    """
    notebook = json.loads(NOTEBOOK.read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            printed = printed_by("".join(cell["source"]), names)
            shown = "".join(line for output in cell["outputs"] for line in output["text"])
            if platform.python_version() == notebook["metadata"]["language_info"]["version"]:
                expected = without_numbers(shown)
                assert len(printed.splitlines()) == len(shown.splitlines())
                assert (expected & without_numbers(printed)).total() >= 0.75 * len(shown.splitlines())
    assert names["chosen"].documents
