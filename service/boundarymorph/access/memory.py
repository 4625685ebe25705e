"""A bound on the memory that the bodies of all requests take together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from boundarymorph.errors import Overloaded


class BytesInHand:
    """Bytes of the bodies of all requests that have not ended."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.total = 0

    def check(self, size: int) -> None:
        """Raises Overloaded where so many more would be too many."""
        if self.total + size > self._most:
            raise Overloaded(
                f"{self.total:,} bytes of requests are in hand already, of {self._most:,} that may be; try again later"
            )

    @contextmanager
    def of_request(self) -> Iterator[Callable[[int], None]]:
        """What takes so many more in hand, as `check` lets it. All are given back in the end."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            self.check(size)
            self.total += size
            taken += size

        try:
            yield take
        finally:
            self.total -= taken
