"""When the block of an index is made, and by which process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from boundarymorph.errors import BoundaryMorphError, UnknownIndex
from boundarymorph.retrieval.local.blocks import BlockFiles
from boundarymorph.retrieval.local.rows import RowBook
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.local.vectors import Block, VectorIndex

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingPolicy:
    """When the block of an index is made.

    least: number of documents below which there is none, and number of changes below which it is not made again;
    share: of its documents, that may change before it is; pause: seconds before the next attempt, doubled for each
    that failed in a row, up to longest.
    """

    least: int = 20_000
    share: float = 0.2
    pause: float = 5.0
    longest: float = 600.0

    def due(self, vectors: VectorIndex) -> bool:
        if vectors.sequence:
            return vectors.changed >= max(self.least, int(self.share * len(vectors)))
        return len(vectors) >= self.least


class Trainer:
    """Makes the block of one index in a thread; only one process at a time does that for an index.

    `adopt` is called in that thread with each newer block, whether this process or another made it. A failed attempt is
    logged and repeated after the pause; the index keeps working as it is.
    """

    def __init__(
        self,
        store: DocumentStore,
        adopt: Callable[[Block, RowBook], None],
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
        """Start training if it is due and none is running."""
        if not self._policy.due(vectors):
            return
        with self._starting:
            idle = self._thread is None or not self._thread.is_alive()
            if self._closed or not idle or self._clock() < self._not_before:
                return
            self._thread = threading.Thread(target=self._attempt, args=(vectors.sequence,), name="training")
            self._thread.start()

    def train(self, after: int) -> bool:
        """Adopt a block of a change later than `after`: another process's, or one made now, unless the store is empty.

        Returns False if another process is making one. Raises OSError, StorageFull, StorageUnavailable, and
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

    def _attempt(self, after: int) -> None:
        policy = self._policy
        try:
            self.train(after)
            self._failures = 0
        except (OSError, BoundaryMorphError) as error:
            if not self._closed and self._store.path.exists():
                _log.warning("could not make a structure of %s: %s", self._store.path, error)
            self._failures += 1
        finally:
            self._not_before = self._clock() + min(policy.pause * 2.0 ** min(self._failures, 20), policy.longest)

    def _checkpoint(self) -> None:
        if self._closed:
            raise UnknownIndex(f"the index in {self._store.path} was closed while its structure was made")
