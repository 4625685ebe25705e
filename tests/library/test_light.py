"""Test that the library needs only the `dependencies` of pyproject.toml."""

import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
before = {*sys.modules}
import boundarymorph

assert "numpy" not in sys.modules and "pydantic" not in sys.modules
from boundarymorph import Selector, extend

texts = [f"text {i} about the sea and number {i % 7}" for i in range(1_000)]
chosen = Selector(lambda query, texts: [0.5] * len(texts)).select("the sea", texts, budget=25, k=10)
assert len(chosen.documents) == 10 and chosen.vectors == "lexical", chosen
extend("text", texts, [0.5], embeddings=[[i, 1.0] for i in range(1_000)], query_embedding=[1.0, 0.0])
print(*sorted({name.partition(".")[0] for name in {*sys.modules} - before}))
"""


def plain_install() -> set[str]:
    """Return the distributions of the plain install: the dependencies and theirs."""
    needed = [*map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])]
    found: set[str] = set()
    while needed:
        requirement = needed.pop()
        if requirement.name not in found and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            found.add(requirement.name)
            needed += map(Requirement, distribution(requirement.name).requires or [])
    return {canonicalize_name(name) for name in found}


def test_selection_imports_only_packages_of_the_plain_install() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = packages_distributions()
    allowed = plain_install() | {"boundarymorph", "sniffio"}  # anyio imports sniffio if it is installed
    imported = {module: {*map(canonicalize_name, found.get(module, ()))} for module in done.stdout.split()}
    assert [module for module, names in imported.items() if names and not names & allowed] == []


@pytest.mark.parametrize("command", ["serve", "select", "--help"])
def test_command_without_its_extra_says_what_to_install(command: str) -> None:
    code = f"import sys; sys.argv = ['boundarymorph', {command!r}]; sys.modules['typer'] = None\n"
    code += "from boundarymorph.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    install = "pip install --find-links dist 'boundarymorph[service,models]'"
    assert (done.returncode, done.stderr) == (1, f"the command boundarymorph needs typer: {install}\n")
