"""Test that answers with large documents bound the memory and the event loop's pauses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.access.limits import Access
from boundarymorph.api.handler import PreparedRequest, make_answer
from boundarymorph.api.visit import Visit
from boundarymorph.errors import LimitExceeded
from boundarymorph.retrieval.candidates import PoolSource
from boundarymorph.selector.task import Aim, Context, SelectionTask, Spending
from boundarymorph.settings import Limits, Settings
from tests.fakes.service import NDJSON, answer, problem, serving
from tests.fuzz.answers import REQUESTS

pytestmark = pytest.mark.strangers
DOCUMENT = {"id": "a", "text": "t " + "t" * 3_000, "metadata": {"group": 1}}


def test_large_answers_have_bounded_memory_and_pauses() -> None:
    """The service runs in a process of its own, whose memory nothing else uses."""
    command = [sys.executable, "-m", "tests.fuzz.answers"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    taken = [json.loads(line) for line in done.stdout.splitlines()]
    assert [found for found in taken if not found["holds"]] == []
    assert done.returncode == 0, done.stderr
    assert len(taken) == sum(map(len, REQUESTS.values()))


@pytest.mark.parametrize("large", [True, False])
async def test_answer_over_body_bytes_is_refused(large: bool, tmp_path: Path) -> None:
    access = Access(Settings(data_directory=tmp_path, limits=Limits(body_bytes=2_048)))
    task = SelectionTask(
        PoolSource("q", []), Aim(1), Spending(0), context=Context(memory=Visit().memory_limits(access))
    )

    def prepared(size: int) -> PreparedRequest:
        return PreparedRequest(task, lambda _: (b" " * size, {}), lambda _: large)

    result: Any = None
    content, _ = await make_answer(access, prepared(2_048), result)
    assert len(content) == 2_048
    with pytest.raises(LimitExceeded, match=r"2,048 bytes \(limits.body_bytes\): ask for fewer"):
        await make_answer(access, prepared(2_049), result)
    await access.close()


@pytest.mark.parametrize("asked", [{}, {"distinct": "group"}, {"query": None, "queries": ["t", "t u"]}])
async def test_texts_over_body_bytes_are_refused_with_advice(asked: dict[str, object], tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path, limits=Limits(body_bytes=2_500))
    async with serving(settings) as client:
        await one_document(client)
        asked = {"query": "t", "index": "i", "budget": 0, **asked}
        refused = await client.post("/select", json=asked | {"return_documents": True})
        assert "limits.body_bytes" in problem(refused, 422, "limit-exceeded")
        left_out = answer(await client.post("/select", json=asked))
        assert [warning["slug"] for warning in left_out["warnings"]] == ["texts-left-out"]
        assert [document["text"] for document in left_out["documents"]] == [None]
        assert not answer(await client.post("/select", json=asked | {"return_documents": False}))["warnings"]


async def test_selection_over_bytes_in_flight_is_refused_or_may_be_retried(
    tmp_path: Path,
) -> None:
    large = {"query": "q", "pool": [f"text {number}" for number in range(50)], "budget": 10, "k": 5}
    async with serving(
        Settings(data_directory=tmp_path, limits=Limits(bytes_in_flight=80_000, body_bytes=4_096))
    ) as client:
        assert "limits.bytes_in_flight" in problem(await client.post("/select", json=large), 422, "limit-exceeded")
        answer(await client.post("/select", json={**large, "pool": large["pool"][:20]}))  # type: ignore[index]
        exhaustive = {"query": "q", "documents": large["pool"]}
        answer(await client.post("/v1/rerank", json=exhaustive))  # only scores


async def test_pages_of_documents_end_before_body_bytes(tmp_path: Path) -> None:
    documents = [{"id": f"{number:02}", "text": "t" * 1_000} for number in range(10)]
    async with serving(Settings(data_directory=tmp_path, limits=Limits(body_bytes=2_500))) as client:
        answer(await client.put("/indexes/i", json={"encoder": "none"}))
        lines = b"\n".join(map(orjson.dumps, documents))
        answer(await client.post("/indexes/i/documents", content=lines, headers=NDJSON))
        found, after = list[dict[str, object]](), ""
        while after is not None:
            page = answer(await client.get("/indexes/i/documents", params={"limit": 100, "after": after}))
            assert len(page["documents"]) <= 3
            found, after = found + page["documents"], page["next"]
        assert [document["id"] for document in found] == [document["id"] for document in documents]
        single = answer(await client.get("/indexes/i/documents", params={"limit": 1}))
        assert (len(single["documents"]), single["next"]) == (1, "00")


async def one_document(client: httpx.AsyncClient) -> None:
    answer(await client.put("/indexes/i", json={"encoder": "none"}))
    assert answer(await client.post("/indexes/i/documents", content=orjson.dumps(DOCUMENT), headers=NDJSON))["added"]
