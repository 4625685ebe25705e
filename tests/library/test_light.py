"""The plain install is light: the library works with the `dependencies` of pyproject.toml, and imports no more."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import boundarymorph
assert "numpy" not in sys.modules and "pydantic" not in sys.modules
from boundarymorph import Selector, extend
texts = [f"text {i} about the sea and number {i % 7}" for i in range(1_000)]
chosen = Selector(lambda query, texts: [0.5] * len(texts)).select("the sea", texts, budget=25, k=10)
assert len(chosen.documents) == 10 and chosen.vectors == "lexical", chosen
extend("text", texts, [0.5], embeddings=[[i, 1.0] for i in range(1_000)], query_embedding=[1.0, 0.0])
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
HEAVY = ("fastapi", "starlette", "faiss", "limits", "onnxruntime", "redis", "scipy", "torch", "typer", "uvicorn")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the service's source, its dependencies, theirs, and nothing else of this environment."""
    folder = tmp_path_factory.mktemp("light")
    needed = [
        Requirement(text) for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ]
    seen: set[str] = set()
    while needed:
        requirement = needed.pop()
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(requirement.name)
        found = distribution(requirement.name)
        needed += map(Requirement, found.requires or [])
        for top in {path.parts[0] for path in found.files or [] if ".." not in path.parts}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(found.locate_file(top))))
    for package in (ROOT / "service").iterdir():
        (folder / package.name).symlink_to(package)
    (folder / "boundarymorph-0.dist-info").mkdir()
    (folder / "boundarymorph-0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: boundarymorph\nVersion: 0\n"
    )
    return folder


def run(installed: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the standard library and this folder alone."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    found = [*paths, f"{paths[0]}/lib-dynload", str(installed)]
    code = f"import sys; sys.path[:] = {found!r}; sys.argv = {['boundarymorph', *arguments]!r}\n{program}"
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize("alone", [True, False])
def test_a_selection_imports_no_more_than_what_the_plain_install_brings(installed: Path, alone: bool) -> None:
    """Neither where there is nothing else nor where there is everything."""
    done = (
        run(installed, PROGRAM)
        if alone
        else subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    )
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & set(HEAVY)


@pytest.mark.parametrize("command", ["serve", "select", "--help"])
def test_the_command_says_what_to_install(command: str, installed: Path) -> None:
    done = run(installed, "from boundarymorph.cli import run; run()", command)
    assert done.returncode == 1
    assert (
        done.stderr
        == "the command boundarymorph needs typer: pip install --find-links dist 'boundarymorph[service,models]'\n"
    )
