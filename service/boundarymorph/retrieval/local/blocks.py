"""Make folders of files from a store, with a manifest of their sizes and checksums.

They are blocks, which searches read, and backups. A block holds the rows up to a change of the store; one process at a
time makes it again.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import faiss
import numpy as np
import orjson
from numpy.typing import NDArray

from boundarymorph import errors
from boundarymorph.database import checksum, foreign_object, hold_lock, storage_errors, sync
from boundarymorph.retrieval.artifacts import FILE, ArtifactFile
from boundarymorph.retrieval.interfaces import StructureDescription
from boundarymorph.retrieval.local.sqlite_file import SCHEMA
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import Block, Clusters, Rows, TrainingPolicy, VectorIndex, rounding_error
from boundarymorph.retrieval.ranking import floats_from_halves, membership, unit_rows_of
from boundarymorph.retrieval.words import WORDS_VERSION, ColumnWriter, read_columns

MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 2**24
FORMAT = 1
DEPTHS = (10, 30, 100, 300, 1_000, 3_000, 10_000)  # depths at which recall is measured
TARGET = 0.99  # mean recall to reach, over a sample of queries
QUERIES = 64  # number of the index's own vectors that measure recall
ROOM = 2  # free disk space in sizes of the vectors, so that the documents can still grow
_SAMPLE, _ROUNDS = 40, 6  # for k-means: training vectors per cluster, and iterations
_VECTORS, _CLUSTERS, _ROWS = "vectors.faiss", "clusters.faiss", "rows.npy"
_COUNT_AT = 8  # bytes before the number of vectors in FAISS's file
_faiss: Any = faiss  # has few type hints
_log = logging.getLogger(__name__)
BACKUP_FORMAT = 1
_STORE = "index.sqlite3"


def seal(
    folder: Path, facts: Mapping[str, Any], checkpoint: Callable[[], None] = lambda: None
) -> Mapping[str, Mapping[str, Any]]:
    """Flush a folder to disk, and write its manifest of `facts`, which include "format".

    Returns the files.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        checkpoint()
        sync(path)
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": checksum(path)}
    manifest = {**facts, "files": files}
    path = folder / MANIFEST
    path.write_bytes(orjson.dumps({**manifest, "sha256": _signature(manifest)}, option=orjson.OPT_INDENT_2))
    sync(path)
    sync(folder)
    return files


@contextmanager
def _new_folder(target: Path, temporary: Path) -> Iterator[None]:
    """Make a folder under a temporary name.

    It is renamed when the block is done, and removed if that fails.
    """
    try:
        temporary.mkdir(parents=True)
        yield
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(target.parent)


def read_manifest(folder: Path, format: int) -> dict[str, Any]:
    """Return the manifest.

    Raises CorruptIndex if it is damaged or of another format, and OSError.
    """
    path = folder / MANIFEST
    if _plain(folder, MANIFEST) > MOST_MANIFEST_BYTES:
        raise errors.CorruptIndex(f"{path} is not a manifest: it has more than {MOST_MANIFEST_BYTES:,} bytes")
    try:
        manifest = orjson.loads(path.read_bytes())
        checksum = manifest.pop("sha256")
    except (orjson.JSONDecodeError, AttributeError, TypeError, KeyError) as error:
        raise errors.CorruptIndex(f"{path} is not a manifest: {error}") from error
    if not isinstance(manifest, dict) or _signature(manifest) != checksum:
        raise errors.CorruptIndex(f"{path} does not have the checksum with which it was written")
    if manifest.get("format") != format:
        raise errors.CorruptIndex(f"{path} has format {manifest.get('format')}; this program reads format {format}")
    files = manifest.get("files")
    for file in files.values() if isinstance(files, dict) else (None,):
        match file:
            case {"bytes": int(), "sha256": str()}:
                continue
        raise errors.CorruptIndex(f"{path} does not list files with their bytes and sha256")
    return manifest


def _plain(folder: Path, name: str) -> int:
    """Return the size of a regular file.

    Raises OSError, and CorruptIndex for a link, pipe, device, or folder.
    """
    path = folder / name
    if path.is_symlink():
        raise errors.CorruptIndex(f"{path} is a link; copy there what it leads to, if you trust it")
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise errors.CorruptIndex(f"{path} is not a file")
    return found.st_size


def verify(folder: Path, files: Mapping[str, Any]) -> None:
    """Raise CorruptIndex with the name of a file that differs from its manifest, or OSError."""
    for name, expected in files.items():
        path = folder / name
        _check_size(path, path.stat().st_size, expected)
        if checksum(path) != expected["sha256"]:
            raise errors.CorruptIndex(f"{path} does not have the checksum with which it was written")


def _check_size(path: Path, size: int, expected: Mapping[str, Any]) -> None:
    if size != expected["bytes"]:
        raise errors.CorruptIndex(f"{path} has {size} bytes and should have {expected['bytes']}")


def _signature(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)).hexdigest()


class BlockFiles:
    """The newest block of a store, in a folder beside its file, renamed when it is complete."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self.folder = store.path.with_suffix(".block")
        self._refused: set[str] = set()

    def description(self) -> StructureDescription | None:
        """Return the description of the last training, without verifying its files."""
        for name in self._names():
            with suppress(errors.CorruptIndex, OSError):
                facts = self._manifest(name)
                if facts["clusters"]:
                    recall = dict(zip(facts["depths"], facts["recalls"], strict=True))
                    named = {each: facts[each] for each in ("count", "sequence", "clusters")}
                    return StructureDescription(**named, recall=recall)
        return None

    def newest(self, after: int = 0) -> tuple[Block, Rows] | None:
        """Return the newest intact block of a change later than `after`.

        A damaged block is logged, once.
        """
        wanted = self._words_wanted()
        for name in self._names():
            if name in self._refused or int(name.partition("-")[0]) <= after:
                continue
            try:
                if (facts := self._manifest(name))["words"] == wanted:
                    return self._read(name, facts)
                continue
            except (errors.CorruptIndex, OSError) as error:
                if not (self.folder / name).exists():
                    continue  # another process has replaced it
                reason = "a file is missing" if isinstance(error, FileNotFoundError) else str(error)
            self._refused.add(name)
            _log.warning("ignoring the structure %s of %s: %s", name, self._store.path, reason)
        return None

    def write(self, checkpoint: Callable[[], None], seed: int = 0) -> bool:
        """Replace earlier blocks by one of the store's present state. The lock must be held.

        Returns False if the store is empty. `checkpoint` is called about every second, and may raise. Raises OSError,
        StorageFull and StorageUnavailable.
        """
        _faiss.omp_set_num_threads(1)  # for this thread: the others serve searches meanwhile
        sequence, count = self._store.last_sequence(), self._store.count()
        if not count:
            return False
        name = f"{sequence:016d}-{uuid4().hex[:8]}"
        temporary = self.folder / f".writing-{name}"
        size = 2 * self._store.info.dimension * count
        try:
            with _new_folder(self.folder / name, temporary):
                if shutil.disk_usage(temporary).free < ROOM * size:
                    raise errors.StorageFull(
                        f"{temporary} needs {size:,} bytes for vectors, and as much free beside it"
                    )
                facts = {"format": FORMAT, "store": self._store.path.name, "sequence": sequence}
                facts["words"] = self._words_wanted()
                facts |= self._filled(temporary, sequence, count, seed, bool(facts["words"]), checkpoint)
                seal(temporary, facts, checkpoint)
        except RuntimeError as error:
            raise errors.StorageUnavailable(f"FAISS could not write {temporary}: {error}") from error
        for path in self.folder.iterdir():
            if path.is_dir() and path.name != name:
                shutil.rmtree(path, ignore_errors=True)
        return True

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Yield whether this process, and no other, may write within the block."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "lock").touch()
        with ExitStack() as held:
            ours = True
            try:
                held.enter_context(hold_lock(self.folder / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                ours = False
            yield ours

    def _words_wanted(self) -> int:
        return WORDS_VERSION if self._store.has_words() else 0

    def _filled(
        self, folder: Path, sequence: int, count: int, seed: int, lexical: bool, checkpoint: Callable[[], None]
    ) -> dict[str, Any]:
        dimension, loss, numbers, words = self._store.info.dimension, 0.0, [], ColumnWriter(folder)
        sample, index = np.empty((0, dimension), np.float32), None
        if self._store.info.kind == "ivf":
            sample = self._store.sample(min(count, clusters_of(count) * _SAMPLE), seed)
            index = train_clusters(sample, min(len(sample), clusters_of(count)), seed, checkpoint)
        with (folder / _VECTORS).open("wb") as file:
            # FAISS's own file of no vectors, whose last eight bytes are their size; they follow, a page at a time.
            empty = _faiss.serialize_index(_vectors_of(max(1, dimension))).tobytes()
            file.write(empty)
            for sequences, halves, texts in self._store.pages(sequence, texts=lexical):
                checkpoint()
                numbers.append(sequences)
                loss = max(loss, float(np.abs(unit_rows_of(halves).lengths - 1).max()))
                halves.tofile(file)
                if lexical:
                    words.add(texts)
                if index is not None:
                    index.add(floats_from_halves(halves))
            rows = np.concatenate([np.empty(0, np.int64), *numbers])
            file.seek(_COUNT_AT)
            file.write(np.int64(len(rows)).tobytes())
            file.seek(len(empty) - 8)
            file.write(np.uint64(2 * dimension * len(rows)).tobytes())
        np.save(folder / _ROWS, rows)
        if lexical:
            words.finish(checkpoint)
        facts: dict[str, Any] = {"count": len(rows), "loss": loss, "clusters": 0}
        if index is not None:
            exact = _faiss.read_index(str(folder / _VECTORS), _faiss.IO_FLAG_MMAP_IFC)
            clusters = measure_clusters(index, exact, sample[:QUERIES], checkpoint)
            _faiss.write_index(index, str(folder / _CLUSTERS))
            effort = {"depths": clusters.depths, "probes": clusters.tried, "recalls": clusters.recalls}
            facts |= {"clusters": clusters.count, **effort}
        return facts

    def _read(self, name: str, facts: Mapping[str, Any]) -> tuple[Block, Rows]:
        """Read a block.

        Raises OSError, or CorruptIndex if it does not match its manifest or its store.
        """
        folder = self.folder / name
        verify(folder, facts["files"])
        if facts["sequence"] > self._store.last_sequence():
            raise errors.CorruptIndex("it is newer than its store, which may be an older copy")
        try:
            sequences, clusters, count = np.load(folder / _ROWS, mmap_mode="r"), None, facts["count"]
            halves, vectors = np.empty((count, 0), np.float16), None
            if dimension := self._store.info.dimension:
                vectors = _faiss.read_index(str(folder / _VECTORS), _faiss.IO_FLAG_MMAP_IFC)
                before = (folder / _VECTORS).stat().st_size - 2 * dimension * count
                halves = np.memmap(folder / _VECTORS, "<f2", "r", before, (count, dimension))
            if facts["clusters"]:
                index = _faiss.read_index(str(folder / _CLUSTERS), _faiss.IO_FLAG_MMAP_IFC)
                clusters = Clusters(index, *(tuple(facts[each]) for each in ("depths", "probes", "recalls")))
            if len(sequences) != count or (vectors is not None and vectors.ntotal != count):
                raise ValueError(f"its files do not have {count} rows")
            words = read_columns(folder) if facts["words"] else None
            block = Block(
                facts["sequence"], np.asarray(sequences), np.asarray(halves), vectors, facts["loss"], clusters, words
            )
        except (RuntimeError, ValueError, KeyError) as error:
            raise errors.CorruptIndex(f"{folder} cannot be read: {error}") from error
        return block, self._rows_of(block)

    def _rows_of(self, block: Block) -> Rows:
        living, ids = self._store.living_documents()
        if not membership(living[living <= block.sequence], block.sequences).all():
            raise errors.CorruptIndex("documents of its store are missing from it")
        alive = membership(block.sequences, living)
        places = np.searchsorted(living, block.sequences).tolist()
        names = [ids[place] if there else "" for place, there in zip(places, alive.tolist(), strict=True)]
        return Rows(names, block.sequences, alive, int(np.count_nonzero(alive)))

    def _manifest(self, name: str) -> dict[str, Any]:
        manifest = read_manifest(self.folder / name, FORMAT)
        if manifest["store"] != self._store.path.name:
            raise errors.CorruptIndex(f"{self.folder / name} belongs to {manifest['store']}")
        return manifest

    def _names(self) -> list[str]:
        """Return the names of complete blocks, newest first."""
        with suppress(OSError):
            return sorted((path.name for path in self.folder.iterdir() if path.name[:1].isdigit()), reverse=True)
        return []


def _vectors_of(dimension: int) -> Any:
    return _faiss.IndexScalarQuantizer(dimension, _faiss.ScalarQuantizer.QT_fp16, _faiss.METRIC_INNER_PRODUCT)


def clusters_of(count: int) -> int:
    return max(1, min(count // 8, int(4 * math.sqrt(count))))


def train_clusters(sample: NDArray[np.float32], clusters: int, seed: int, checkpoint: Callable[[], None]) -> Any:
    """Return FAISS's empty inverted file in half precision, trained on (n, d) unit rows.

    n is at least `clusters`.
    """
    dimension = sample.shape[1]
    index = _faiss.index_factory(dimension, f"IVF{clusters},SQfp16", _faiss.METRIC_INNER_PRODUCT)
    index.by_residual = False  # so that the stored halves stay unchanged
    centres = sample[np.random.default_rng(seed).permutation(len(sample))[:clusters]].copy()
    for _ in range(_ROUNDS):
        checkpoint()
        points = {"min_points_per_centroid": 1, "max_points_per_centroid": _SAMPLE}
        means = _faiss.Kmeans(dimension, clusters, niter=1, spherical=True, seed=seed, **points)
        means.train(sample, init_centroids=centres)
        centres = means.centroids.copy()
    index.quantizer.add(centres)
    index.train(sample[:1])  # halves need no training
    return index


def measure_clusters(index: Any, exact: Any, queries: NDArray[np.float32], checkpoint: Callable[[], None]) -> Clusters:
    """Find the fewest probes that reach the TARGET recall for (n, d) queries.

    `exact` is FAISS's index of the same rows.
    """

    def scores(searched: Any, depth: int, parameters: Any) -> NDArray[np.float32]:
        """Return (n, depth), descending, padded with the smallest float32."""
        found = []
        for query in queries:
            checkpoint()
            found.append(searched.search(query[None], depth, params=parameters)[0])
        return np.concatenate(found)

    depths = [depth for depth in DEPTHS if depth < index.ntotal] or [1]
    best, error, probes = scores(exact, depths[-1], None), rounding_error(queries.shape[1]), 1
    tried: list[int] = []
    recalls: list[float] = []
    for depth in depths:
        recall = 1.0
        while probes < index.nlist:
            near = scores(index, depth, _faiss.SearchParametersIVF(nprobe=probes)) >= best[:, [depth - 1]] - 2 * error
            recall = float(near.mean())
            if recall >= TARGET:
                break
            probes = max(probes + 1, probes * 5 // 4)
        probes = min(probes, index.nlist)
        tried.append(probes)
        recalls.append(recall if probes < index.nlist else 1.0)
    return Clusters(index, tuple(depths), tuple(tried), tuple(recalls))


class Trainer:
    """Makes the block of one index in a thread.

    `adopt` gets each newer block, whichever process made it.
    """

    def __init__(
        self,
        store: DocumentStore,
        adopt: Callable[[Block, Rows], None],
        policy: TrainingPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.files = BlockFiles(store)
        self._store = store
        self._adopt = adopt
        self._policy = policy
        self._clock = clock
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._not_before = clock()
        self._failures = 0
        self._closed = False

    def consider(self, vectors: VectorIndex) -> None:
        with self._starting:
            idle = self._thread is None or not self._thread.is_alive()
            if self._closed or not idle or self._clock() < self._not_before:
                return
            self._thread = threading.Thread(target=self._attempt, args=(vectors.sequence,), name="training")
            self._thread.start()

    def train(self, after: int) -> bool:
        """Adopt a block of a change later than `after`, and make one if necessary.

        Returns False if another process is making one. An empty store gets none. Raises as `BlockFiles.write`, and
        UnknownIndex once closed.
        """
        with self.files.lock() as ours:
            newest = self.files.newest(after)
            if newest is None and not ours:
                return False
            if newest is None and self.files.write(self._checkpoint):
                newest = self.files.newest(after)
        if newest is not None:
            self._adopt(*newest)
        return True

    def wait(self) -> None:
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        with self._starting:
            self._closed = True
        self.wait()

    def _attempt(self, after: int) -> None:
        policy = self._policy
        try:
            self.train(after)
            self._failures = 0
        except (OSError, errors.BoundaryMorphError) as error:
            if not self._closed and self._store.path.exists():
                _log.warning("could not make a structure of %s: %s", self._store.path, error)
            self._failures += 1
        finally:
            self._not_before = self._clock() + min(policy.pause * 2.0 ** min(self._failures, 20), policy.longest)

    def _checkpoint(self) -> None:
        if self._closed:
            raise errors.UnknownIndex(f"the index in {self._store.path} was closed while its structure was made")


@dataclass(frozen=True, slots=True)
class BackupInfo:
    """A summary of a backup.

    Attributes:
        name: The name of the index.
        count: Its documents.
        created: The time of the backup, UTC, ISO 8601.
        bytes: The size of all files.
    """

    name: str
    count: int
    created: str
    bytes: int


def back_up(name: str, store: DocumentStore, target: Path) -> BackupInfo:
    """Copy one state of an index into a new folder.

    Raises InvalidInput, CorruptIndex or StorageUnavailable.
    """
    if target.exists():
        raise errors.InvalidInput(f"{target} already exists; choose another folder, or remove it first")
    temporary = target.with_name(f".{target.name}-{uuid4().hex}")
    trouble = f"no snapshot of {name!r} could be written to {target}"
    with storage_errors(trouble), _new_folder(target, temporary):
        count = store.copy_to(temporary / _STORE)
        ArtifactFile(store.path.parent, name).copy_to(temporary / FILE)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"name": name, "store": store.path.name, "count": count, "created": created}
        files = seal(temporary, {"format": BACKUP_FORMAT, **facts})
    return BackupInfo(name, count, created, sum(file["bytes"] for file in files.values()))


def unpack(source: Path, folder: Path, store: str) -> None:
    """Copy a backup, which a stranger may have made, into a new folder as an index.

    `store` is the name of the new store's file.

    Raises:
        CorruptIndex: For damage, links and foreign files.
        InvalidInput: If it is not a backup. StorageFull and OSError are raised as well.
    """
    try:
        manifest = read_manifest(source, BACKUP_FORMAT)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise errors.InvalidInput(f"{source} is not a snapshot of an index: it has no {MANIFEST}") from error
    if not isinstance(manifest.get("name"), str) or _STORE not in manifest["files"]:
        raise errors.InvalidInput(f"{source} is not a snapshot of an index; give a folder that `index snapshot` wrote")
    files = {name: file for name, file in manifest["files"].items() if name in {_STORE, FILE}}
    folder.mkdir()
    try:
        for name, expected in files.items():
            _check_size(source / name, _plain(source, name), expected)
        if (size := sum(file["bytes"] for file in files.values())) > shutil.disk_usage(folder).free:
            raise errors.StorageFull(f"{source} has {size:,} bytes, which do not fit on the disk; free some space")
        for name in files:
            shutil.copyfile(source / name, folder / name, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise errors.CorruptIndex(f"{error.filename} is missing") from error
    target = folder / store
    try:
        verify(folder, files)
        if (foreign := foreign_object(folder / _STORE, SCHEMA)) is not None:
            raise errors.CorruptIndex(
                f"{folder / _STORE} has the {foreign}, which BoundaryMORPH does not make; do not use this snapshot"
            )
        (folder / _STORE).rename(target)
        DocumentStore(target).close()
    except (errors.CorruptIndex, sqlite3.DatabaseError) as error:
        said = str(error) if isinstance(error, errors.CorruptIndex) else f"{folder / _STORE} is damaged: {error}"
        said = said.replace(str(target), str(source / _STORE)).replace(str(folder), str(source))
        raise errors.CorruptIndex(said) from None
    for path in (*folder.rglob("*"), folder):
        sync(path)
