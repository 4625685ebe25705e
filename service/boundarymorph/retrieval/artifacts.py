"""Keep the artifacts of an index in one JSON file.

They are its description, default `distinct` and calibration.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.database import hold_lock, storage_errors, sync
from boundarymorph.errors import CorruptIndex, InvalidInput, UnknownIndex

FILE = "artifacts.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Data that belong to an index and are not documents.

    Attributes:
        description: Describes its documents for people and models that choose an index.
        distinct: The field of the metadata by which selections are distinct, unless a request says otherwise.
        calibration: Turns relevance into a probability.
    """

    description: str | None = None
    distinct: str | None = None
    calibration: Calibration | None = None

    @classmethod
    def from_json(cls, values: Any) -> Artifacts:
        match values:
            case {"description": str() | None, "distinct": str() | None, "calibration": calibration, **others} if (
                not others
            ):
                made = None if calibration is None else Calibration.from_json(calibration)
                return cls(values["description"], values["distinct"], made)
        raise InvalidInput("these are not the artifacts of an index")


class ArtifactFile:
    """The file of the artifacts of one index.

    Methods block, and raise StorageUnavailable or StorageFull.
    """

    def __init__(self, folder: Path, index: str, *, create: bool = False) -> None:
        """Open nothing yet.

        Args:
            folder: The folder of the file.
            index: The name of the index, for messages.
            create: Whether the first write makes the folder; otherwise it belongs to the index.
        """
        self.index = index
        self._folder, self._path, self._create = folder, folder / FILE, create

    def read(self) -> Artifacts:
        """Return the artifacts. Raises CorruptIndex, naming the file, if it is damaged."""
        with storage_errors(str(self._path)):
            try:
                return Artifacts.from_json(orjson.loads(self._path.read_bytes()))
            except FileNotFoundError:
                return Artifacts()
            except (orjson.JSONDecodeError, InvalidInput) as error:
                raise CorruptIndex(
                    f"{self._path} is damaged: {error}; put back a copy of it, or remove it to go on without"
                ) from None

    def read_if_sound(self) -> Artifacts | None:
        """Return the artifacts. Returns None, and logs the reason, if the file is damaged."""
        try:
            return self.read()
        except CorruptIndex as error:
            _log.warning("the index %r is used without its artifacts: %s", self.index, error)
            return None

    def change(self, **changes: object) -> None:
        """Replace some of the artifacts on the disk.

        Raises:
            CorruptIndex: If the file is damaged.
            UnknownIndex: If the index is deleted.
        """
        with storage_errors(str(self._path)), self._alone():
            _write(self._path, replace(self.read(), **changes))  # type: ignore[arg-type]

    def copy_to(self, path: Path) -> None:
        """Write a copy, if there are any artifacts. Raises CorruptIndex if the file is damaged."""
        if (found := self.read()) != Artifacts():
            _write(path, found)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold a lock on the folder, so that no change of another thread or process is lost."""
        if self._create:
            self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with hold_lock(self._folder, fcntl.LOCK_EX):
                yield
        except FileNotFoundError:  # the index is deleted, or was meanwhile
            raise UnknownIndex(f"there is no index {self.index!r}") from None


def _write(path: Path, artifacts: Artifacts) -> None:
    scratch = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        scratch.write_bytes(orjson.dumps(artifacts, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        sync(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
