"""Files: errors of the file system, other than SQLite's, as our own, and folders of immutable files, each with a
manifest of their sizes and checksums."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from boundarymorph.errors import CorruptIndex, StorageFull, StorageUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)
MANIFEST = "manifest.json"


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


def seal(folder: Path, facts: Mapping[str, Any], checkpoint: Callable[[], None] = lambda: None) -> None:
    """Flush all files of a folder to disk and write its manifest: `facts`, which include "format", and checksums.

    Raises OSError, and whatever `checkpoint` raises.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        checkpoint()
        sync(path)
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": _checksum(path)}
    manifest = {**facts, "files": files}
    path = folder / MANIFEST
    signed = {**manifest, "sha256": hashlib.sha256(_canonical(manifest)).hexdigest()}
    path.write_bytes(orjson.dumps(signed, option=orjson.OPT_INDENT_2))
    sync(path)
    sync(folder)


def read_manifest(folder: Path, format: int) -> dict[str, Any]:
    """Return the manifest. Raises CorruptIndex if it is damaged or of another format, and OSError."""
    path = folder / MANIFEST
    try:
        manifest = orjson.loads(path.read_bytes())
        checksum = manifest.pop("sha256")
    except (orjson.JSONDecodeError, AttributeError, TypeError, KeyError) as error:
        raise CorruptIndex(f"{path} is not a manifest: {error}") from error
    if not isinstance(manifest, dict) or hashlib.sha256(_canonical(manifest)).hexdigest() != checksum:
        raise CorruptIndex(f"{path} does not have the checksum with which it was written")
    if manifest["format"] != format:
        raise CorruptIndex(f"{path} has format {manifest['format']}; this program reads format {format}")
    return manifest


def verify(folder: Path, files: Mapping[str, Any]) -> None:
    """Raise CorruptIndex, naming the file, if a file differs from its manifest, or OSError."""
    for name, expected in files.items():
        path = folder / name
        if path.stat().st_size != expected["bytes"]:
            raise CorruptIndex(f"{path} has {path.stat().st_size} bytes and should have {expected['bytes']}")
        if _checksum(path) != expected["sha256"]:
            raise CorruptIndex(f"{path} does not have the checksum with which it was written")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    return orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)
