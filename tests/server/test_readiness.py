"""Test the readiness of parts that become available and unavailable."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from boundarymorph.api.lifecycle import Readiness
from boundarymorph.api.schemas import PartHealth
from boundarymorph.errors import Overloaded, ScorerUnavailable
from boundarymorph.server.composition import build_gateway, build_retrieval
from boundarymorph.settings import CacheSettings, RetrieverSettings, ScorerSettings, Settings
from tests.clocks import Clock
from tests.patience import until_async

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Part:
    """A probe that answers as the test says."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.asked = self.under_way = self.at_once = 0
        self.held: asyncio.Event | None = None

    async def __call__(self, deadline: float) -> None:
        self.asked += 1
        self.under_way += 1
        self.at_once = max(self.at_once, self.under_way)
        try:
            await asyncio.sleep(0)
            if self.held is not None:
                await self.held.wait()
            if self.trouble is not None:
                raise self.trouble
        finally:
            self.under_way -= 1


async def test_readiness_shows_missing_parts_and_since_when() -> None:
    parts, clock = {"retriever": Part(), "scorer": Part()}, Clock(0.0)
    followed = Readiness(parts, interval=10, timeout=5, now=lambda: EPOCH + timedelta(seconds=clock.now))
    for seconds, trouble, missing, since in (
        (10, None, None, 0),
        (20, ScorerUnavailable("gone"), "scorer: gone", 20),
        (30, ScorerUnavailable("still gone"), "scorer: still gone", 20),
        (40, Overloaded("too much to do"), None, 40),
        (50, ValueError(), "scorer: ValueError()", 50),
        (60, None, None, 60),
    ):
        clock.now, parts["scorer"].trouble = seconds, trouble
        await followed.probe()
        assert followed.missing == missing
        assert followed.parts["scorer"].since == EPOCH + timedelta(seconds=since)
        assert followed.parts["retriever"] == PartHealth(status="ok", since=EPOCH)


async def test_readiness_never_probes_a_hanging_part_twice_at_once() -> None:
    hanging, well = Part(), Part()
    hanging.held = asyncio.Event()
    followed = Readiness({"scorer": hanging, "retriever": well}, interval=0.001, timeout=0.01)
    following = asyncio.create_task(followed.keep_probing())
    await until_async(lambda: hanging.asked > 3)
    assert followed.missing == "scorer: no answer in 0.01 seconds"
    hanging.held.set()
    await until_async(lambda: followed.missing is None)
    assert hanging.at_once == well.at_once == 1
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_readiness_fails_if_the_data_directory_is_gone(tmp_path: Path) -> None:
    retrieval = build_retrieval(Settings(data_directory=tmp_path / "data", cache=CacheSettings(enabled=False)))
    followed = Readiness(retrieval.probes, interval=10, timeout=5)
    assert set(followed.parts) == {"encoder", "indexes"}
    await followed.probe()
    assert followed.missing is None
    (tmp_path / "data").rename(tmp_path / "unmounted")
    await followed.probe()
    assert followed.missing is not None and re.match("indexes: .* cannot be listed", followed.missing)
    (tmp_path / "unmounted").rename(tmp_path / "data")
    await followed.probe()
    assert followed.missing is None
    await retrieval.close()


@pytest.mark.parametrize("url", ["cohere://?model=rerank-v3.5", "jina://?model=jina-reranker-v2"])
async def test_readiness_never_probes_paid_services(url: str) -> None:
    paid = Settings(retriever=RetrieverSettings(url="http://127.0.0.1:1"), scorer=ScorerSettings(url=(url,)))
    gateway = build_gateway(paid)
    assert set(gateway.probes) == {"retriever"}
    await gateway.close()
