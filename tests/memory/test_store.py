"""Memories on disk: shared by processes, killed in the middle, damaged; and the command that shows them."""

import multiprocessing
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import orjson
import pytest
from typer.testing import CliRunner

from boundarymorph.cli.main import app
from boundarymorph.errors import StorageUnavailable
from boundarymorph.memory.memory import FIRST, Memory, Observation
from boundarymorph.memory.store import MEMORIES, Memories, described, in_words
from boundarymorph.retrieval.interfaces import MemoryKey
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.memory.test_fitting import LEARNED, drawn, evidence_of


def memories(folder: Path) -> Memories:
    return Memories(folder / "memories.sqlite3", lambda: folder.mkdir(parents=True, exist_ok=True))


def tell(folder: Path, key: str, count: int, seed: int) -> None:
    rng, held = np.random.default_rng(seed), memories(folder)
    for _ in range(count):
        held.record(key, [Observation(evidence_of(*drawn(rng, LEARNED, 8)), str(seed))])


def test_reading_makes_no_file(tmp_path: Path) -> None:
    held = memories(tmp_path / "none")
    assert held.get("a") == Memory() and not held.all() and held.forget() == 0
    held.copy_to(tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_processes_tell_one_memory_and_none_is_lost(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=tell, args=(tmp_path, "a", 15, seed)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = memories(tmp_path).get("a")
    assert found.requests == 45 and found.in_force
    assert list(memories(tmp_path).all()) == ["a"]


def test_a_process_killed_while_it_tells_leaves_a_whole_memory(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    for seed in range(3):
        worker = fork.Process(target=tell, args=(tmp_path, "a", 10_000, seed))
        worker.start()
        before = memories(tmp_path).get("a").requests
        while memories(tmp_path).get("a").requests < before + 5:
            time.sleep(0.005)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        found = memories(tmp_path).get("a")
        tell(tmp_path, "a", 1, seed)
        assert memories(tmp_path).get("a").requests == found.requests + 1


def test_a_memory_that_cannot_be_read_begins_anew(tmp_path: Path) -> None:
    tell(tmp_path, "a", 3, 0)
    with sqlite3.connect(tmp_path / "memories.sqlite3") as database:
        database.execute("update memories set state = '{\"told\": 3}'")
    assert memories(tmp_path).get("a") == Memory()
    tell(tmp_path, "a", 1, 0)
    assert memories(tmp_path).get("a").requests == 1


@pytest.mark.parametrize("kept", [b"no database" * 1_000, None])
def test_a_damaged_file_is_forgotten(tmp_path: Path, kept: bytes | None) -> None:
    tell(tmp_path, "a", 3, 0)
    file = tmp_path / "memories.sqlite3"
    file.write_bytes(file.read_bytes()[:4096] + b"x" * 4096 if kept is None else kept)
    with pytest.raises(StorageUnavailable):
        memories(tmp_path).all()
    assert memories(tmp_path).forget() == 0 and not file.exists()
    tell(tmp_path, "a", 1, 0)
    assert memories(tmp_path).get("a").requests == 1


def test_a_file_that_is_in_use_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boundarymorph.database.BUSY_SECONDS", 0.05)
    tell(tmp_path, "a", 1, 0)
    with closing(sqlite3.connect(tmp_path / "memories.sqlite3", isolation_level=None)) as other:
        other.execute("begin exclusive")
        with pytest.raises(StorageUnavailable, match="locked"):
            memories(tmp_path).forget()
    assert memories(tmp_path).forget() == 1


def test_of_too_many_the_one_that_has_not_learned_for_longest_goes(tmp_path: Path) -> None:
    tell(tmp_path, "first", 1, 0)
    with sqlite3.connect(tmp_path / "memories.sqlite3") as database:
        database.executemany(
            "insert into memories select ?, ?, state from memories where key = 'first'",
            [(f"other {number}", number + 2) for number in range(MEMORIES - 1)],
        )
    tell(tmp_path, "first", 1, 0)
    tell(tmp_path, "new", 1, 0)
    left = memories(tmp_path).all()
    assert len(left) == MEMORIES and {"first", "new"} <= left.keys() and "other 0" not in left


def test_a_copy_has_all_and_forgetting_leaves_none(tmp_path: Path) -> None:
    tell(tmp_path, "a", 2, 0)
    memories(tmp_path).copy_to(tmp_path / "copy.sqlite3")
    assert memories(tmp_path).forget() == 1 and not memories(tmp_path).all()
    copied = Memories(tmp_path / "copy.sqlite3", lambda: None)
    assert copied.get("a").requests == 2


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
