"""Files that belong to an index besides its documents: its description, its default for `distinct`, and its
calibrations."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import orjson

from boundarymorph.calibration.calibration import Calibration
from boundarymorph.errors import InvalidInput, UnknownIndex

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def read(file: Path, name: str) -> Calibration | None:
    """Return the calibration in a file; None if there is no file. name: for messages.

    Raises InvalidInput for a damaged file or one of another version, and OSError.
    """
    try:
        return Calibration.of_json(orjson.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, InvalidInput, AttributeError) as error:
        raise InvalidInput(f"the calibration {name!r} cannot be used: {error}") from None


def write(file: Path, content: bytes | Calibration) -> None:
    """Write a file, whole or not at all, in place of an earlier one. Raises OSError."""
    if isinstance(content, Calibration):
        content = orjson.dumps(content.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    scratch = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        scratch.write_bytes(content)
        os.replace(scratch, file)
    finally:
        scratch.unlink(missing_ok=True)


class CalibrationFolder:
    """Calibrations by name: NAME.json in one folder."""

    def __init__(self, path: Path, *, parents: bool = True) -> None:
        """path: need not exist before the first calibration is kept. parents: whether the folder that it is in is made,
        too."""
        self._path, self._parents = path, parents

    def get(self, name: str) -> Calibration | None:
        """Return the calibration of this name; None if there is none.

        Raises InvalidInput for what is no name, a damaged file or one of another version.
        """
        return read(self._file(name), name)

    def keep(self, calibration: Calibration) -> None:
        """Write it in place of an earlier one of the same name."""
        file = self._file(calibration.name)
        self._path.mkdir(parents=self._parents, exist_ok=True)
        write(file, calibration)

    def names(self) -> Sequence[str]:
        return sorted(file.stem for file in self._path.glob("*.json") if NAME.fullmatch(file.stem))

    def _file(self, name: str) -> Path:
        return self._path / f"{checked_name(name)}.json"


def checked_name(name: str) -> str:
    """Return a valid name of a calibration. Raises InvalidInput for any other."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a name of a calibration: up to 64 lower-case letters, digits, '.', '_' and '-'"
        )
    return name


FOLDER = "belongings"  # in the folder of an index
DEFAULT, DESCRIPTION, NAMED = "calibration.json", "description.txt", "calibrations"
DISTINCT = "distinct.txt"
_FILES = "|".join(re.escape(file) for file in (DEFAULT, DESCRIPTION, DISTINCT))
_FILE = re.compile(rf"{FOLDER}/({_FILES}|{NAMED}/{NAME.pattern}\.json)")


def is_one_of_them(path: str) -> bool:
    """Whether a path in the folder of an index is that of a file of `Belongings`."""
    return _FILE.fullmatch(path) is not None


class Belongings:
    """The description and calibrations of one index, in one folder, whatever the index is called.

    The default of the index has the name of the index; others have names of their own. Methods block and raise OSError.
    """

    def __init__(self, folder: Path, index: str, *, within_index: bool = True) -> None:
        """folder: need not exist. within_index: whether it is within the folder of the index, which does."""
        self.index, self._folder, self._within = index, folder, within_index
        self._named = CalibrationFolder(folder / NAMED, parents=not within_index)

    def description(self) -> str | None:
        """Return what the documents are, in somebody's words; None if nobody has said it."""
        return self._text(DESCRIPTION)

    def describe(self, text: str) -> None:
        """Keep a description in place of an earlier one; empty for none. Raises UnknownIndex if the index is gone."""
        self._keep(DESCRIPTION, text)

    def distinct(self) -> str | None:
        """Return the field of the metadata by which selections are distinct if a request does not say otherwise."""
        return self._text(DISTINCT)

    def distinguish(self, field: str) -> None:
        """Keep the field of `distinct`; empty for none. Raises UnknownIndex if the index is gone."""
        self._keep(DISTINCT, field)

    def calibration(self, name: str | None = None) -> Calibration | None:
        """Return the calibration of this name, or the default of the index; None if there is none.

        Raises InvalidInput for what is no name, and for a calibration that cannot be read.
        """
        is_default = name is None or name == self.index
        found = read(self._folder / DEFAULT, self.index) if is_default else self._named.get(str(name))
        return None if found is None else replace(found, name=name or self.index, index=self.index)

    def keep(self, made: Calibration) -> None:
        """Write a calibration in place of an earlier one of its name. Raises UnknownIndex if the index is gone."""
        with self._of_an_index():
            if made.name == self.index:
                write(self._folder / DEFAULT, made)
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
        for file in (DEFAULT, DESCRIPTION, DISTINCT, *(f"{NAMED}/{name}.json" for name in self._named.names())):
            with suppress(FileNotFoundError):
                shutil.copyfile(self._folder / file, target / file)

    def _text(self, file: str) -> str | None:
        try:
            return (self._folder / file).read_text("utf-8", errors="replace").strip() or None
        except FileNotFoundError:
            return None

    def _keep(self, file: str, text: str) -> None:
        with self._of_an_index():
            if text:
                write(self._folder / file, text.encode())
            else:
                (self._folder / file).unlink(missing_ok=True)

    @contextmanager
    def _of_an_index(self) -> Iterator[None]:
        """Write within the folder. Raises UnknownIndex if it goes away before or meanwhile, as the index is deleted."""
        self._make()
        try:
            yield
        except FileNotFoundError:
            raise _unknown(self.index) from None

    def _make(self) -> None:
        try:
            self._folder.mkdir(parents=not self._within, exist_ok=True)
        except FileNotFoundError:
            raise _unknown(self.index) from None


def _unknown(index: str) -> UnknownIndex:
    """Return the error of an index that does not exist."""
    return UnknownIndex(f"there is no index {index!r}")
