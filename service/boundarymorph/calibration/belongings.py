"""What belongs to an index besides its documents: its description, the judgements, and the calibrations learned from
these."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.calibration.feedback import Feedback
from boundarymorph.calibration.folder import NAME, CalibrationFolder, read, serialized, write
from boundarymorph.errors import UnknownIndex

FOLDER = "belongings"  # in the folder of an index
JUDGMENTS, DEFAULT, DESCRIPTION, NAMED = "judgments.sqlite3", "calibration.json", "description.txt", "calibrations"
_FILES = "|".join(re.escape(file) for file in (JUDGMENTS, DEFAULT, DESCRIPTION))
_FILE = re.compile(rf"{FOLDER}/({_FILES}|{NAMED}/{NAME.pattern}\.json)")


def is_one_of_them(path: str) -> bool:
    """Whether a path in the folder of an index is that of a file of `Belongings`."""
    return _FILE.fullmatch(path) is not None


class Belongings:
    """The description, judgements and calibrations of one index, in one folder, whatever the index is called.

    The default of the index has the name of the index; others have names of their own. Methods block and raise OSError.
    """

    def __init__(self, folder: Path, index: str, *, within_index: bool = True) -> None:
        """folder: need not exist. within_index: whether it is within the folder of the index, which does."""
        self.index, self._folder, self._within = index, folder, within_index
        self.judgments = Feedback(folder / JUDGMENTS, index, self._make)
        self._named = CalibrationFolder(folder / NAMED)

    def description(self) -> str | None:
        """Return what the documents are, in somebody's words; None if nobody has said it."""
        try:
            return (self._folder / DESCRIPTION).read_text("utf-8")
        except FileNotFoundError:
            return None

    def describe(self, text: str) -> None:
        """Keep a description in place of an earlier one; empty for none. Raises UnknownIndex if the index is gone."""
        self._make()
        if text:
            write(self._folder / DESCRIPTION, text.encode())
        else:
            (self._folder / DESCRIPTION).unlink(missing_ok=True)

    def calibration(self, name: str | None = None) -> Calibration | None:
        """Return the calibration of this name, or the default of the index; None if there is none.

        Raises InvalidInput for what is no name, and for a calibration that cannot be read.
        """
        is_default = name is None or name == self.index
        found = read(self._folder / DEFAULT) if is_default else self._named.get(str(name))
        return None if found is None else replace(found, name=name or self.index, index=self.index)

    def keep(self, made: Calibration) -> None:
        """Write a calibration in place of an earlier one of its name. Raises UnknownIndex if the index is gone."""
        self._make()
        if made.name == self.index:
            write(self._folder / DEFAULT, serialized(made))
        else:
            self._named.keep(made)

    def names(self) -> Sequence[str]:
        """Return the names of the calibrations."""
        return [*([self.index] if (self._folder / DEFAULT).exists() else []), *self._named.names()]

    def copy_to(self, target: Path) -> None:
        """Copy everything, each file whole, into a new folder, which is made if there is anything."""
        if not self._folder.exists():
            return
        (target / NAMED).mkdir(parents=True)
        self.judgments.copy_to(target / JUDGMENTS)
        for file in (DEFAULT, DESCRIPTION, *(f"{NAMED}/{name}.json" for name in self._named.names())):
            with suppress(FileNotFoundError):
                shutil.copyfile(self._folder / file, target / file)

    def _make(self) -> None:
        try:
            self._folder.mkdir(parents=not self._within, exist_ok=True)
        except FileNotFoundError:
            raise UnknownIndex(f"there is no index {self.index!r}") from None
