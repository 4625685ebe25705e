"""Which connections of callers stay open when there are too many of them."""

from __future__ import annotations

import resource
from typing import Protocol

from boundarymorph.errors import InvalidConfiguration

ROOM = 16  # connections beyond the limit, for probes and for heads that are still arriving
LARGEST = 10_000  # the default limit where a process may open far more descriptors


class Connection(Protocol):
    """A caller's connection."""

    def abort(self, reason: str) -> None:
        """Close it at once. reason: for the metrics."""


class Connections:
    """The open connections of a process: at most `most` with a request in progress, and `ROOM` more.

    A connection without a request, idle or with an incomplete head, may have to make room: first the one that has been
    so for longest.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # without a request in progress, the longest first

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        """Whether only a probe may begin."""
        return len(self._open) - len(self._waiting) >= self.most

    def opened(self, connection: Connection) -> None:
        """Add a connection; if there are too many, another one makes room, or this one is closed."""
        self._open.add(connection)
        self.waits(connection)
        if len(self._open) > self.most + ROOM:
            next(iter(self._waiting)).abort("full")

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def waits(self, connection: Connection) -> None:
        """Note that a connection waits for a request."""
        if connection in self._open:
            self._waiting.pop(connection, None)
            self._waiting[connection] = None

    def works(self, connection: Connection) -> None:
        """Note that a request of a connection begins."""
        self._waiting.pop(connection, None)


def most_connections(chosen: int | None) -> int:
    """Return the limit in force: half of the descriptors that this process may open, unless another is chosen."""
    return chosen or max(1, min(LARGEST, descriptors() // 2 - ROOM))


def check_connections(chosen: int | None) -> None:
    """Raises InvalidConfiguration if so many connections would leave no descriptors for anything else."""
    if chosen is not None and chosen + ROOM >= descriptors():
        raise InvalidConfiguration(
            f"limits.connections is {chosen:,}, and a process may open {descriptors():,} descriptors in all: "
            "choose fewer connections, or raise the limit (ulimit -n)"
        )


def descriptors() -> int:
    """Return the number of descriptors that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft
