"""The disk fills up while documents are uploaded."""

from pathlib import Path

import orjson

from tests.faults.scenario import NDJSON, Stopwatch, ask, ids, whole
from tests.faults.table import Table
from tests.scoring.remote.servers import Server
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


def _stored(gateway: Service) -> set[str]:
    found = set(ids(ask(gateway, k=10_000, budget=0, query_embedding=[1.0, 0.3]).json()))
    assert len(found) == gateway.client.get("/indexes/tales").json()["count"]
    return found


def test_disk_full(tmp_path: Path, rogue: Server, table: Table) -> None:
    """A file system of its own, in a mount namespace of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size={MEGABYTES}m tmpfs {disk} && head -c {BALLAST}m /dev/zero > {disk}/ballast"
    small = ("unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh")
    acknowledged: set[str] = set()
    with (
        retriever(disk, through=small) as indexes,
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
        whole(meanwhile, known=list(sent))
        assert acknowledged <= _stored(gateway) < sent

        Path(f"/proc/{indexes.process.pid}/root{disk}/ballast").unlink()
        watch = Stopwatch()
        again = gateway.client.post("/indexes/tales/documents", content=lines, headers=NDJSON)
        recovery = watch.seconds
        assert again.is_success, again.text
        assert _stored(gateway) == sent
        assert "Traceback" not in indexes.log + gateway.log
    table.add("disk full on ingest", f"{outcome(refused)} to the upload; {outcome(meanwhile)} to selections", recovery)
