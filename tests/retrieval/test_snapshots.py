"""Snapshots on disk: whole or not at all, the same to the bit, refused when damaged, one writer at a time."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from boundarymorph.retrieval.halves import floats_from_halves, unit_from_halves
from boundarymorph.retrieval.local.segment import Segment
from boundarymorph.retrieval.local.segmented import SegmentedIndex
from boundarymorph.retrieval.local.snapshots import Content, Snapshots
from boundarymorph.retrieval.local.structures import KINDS
from tests.contract.vector_index import names, unit

ROOT = Path(__file__).parents[2]
FILES = [
    "exact.f32",
    "exceptions.i64",
    "ids.ends.i64",
    "ids.hashes.u64",
    "ids.owners.i32",
    "ids.utf8",
    "manifest.json",
    "sequences.i64",
    "structure.faiss",
    "vectors.f16",
]


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path / "index.sqlite3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "index.snapshots"


def write(
    snapshots: Snapshots,
    sequence: int,
    vectors: NDArray[np.float32] | None = None,
    kind: str = "sq8",
    checkpoint: Callable[[], None] = lambda: None,
) -> str:
    rows = unit(300, 16, seed=sequence) if vectors is None else vectors
    index = SegmentedIndex(rows.shape[1])
    index.upsert(names(len(rows)), rows)
    view = index.view()
    content = Content(kind, rows.shape[1], len(view), sequence, view.blocks())
    with snapshots.lock() as ours:
        assert ours
        return snapshots.write(content, checkpoint=checkpoint)


def opened(snapshots: Snapshots, after: int = 0) -> Segment:
    segment = snapshots.newest(after)
    assert segment is not None
    return segment


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", ["halves", "floats", "some of both"])
def test_vectors_and_ids_come_back_to_the_bit(snapshots: Snapshots, kind: str, stored: str) -> None:
    vectors = unit(500, 16)
    halves = unit_from_halves(vectors.astype(np.float16))
    both = np.where(np.arange(500)[:, None] % 7, halves, vectors)
    vectors = {"halves": halves, "floats": vectors, "some of both": both}[stored]
    write(snapshots, 3, vectors, kind)
    segment = opened(snapshots)
    np.testing.assert_array_equal(segment.vectors(np.arange(500)), vectors)
    assert segment.ids.at(np.arange(500)) == names(500)
    assert sorted(segment.rows(["d3", "d499", "d500", "d3"])) == [3, 499]
    assert (segment.info.kind, segment.info.count, segment.info.dimension, segment.info.sequence) == (kind, 500, 16, 3)
    assert snapshots.latest() == segment.info
    assert (segment.info.recall == {}) is (kind == "flat")
    assert all(recall >= 0.99 for recall in segment.info.recall.values())


def test_halves_become_the_same_floats() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)]
    np.testing.assert_array_equal(
        floats_from_halves(finite).view(np.int32), finite.astype(np.float32).view(np.int32), strict=True
    )


def test_vectors_of_a_store_take_two_bytes_a_component(snapshots: Snapshots, folder: Path) -> None:
    vectors = unit_from_halves(unit(5000, 64).astype(np.float16))
    name = write(snapshots, 1, vectors, "flat")
    assert (folder / name / "vectors.f16").stat().st_size == 5000 * 64 * 2
    assert (folder / name / "exact.f32").stat().st_size == 0


@pytest.mark.parametrize("kind", KINDS)
def test_of_nothing(snapshots: Snapshots, kind: str) -> None:
    write(snapshots, 1, unit(0, 8), kind)
    segment = opened(snapshots)
    assert len(segment) == 0
    assert SegmentedIndex(8, segment).search(unit(1, 8)[0], 3).ids == []


def test_none(snapshots: Snapshots) -> None:
    assert snapshots.newest() is None
    assert snapshots.latest() is None


def test_the_newest_is_found_and_the_last_two_are_kept(snapshots: Snapshots, folder: Path) -> None:
    written = [write(snapshots, sequence) for sequence in (1, 9, 10, 200)]
    assert opened(snapshots).info.name == written[-1]
    assert snapshots.newest(200) is None
    assert {path.name for path in folder.iterdir()} == {*written[-2:], "lock"}


@pytest.mark.parametrize("damage", ["shorter", "longer", "a bit", "missing"])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_one_is_named_and_the_one_before_serves(
    snapshots: Snapshots, folder: Path, caplog: pytest.LogCaptureFixture, file: str, damage: str
) -> None:
    halves = unit_from_halves(unit(300, 16).astype(np.float16))
    vectors = np.where(np.arange(300)[:, None] % 7, halves, unit(300, 16))  # so that no file is empty
    first, second = write(snapshots, 1, vectors), write(snapshots, 2, vectors)
    path = folder / second / file
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        if damage == "a bit":
            content[len(content) // 2] ^= 1
        elif damage == "shorter":
            del content[-1:]
        else:
            content += b"\0"
        path.write_bytes(content)
    assert opened(snapshots).info.name == first
    assert second in caplog.text
    caplog.clear()
    assert opened(snapshots).info.name == first
    assert not caplog.records
    third = write(snapshots, 3)
    assert {path.name for path in folder.iterdir()} == {first, third, "lock"}


@pytest.mark.parametrize("change", [{"format": 99}, {"store": "other.sqlite3"}])
def test_one_of_another_format_or_store(
    snapshots: Snapshots, folder: Path, caplog: pytest.LogCaptureFixture, change: dict[str, object]
) -> None:
    name = write(snapshots, 1)
    manifest = orjson.loads((folder / name / "manifest.json").read_bytes()) | change
    del manifest["sha256"]
    manifest["sha256"] = sha256(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)).hexdigest()
    (folder / name / "manifest.json").write_bytes(orjson.dumps(manifest))
    assert snapshots.newest() is None
    assert str(next(iter(change.values()))) in caplog.text


def test_a_failure_leaves_no_trace_at_any_point(snapshots: Snapshots, folder: Path) -> None:
    first = write(snapshots, 1)
    for allowed in range(1000):
        countdown = iter(range(allowed))

        def checkpoint(countdown: Iterator[int] = countdown) -> None:
            if next(countdown, None) is None:
                raise InterruptedError

        try:
            write(snapshots, 2, checkpoint=checkpoint)
            break
        except InterruptedError:
            assert {path.name for path in folder.iterdir()} == {first, "lock"}
    assert allowed > 10
    assert opened(snapshots).info.sequence == 2


def test_a_disk_that_is_full_leaves_no_trace(snapshots: Snapshots, tmp_path: Path, folder: Path) -> None:
    first = write(snapshots, 1)
    script = (
        "import resource, sys; from pathlib import Path; from boundarymorph.errors import StorageUnavailable\n"
        "from boundarymorph.retrieval.local.snapshots import Snapshots\n"
        "from tests.retrieval.test_snapshots import unit, write\n"
        "for limit in range(1000, 200000, 4000):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "    try: write(Snapshots(Path(sys.argv[1])), 2, kind='hnsw')\n"
        "    except (OSError, StorageUnavailable) as error: print(type(error).__name__)\n"
        "    else: break\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path / "index.sqlite3")]
    failed = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    assert set(failed.split()) == {"OSError", "StorageUnavailable"}
    second = opened(snapshots).info.name
    assert {path.name for path in folder.iterdir()} == {first, second, "lock"}


def test_remains_of_a_process_that_was_killed_are_removed(snapshots: Snapshots, folder: Path) -> None:
    write(snapshots, 1)
    (folder / ".writing-0000000000000002-dead").mkdir()
    (folder / ".writing-0000000000000002-dead" / "vectors.f16").write_bytes(b"half of it")
    assert opened(snapshots).info.sequence == 1
    second = write(snapshots, 3)
    assert {path.name for path in folder.iterdir() if path.is_dir()} >= {second}
    assert not list(folder.glob(".writing-*"))


def test_one_writer_at_a_time(snapshots: Snapshots, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from boundarymorph.retrieval.local.snapshots import Snapshots\n"
        "with Snapshots(Path(sys.argv[1])).lock() as ours:\n"
        "    print(ours, flush=True); sys.stdin.readline()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path / "index.sqlite3")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with snapshots.lock() as ours:
            assert not ours
        other.kill()
    with snapshots.lock() as ours:
        assert ours


def test_a_snapshot_that_is_open_outlives_its_files(snapshots: Snapshots, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    vectors = unit(300, 16)
    write(snapshots, 1, vectors, "ivf")
    index = SegmentedIndex(16, opened(snapshots))
    for sequence in (2, 3, 4):
        write(snapshots, sequence)
    found = index.search(vectors[7], 300)
    assert found.ids[0] == "d7"
    np.testing.assert_array_equal(found.vectors[0], vectors[7])
    assert not caplog.records
