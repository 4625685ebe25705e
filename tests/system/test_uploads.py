"""Test the memory and the progress of long uploads to a real process."""

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.system.service import Service, retriever

NDJSON = {"content-type": "application/x-ndjson"}
DOCUMENT_BYTES = 100_000
UPLOAD = 120 * 10**6
ALLOWED = 32 * 10**6


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with retriever(tmp_path_factory.mktemp("uploads") / "data") as running:
        assert running.client.put("/indexes/own", json={"dimension": 4, "lexical": False}).status_code == 201
        yield running


def lines(total: int, first: int = 0) -> Iterator[bytes]:
    """Yield NDJSON of about `total` bytes."""
    for number in range(first, first + total // DOCUMENT_BYTES):
        yield orjson.dumps({"id": number, "text": "word " * (DOCUMENT_BYTES // 5), "embedding": [1, 0, 0, number]})
        yield b"\n"


def peak(running: Service) -> int:
    """Return the peak memory of the process in bytes."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.parametrize("strict", [False, True])
def test_upload_memory_does_not_grow_with_its_size(running: Service, strict: bool) -> None:
    """It does not grow with the size of documents either.

    A batch of 256 large documents would otherwise take 26 MB.
    """
    url = f"/indexes/own/documents?strict={strict}"
    small = running.client.post(url, content=lines(20 * 10**6, 10_000), headers=NDJSON)
    assert small.is_success, small.text
    before = peak(running)
    report = running.client.post(url, content=lines(UPLOAD, 100_000 * (1 + strict)), headers=NDJSON).json()
    assert report["added"] == UPLOAD // DOCUMENT_BYTES
    assert peak(running) - before < ALLOWED
