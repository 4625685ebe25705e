"""Snapshots: an index's vectors on disk, so that it need not be read from the store whenever a process starts."""

from __future__ import annotations

import fcntl
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex
from boundarymorph.retrieval.halves import unit_from_halves
from boundarymorph.retrieval.local import manifests
from boundarymorph.retrieval.local.identifiers import Identifiers
from boundarymorph.retrieval.local.segment import Block, HalfVectors, Segment, SnapshotInfo
from boundarymorph.retrieval.local.structures import Checkpoint, FaissStructure, build, effort_of, load, save
from boundarymorph.retrieval.storage import sync

FORMAT = 1
KEPT = 2  # the newest ones, so that there is another when the last is damaged
_STRUCTURE = "structure.faiss"
_ASIDE = ".writing-"
_log = logging.getLogger(__name__)

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Content:
    """What goes into a snapshot: documents in order of insertion, as they were after the store's change `sequence`.

    blocks: all of them; count: how many these are.
    """

    kind: str
    dimension: int
    count: int
    sequence: int
    blocks: Iterable[Block]


class Snapshots:
    """The snapshots of one store, in a folder beside its file.

    A snapshot is a folder that is made under another name, brought to disk and then renamed: it is there whole or not
    at all. Nothing in it ever changes. Any number of processes may read and, one at a time, write them.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self.folder = store.with_suffix(".snapshots")
        self._refused: set[str] = set()

    def newest(self, after: int = 0) -> Segment | None:
        """The newest snapshot that is sound, of a sequence number beyond `after`; None when there is none.

        A damaged one is named in the log, once, and passed over from then on.
        """
        for name in self._names():
            if name in self._refused or _sequence(name) <= after:
                continue
            try:
                return _open(self.folder / name, self._store.name)
            except FileNotFoundError:
                if (self.folder / name).exists():
                    self.refuse(name, "a file is missing")
            except (CorruptIndex, OSError) as error:
                self.refuse(name, str(error))
        return None

    def latest(self) -> SnapshotInfo | None:
        """What the newest snapshot tells of itself; its other files are not looked at."""
        for name in self._names():
            with suppress(CorruptIndex, OSError):
                return _info(name, _read_manifest(self.folder / name, self._store.name))
        return None

    def refuse(self, name: str, reason: str) -> None:
        """Pass a snapshot over from now on, and remove it when the next is written."""
        _log.warning("snapshot %s of %s is not used: %s", name, self._store, reason)
        self._refused.add(name)

    def write(self, content: Content, *, seed: int = 0, checkpoint: Checkpoint = lambda: None) -> str:
        """Make a snapshot with its structure, and remove all but the last ones; its name. To be called under `lock`.

        Raises OSError, StorageUnavailable, and whatever `checkpoint` raises, and then there is no trace of it.
        """
        name = f"{content.sequence:016d}-{uuid4().hex[:8]}"
        aside = self.folder / f"{_ASIDE}{name}"
        try:
            aside.mkdir()
            _fill(aside, self._store.name, content, seed, checkpoint)
            checkpoint()
            aside.rename(self.folder / name)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        sync(self.folder)
        self._prune()
        return name

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[bool]:
        """Whether this process, and no other, may write until the end of the block. wait: until it may."""
        with suppress(FileExistsError):
            self.folder.mkdir()
        with (self.folder / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def copy_newest(self, folder: Path) -> None:
        """Copy the newest sound one, if there is one, into a new folder, while none is written or removed."""
        with self.lock(wait=True):
            segment = self.newest()
            if segment is not None:
                (folder / segment.info.name).mkdir(parents=True)
                for path in (self.folder / segment.info.name).iterdir():
                    shutil.copyfile(path, folder / segment.info.name / path.name)

    def _names(self) -> list[str]:
        """Names of all that were completed, newest first; none where the folder cannot be read."""
        found: list[str] = []
        with suppress(OSError):
            found = [path.name for path in self.folder.iterdir() if path.is_dir() and path.name[:1].isdigit()]
        return sorted(found, reverse=True)

    def _prune(self) -> None:
        kept = [name for name in self._names() if name not in self._refused][:KEPT]
        for path in self.folder.iterdir():
            if path.is_dir() and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _fill(folder: Path, store: str, content: Content, seed: int, checkpoint: Checkpoint) -> None:
    """Write every file of a snapshot, the manifest last."""
    ids: list[str] = []
    exceptions, sequences = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    with (folder / "vectors.f16").open("wb") as halves_file, (folder / "exact.f32").open("wb") as exact_file:
        for block_ids, vectors, block_sequences in content.blocks:
            checkpoint()
            halves = vectors.astype("<f2")
            different = np.flatnonzero((unit_from_halves(halves) != vectors).any(axis=1))
            exceptions.append(different + len(ids))
            halves_file.write(halves.tobytes())
            exact_file.write(vectors[different].astype("<f4").tobytes())
            ids += block_ids
            sequences.append(block_sequences)
    if len(ids) != content.count:
        raise ValueError(f"{content.count} documents were announced and {len(ids)} came")
    _write(folder / "exceptions.i64", np.concatenate(exceptions))
    _write(folder / "sequences.i64", np.concatenate(sequences))
    checkpoint()
    packed = Identifiers.of(ids)
    _write(folder / "ids.utf8", packed.text)
    _write(folder / "ids.ends.i64", packed.ends)
    _write(folder / "ids.hashes.u64", packed.hashes)
    _write(folder / "ids.owners.i32", packed.owners)
    structure = build(
        content.kind, _vectors(folder, content.count, content.dimension), seed=seed, checkpoint=checkpoint
    )
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "store": store,
        "kind": content.kind,
        "count": content.count,
        "dimension": content.dimension,
        "sequence": content.sequence,
    }
    if structure is not None and (effort := structure.effort) is not None:
        save(structure, folder / _STRUCTURE)
        manifest["parameters"] = structure.parameters()
        manifest["depths"], manifest["efforts"], manifest["recalls"] = effort.depths, effort.efforts, effort.recalls
    manifests.seal(folder, manifest, checkpoint)


def rebind(folder: Path, before: str, after: str) -> None:
    """Make the snapshot in a folder, which belongs to the store of file name `before`, one of the store `after`."""
    manifests.write(folder, _read_manifest(folder, before) | {"store": after})


def _open(folder: Path, store: str) -> Segment:
    """Map a snapshot. Raises CorruptIndex when it is not what its manifest says, and OSError."""
    manifest = _read_manifest(folder, store)
    manifests.verify(folder, manifest)
    count, dimension, kind = manifest["count"], manifest["dimension"], manifest["kind"]
    ids = Identifiers(
        _map(folder / "ids.utf8", "<u1"),
        _map(folder / "ids.ends.i64", "<i8"),
        _map(folder / "ids.hashes.u64", "<u8"),
        _map(folder / "ids.owners.i32", "<i4"),
    )
    structure: FaissStructure | None = None
    if _STRUCTURE in manifest["files"]:
        effort = effort_of(manifest["depths"], manifest["efforts"], manifest["recalls"])
        structure = load(kind, folder / _STRUCTURE, effort, count, dimension)
    sequences = _map(folder / "sequences.i64", "<i8")
    return Segment(_info(folder.name, manifest), ids, sequences, _vectors(folder, count, dimension), structure)


def _info(name: str, manifest: Mapping[str, Any]) -> SnapshotInfo:
    return SnapshotInfo(
        name,
        manifest["kind"],
        manifest["count"],
        manifest["dimension"],
        manifest["sequence"],
        manifest.get("parameters", {}),
        dict(zip(manifest.get("depths", ()), manifest.get("recalls", ()), strict=True)),
    )


def _read_manifest(folder: Path, store: str) -> dict[str, Any]:
    manifest = manifests.read(folder, FORMAT)
    if manifest["store"] != store:
        raise CorruptIndex(f"{folder / manifests.MANIFEST} belongs to {manifest['store']}")
    return manifest


def _vectors(folder: Path, count: int, dimension: int) -> HalfVectors:
    return HalfVectors(
        _map(folder / "vectors.f16", "<f2").reshape(count, dimension),
        _map(folder / "exceptions.i64", "<i8"),
        _map(folder / "exact.f32", "<f4").reshape(-1, dimension),
    )


def _map(path: Path, kind: str) -> NDArray[Any]:
    """A file as an array that is read when it is looked at."""
    if path.stat().st_size == 0:
        return np.empty(0, kind)
    return np.memmap(path, dtype=kind, mode="r").view(np.ndarray)


def _write(path: Path, array: NDArray[Any]) -> None:
    path.write_bytes(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def _sequence(name: str) -> int:
    digits = name.partition("-")[0]
    return int(digits) if digits.isdigit() else 0
