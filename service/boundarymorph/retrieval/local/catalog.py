"""The named indexes in one directory, shared between processes."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from boundarymorph.calibration.belongings import FOLDER, Belongings
from boundarymorph.errors import (
    BoundaryMorphError,
    CorruptIndex,
    IndexConflict,
    InvalidInput,
    StorageUnavailable,
    UnknownIndex,
)
from boundarymorph.inference.concurrency import CALLER
from boundarymorph.retrieval.catalog import (
    NAME,
    UNREADABLE,
    WORDS,
    IndexDescription,
    IndexTotals,
    UnreadableIndex,
    check_name,
    check_same,
    listed,
    unknown,
)
from boundarymorph.retrieval.local import backups
from boundarymorph.retrieval.local.index import LocalIndex
from boundarymorph.retrieval.local.metadata import FILTER_BYTES
from boundarymorph.retrieval.local.sqlite_file import LOG_BYTES
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import Mirror
from boundarymorph.retrieval.storage import bytes_of, exists, storage_errors, sync

KINDS = ("flat", "ivf", WORDS)
MOST_OPEN = 32
_SUFFIX = ".sqlite3"
_REPLACED = ".replaced-"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    """An open index. caller: who used it last."""

    index: LocalIndex
    caller: str = ""


class LocalCatalog:
    """The indexes of a directory: NAME/GENERATION.sqlite3, with SQLite's own files and blocks beside it.

    An index appears and disappears when its folder is renamed, so no process ever sees a partial one. A generation is
    random, so processes that still have a deleted index open never touch a later one of the same name. Any number of
    processes and threads may share a directory on a local disk; calls block.
    """

    def __init__(
        self,
        directory: Path,
        make_mirror: Callable[[int], Mirror] | None = None,
        *,
        warnings: Sequence[str] = (),
        log_bytes: int = LOG_BYTES,
        filter_bytes: int = FILTER_BYTES,
        most_open: int = MOST_OPEN,
    ) -> None:
        """make_mirror: see `LocalIndex`.

        warnings: added to every answer, about how these indexes are searched. log_bytes: see `DocumentStore`.
        filter_bytes: memory of each index for the matches of recent filters. most_open: indexes whose files and vectors
        are kept open; of the caller that uses most of them, the one it used the longest ago makes room for another.
        """
        self._directory = directory
        self._make_mirror = make_mirror
        self._warnings = warnings
        self._log_bytes = log_bytes
        self._filter_bytes = filter_bytes
        self._lock = threading.Lock()
        self._most_open = most_open
        self._open: OrderedDict[str, _Open] = OrderedDict()  # the least recently used first
        directory.mkdir(parents=True, exist_ok=True)
        self._tidy()

    def check(self) -> None:
        """See `Catalog.check`. Reads one index, an open one if possible; a damaged one says nothing about others."""
        with self._lock:
            opened = list(self._open)
        trouble: StorageUnavailable | None = None
        for name in (*opened, *self._names()):
            try:
                with self._looked_at(name) as index:
                    return index.check_file()
            except (UnknownIndex, CorruptIndex):
                continue
            except StorageUnavailable as error:
                trouble = error
        if trouble is not None:
            raise trouble

    def exists(self, name: str) -> bool:
        """See `Catalog.exists`. Also raises StorageUnavailable."""
        return exists(self._folder(name))

    def ensure(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> bool:
        """See `Catalog.ensure`. kind: one of `KINDS`."""
        folder = self._folder(name)
        if kind not in (None, *KINDS):
            raise InvalidInput(f"there is no kind of index {kind!r}; use one of {', '.join(KINDS)}")
        made = not exists(folder) and self._build(folder, encoder, dimension, kind or "flat", lexical)
        check_same(name, self.get(name).info, encoder=encoder, dimension=dimension, kind=kind)
        return made

    def create(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> LocalIndex:
        """See `Catalog.create`."""
        self.ensure(name, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)
        return self.get(name)

    def get(self, name: str) -> LocalIndex:
        """See `Catalog.get`. Also raises CorruptIndex and StorageUnavailable."""
        folder = self._folder(name)
        with ExitStack() as forgotten, self._lock:
            there = self._open.get(name)
            if there is None or not exists(there.index.path):
                self._forget(name, forgotten)
                there = _Open(self._opened(name, folder))
                self._make_room(forgotten)
                self._open[name] = there
            there.caller = CALLER.get()
            self._open.move_to_end(name)
            return there.index

    def describe(self, name: str) -> IndexDescription:
        """See `Catalog.describe`. Also raises CorruptIndex and StorageUnavailable."""
        try:
            with self._looked_at(name) as index:
                size = bytes_of(index.path.parent)
                return index.info.described(name, index.count(), size, index.structure())
        except FileNotFoundError:  # deleted meanwhile
            raise unknown(name) from None

    def list(self) -> Sequence[IndexDescription | UnreadableIndex]:
        """See `Catalog.list`. Raises StorageUnavailable if the directory cannot be read."""
        return listed(self._names(), self.describe)

    def totals(self) -> Mapping[str, IndexTotals]:
        """See `Catalog.totals`. Raises StorageUnavailable if the directory cannot be read."""
        totals = dict.fromkeys((*KINDS, UNREADABLE), IndexTotals())
        for name in self._names():
            try:
                info = self.describe(name)
                kind, count, size = info.kind, info.count, info.bytes
            except UnknownIndex:  # deleted meanwhile
                continue
            except (BoundaryMorphError, OSError):
                kind, count, size = UNREADABLE, 0, bytes_of(self._folder(name))
            totals[kind] = totals[kind].plus(count, size)
        return totals

    def delete(self, name: str) -> None:
        """See `Catalog.delete`."""
        folder = self._folder(name)
        remains = self._directory / f".deleted-{uuid4().hex}"
        with storage_errors(f"{name!r} could not be deleted"):
            with ExitStack() as forgotten, self._lock:
                try:
                    folder.rename(remains)
                except FileNotFoundError:
                    raise unknown(name) from None
                finally:
                    self._forget(name, forgotten)
            sync(self._directory)
        shutil.rmtree(remains, ignore_errors=True)

    def belongings(self, name: str) -> Belongings:
        """See `Catalog.belongings`. Also raises StorageUnavailable."""
        folder = self._folder(name)
        if not exists(folder):
            raise unknown(name)
        return Belongings(folder / FOLDER, name)

    def all_belongings(self) -> Iterator[Belongings]:
        """See `Catalog.all_belongings`. Raises StorageUnavailable if the directory cannot be read."""
        for name in self._names():
            if (folder := self._directory / name / FOLDER).exists():
                yield Belongings(folder, name)

    def restore(self, name: str, source: Path, *, replace: bool = False) -> IndexDescription:
        """Restore an index, under any name, from a folder that `LocalIndex.back_up` wrote.

        It appears only when it is complete. replace: whether to replace an existing index of this name, which stays
        until then. Raises InvalidIndexName, IndexConflict if the index exists, CorruptIndex, naming the file, if the
        backup is damaged or of a later format, InvalidInput if it is not a backup, StorageFull or StorageUnavailable.
        """
        folder = self._folder(name)
        if folder.exists() and not replace:
            raise _taken(name)
        temporary = self._directory / f".creating-{uuid4().hex}"
        with storage_errors(f"{name!r} could not be restored from {source}"), self._building():
            try:
                backups.unpack(source, temporary, f"{uuid4().hex}{_SUFFIX}")
                self._replace(folder, temporary) if replace else self._place(folder, temporary)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return self.describe(name)

    def close(self) -> None:
        """Close all files. Indexes returned before raise UnknownIndex from then on."""
        with ExitStack() as forgotten, self._lock:
            for name in tuple(self._open):
                self._forget(name, forgotten)

    def _names(self) -> Sequence[str]:
        """Return the names of all indexes, sorted. Raises StorageUnavailable if the directory cannot be read."""
        with storage_errors(f"the indexes in {self._directory} cannot be listed"):
            return [
                path.name for path in sorted(self._directory.iterdir()) if NAME.fullmatch(path.name) and path.is_dir()
            ]

    def _folder(self, name: str) -> Path:
        check_name(name)
        return self._directory / name

    def _opened(self, name: str, folder: Path) -> LocalIndex:
        return LocalIndex(
            name,
            self._file(folder),
            self._make_mirror,
            warnings=self._warnings,
            log_bytes=self._log_bytes,
            filter_bytes=self._filter_bytes,
        )

    @contextmanager
    def _looked_at(self, name: str) -> Iterator[LocalIndex]:
        """Yield an index only for a look, for which no other makes room."""
        with self._lock:
            lasting = name in self._open or len(self._open) < self._most_open
        if lasting:
            yield self.get(name)
        else:
            index = self._opened(name, self._folder(name))
            try:
                yield index
            finally:
                index.close()

    def _make_room(self, forgotten: ExitStack) -> None:
        """Remove an open index if there is no room for another, to be released with `forgotten`."""
        if len(self._open) < self._most_open:
            return
        used = Counter([there.caller for there in self._open.values()])
        used[CALLER.get()] += 1
        name = max(self._open, key=lambda name: used[self._open[name].caller])  # of equals the first
        forgotten.callback(self._open.pop(name).index.release)

    def _file(self, folder: Path) -> Path:
        with storage_errors(str(folder)):
            try:
                while True:
                    before = folder.stat()
                    files = [path for path in folder.iterdir() if path.suffix == _SUFFIX]
                    if len(files) == 1:
                        return files[0]
                    after = folder.stat()
                    if (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns):
                        break  # else the index was deleted or replaced while its files were listed
            except FileNotFoundError:
                raise unknown(folder.name) from None
        raise CorruptIndex(f"{folder} should hold one {_SUFFIX} file and holds {len(files)}; restore or remove it")

    def _build(self, folder: Path, encoder: str | None, dimension: int, kind: str, lexical: bool) -> bool:
        """Create the index in a temporary folder and move it into place; False if another process was faster."""
        temporary = self._directory / f".creating-{uuid4().hex}"
        with storage_errors(str(folder)), self._building():
            try:
                temporary.mkdir()
                path = temporary / f"{uuid4().hex}{_SUFFIX}"
                store = DocumentStore.create(path, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)
                store.close()
                with suppress(IndexConflict):
                    self._place(folder, temporary)
                    return True
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return False

    def _place(self, folder: Path, temporary: Path) -> None:
        """Rename a temporary folder to its final name. Raises IndexConflict if that exists, and OSError."""
        try:
            temporary.rename(folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise _taken(folder.name) from error
            raise
        sync(self._directory)

    def _replace(self, folder: Path, temporary: Path) -> None:
        """Do the same, moving any existing index away just before, and back if anything fails."""
        before = self._directory / f"{_REPLACED}{uuid4().hex}-{folder.name}"
        with ExitStack() as forgotten, self._lock:
            with suppress(FileNotFoundError):
                folder.rename(before)
            try:
                self._place(folder, temporary)
            except BaseException:
                with suppress(OSError):
                    before.rename(folder)
                raise
            self._forget(folder.name, forgotten)
        shutil.rmtree(before, ignore_errors=True)

    def _building(self) -> AbstractContextManager[None]:
        """Hold a lock while writing a temporary folder, so that no other process mistakes it for a crashed one's."""
        return _locked(self._directory, fcntl.LOCK_SH)

    def _tidy(self) -> None:
        """Remove leftovers of killed processes, and restore an index about to be replaced."""
        for remains in self._directory.glob(".deleted-*"):
            shutil.rmtree(remains, ignore_errors=True)
        with suppress(OSError), _locked(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB):
            for before in self._directory.glob(f"{_REPLACED}*"):
                folder = self._directory / before.name.removeprefix(_REPLACED).partition("-")[2]
                if folder.exists():
                    shutil.rmtree(before, ignore_errors=True)
                else:
                    _log.warning("restored the index %s, which was about to be replaced", folder.name)
                    before.rename(folder)
            for remains in self._directory.glob(".creating-*"):
                shutil.rmtree(remains, ignore_errors=True)

    def _forget(self, name: str, forgotten: ExitStack) -> None:
        """Remove an open index, to be closed with `forgotten`: after the lock is released, since that may be slow."""
        if (there := self._open.pop(name, None)) is not None:
            forgotten.callback(there.index.close)


@contextmanager
def _locked(directory: Path, kind: int) -> Iterator[None]:
    """Hold a lock of `fcntl.flock` on a directory itself. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def _taken(name: str) -> IndexConflict:
    return IndexConflict(f"the index {name!r} already exists; choose another name, or replace it (--replace)")
