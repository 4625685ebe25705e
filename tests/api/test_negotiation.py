"""What Accept says, and paths that are nearly right."""

from pathlib import Path

import pytest
from fastapi import Request

from boundarymorph.api.dependencies import prefers
from boundarymorph.settings import Settings
from tests.api.service import answer, serving

STREAM = "text/event-stream"


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ("", False),
        ("*/*", False),
        (STREAM, True),
        (f"application/json, {STREAM};q=0.5", False),
        (f"application/json;q=0.1, {STREAM};q=0.5", True),
        (f"{STREAM};q=0, application/json", False),
        (f"{STREAM};q=0", False),
        (f"{STREAM}, application/json", False),
        (f"{STREAM}, */*;q=0.1", True),
        ("text/*, application/json;q=0.9", True),
    ],
)
def test_qualities(accept: str, streams: bool) -> None:
    request = Request({"type": "http", "headers": [(b"accept", accept.encode())]})
    assert prefers(request, STREAM) == streams


@pytest.mark.strangers
async def test_paths_that_are_nearly_right(tmp_path: Path) -> None:
    body = {"query": "a", "documents": ["a", "b"]}
    async with serving(Settings(data_directory=tmp_path)) as client:
        assert len(answer(await client.post("/v1/rerank/", json=body))["results"]) == 2
        assert (await client.get("/health")).status_code == 200
        refused = await client.post("/v2/v2/rerank", json=body)
        assert refused.status_code == 404 and "/v2/rerank" in refused.text
        assert "message" in refused.json()
