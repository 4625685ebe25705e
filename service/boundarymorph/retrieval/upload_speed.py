"""The speed of an upload, and the time that it still needs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 30.0


class UploadSpeed:
    """The recent speed: unchanged documents are processed many times faster than those to be embedded."""

    def __init__(self, total: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        """total: bytes of the upload, None if unknown."""
        self._total = total
        self._clock = clock
        self._seen = deque([(clock(), 0, 0)])

    def observe(self, documents: int, position: int) -> None:
        """Record how many documents, and bytes of the upload, have been processed."""
        now = self._clock()
        self._seen.append((now, documents, position))
        while self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def documents_per_second(self) -> float:
        """Speed over the last WINDOW_SECONDS; 0 before anything was measured."""
        (start, before, _), (end, after, _) = self._seen[0], self._seen[-1]
        return (after - before) / (end - start) if end > start else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds at the recent speed; None if unknown."""
        (start, _, before), (end, _, after) = self._seen[0], self._seen[-1]
        if self._total is None or after <= before:
            return None
        return max(0, self._total - after) * (end - start) / (after - before)
