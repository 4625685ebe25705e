"""Free ports for the servers that tests start."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from random import SystemRandom

_FIRST, _SHARE = 20_000, 1_000  # each worker has a share, below the ports of outgoing connections


def _ports() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
    place = SystemRandom().randrange(_SHARE)
    while True:
        place = (place + 1) % _SHARE
        yield _FIRST + worker * _SHARE + place


_shared_out = _ports()


def free_port() -> int:
    """Return a port that no other test uses."""
    for port in _shared_out:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            break
    return port
