"""A file of JSON lines that grows while a command runs, and is continued by the next run."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from boundarymorph.errors import InvalidInput, StorageUnavailable


class AppendedFile:
    """A file to which one process at a time appends lines. A line that a crash has cut is cut off."""

    def __init__(self, path: Path, what: str, take: Callable[[Any], None]) -> None:
        """what: its lines are, for messages; take: called with each line that it has, and raises KeyError or TypeError
        for one that is something else. Raises InvalidInput if the file is another's, and leaves it as it is."""
        self._what = what
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self._file: BinaryIO = path.open("r+b", buffering=0)
        except OSError as error:
            raise StorageUnavailable(f"the {what} cannot be written: {error}") from error
        try:
            self._open(path, take)
        except BaseException:
            self._file.close()
            raise

    def _open(self, path: Path, take: Callable[[Any], None]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"{path} is being written by another process") from None
        end = 0
        for line in self._file:
            if line.endswith(b"\n"):
                try:
                    take(orjson.loads(line))
                except (orjson.JSONDecodeError, TypeError, KeyError):
                    raise InvalidInput(f"{path} has lines that are no {self._what}; choose another file") from None
                end += len(line)
        self._file.truncate(end)
        self._file.seek(end)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line, whole. Raises StorageUnavailable."""
        line = orjson.dumps(record) + b"\n"
        try:
            whole = self._file.write(line) == len(line)
        except OSError as error:
            raise StorageUnavailable(f"the {self._what} cannot be written: {error}") from error
        if not whole:
            raise StorageUnavailable(f"the {self._what} cannot be written: the disk is full")

    def close(self) -> None:
        self._file.close()
