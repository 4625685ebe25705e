"""Test that compressed answers are smaller, and that compressed events arrive in time."""

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.server.app import create_app
from boundarymorph.settings import Settings
from tests.fakes.service import BlockedScoring, fake_service, listening, texts

EVENTS = {"Accept": "text/event-stream"}
SELECTION: dict[str, Any] = {"query": "q", "pool": texts(30), "budget": 5, "k": 3}


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip ; q=0.00, identity", False),
        ("identity", False),
    ],
)
async def test_large_answer_is_compressed_if_accepted(
    client: httpx.AsyncClient, accepted: str, is_compressed: bool
) -> None:
    plain = await client.get("/openapi.json", headers={"Accept-Encoding": "identity"})
    response = await client.get("/openapi.json", headers={"Accept-Encoding": accepted})
    assert ("content-encoding" in response.headers) == is_compressed
    assert ("content-length" in response.headers) != is_compressed
    assert response.headers["vary"] == "Accept-Encoding"
    assert response.content == plain.content
    assert (response.num_bytes_downloaded < len(plain.content) / 4) == is_compressed


async def test_event_stream_is_compressed_only_with_explain_pool(client: httpx.AsyncClient) -> None:
    for explain, encoding in (("pool", "gzip"), (True, None)):
        response = await client.post("/select", json={**SELECTION, "explain": explain}, headers=EVENTS)
        assert response.headers.get("content-encoding") == encoding
        assert response.text.startswith("event: round\n") and "event: selection\n" in response.text


async def test_compressed_event_is_sent_before_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scorer waits until the first event has been read."""
    held = BlockedScoring(monkeypatch)
    async with (
        listening(create_app(Settings(data_directory=tmp_path), build=fake_service)) as (_, client),
        client.stream("POST", "/select", json={**SELECTION, "explain": "pool"}, headers=EVENTS) as response,
    ):
        assert response.headers["content-encoding"] == "gzip"
        parts = response.aiter_text()
        first = await anext(parts)
        assert first.startswith("event: round\n") and first.endswith("\n\n")
        held.open.set()
        rest = "".join([part async for part in parts])
    last = orjson.loads(rest.split("event: selection\ndata: ")[1])
    assert len(last["documents"]) == 3
