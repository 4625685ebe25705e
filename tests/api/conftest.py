from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import orjson
import pytest

from boundarymorph.settings import Settings
from tests.api.service import NDJSON, answer, serving, texts


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_directory=tmp_path)


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A ready service on fake rooms, with the indexes "texts" (d0 to d39) and "own" (e0 to e3, the unit vectors)."""
    async with serving(settings) as client:
        answer(await client.put("/indexes/texts"))
        lines = b"\n".join(orjson.dumps(document | {"metadata": {"from": "index"}}) for document in texts(40))
        assert answer(await client.post("/indexes/texts/documents", content=lines, headers=NDJSON))["added"] == 40
        answer(await client.put("/indexes/own", json={"dimension": 4}))
        units = [{"id": f"e{i}", "text": f"unit {i}", "embedding": [float(i == j) for j in range(4)]} for i in range(4)]
        assert answer(await client.post("/indexes/own/documents", json=units))["added"] == 4
        yield client
