"""Structures of an index's vectors in files beside its store, shared by all processes."""

from __future__ import annotations

import fcntl
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from boundarymorph.errors import CorruptIndex
from boundarymorph.retrieval.local import manifests
from boundarymorph.retrieval.local.rows import RowBook
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vector_index import VectorIndex
from boundarymorph.retrieval.storage import sync
from boundarymorph.retrieval.vectors import are_among

FORMAT = 1
_ROWS = "rows.npz"
_log = logging.getLogger(__name__)


class Structure(VectorIndex, Protocol):
    """A vector index that can be kept in files.

    sequence: the store's last change when it was made, 0 if it is in no files; changed: documents written or removed
    since.
    """

    sequence: int
    changed: int

    def saved(self) -> NDArray[np.int64]:
        """The (n,) sequence numbers of the rows whose vectors are written, in order."""


Kept = TypeVar("Kept", bound=Structure)


class Format(Protocol[Kept]):
    """How structures of one kind are written and read.

    suffix: of the folder. mapped: whether one that was read takes less memory than one that was made.
    """

    suffix: ClassVar[str]
    mapped: ClassVar[bool]

    def save(self, index: Kept, folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Write the vectors. Returns facts for the manifest, and arrays that are kept with the rows. Raises OSError or
        StorageUnavailable."""

    def load(self, folder: Path, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], book: RowBook) -> Kept:
        """Read what `save` wrote. Raises RuntimeError, ValueError, KeyError, OSError or CorruptIndex if it cannot."""


class StructureFiles(Generic[Kept]):
    """The newest structure of a store, in a folder beside its file, shared by all processes.

    A structure is a folder that is written under another name and then renamed, so it is never seen incomplete.
    """

    def __init__(self, store: DocumentStore, format: Format[Kept]) -> None:
        self._store = store
        self._format = format
        self.mapped = format.mapped
        self.folder = store.path.with_suffix(format.suffix)
        self._refused: set[str] = set()

    def manifest(self) -> Mapping[str, Any] | None:
        """Return the manifest of the newest structure, without verifying its files; None if there is none."""
        for name in self._names():
            with suppress(CorruptIndex, OSError):
                return self._manifest(name)
        return None

    def newest(self, after: int = 0) -> Kept | None:
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
            _log.warning("ignoring the structure %s of %s: %s", name, self._store.path, reason)
        return None

    def write(self, index: Kept, checkpoint: Callable[[], None]) -> None:
        """Replace earlier structures by a new one. Must be called under `lock`, before the index changes.

        Raises OSError, StorageUnavailable, and what `checkpoint` raises; then nothing is left behind.
        """
        name = f"{index.sequence:016d}-{uuid4().hex[:8]}"
        temporary = self.folder / f".writing-{name}"
        try:
            temporary.mkdir()
            facts, arrays = self._format.save(index, temporary)
            np.savez(temporary / _ROWS, sequences=index.saved(), **arrays)  # type: ignore[arg-type]
            own = {"format": FORMAT, "store": self._store.path.name, "sequence": index.sequence, "count": len(index)}
            manifests.seal(temporary, own | facts, checkpoint)
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

    def _read(self, name: str) -> Kept:
        """Raises OSError, or CorruptIndex if it does not match its manifest or belongs to another store."""
        folder, manifest = self.folder / name, self._manifest(name)
        manifests.verify(folder, manifest["files"])
        if manifest["sequence"] > self._store.last_sequence():
            raise CorruptIndex("it is newer than its store, which may be an older copy")
        try:
            with np.load(folder / _ROWS) as saved:
                arrays = dict(saved)
            loaded = self._format.load(folder, manifest, arrays, self._book(arrays["sequences"], manifest["sequence"]))
        except (RuntimeError, ValueError, KeyError) as error:
            raise CorruptIndex(f"{folder} cannot be read: {error}") from error
        loaded.sequence = manifest["sequence"]
        loaded.changed = len(arrays["sequences"]) - len(loaded)
        return loaded

    def _book(self, sequences: NDArray[np.int64], until: int) -> RowBook:
        """Return the documents of these rows, those alive that the store still has."""
        living, ids = self._store.living()
        if not are_among(living[living <= until], np.sort(sequences)).all():
            raise CorruptIndex("documents of its store are missing from it")
        alive = are_among(sequences, living)
        places = np.searchsorted(living, sequences).tolist()
        names = [ids[place] if there else "" for place, there in zip(places, alive.tolist(), strict=True)]
        return RowBook.of(names, sequences, alive)

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
