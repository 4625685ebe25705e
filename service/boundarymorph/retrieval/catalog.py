"""The catalog: named indexes in one directory, shared between processes."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from boundarymorph.errors import (
    CorruptIndex,
    IndexConflict,
    InvalidIndexName,
    StorageFull,
    StorageUnavailable,
    UnknownIndex,
)
from boundarymorph.retrieval.index import VectorIndex
from boundarymorph.retrieval.live import LiveIndex
from boundarymorph.retrieval.segment import SnapshotInfo
from boundarymorph.retrieval.store import DocumentStore
from boundarymorph.retrieval.structures import check_kind

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SUFFIX = ".sqlite3"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index at a glance.

    encoder: None for own vectors; created: UTC, ISO 8601; bytes: its files on disk; kind: of its search structure;
    snapshot: the newest on disk, None while the index is too small for one.
    """

    name: str
    count: int
    dimension: int
    encoder: str | None
    created: str
    bytes: int
    kind: str = "flat"
    snapshot: SnapshotInfo | None = None


class IndexCatalog:
    """The indexes of a directory: NAME/GENERATION.sqlite3, with SQLite's own files and the snapshots beside it.

    An index appears and disappears by the renaming of its folder, so that no process ever sees half of one. A
    generation is random: what is still open of a deleted index never touches a later one of the same name. Any number
    of processes and threads may share a directory on a local disk; calls block.
    """

    def __init__(self, directory: Path, make_vectors: Callable[[int], VectorIndex] | None = None) -> None:
        """make_vectors: what all indexes are searched with, whatever their kind, such as an index on an accelerator."""
        self._directory = directory
        self._make_vectors = make_vectors
        self._lock = threading.Lock()
        self._open: dict[str, LiveIndex] = {}
        directory.mkdir(parents=True, exist_ok=True)
        for remains in directory.glob(".deleted-*"):
            shutil.rmtree(remains, ignore_errors=True)

    def exists(self, name: str) -> bool:
        """Whether there is an index of this name. Raises InvalidIndexName."""
        return self._folder(name).exists()

    def create(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> LiveIndex:
        """Make an index, or return the one that is there with the same configuration.

        encoder: the name of the encoder that its text queries go through; None for an index of own vectors.
        kind: of its search structure, one of `structures.KINDS`; None takes what is there, and "flat" for a new one.
        lexical: whether a new one keeps an inverted index of its words.
        Raises InvalidIndexName, InvalidInput, or IndexConflict when the name is taken by another configuration.
        """
        folder = self._folder(name)
        if kind is not None:
            check_kind(kind)
        if not folder.exists():
            self._build(folder, encoder, dimension, kind or "flat", lexical)
        index = self.get(name)
        info, wanted = index.info, kind or index.info.kind
        if (info.encoder, info.dimension, info.kind) != (encoder, dimension, wanted):
            raise IndexConflict(
                f"the index {name!r} exists with encoder {info.encoder!r}, {info.dimension} dimensions and of kind "
                f"{info.kind!r}, not {encoder!r}, {dimension} and {wanted!r}; choose another name or delete it first"
            )
        return index

    def get(self, name: str) -> LiveIndex:
        """The index of this name. Raises InvalidIndexName, UnknownIndex or CorruptIndex."""
        folder = self._folder(name)
        with ExitStack() as forgotten, self._lock:
            index = self._open.get(name)
            if index is None or not index.path.exists():
                self._forget(name, forgotten)
                index = self._open[name] = LiveIndex(name, DocumentStore(self._file(folder)), self._make_vectors)
            return index

    def describe(self, name: str) -> IndexInfo:
        """An index at a glance. Raises InvalidIndexName, UnknownIndex or CorruptIndex."""
        index = self.get(name)
        info = index.info
        return IndexInfo(
            name,
            index.count(),
            info.dimension,
            info.encoder,
            info.created,
            _size(index.path.parent),
            info.kind,
            index.snapshot(),
        )

    def list(self) -> list[IndexInfo]:
        """All indexes by name. One that cannot be read is left out, with a warning in the log."""
        listed = []
        for folder in sorted(self._directory.iterdir()):
            if _NAME.fullmatch(folder.name) and folder.is_dir():
                try:
                    listed.append(self.describe(folder.name))
                except CorruptIndex as error:
                    _log.warning("index left out of the list: %s", error)
                except (UnknownIndex, FileNotFoundError):
                    continue
        return listed

    def delete(self, name: str) -> None:
        """Remove an index and its files. Raises InvalidIndexName or UnknownIndex."""
        folder = self._folder(name)
        remains = self._directory / f".deleted-{uuid4().hex}"
        with ExitStack() as forgotten, self._lock:
            try:
                folder.rename(remains)
            except FileNotFoundError:
                raise _unknown(name) from None
            finally:
                self._forget(name, forgotten)
        _sync(self._directory)
        shutil.rmtree(remains, ignore_errors=True)

    def close(self) -> None:
        """Release all files. Indexes handed out before raise UnknownIndex from then on."""
        with ExitStack() as forgotten, self._lock:
            for name in tuple(self._open):
                self._forget(name, forgotten)

    def _folder(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InvalidIndexName(
                f"{name!r} cannot name an index; use 1 to 64 of a-z, 0-9, '.', '_', '-', a letter or digit first"
            )
        return self._directory / name

    def _file(self, folder: Path) -> Path:
        try:
            files = [path for path in folder.iterdir() if path.suffix == _SUFFIX]
        except FileNotFoundError:
            raise _unknown(folder.name) from None
        if len(files) != 1:
            raise CorruptIndex(f"{folder} should hold one {_SUFFIX} file and holds {len(files)}; restore or remove it")
        return files[0]

    def _build(self, folder: Path, encoder: str | None, dimension: int, kind: str, lexical: bool) -> None:
        """Make the index aside and move it into place, unless another process is there first."""
        aside = self._directory / f".creating-{uuid4().hex}"
        try:
            aside.mkdir()
            path = aside / f"{uuid4().hex}{_SUFFIX}"
            store = DocumentStore.create(path, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)
            store.close()
            aside.rename(folder)
            _sync(self._directory)
        except OSError as error:
            if not folder.exists():
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                raise (StorageFull if full else StorageUnavailable)(f"{folder}: {error.strerror}") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _forget(self, name: str, forgotten: ExitStack) -> None:
        """Give an index out no more, and close it when `forgotten` is; not under the lock, as that may take seconds."""
        if (index := self._open.pop(name, None)) is not None:
            forgotten.callback(index.close)


def _unknown(name: str) -> UnknownIndex:
    return UnknownIndex(f"there is no index {name!r}")


def _size(folder: Path) -> int:
    """Bytes of all files in a folder; those that vanish meanwhile do not count."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _sync(directory: Path) -> None:
    """Make the entries of a directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
