from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from boundarymorph.settings import Settings
from tests.fakes.service import filled


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_directory=tmp_path)


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with filled(settings) as client:
        yield client
