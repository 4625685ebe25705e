"""Which calibration a request is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.calibration.feedback import Feedback
from boundarymorph.calibration.folder import CalibrationFolder
from boundarymorph.settings import Settings

Wanted = str | Literal[False] | None  # a name; none at all; or the default


class Calibrations:
    """The calibrations of a service: by name, and the defaults of keys and of indexes."""

    def __init__(self, settings: Settings) -> None:
        self.folder = folder_of(settings)
        self._of_keys = settings.calibration.keys

    def of(self, wanted: Wanted, caller: str, index: str | None = None) -> Calibration | None:
        """Return the calibration of this name, else the default of the caller's key, else that of the index.

        Raises UnknownCalibration, or InvalidInput for one that cannot be read. Reads a file: blocks.
        """
        if wanted is False:
            return None
        name = wanted or self._of_keys.get(caller)
        if name is not None:
            return self.folder.get(name)
        return None if index is None else self.folder.of_index(index)


def folder_of(settings: Settings) -> CalibrationFolder:
    """Return the folder of a service's calibrations: that of the settings, or one beside the indexes."""
    return CalibrationFolder(_directory(settings))


def feedback_of(settings: Settings) -> Feedback:
    """Return the judgements that callers of a service have sent, which are kept beside its calibrations."""
    return Feedback(_directory(settings) / "judgments.sqlite3", settings.calibration.judgments)


def _directory(settings: Settings) -> Path:
    return settings.calibration.directory or settings.data_directory / ".calibrations"
