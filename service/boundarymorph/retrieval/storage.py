"""Errors of the file system, other than SQLite's, as our own errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from boundarymorph.errors import StorageFull, StorageUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def storage_errors(trouble: str) -> Iterator[None]:
    """Raise StorageFull or StorageUnavailable instead of an OSError; `trouble` begins the message."""
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in _FULL else StorageUnavailable
        raise kind(f"{trouble}: {error.strerror or error}") from error


def exists(path: Path) -> bool:
    """Whether a file or folder exists. Raises StorageUnavailable if that cannot be determined."""
    with storage_errors(str(path)):
        return path.exists()


def sync(path: Path) -> None:
    """Make a file, or the entries of a directory, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bytes_of(folder: Path) -> int:
    """Return the size of all files in a folder; those that disappear are left out.

    Also left out are SQLite's `-shm` files, which come and go with readers.
    """
    size = 0
    with suppress(FileNotFoundError):  # the folder itself
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):
                if not path.name.endswith("-shm"):
                    size += path.stat().st_size
    return size
