"""A full disk: judgements are refused as that, and what frees space works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.disks import IN_A_NAMESPACE

PROGRAM = """
import sys
from pathlib import Path
from boundarymorph.calibration.belongings import Event
from boundarymorph.errors import StorageFull
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.disks import SmallDisk

disk = SmallDisk(Path(sys.argv[1]))
catalog = LocalCatalog(disk.folder / "indexes")
for name in ("judged", "other"):
    catalog.create(name, encoder=None, dimension=0, kind="words")
events = [Event("q" * 1_000, "a", 1.0)] * 900
catalog.belongings("judged").judgments.add(events[:100], "caller", 1.0, 1_000)
disk.fill()
for name in ("judged", "other"):
    try:
        catalog.belongings(name).judgments.add(events, "caller", 2.0, 1_000)
    except StorageFull:
        pass
    else:
        raise AssertionError(name)
judgments = catalog.belongings("judged").judgments
assert (judgments.count(), catalog.belongings("other").judgments.count()) == (100, 0)
assert judgments.delete() == 100 and judgments.count() == 0
catalog.delete("judged")
catalog.delete("other")
assert catalog.list() == []
disk.close()
"""


@pytest.mark.strangers
def test_judgements_and_deletions_on_a_full_disk(tmp_path: Path) -> None:
    command = [*IN_A_NAMESPACE, sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr
