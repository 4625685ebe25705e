"""The trained structure of an ivf index: when it is trained, by which process, and its files."""

from __future__ import annotations

import fcntl
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import faiss
import numpy as np

from boundarymorph.errors import BoundaryMorphError, CorruptIndex, StorageUnavailable, UnknownIndex
from boundarymorph.retrieval.catalog import StructureInfo
from boundarymorph.retrieval.local import manifests
from boundarymorph.retrieval.local.clusters import clusters_of, sample_size, trained
from boundarymorph.retrieval.local.ivf import Effort, InvertedFile, IvfIndex
from boundarymorph.retrieval.local.rows import RowBook, among
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vector_index import VectorIndex
from boundarymorph.retrieval.storage import sync

FORMAT = 1
QUERIES = 64  # of the index's own vectors, to measure recall
_faiss: Any = faiss
_FILE, _ROWS = "vectors.faiss", "rows.npz"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingPolicy:
    """When an index of kind ivf is trained.

    least: number of documents below which it is searched exhaustively, and number of changes below which it is not
    trained again; share: of its documents at training, that may change before it is; pause: seconds between attempts.
    """

    least: int = 20_000
    share: float = 0.2
    pause: float = 5.0

    def due(self, vectors: VectorIndex) -> bool:
        if isinstance(vectors, IvfIndex):
            return vectors.changed >= max(self.least, int(self.share * len(vectors)))
        return len(vectors) >= self.least


class StructureFiles:
    """The newest trained structure of a store, in a folder beside its file, shared by all processes.

    A structure is a folder that is written under another name and then renamed, so it is never seen incomplete.
    """

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self.folder = store.path.with_suffix(".ivf")
        self._refused: set[str] = set()

    def info(self) -> StructureInfo | None:
        """Return the description of the newest structure, without verifying its files."""
        for name in self._names():
            with suppress(CorruptIndex, OSError):
                return _info(self._manifest(name))
        return None

    def newest(self, after: int = 0) -> IvfIndex | None:
        """Return the newest intact structure of a change later than `after`; a damaged one is logged, once."""
        for name in self._names():
            if name in self._refused or int(name.partition("-")[0]) <= after:
                continue
            try:
                return self._read(name)
            except (CorruptIndex, OSError) as error:  # FAISS's own when a file is missing
                if not (self.folder / name).exists():
                    continue  # another process has replaced it
                reason = "a file is missing" if isinstance(error, FileNotFoundError) else str(error)
            self._refused.add(name)
            _log.warning("ignoring the ivf structure %s of %s: %s", name, self._store.path, reason)
        return None

    def write(self, index: IvfIndex, checkpoint: Callable[[], None]) -> None:
        """Replace earlier structures by a new one. Must be called under `lock`, before the index changes.

        Raises OSError, StorageUnavailable, and what `checkpoint` raises; then nothing is left behind.
        """
        name = f"{index.sequence:016d}-{uuid4().hex[:8]}"
        temporary = self.folder / f".writing-{name}"
        file, rows = index.file, index.view().rows
        assert file.effort is not None
        try:
            temporary.mkdir()
            try:
                _faiss.write_index(file.index, str(temporary / _FILE))
            except RuntimeError as error:
                raise StorageUnavailable(f"FAISS could not write {temporary / _FILE}: {error}") from error
            exact = np.array(list(file.exact.values()), "<f4").reshape(len(file.exact), file.index.d)
            places = np.array(list(file.exact), "<i8")
            np.savez(temporary / _ROWS, sequences=rows.sequences[: rows.count], places=places, exact=exact)
            effort = {"depths": file.effort.depths, "probes": file.effort.probes, "recalls": file.effort.recalls}
            facts = {"format": FORMAT, "store": self._store.path.name, "sequence": index.sequence, "loss": file.loss}
            manifests.seal(temporary, facts | effort | {"clusters": file.clusters, "count": len(rows)}, checkpoint)
            temporary.rename(self.folder / name)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync(self.folder)
        for path in self.folder.iterdir():
            if path.is_dir() and path.name != name:
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Yield whether this process, and no other, may train and write within the block."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _read(self, name: str) -> IvfIndex:
        """Raises OSError, or CorruptIndex if it does not match its manifest or belongs to another store."""
        folder, manifest = self.folder / name, self._manifest(name)
        manifests.verify(folder, manifest["files"])
        if manifest["sequence"] > self._store.last_sequence():
            raise CorruptIndex("it is newer than its store, which may be an older copy")
        try:
            index = _faiss.read_index(str(folder / _FILE))
            with np.load(folder / _ROWS) as arrays:
                sequences, exact = (
                    arrays["sequences"],
                    dict(zip(arrays["places"].tolist(), arrays["exact"], strict=True)),
                )
        except (RuntimeError, ValueError, KeyError) as error:
            raise CorruptIndex(f"{folder} cannot be read: {error}") from error
        effort = Effort(tuple(manifest["depths"]), tuple(manifest["probes"]), tuple(manifest["recalls"]))
        living, ids = self._store.living()
        if not among(living[living <= manifest["sequence"]], np.sort(sequences)).all():
            raise CorruptIndex("documents of its store are missing from it")
        alive = among(sequences, living)
        places = np.searchsorted(living, sequences).tolist()
        names = [ids[place] if there else "" for place, there in zip(places, alive.tolist(), strict=True)]
        loaded = IvfIndex(
            InvertedFile(index, effort, exact, manifest["loss"]),
            manifest["sequence"],
            RowBook.of(names, sequences, alive),
        )
        loaded.changed = int((~alive).sum())
        return loaded

    def _manifest(self, name: str) -> dict[str, Any]:
        manifest = manifests.read(self.folder / name, FORMAT)
        if manifest["store"] != self._store.path.name:
            raise CorruptIndex(f"{self.folder / name} belongs to {manifest['store']}")
        return manifest

    def _names(self) -> list[str]:
        """Return the names of complete structures, newest first."""
        with suppress(OSError):
            return sorted((path.name for path in self.folder.iterdir() if path.name[:1].isdigit()), reverse=True)
        return []


class Trainer:
    """Trains the structure of one index in a thread; only one process at a time trains an index.

    `adopt` is called in that thread with each newer structure, whether this process or another trained it. A failed
    attempt is logged and repeated after the pause; the index keeps working as it is.
    """

    def __init__(
        self,
        store: DocumentStore,
        fill: Callable[[IvfIndex], None],
        adopt: Callable[[IvfIndex], None],
        policy: TrainingPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """fill: adds all documents of the store to an empty index."""
        self.files = StructureFiles(store)
        self._store = store
        self._fill = fill
        self._adopt = adopt
        self._policy = policy
        self._clock = clock
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._not_before = clock()
        self._closed = False

    def consider(self, vectors: VectorIndex) -> None:
        """Start training if it is due and none is running."""
        if not self._policy.due(vectors):
            return
        with self._starting:
            idle = self._thread is None or not self._thread.is_alive()
            if self._closed or not idle or self._clock() < self._not_before:
                return
            self._thread = threading.Thread(target=self._attempt, args=(trained_until(vectors),), name="training")
            self._thread.start()

    def train(self, after: int) -> bool:
        """Adopt a structure of a change later than `after`: another process's, or one trained now, unless the store is
        empty.

        Returns False if another process is training. Raises OSError, StorageUnavailable, and UnknownIndex once closed.
        """
        with self.files.lock() as ours:
            index = self.files.newest(after)
            if index is None and not ours:
                return False
            if index is None and (index := self._new()) is not None:
                self.files.write(index, self._checkpoint)
        if index is not None:
            self._adopt(index)
        return True

    def wait(self) -> None:
        """Wait for any training of this process to end."""
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Stop any training, which takes at most a few seconds, and start no more."""
        with self._starting:
            self._closed = True
        self.wait()

    def _new(self, seed: int = 0) -> IvfIndex | None:
        count = self._store.count()
        sample = self._store.sample(sample_size(count), seed)
        if not len(sample):
            return None
        index = IvfIndex(InvertedFile(trained(sample, min(len(sample), clusters_of(count)), seed, self._checkpoint)))
        self._fill(index)
        index.changed = 0
        index.file.measure(sample[:QUERIES], self._checkpoint)
        return index

    def _attempt(self, after: int) -> None:
        try:
            self.train(after)
        except (OSError, BoundaryMorphError) as error:
            if not self._closed and self._store.path.exists():
                _log.warning("could not train an ivf structure of %s: %s", self._store.path, error)
        finally:
            self._not_before = self._clock() + self._policy.pause

    def _checkpoint(self) -> None:
        if self._closed:
            raise UnknownIndex(f"the index in {self._store.path} was closed while it was trained")


def trained_until(vectors: VectorIndex) -> int:
    """Return the store's last change when the vectors were trained; 0 if they were not."""
    return vectors.sequence if isinstance(vectors, IvfIndex) else 0


def _info(manifest: Mapping[str, Any]) -> StructureInfo:
    recall = dict(zip(manifest["depths"], manifest["recalls"], strict=True))
    return StructureInfo(manifest["count"], manifest["sequence"], manifest["clusters"], recall)
