"""Calibrations on disk: one JSON file each, NAME.json in a folder that processes may share."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import orjson

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import InvalidInput, UnknownCalibration

log = logging.getLogger(__name__)
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class CalibrationFolder:
    """Reads a file again when it has changed, so that processes see what another has written."""

    def __init__(self, path: Path) -> None:
        """path: need not exist before the first calibration is kept."""
        self._path = path
        self._read: dict[str, tuple[tuple[int, int], Calibration]] = {}

    def get(self, name: str) -> Calibration:
        """Raises UnknownCalibration, or InvalidInput for a damaged file or one of another version."""
        file = self._file(name)
        try:
            status = file.stat()
            stamp = status.st_mtime_ns, status.st_ino
            if self._read.get(name, (None,))[0] != stamp:
                self._read[name] = stamp, Calibration.of_json(orjson.loads(file.read_bytes()))
        except FileNotFoundError:
            self._read.pop(name, None)
            known = ", ".join(self.names()) or "none yet; `boundarymorph calibrate` makes one"
            raise UnknownCalibration(f"there is no calibration {name!r}; there is {known}") from None
        except (orjson.JSONDecodeError, InvalidInput, AttributeError) as error:
            raise InvalidInput(f"the calibration {name!r} cannot be used: {error}") from None
        return self._read[name][1]

    def of_index(self, index: str) -> Calibration | None:
        """The default of an index: the calibration of its name, if it was made for it and can be read."""
        if not NAME.fullmatch(index):
            return None
        try:
            found = self.get(index)
        except UnknownCalibration:
            return None
        except InvalidInput as error:  # nobody asked for it by name
            log.warning("%s; its index is searched without", error)
            return None
        return found if found.index == index else None

    def keep(self, calibration: Calibration) -> Path:
        """Write it, whole or not at all, in place of an earlier one of the same name. Returns its file."""
        file = self._file(calibration.name)
        self._path.mkdir(parents=True, exist_ok=True)
        scratch = file.with_name(f".{file.name}.{uuid4().hex}")
        scratch.write_bytes(orjson.dumps(calibration.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        os.replace(scratch, file)
        return file

    def delete_of(self, index: str) -> None:
        """Delete the calibrations that were made for an index; those that cannot be read stay."""
        for name in self.names():
            with suppress(InvalidInput, UnknownCalibration):
                if self.get(name).index == index:
                    self._file(name).unlink(missing_ok=True)

    def names(self) -> Sequence[str]:
        return sorted(file.stem for file in self._path.glob("*.json") if NAME.fullmatch(file.stem))

    def _file(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise InvalidInput(
                f"{name[:80]!r} is not a name of a calibration: up to 64 lower-case letters, digits, '.', '_' and '-'"
            )
        return self._path / f"{name}.json"
