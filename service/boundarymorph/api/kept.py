"""Answers that are made once for all who ask."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable


class Kept:
    """Bytes that are made in a thread, once for all who wait for them, and kept for some seconds."""

    def __init__(self, make: Callable[[], bytes], seconds: float = math.inf) -> None:
        self._make, self._seconds = make, seconds
        self._made, self._until = b"", -math.inf
        self._making = asyncio.Lock()

    async def get(self) -> bytes:
        """Return the bytes. Raises what making them does."""
        if time.monotonic() < self._until:
            return self._made
        async with self._making:
            begun = time.monotonic()
            if begun >= self._until:  # else somebody else has made them meanwhile
                self._made = await asyncio.to_thread(self._make)
                self._until = begun + self._seconds
            return self._made
