"""Test indexes against a dictionary, on a disk that is full or read-only at times.

Processes restart. All acknowledged writes can always be read; a write that is impossible raises an error and changes
nothing.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from boundarymorph.errors import EmptyIndex, StorageFull, StorageUnavailable
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.interfaces import IndexDescription
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.contract.vector_index import unit
from tests.disks import IN_A_NAMESPACE, SmallDisk
from tests.retrieval.fakes import nearest
from tests.stateful.profile import draws

NAMES = ["a", "b"]
IDS = [f"d{number}" for number in range(6)]
VECTORS = unit(len(IDS), 4)
names, processes = st.sampled_from(NAMES), st.integers(0, 1)


class DiskMachine(RuleBasedStateMachine):
    """Two processes over two indexes, each of which may end and start again."""

    @initialize()
    def make(self) -> None:
        self.stack = ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.disk = SmallDisk(Path(folder))
        self.stack.callback(self.disk.close)
        self.indexes = self.disk.folder / "indexes"
        self.state = "roomy"
        self.catalogs = [LocalCatalog(self.indexes), LocalCatalog(self.indexes)]
        self.model: dict[str, dict[str, str]] = {name: {} for name in NAMES}
        for name in NAMES:
            self.catalogs[0].create(name, encoder=None, dimension=4)

    def teardown(self) -> None:
        for catalog in getattr(self, "catalogs", []):
            catalog.close()
        if hasattr(self, "stack"):
            self.stack.close()

    @rule(process=processes, name=names, ids=st.sets(st.sampled_from(IDS), min_size=1), text=st.text("xyz", max_size=9))
    def upsert(self, process: int, name: str, ids: set[str], text: str) -> None:
        documents = [Document(id, text * 500) for id in sorted(ids)]
        vectors = VECTORS[[IDS.index(id) for id in sorted(ids)]]
        if self.writes(lambda: self.catalogs[process].get(name).upsert(documents, vectors)):
            self.model[name] |= {document.id: document.text for document in documents}

    @rule(process=processes, name=names, id=st.sampled_from(IDS))
    def delete(self, process: int, name: str, id: str) -> None:
        if self.writes(lambda: self.catalogs[process].get(name).delete([id])):
            self.model[name].pop(id, None)

    @rule(process=processes)
    def restart(self, process: int) -> None:
        self.catalogs[process].close()
        self.catalogs[process] = LocalCatalog(self.indexes)

    @precondition(lambda self: self.state == "roomy")
    @rule(files=st.booleans(), stopped=st.sets(processes))
    def fill(self, files: bool, stopped: set[int]) -> None:
        """Fill the disk; the `stopped` processes end before and start again after."""
        for process in stopped:
            self.catalogs[process].close()
        self.disk.fill_with_files() if files else self.disk.fill()
        self.state = "full"
        for process in stopped:
            self.catalogs[process] = LocalCatalog(self.indexes)

    @precondition(lambda self: self.state == "roomy")
    @rule()
    def make_read_only(self) -> None:
        """Make the disk read-only, for which no file may be open."""
        for catalog in self.catalogs:
            catalog.close()
        self.disk.make_read_only()
        self.state = "read-only"
        self.catalogs = [LocalCatalog(self.indexes), LocalCatalog(self.indexes)]

    @precondition(lambda self: self.state != "roomy")
    @rule()
    def repair(self) -> None:
        """Free the disk or make it writable while the processes run."""
        if self.state == "read-only":
            self.disk.make_writable()
        self.disk.empty()
        self.state = "roomy"

    @rule(process=processes, name=names)
    def read(self, process: int, name: str) -> None:
        index, model = self.catalogs[process].get(name), self.model[name]
        assert index.count() == len(model)
        assert {id: document.text for id, document in index.documents(IDS).items()} == model
        if model:
            assert set(nearest(index, VECTORS[0], 10).ids) == model.keys()
        else:
            with pytest.raises(EmptyIndex):
                nearest(index, VECTORS[0], 10)

    @invariant()
    def list_is_complete(self) -> None:
        for catalog in getattr(self, "catalogs", []):
            catalog.check()
            counts = {index.name: index.count for index in catalog.list() if isinstance(index, IndexDescription)}
            assert counts == {name: len(model) for name, model in self.model.items()}

    def writes(self, write: Callable[[], object]) -> bool:
        """Return whether a write succeeded, which it must if the disk has room."""
        try:
            write()
        except StorageFull:
            assert self.state == "full"
        except StorageUnavailable:
            assert self.state != "roomy"
        else:
            assert self.state != "read-only"
            return True
        return False


def test_indexes_survive_a_disk_that_is_full_or_read_only_at_times() -> None:
    """The machine runs in a process that may mount disks."""
    command = [*IN_A_NAMESPACE, sys.executable, "-m", __name__, settings.get_current_profile_name()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


if __name__ == "__main__":
    settings.load_profile(sys.argv[1])
    run_state_machine_as_test(DiskMachine, settings=draws(6, 20))
