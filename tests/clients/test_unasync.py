"""client.py is what `make client` writes."""

import runpy
from pathlib import Path

PYTHON = Path(__file__).parents[2] / "clients/python"


def test_the_client_that_blocks_is_the_asynchronous_one_without_its_awaits() -> None:
    source = (PYTHON / "src/boundarymorph_client/client.py").read_text()
    assert source == runpy.run_path(str(PYTHON / "unasync.py"))["written"](), "async_client.py has changed: make client"
    assert not any(word in source for word in ("async ", "await", "Async", "asyncio"))
