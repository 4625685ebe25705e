"""Calibrations on disk: one JSON file each, which processes may share."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import orjson

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import InvalidInput

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def read(file: Path) -> Calibration | None:
    """Return the calibration in a file; None if there is no file.

    Raises InvalidInput for a damaged file or one of another version, and OSError.
    """
    try:
        return Calibration.of_json(orjson.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, InvalidInput, AttributeError) as error:
        raise InvalidInput(f"the calibration {file.stem!r} cannot be used: {error}") from None


def serialized(calibration: Calibration) -> bytes:
    """Return the content of the file of a calibration."""
    return orjson.dumps(calibration.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def write(file: Path, content: bytes) -> None:
    """Write a file, whole or not at all, in place of an earlier one. Raises OSError."""
    scratch = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        scratch.write_bytes(content)
        os.replace(scratch, file)
    finally:
        scratch.unlink(missing_ok=True)


class CalibrationFolder:
    """Calibrations by name: NAME.json in one folder."""

    def __init__(self, path: Path) -> None:
        """path: need not exist before the first calibration is kept."""
        self._path = path

    def get(self, name: str) -> Calibration | None:
        """Return the calibration of this name; None if there is none.

        Raises InvalidInput for what is no name, a damaged file or one of another version.
        """
        return read(self._file(name))

    def keep(self, calibration: Calibration) -> None:
        """Write it in place of an earlier one of the same name."""
        file = self._file(calibration.name)
        self._path.mkdir(parents=True, exist_ok=True)
        write(file, serialized(calibration))

    def names(self) -> Sequence[str]:
        return sorted(file.stem for file in self._path.glob("*.json") if NAME.fullmatch(file.stem))

    def _file(self, name: str) -> Path:
        return self._path / f"{checked_name(name)}.json"


def checked_name(name: str) -> str:
    """Return the name of a calibration. Raises InvalidInput for what is none."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a name of a calibration: up to 64 lower-case letters, digits, '.', '_' and '-'"
        )
    return name
