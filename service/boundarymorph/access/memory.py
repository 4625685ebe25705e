"""A limit on the memory of all request bodies together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from boundarymorph.errors import Overloaded


class BytesInHand:
    """Counts the bytes of the bodies of all requests in progress."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.total = 0

    def check(self, size: int) -> None:
        """Raises Overloaded if there is no room for so many more bytes."""
        if self.total + size > self._most:
            raise Overloaded(
                f"requests in progress have {self.total:,} of at most {self._most:,} bytes already; try again later"
            )

    @contextmanager
    def of_request(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that adds bytes of one request, raising as `check` does; all are released at the end."""
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
