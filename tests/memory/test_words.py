"""What a memory says of itself, and the command that shows it."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from typer.testing import CliRunner

from boundarymorph.cli.main import app
from boundarymorph.memory.memory import FIRST, Observation
from boundarymorph.memory.store import described, in_words
from boundarymorph.retrieval.interfaces import MemoryKey
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.memory.test_fitting import LEARNED, drawn, evidence_of


@pytest.fixture
def key(tmp_path: Path) -> MemoryKey:
    LocalCatalog(tmp_path / "indexes").create("docs", encoder=None, dimension=2)
    return MemoryKey("docs", "", "a-scorer", "an-encoder", "")


def teach(tmp_path: Path, key: MemoryKey, requests: int) -> None:
    rng = np.random.default_rng(0)
    memories = LocalCatalog(tmp_path / "indexes").belongings("docs").memories
    for _ in range(requests):
        memories.record(key.text, [Observation(evidence_of(*drawn(rng, LEARNED)), "c")])


def run(tmp_path: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["index", "learned", "docs", *options, "--data-directory", str(tmp_path)])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_says_what_was_learned(tmp_path: Path, key: MemoryKey) -> None:
    assert "nothing yet" in run(tmp_path)
    teach(tmp_path, key, FIRST - 1)
    assert "9 requests, too few to learn from" in run(tmp_path)
    teach(tmp_path, key, 1)
    shown = run(tmp_path)
    assert "a-scorer, vectors of an-encoder" in shown and "in force" in shown and "not in force" not in shown
    (found,) = orjson.loads(run(tmp_path, "--json"))["memories"]
    assert found["requests"] == FIRST and found["level"] == pytest.approx(LEARNED.level, abs=2)
    assert "1 forgotten" in run(tmp_path, "--reset") and "nothing yet" in run(tmp_path)


def test_slopes_are_factors_of_the_odds(tmp_path: Path, key: MemoryKey) -> None:
    teach(tmp_path, key, 40)
    (found,) = described(LocalCatalog(tmp_path / "indexes").belongings("docs").memories)
    assert found.by_similarity is not None and found.amplitude is not None
    assert found.by_similarity == pytest.approx(found.amplitude * LEARNED.similarity, abs=0.5)
    (line,) = [line for line in in_words(found).splitlines() if "similarity" in line]
    assert float(line.split()[1]) == pytest.approx(np.exp(found.by_similarity), abs=0.01)


def test_a_snapshot_has_the_memory(tmp_path: Path, key: MemoryKey) -> None:
    teach(tmp_path, key, FIRST)
    catalog = LocalCatalog(tmp_path / "indexes")
    catalog.get("docs").back_up(tmp_path / "copy")
    catalog.delete("docs")
    catalog.restore("again", tmp_path / "copy")
    found = catalog.belongings("again").memories.get(key.text)
    assert found.in_force and found.requests == FIRST
    catalog.create("docs", encoder=None, dimension=2)
    assert not catalog.belongings("docs").memories.all()
