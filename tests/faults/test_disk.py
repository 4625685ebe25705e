"""Test a disk that fills up during uploads, or is full or read-only when a process starts."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import httpx
import orjson
import pytest

from tests.disks import IN_A_NAMESPACE
from tests.fakes.wires import Server
from tests.faults.scenario import NDJSON, Stopwatch, ask, check_answer, check_nothing_lost, completes, fill, ids
from tests.faults.table import Table
from tests.patience import until
from tests.system.load import outcome
from tests.system.service import Service, retriever, service

MEGABYTES, BALLAST = 6, 2
BATCH = 50


def _upload(batch: int) -> bytes:
    records = (
        {"id": f"{batch}-{number}", "text": f"tale {number} " + "of old times " * 100, "embedding": [1.0, number / 50]}
        for number in range(BATCH)
    )
    return b"\n".join(map(orjson.dumps, records))


def mount_first(mount: str) -> Sequence[str]:
    """Return the start of a command that mounts a disk and then runs another command."""
    return (*IN_A_NAMESPACE, "sh", "-c", f'{mount} && exec "$@"', "sh")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Return a data directory with the index `tales`, whose process ended normally."""
    disk = tmp_path / "disk"
    with retriever(disk) as indexes:
        fill(indexes)
        assert indexes.stop() == 0
    assert not list(disk.rglob("*-wal"))
    return disk


def write(gateway: Service) -> httpx.Response:
    line = orjson.dumps({"id": "new", "text": "The moon has one more tale."})
    return gateway.client.post("/indexes/tales/documents?strict=true", content=line, headers=NDJSON)


def names(gateway: Service) -> list[str]:
    listed = gateway.client.get("/indexes").json()
    assert listed["unreadable"] == []
    return [index["name"] for index in listed["indexes"]]


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_start_on_a_full_or_read_only_disk_serves_reads(
    disk: Path, tmp_path: Path, rogue: Server, table: Table, fault: str
) -> None:
    copied = f"cp -a {disk} {disk}.kept && mount -t tmpfs -o size=4m tmpfs {disk} && cp -a {disk}.kept/* {disk}"
    filled = f"{copied} && (head -c 4m /dev/zero > {disk}/ballast || true)"
    with (
        retriever(disk, wrapper=mount_first(filled if fault == "full" else read_only(disk))) as indexes,
        service(tmp_path / "data", "--retriever-url", indexes.url, "--scorer-url", rogue.endpoint().base) as gateway,
    ):
        assert names(gateway) == ["tales"]
        answer = ask(gateway)
        check_answer(answer)
        check_nothing_lost(gateway)
        refused = write(gateway)
        assert names(gateway) == ["tales"]
        if fault == "full":
            Path(f"/proc/{indexes.process.pid}/root{disk}/ballast").unlink()
        else:
            make_writable(indexes, disk)
        recovery = Stopwatch().until(lambda: write(gateway).is_success)
        assert completes(gateway)
        assert "Traceback" not in indexes.log + gateway.log
    table.add(f"disk {fault} at a start", f"{outcome(refused)} to an upload; {outcome(answer)} to selections", recovery)


def test_read_only_disk_with_an_unread_log_is_reported(disk: Path, table: Table) -> None:
    """After a power failure SQLite's log exists, and its shared memory does not."""
    with retriever(disk) as indexes:
        assert write(indexes).is_success
        indexes.process.kill()
        indexes.process.wait()
    for memory in disk.rglob("*-shm"):
        memory.unlink()
    (log,) = disk.rglob("*-wal")
    assert log.stat().st_size
    with retriever(disk, wrapper=mount_first(read_only(disk)), ready=False) as indexes:
        indexes.await_answer("/livez")
        until(lambda: log.name in indexes.log)
        refused = indexes.client.get("/readyz")
        assert (refused.status_code, refused.json()["status"]) == (503, "starting")
        assert log.name in refused.json()["detail"]
        (unreadable,) = indexes.client.get("/indexes").json()["unreadable"]
        assert unreadable["name"] == "tales"
        described = indexes.client.get("/indexes/tales")
        make_writable(indexes, disk)
        watch = Stopwatch()
        indexes.await_answer()
        recovery = watch.seconds
        nothing_is_missing = indexes.client.get("/indexes").json()
        assert [index["name"] for index in nothing_is_missing["indexes"]] == ["tales"]
    saw = f"{outcome(described)} until it is writable; `/readyz` says why"
    table.add("disk read-only after a power failure, with writes in SQLite's log", saw, recovery)


def read_only(disk: Path) -> str:
    return f"mount --bind {disk} {disk} && mount -o remount,ro,bind {disk}"


def make_writable(indexes: Service, disk: Path) -> None:
    within = ["nsenter", "--target", str(indexes.process.pid), "--user", "--preserve-credentials", "--mount"]
    subprocess.run([*within, "mount", "-o", "remount,rw,bind", disk], check=True)


def _stored(gateway: Service) -> set[str]:
    found = set(ids(ask(gateway, k=10_000, budget=0, query_embedding=[1.0, 0.3]).json()))
    assert len(found) == gateway.client.get("/indexes/tales").json()["count"]
    return found


def test_disk_full_during_uploads_keeps_acknowledged_documents(tmp_path: Path, rogue: Server, table: Table) -> None:
    """The disk is a filesystem in a mount namespace of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size={MEGABYTES}m tmpfs {disk} && head -c {BALLAST}m /dev/zero > {disk}/ballast"
    small = mount_first(mount)
    acknowledged: set[str] = set()
    with (
        retriever(disk, wrapper=small) as indexes,
        service(tmp_path / "data", "--retriever-url", indexes.url, "--scorer-url", rogue.endpoint().base) as gateway,
    ):
        assert gateway.client.put("/indexes/tales", json={"dimension": 2}).status_code == 201
        for batch in range(1_000):
            lines = _upload(batch)
            refused = gateway.client.post("/indexes/tales/documents", content=lines, headers=NDJSON)
            if not refused.is_success:
                break
            acknowledged.update(f"{batch}-{number}" for number in range(BATCH))
        assert acknowledged
        assert refused.status_code == 507, refused.text
        meanwhile = ask(gateway, query_embedding=[1.0, 0.3])
        sent = acknowledged | {f"{batch}-{number}" for number in range(BATCH)}
        check_answer(meanwhile, known=list(sent))
        assert acknowledged <= _stored(gateway) < sent

        Path(f"/proc/{indexes.process.pid}/root{disk}/ballast").unlink()
        watch = Stopwatch()
        again = gateway.client.post("/indexes/tales/documents", content=lines, headers=NDJSON)
        recovery = watch.seconds
        assert again.is_success, again.text
        assert _stored(gateway) == sent
        assert "Traceback" not in indexes.log + gateway.log
    table.add("disk full on ingest", f"{outcome(refused)} to an upload; {outcome(meanwhile)} to selections", recovery)
