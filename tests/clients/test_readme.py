"""The examples of README.md and clients/python/README.md do what these say, and clients/examples/plain.py runs."""

from __future__ import annotations

import asyncio
import re
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.examples import check_example
from tests.clients.way import Recorder

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = cache(packages_distributions)  # which reads the lists of all files
README = ROOT / "clients" / "python" / "README.md"


@pytest.mark.strangers
async def test_the_example_prints_what_the_embedded_models_make_of_it(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```(python)?\n(.*?)```\n", README.read_text(), re.DOTALL)
    example, printed = next((code, output) for (kind, code), (_, output) in pairwise(blocks) if kind == "python")
    monkeypatch.setenv("BOUNDARYMORPH_URL", embedded_url)
    await asyncio.to_thread(exec, example, {})
    assert to_a_tenth(capsys.readouterr().out) == to_a_tenth(printed)


def to_a_tenth(text: str) -> str:
    """Return a text without the second decimals, which depend on the processor."""
    return re.sub(r"(\d\.\d)\d", r"\1", text)


async def test_the_url_of_another_reranker(embedded_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```(?:python|text)\n(.*?)```\n", (ROOT / "README.md").read_text(), re.DOTALL)
    (example, shown) = next(pair for pair in pairwise(blocks) if "import cohere" in pair[0])
    hotels = next(re.findall(r"(?s)^hotels = .*?^\]", block, re.MULTILINE) for block in blocks)[0]
    await asyncio.to_thread(exec, f"{hotels}\n{example}".replace("http://localhost:8080", embedded_url), {})
    assert to_a_tenth(capsys.readouterr().out) == to_a_tenth(shown)


async def test_the_recipe_for_scores_that_were_bought(
    url: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the first 25 of 100 candidates, half of which are relevant."""
    examples = re.findall(r"```python\n(.*?)```\n", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)
    (example,) = (each for each in examples if "client.extend" in each)
    even = np.arange(100) % 2 == 0
    given: dict[str, Any] = {
        "query": "what is asked",
        "texts": [f"text {number}" for number in range(100)],
        "scores": np.where(even, 0.9, 0.1)[:25].tolist(),
        "vectors": np.random.default_rng(1).standard_normal((100, 8)) / 4 + np.eye(8)[np.arange(100) % 2],
        "vector": np.eye(8)[2],
    }
    monkeypatch.setenv("BOUNDARYMORPH_URL", url)
    await asyncio.to_thread(exec, example, given)
    assert len(given["chosen"]) == 50
    assert sum(even[given["texts"].index(text)] for text in given["chosen"]) >= 45
    assert [request.body["budget"] for request in recorder.seen if request.path == "/select"] == [0]


@pytest.mark.parametrize("extra", ["langchain", "llamaindex", "haystack"])
def test_an_extra_brings_what_its_example_imports(extra: str) -> None:
    said = README.read_text().partition(f"`boundarymorph-client[{extra}]`")[2]
    imported = re.findall(r"^from (\w+)", said.partition("```python")[2].partition("```")[0], re.MULTILINE)
    project = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]
    brought = {re.split("[<>=]", each)[0] for each in project["optional-dependencies"][extra]}
    providers = {**DISTRIBUTIONS(), "boundarymorph_client": list(brought)}
    assert imported and all(brought & set(providers[module]) for module in imported)


async def test_retrieval_augmented_generation(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    await check_example("plain.py", url, monkeypatch, capfd)
