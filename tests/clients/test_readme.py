"""The first example of clients/python/README.md prints what it shows. The program of clients/examples that needs no
framework runs."""

from __future__ import annotations

import asyncio
import re
import tomllib
from importlib.metadata import packages_distributions
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clients.examples import check_example
from tests.documented import check_printed

ROOT = Path(__file__).parents[2]
README = ROOT / "clients" / "python" / "README.md"


@pytest.mark.strangers
async def test_the_example(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```(python)?\n(.*?)```\n", README.read_text(), re.DOTALL)
    example, printed = next((code, output) for (kind, code), (_, output) in pairwise(blocks) if kind == "python")
    monkeypatch.setenv("BOUNDARYMORPH_URL", embedded_url)
    await asyncio.to_thread(exec, example, {})
    check_printed(capsys.readouterr().out, printed)


@pytest.mark.parametrize("extra", ["langchain", "llamaindex", "haystack"])
def test_an_extra_brings_what_its_example_imports(extra: str) -> None:
    said = README.read_text().partition(f"`boundarymorph-client[{extra}]`")[2]
    imported = re.findall(r"^from (\w+)", said.partition("```python")[2].partition("```")[0], re.MULTILINE)
    project = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]
    brought = {re.split("[<>=]", each)[0] for each in project["optional-dependencies"][extra]}
    providers = {**packages_distributions(), "boundarymorph_client": list(brought)}
    assert imported and all(brought & set(providers[module]) for module in imported)


def test_every_extra_of_the_service_is_named_where_it_is_needed() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for extras in re.findall(r"boundarymorph\[([a-z,]+)\]", pages) for extra in extras.split(",")}
    assert extras.keys() - {"dev"} <= named
    (before, _) = (ROOT / "README.md").read_text().split("boundarymorph evaluate --data")
    assert "'boundarymorph[models,evaluation]'" in before


async def test_retrieval_augmented_generation(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    await check_example("plain.py", url, monkeypatch, capfd)
