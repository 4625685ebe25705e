"""Long uploads to a real process, and snapshots of its indexes: memory, progress, full disks."""

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from boundarymorph.retrieval.uploads import WRITTEN_AT_A_TIME
from tests.patience import PATIENCE
from tests.system.service import REPOSITORY, Service, boundarymorph, environment_with, retriever

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
    """NDJSON of so many bytes."""
    for number in range(first, first + total // DOCUMENT_BYTES):
        yield orjson.dumps({"id": number, "text": "word " * (DOCUMENT_BYTES // 5), "embedding": [1, 0, 0, number]})
        yield b"\n"


def peak(running: Service) -> int:
    """Bytes, the most that the process has had in memory."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.parametrize("strict", [False, True])
def test_memory_does_not_grow_with_the_upload(running: Service, strict: bool) -> None:
    """Nor with how large its documents are: 256 of these, a batch otherwise, would be 26 MB."""
    url = f"/indexes/own/documents?strict={strict}"
    small = running.client.post(url, content=lines(20 * 10**6, 10_000), headers=NDJSON)
    assert small.is_success, small.text
    before = peak(running)
    report = running.client.post(url, content=lines(UPLOAD, 100_000 * (1 + strict)), headers=NDJSON).json()
    assert report["added"] == UPLOAD // DOCUMENT_BYTES
    assert peak(running) - before < ALLOWED


def test_progress_comes_while_the_upload_lasts(running: Service) -> None:
    """Through a socket, as common clients send all before they read."""
    head = (
        "POST /indexes/own/documents HTTP/1.1\r\nhost: here\r\ncontent-type: application/x-ndjson\r\n"
        "accept: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    answer, sent = b"", 0
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(head.encode())
        while b'{"progress":{"documents":' not in answer:
            assert sent < 1_000 * WRITTEN_AT_A_TIME, answer
            records = ({"id": sent + n, "text": "t", "embedding": [0, 1, 0, 0]} for n in range(WRITTEN_AT_A_TIME))
            piece = b"".join(orjson.dumps(record) + b"\n" for record in records)
            connection.settimeout(60)
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            sent += WRITTEN_AT_A_TIME
            connection.settimeout(0.05)
            with suppress(TimeoutError):
                answer += connection.recv(1 << 16)
        connection.settimeout(60)
        connection.sendall(b"0\r\n\r\n")
        while not answer.endswith(b"0\r\n\r\n"):
            answer += connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert f'{{"report":{{"added":{sent},'.encode() in answer


def test_a_client_that_leaves_keeps_what_was_written(running: Service) -> None:
    piece = b"".join(
        orjson.dumps({"id": f"left-{n}", "text": "t", "embedding": [0, 1, 0, 0]}) + b"\n" for n in range(1_000)
    )
    head = (
        "POST /indexes/own/documents HTTP/1.1\r\nhost: here\r\ncontent-type: application/x-ndjson\r\n"
        "accept: application/x-ndjson\r\ncontent-length: 1000000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(head.encode() + piece)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
    report = running.client.post("/indexes/own/documents", content=piece, headers=NDJSON).json()
    assert report["added"] + report["unchanged"] == 1_000
    assert report["unchanged"] >= WRITTEN_AT_A_TIME
    assert "Traceback" not in running.log


def test_a_build_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    """A file system of its own, in a mount namespace of its own. Texts are short, so that they are embedded quickly."""
    count = 200
    source = tmp_path / "documents.jsonl"
    records = ({"id": n, "text": f"number {n}", "metadata": {"more": f"{n} " * 8_000}} for n in range(count))
    source.write_bytes(b"\n".join(map(orjson.dumps, records)))
    (tmp_path / "disk").mkdir()
    disk = shlex.quote(f"{tmp_path}/disk")
    build = (
        f"{shlex.quote(sys.executable)} -m tests.weights index build a --from documents.jsonl --data-directory {disk}"
    )
    script = (
        f"mount -t tmpfs -o size=6m tmpfs {disk} && {build}; echo code $?; "
        f"mount -t tmpfs -o remount,size=100m tmpfs {disk} && {build}"
    )
    environment = {**environment_with(embedded=False), "PYTHONPATH": str(REPOSITORY)}
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=environment, cwd=tmp_path, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "code 1\n" in ended.stdout
    assert ended.stderr.startswith("error: ") and "full" in ended.stderr and ended.stderr.count("\n") == 1
    last = ended.stdout.partition("code 1\n")[2]
    added, unchanged = (int(re.search(rf"(\d+) {what}", last)[1]) for what in ("added", "unchanged"))  # type: ignore[index]
    assert added + unchanged == count
    assert unchanged >= 32


def test_a_snapshot_of_a_running_service(running: Service, tmp_path: Path) -> None:
    data = running.log_file.parent / "data"
    assert running.client.put("/indexes/small", json={"dimension": 4}).status_code == 201
    put = {"id": "kept", "text": "t", "embedding": [1, 1, 1, 1]}
    assert running.client.post("/indexes/small/documents", json=[put]).is_success
    made = boundarymorph("index", "snapshot", "small", "--to", str(tmp_path / "copy"), data=data)
    assert (made.returncode, made.stderr) == (0, "")
    assert "small: 1 document" in made.stdout
    assert running.client.delete("/indexes/small/documents/kept").is_success

    refused = boundarymorph("index", "restore", "small", "--from", str(tmp_path / "copy"), data=data)
    assert refused.returncode == 1 and "--replace" in refused.stderr
    restored = boundarymorph("index", "restore", "again", "--from", str(tmp_path / "copy"), data=data)
    assert (restored.returncode, restored.stdout) == (0, "again: 1 document restored\n")
    assert running.client.get("/indexes/again/documents/kept").json()["text"] == "t"
    assert running.client.get("/indexes/small/documents/kept").status_code == 404
    replaced = boundarymorph("index", "restore", "small", "--from", str(tmp_path / "copy"), "--replace", data=data)
    assert replaced.returncode == 0
    assert running.client.get("/indexes/small/documents/kept").json()["text"] == "t"
    assert running.client.get("/indexes/small").json()["count"] == 1
