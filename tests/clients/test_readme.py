"""The first example of clients/python/README.md runs; what it prints there is what the embedded models make of it. So
does the program of clients/examples that needs no framework."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clients.examples import check_example

README = Path(__file__).parents[2] / "clients" / "python" / "README.md"


async def test_the_example(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```(python)?\n(.*?)```\n", README.read_text(), re.DOTALL)
    example, printed = next((code, output) for (kind, code), (_, output) in pairwise(blocks) if kind == "python")
    monkeypatch.setenv("BOUNDARYMORPH_URL", url)
    await asyncio.to_thread(exec, example, {})

    def words(lines: str) -> list[str]:
        """Without what the models decide."""
        return re.sub(r"\d\.\d+|\bs\d\b|posterior|cross_encoder|[A-Z].*\.$", "", lines, flags=re.MULTILINE).split()

    assert words(capsys.readouterr().out) == words(printed)


async def test_retrieval_augmented_generation(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    await check_example("plain.py", url, monkeypatch, capfd)
