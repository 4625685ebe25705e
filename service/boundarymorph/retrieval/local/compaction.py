"""Compaction: when a large index is written to a snapshot, by whom, and off the way of searches and writes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from boundarymorph.errors import BoundaryMorphError, UnknownIndex
from boundarymorph.retrieval.local.segment import Segment
from boundarymorph.retrieval.local.segmented import SegmentedView
from boundarymorph.retrieval.local.snapshots import Content, Snapshots
from boundarymorph.retrieval.local.store import DocumentStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When an index is worth a new snapshot.

    least: changes that are always kept in memory alone; share: of the segment's documents, beyond which as many new or
    as many lost ones are too many; pause: seconds from one attempt to the next.
    """

    least: int = 20_000
    share: float = 0.2
    pause: float = 5.0

    def due(self, view: SegmentedView) -> bool:
        """Whether there is so much new, or so much lost, that a new snapshot is worth its work."""
        bound = max(self.least, int(self.share * len(view.base)))
        return view.recent.living >= bound or view.dead >= bound


class Compactor:
    """Writes snapshots of one index in a thread of its own, one at a time, of all processes that share the directory.

    `adopt` is called, in that thread, with each newer segment, whether this process wrote it or another. An attempt
    that fails is told in the log and made again after the pause; the index serves on as it is.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        store: DocumentStore,
        adopt: Callable[[Segment], None],
        policy: CompactionPolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._snapshots = snapshots
        self._store = store
        self._adopt = adopt
        self._policy = policy
        self._clock = clock
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._not_before = clock()
        self._closed = False

    def consider(self, view: SegmentedView, sequence: int) -> None:
        """Begin, if it is due and nothing is under way. view: the index as it was after the store's `sequence`."""
        if not self._policy.due(view):
            return
        with self._starting:
            idle = self._thread is None or not self._thread.is_alive()
            if self._closed or not idle or self._clock() < self._not_before:
                return
            self._thread = threading.Thread(target=self._attempt, args=(view, sequence), name="compaction")
            self._thread.start()

    def compact(self, view: SegmentedView, sequence: int) -> bool:
        """Have a segment newer than the view's own, from another process or written now; False if one is at it now.

        Raises OSError, StorageUnavailable, and UnknownIndex once closed.
        """
        after = view.base.info.sequence
        segment = self._snapshots.newest(after)
        if segment is None:
            with self._snapshots.lock() as ours:
                if not ours:
                    return False
                segment = self._snapshots.newest(after) or self._written(view, sequence)
        if segment is not None:
            self._adopt(segment)
        return segment is not None

    def wait(self) -> None:
        """Until what this process has under way is done."""
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """End what is under way, which takes at most some seconds, and begin nothing more."""
        with self._starting:
            self._closed = True
        self.wait()

    def _written(self, view: SegmentedView, sequence: int) -> Segment | None:
        info = self._store.info
        content = Content(info.kind, info.dimension, len(view), sequence, view.blocks())
        self._snapshots.write(content, checkpoint=self._checkpoint)
        return self._snapshots.newest(view.base.info.sequence)

    def _attempt(self, view: SegmentedView, sequence: int) -> None:
        try:
            self.compact(view, sequence)
        except (OSError, BoundaryMorphError) as error:
            if not self._closed and self._store.path.exists():
                _log.warning("no snapshot of %s could be made: %s", self._store.path, error)
        finally:
            self._not_before = self._clock() + self._policy.pause

    def _checkpoint(self) -> None:
        if self._closed:
            raise UnknownIndex(f"the index in {self._store.path} was closed while it was compacted")
