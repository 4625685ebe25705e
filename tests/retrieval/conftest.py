from collections.abc import Iterator
from pathlib import Path

import pytest

from boundarymorph.retrieval.local.catalog import LocalCatalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[LocalCatalog]:
    """Yield an empty catalog in the folder `indexes`."""
    catalog = LocalCatalog(tmp_path / "indexes")
    yield catalog
    catalog.close()
