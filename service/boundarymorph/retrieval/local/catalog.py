"""Keep the named indexes of one directory, shared between processes, and search them."""

from __future__ import annotations

import errno
import fcntl
import logging
import shutil
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from boundarymorph import errors
from boundarymorph.database import exists, folder_bytes, hold_lock, storage_errors, sync
from boundarymorph.inference.concurrency import compute_slot
from boundarymorph.notices import Notice
from boundarymorph.retrieval import interfaces
from boundarymorph.retrieval.artifacts import ArtifactFile
from boundarymorph.retrieval.document import Document, Retrieval, Search, in_pieces
from boundarymorph.retrieval.lexical_vectors import lexical_vectors
from boundarymorph.retrieval.local.blocks import BackupInfo, Trainer, back_up, unpack
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import (
    Block,
    Mirror,
    Neighbours,
    Rows,
    TrainingPolicy,
    VectorIndex,
    VectorView,
)
from boundarymorph.retrieval.ranking import exact_scores, fuse_pool, unit_from_halves
from boundarymorph.retrieval.words import PoolWords, RowWords, truncate_texts
from boundarymorph.selection.pool import Pool

KINDS = ("flat", "ivf", interfaces.WORDS)
MOST_OPEN = 32
_SUFFIX = ".sqlite3"
_REPLACED = ".replaced-"
_log = logging.getLogger(__name__)


class LocalIndex(DocumentStore):
    """A named index: a store that can be searched.

    Before each search the vectors catch up with its changes, by any process. Each answer, its filter, and
    its words are based on one state of the store.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        make_mirror: Callable[[int], Mirror] | None = None,
        *,
        warnings: Sequence[Notice] = (),
        policy: TrainingPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open nothing yet.

        Args:
            name: The name of the index.
            path: Its SQLite file.
            make_mirror: Makes an empty mirror, as for `VectorIndex`.
            warnings: Added to every answer.
            policy: Decides when its block is made.
            clock: Returns the time in seconds.
        """
        super().__init__(path)
        self.name = name
        self.caller = ""  # the caller that used it last
        self._make_mirror = make_mirror if self.info.dimension else None
        self._warnings = warnings
        self._catching_up = threading.Lock()
        self._sequence = 0
        self._vectors: VectorIndex | None = None
        self._policy = policy or TrainingPolicy()
        self._trainer = Trainer(self, self._adopt, self._policy, clock)

    def structure(self) -> interfaces.StructureDescription | None:
        return self._trainer.files.description() if self.info.kind == "ivf" else None

    def retrieve(self, search: Search) -> Retrieval:
        """Search as `Index.retrieve` does.

        Without vectors, BM25 ranks documents, which get lexical vectors.
        """
        if self.info.kind == interfaces.WORDS:
            return self._by_words(search)
        with self._searched(search) as (view, living):
            found = view.search(search.unit, search.depth)
            with compute_slot():
                features: dict[str, NDArray[np.float64]] = {}
                terms, directions, halves, words = None, None, None, view.words
                if search.hybrid and words is None:
                    raise errors.InvalidInput(
                        "this index has no lexical part; query it without hybrid retrieval, or index its words with "
                        "`boundarymorph index words NAME`"
                    )
                if words is not None and found.ids:  # otherwise no document matches the filter
                    if search.hybrid:
                        found, features = _merged(found, view, words, search)
                    features["bm25"] = words.scores(search.query, found.rows)
                    terms = words.terms(search.query, found.rows)
                    directions = self.directions() if search.directions else None
                if directions is None:
                    embeddings, query = found.vectors, search.unit
                else:
                    halves = directions.halves_of(found.sequences, found.vectors_at, living)
                    embeddings = unit_from_halves(halves)
                    query = directions.units(search.unit[None])[0]
        warnings = [*self._warnings, *found.warnings]
        return Retrieval(Pool(found.ids, embeddings, query, found.scores, features, terms), warnings, halves=halves)

    def upsert(
        self, documents: Sequence[Document], embeddings: NDArray[np.floating], digests: Sequence[bytes] | None = None
    ) -> None:
        super().upsert(documents, embeddings, digests)
        self._learn()

    def refresh(self) -> VectorIndex:
        with self._up_to_date():
            assert self._vectors is not None
            return self._vectors

    def await_training(self) -> None:
        self.refresh()
        self._trainer.wait()

    def compact(self) -> bool:
        """Empty the store's log, and make the block again; False if another process does.

        Raises:
            StorageUnavailable: If the disk fails.
        """
        self.empty_log()
        self.await_training()
        if self.info.kind != "ivf" and self._vectors is not None and not self._vectors.sequence:
            return True
        with storage_errors(f"{self.name!r} could not be trained again, and stays as it was"):
            return self._trainer.train(after=self.last_sequence() - 1)

    def back_up(self, target: Path) -> BackupInfo:
        return back_up(self.name, self, target)

    def index_words(self) -> bool:
        made = super().index_words()
        self.await_training()
        return made

    def release(self) -> None:
        """Close the file and forget the vectors; later calls open and load them again."""
        self._trainer.close()
        super().release()
        if self._catching_up.acquire(blocking=False):  # otherwise another thread is loading them
            self._vectors = None
            self._catching_up.release()

    def _by_words(self, search: Search) -> Retrieval:
        if search.embedding is not None or search.hybrid:
            raise errors.InvalidInput(
                f"the index {self.name!r} has no vectors, only words; leave out the query_embedding and hybrid"
            )
        with self._searched(search) as (view, _):
            words = view.words
            assert words is not None
            with compute_slot():
                rows, scores = words.best(search.query, search.depth, view.rows.alive)
            ids = [view.rows.ids[row] for row in rows.tolist()]
            pieces = in_pieces(self.documents, ids)
            texts = truncate_texts((document.content for piece in pieces for document in piece.values()), len(ids))
        if not ids:
            which = "document" if search.condition is None else "document that passes the filter"
            nothing = Pool([], np.empty((0, 1), np.float32), np.ones(1, np.float32), np.empty(0))
            return Retrieval(nothing, [Notice("no-word-found", f"no {which} has a word of the query")], "lexical")
        with compute_slot():  # this also bounds the memory for words
            found = PoolWords.from_texts(texts)
            del texts
            vectors, query = lexical_vectors(found, search.query)
            features = {"bm25": scores, "similarity": exact_scores(vectors, query)}
            terms = found.terms(search.query)
        return Retrieval(Pool(ids, vectors, query, scores, features, terms), vectors="lexical")

    @contextmanager
    def _searched(self, search: Search) -> Iterator[tuple[VectorView, int]]:
        """Yield the documents that pass the filter, as `_up_to_date` does, and the number of all."""
        with self._up_to_date() as view:
            living = len(view)
            if not living:
                raise errors.EmptyIndex(f"the index {self.name!r} holds no documents yet")
            if search.condition is not None:
                view = view.subset(self.matching_sequences(search.condition))
            yield view, living

    @contextmanager
    def _up_to_date(self) -> Iterator[VectorView]:
        """Yield the vectors in the store's present state.

        Within the block, this thread reads the store in the same state.
        """
        with self._catching_up:
            self._loaded()
        with self.one_state():
            with self._catching_up:  # the first read fixes the state, which must not be older than the vectors' state
                vectors = self._loaded()
                # After a failure halfway, these changes are repeated, which is harmless, rather than lost.
                self._sequence = self._caught_up(vectors, self._sequence)
                view = vectors.view()
            if self._policy.is_due(vectors):
                self._trainer.consider(vectors)
            yield view

    def _loaded(self) -> VectorIndex:
        """Return the vectors, after loading them if necessary. The lock must be held."""
        lexical = self.has_words()
        if self._vectors is None or self._vectors.lexical != lexical:
            self._learn()
            if (newest := self._trainer.files.newest()) is not None:
                vectors, sequence = self._new_vectors(*newest), newest[0].sequence
            else:
                room = self.count() * 5 // 4
                vectors = VectorIndex(self.info.dimension, room, lexical=lexical, make_mirror=self._make_mirror)
                sequence = self._caught_up(vectors, 0)
            self._vectors, self._sequence = vectors, sequence
        return self._vectors

    def _new_vectors(self, block: Block, rows: Rows) -> VectorIndex:
        lexical = block.words is not None
        return VectorIndex(self.info.dimension, block=block, rows=rows, lexical=lexical, make_mirror=self._make_mirror)

    def _caught_up(self, vectors: VectorIndex, sequence: int) -> int:
        """Bring vectors from the state after a change to the present, and return the last change.

        Each page is read in a transaction of its own, so that a long load does not block emptying the log.
        """
        forgotten = complete = False
        while not complete:
            with self.one_state():
                forgotten |= sequence > 0 and self.forgets(sequence)
                changes = self.changes(sequence, texts=vectors.lexical)
            if changes.deleted:
                vectors.remove(changes.deleted)
            if changes.ids:
                vectors.upsert(changes.ids, changes.vectors, changes.sequences, changes.contents)
            sequence, complete = changes.sequence, changes.complete
        if forgotten:
            vectors.remove(vectors.view().rows.absent_ids(self.living_documents()[0]))
        return sequence

    def _learn(self) -> None:
        with suppress(errors.StorageFull, errors.StorageUnavailable):
            self.learn_directions()

    def _adopt(self, block: Block, rows: Rows) -> None:
        """Switch to a newer block.

        It catches up mostly before the switch, while the old one serves searches.
        """
        vectors = self._new_vectors(block, rows)
        sequence = self._caught_up(vectors, block.sequence)
        with self._catching_up:
            if self._vectors is not None and self._vectors.sequence < block.sequence:
                self._sequence = self._caught_up(vectors, sequence)
                self._vectors = vectors


def _merged(
    found: Neighbours, view: VectorView, words: RowWords, search: Search
) -> tuple[Neighbours, dict[str, NDArray[np.float64]]]:
    near = Pool(found.ids, found.vectors, search.unit, found.scores)
    best, _ = words.best(search.query, search.depth, view.rows.alive)
    ids = [view.rows.ids[row] for row in best.tolist()]
    row_of = dict(zip([*found.ids, *ids], [*found.rows.tolist(), *best.tolist()], strict=True))

    def vectors(ids: list[str]) -> dict[str, NDArray[np.float32]]:
        ascending = sorted(ids, key=row_of.__getitem__)
        return dict(zip(ascending, view.vectors(np.array([row_of[id] for id in ascending], np.int64)), strict=True))

    pool = fuse_pool(near, ids, search.depth, vectors)
    rows = np.array([row_of[id] for id in pool.ids], np.int64)
    places, sequences = np.arange(len(pool)), view.rows.sequences[rows]
    merged = Neighbours(list(pool.ids), pool.embeddings, places, pool.scores, sequences, rows, found.warnings)
    return merged, dict(pool.features)


class LocalCatalog:
    """The indexes of a directory: NAME/GENERATION.sqlite3, with blocks.

    They appear and disappear by renaming the folder. A generation is random, so processes that have a deleted index
    open never touch a later one of its name.
    """

    def __init__(
        self,
        directory: Path,
        make_mirror: Callable[[int], Mirror] | None = None,
        *,
        most_open: int = MOST_OPEN,
        **options: Any,
    ) -> None:
        """Open nothing yet.

        Args:
            directory: The folder of the indexes.
            make_mirror: Makes an empty mirror, as for `LocalIndex`.
            most_open: Indexes to keep open; the caller with the most loses its oldest.
            options: Further arguments of `LocalIndex`.
        """
        self._directory = directory
        self._make_mirror, self._options = make_mirror, options
        self._lock = threading.Lock()
        self._most_open = most_open
        self._open: OrderedDict[str, LocalIndex] = OrderedDict()  # the least recently used first
        directory.mkdir(parents=True, exist_ok=True)
        self._tidy()

    def check(self) -> None:
        """Check as `Catalog.check` does, with one index, an open one if possible.

        A damaged index says nothing about others.
        """
        with self._lock:
            opened = list(self._open)
        trouble: errors.StorageUnavailable | None = None
        for name in (*opened, *self._names()):
            try:
                with self._looked_at(name) as index:
                    return index.check_file()
            except (errors.UnknownIndex, errors.CorruptIndex):
                continue
            except errors.StorageUnavailable as error:
                trouble = error
        if trouble is not None:
            raise trouble

    def exists(self, name: str) -> bool:
        return exists(self._folder(name))

    def ensure(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> bool:
        folder = self._folder(name)
        if kind not in (None, *KINDS):
            raise errors.InvalidInput(f"there is no kind of index {kind!r}; use one of {', '.join(KINDS)}")
        made = not exists(folder) and self._build(folder, encoder, dimension, kind or "flat", lexical)
        with self._looked_at(name) as index:
            interfaces.check_same(name, index.info, encoder=encoder, dimension=dimension, kind=kind)
        return made

    def create(
        self, name: str, *, encoder: str | None, dimension: int, kind: str | None = None, lexical: bool = True
    ) -> LocalIndex:
        self.ensure(name, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)
        return self.get(name)

    def get(self, name: str, caller: str = "") -> LocalIndex:
        folder = self._folder(name)
        with ExitStack() as forgotten, self._lock:
            index = self._open.get(name)
            if index is None or not exists(index.path):
                self._forget(name, forgotten)
                index = self._opened(name, folder)
                if len(self._open) >= self._most_open:
                    used = Counter([caller, *(other.caller for other in self._open.values())])
                    oldest = max(self._open, key=lambda name: used[self._open[name].caller])  # the first among equals
                    forgotten.callback(self._open.pop(oldest).release)
                self._open[name] = index
            index.caller = caller or index.caller
            self._open.move_to_end(name)
            return index

    def describe(self, name: str) -> interfaces.IndexDescription:
        try:
            with self._looked_at(name) as index:
                file, size = self.artifacts(name), folder_bytes(index.path.parent)
                return index.info.describe(name, index.count(), file, bytes=size, structure=index.structure())
        except FileNotFoundError:  # deleted meanwhile
            raise interfaces.unknown(name) from None

    def list(self, wanted: Callable[[str], bool] = interfaces.accept_all) -> interfaces.IndexListing:
        return interfaces.describe_indexes(filter(wanted, self._names()), self.describe)

    def totals(self) -> Mapping[str, interfaces.IndexTotals]:
        totals = dict.fromkeys((*KINDS, interfaces.UNREADABLE), interfaces.IndexTotals())
        for name in self._names():
            try:
                info = self.describe(name)
                kind, count, size = info.kind, info.count, info.bytes or 0
            except errors.UnknownIndex:  # deleted meanwhile
                continue
            except (errors.BoundaryMorphError, OSError):
                kind, count, size = interfaces.UNREADABLE, 0, folder_bytes(self._folder(name))
            before = totals[kind]
            totals[kind] = interfaces.IndexTotals(before.indexes + 1, before.documents + count, before.bytes + size)
        return totals

    def delete(self, name: str) -> None:
        folder = self._folder(name)
        remains = self._directory / f".deleted-{uuid4().hex}"
        with storage_errors(f"{name!r} could not be deleted"):
            with ExitStack() as forgotten, self._lock:
                try:
                    folder.rename(remains)
                except FileNotFoundError:
                    raise interfaces.unknown(name) from None
                finally:
                    self._forget(name, forgotten)
            sync(self._directory)
        shutil.rmtree(remains, ignore_errors=True)

    def artifacts(self, name: str) -> ArtifactFile:
        folder = self._folder(name)
        if not exists(folder):
            raise interfaces.unknown(name)
        return ArtifactFile(folder, name)

    def restore(self, name: str, source: Path, *, replace: bool = False) -> interfaces.IndexDescription:
        """Restore an index, under any name, from a folder that `LocalIndex.back_up` wrote.

        Raises InvalidIndexName, IndexConflict if it exists and is not to be replaced, StorageFull, StorageUnavailable,
        and as `unpack` does.
        """
        folder = self._folder(name)
        if folder.exists() and not replace:
            raise _taken(name)
        temporary = self._directory / f".creating-{uuid4().hex}"
        trouble = f"{name!r} could not be restored from {source}"
        with (
            storage_errors(trouble),
            hold_lock(self._directory, fcntl.LOCK_SH),
        ):  # so that no process removes the folder
            try:
                unpack(source, temporary, f"{uuid4().hex}{_SUFFIX}")
                self._replace(folder, temporary) if replace else self._place(folder, temporary)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return self.describe(name)

    def close(self) -> None:
        with ExitStack() as forgotten, self._lock:
            for name in tuple(self._open):
                self._forget(name, forgotten)

    def _names(self) -> Sequence[str]:
        with storage_errors(f"the indexes in {self._directory} cannot be listed"):
            return [
                path.name
                for path in sorted(self._directory.iterdir())
                if interfaces.NAME.fullmatch(path.name) and path.is_dir()
            ]

    def _folder(self, name: str) -> Path:
        interfaces.check_name(name)
        return self._directory / name

    def _opened(self, name: str, folder: Path) -> LocalIndex:
        return LocalIndex(name, self._file(folder), self._make_mirror, **self._options)

    @contextmanager
    def _looked_at(self, name: str) -> Iterator[LocalIndex]:
        """Yield an index only to describe it, without closing another for it."""
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
                        break  # otherwise the index was deleted or replaced while its files were listed
            except FileNotFoundError:
                raise interfaces.unknown(folder.name) from None
        raise errors.CorruptIndex(
            f"{folder} should hold one {_SUFFIX} file and holds {len(files)}; restore or remove it"
        )

    def _build(self, folder: Path, encoder: str | None, dimension: int, kind: str, lexical: bool) -> bool:
        """Create the index in a temporary folder and move it into place.

        Returns False if another process was faster.
        """
        temporary = self._directory / f".creating-{uuid4().hex}"
        with storage_errors(str(folder)), hold_lock(self._directory, fcntl.LOCK_SH):
            try:
                temporary.mkdir()
                path = temporary / f"{uuid4().hex}{_SUFFIX}"
                store = DocumentStore.create(path, encoder=encoder, dimension=dimension, kind=kind, lexical=lexical)
                store.close()
                with suppress(errors.IndexConflict):
                    self._place(folder, temporary)
                    return True
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return False

    def _place(self, folder: Path, temporary: Path) -> None:
        """Rename a temporary folder to its final name.

        Raises IndexConflict if that exists, and OSError.
        """
        try:
            temporary.rename(folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise _taken(folder.name) from error
            raise
        sync(self._directory)

    def _replace(self, folder: Path, temporary: Path) -> None:
        """Place a folder as `_place` does, after moving an existing index away.

        That index is moved back if anything fails.
        """
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

    def _tidy(self) -> None:
        """Remove the files of killed processes, and restore an index that was about to be replaced."""
        for remains in self._directory.glob(".deleted-*"):
            shutil.rmtree(remains, ignore_errors=True)
        with suppress(OSError), hold_lock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB):
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
        """Remove an open index, and let `forgotten` close it after the lock is released.

        Closing may be slow.
        """
        if (index := self._open.pop(name, None)) is not None:
            forgotten.callback(index.close)


def _taken(name: str) -> errors.IndexConflict:
    return errors.IndexConflict(f"the index {name!r} already exists; choose another name, or replace it (--replace)")
