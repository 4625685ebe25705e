"""Backups: a copy of a whole index in a folder of its own, to be stored elsewhere and restored from.

The folder has a manifest, the store as one SQLite file, and the judgements and calibrations of the index. Trained
structures are not copied but trained again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from boundarymorph.calibration.belongings import FOLDER, Belongings, is_one_of_them
from boundarymorph.errors import CorruptIndex, InvalidInput
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.retrieval.storage import MANIFEST, read_manifest, seal, storage_errors, sync, verify

FORMAT = 1
_STORE = "index.sqlite3"


@dataclass(frozen=True, slots=True)
class BackupInfo:
    """A summary of a backup. name: of the original index; created: of the backup, UTC, ISO 8601; bytes: size of all
    its files."""

    name: str
    count: int
    created: str
    bytes: int


def write(name: str, store: DocumentStore, target: Path) -> BackupInfo:
    """Copy one state of an index into a new folder `target`, which appears only when it is complete.

    Writers and readers continue meanwhile. Raises InvalidInput if the target exists, CorruptIndex if the index is
    damaged, StorageFull or StorageUnavailable.
    """
    if target.exists():
        raise InvalidInput(f"{target} already exists; choose another folder, or remove it first")
    temporary = target.with_name(f".{target.name}-{uuid4().hex}")
    with storage_errors(f"no snapshot of {name!r} could be written to {target}"):
        try:
            temporary.mkdir(parents=True)
            count = store.copy_to(temporary / _STORE)
            Belongings(store.path.parent / FOLDER, name).copy_to(temporary / FOLDER)
            created = datetime.now(UTC).isoformat(timespec="seconds")
            seal(
                temporary,
                {"format": FORMAT, "name": name, "store": store.path.name, "count": count, "created": created},
            )
            temporary.rename(target)
            sync(target.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return _info(read_manifest(target, FORMAT))


def unpack(source: Path, folder: Path, store: str) -> BackupInfo:
    """Copy a backup into a new folder, as an index whose store has this file name, and verify it.

    Raises CorruptIndex, naming the file, if it is damaged or of a later format, InvalidInput if it is not a backup, and
    OSError.
    """
    try:
        manifest = read_manifest(source, FORMAT)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidInput(f"{source} is not a snapshot of an index: it has no {MANIFEST}") from error
    if "name" not in manifest or _STORE not in manifest["files"]:
        raise InvalidInput(f"{source} is not a snapshot of an index; give a folder that `index snapshot` wrote")
    files = {name: file for name, file in manifest["files"].items() if name == _STORE or is_one_of_them(name)}
    folder.mkdir()
    try:
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, folder / name)
    except FileNotFoundError as error:
        raise CorruptIndex(f"{error.filename} is missing") from error
    try:
        verify(folder, files)
    except CorruptIndex as error:
        raise CorruptIndex(str(error).replace(str(folder), str(source))) from None
    target = folder / store
    (folder / _STORE).rename(target)
    DocumentStore(target).close()
    for path in (*folder.rglob("*"), folder):
        sync(path)
    return _info(manifest)


def _info(manifest: Mapping[str, Any]) -> BackupInfo:
    size = sum(file["bytes"] for file in manifest["files"].values())
    return BackupInfo(manifest["name"], manifest["count"], manifest["created"], size)
