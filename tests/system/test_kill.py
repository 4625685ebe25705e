"""`kill -9` of the service at random times: writes that it acknowledged over HTTP are there after a restart."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tests.patience import PATIENCE
from tests.retrieval.fakes import vector_of
from tests.stateful.profile import times
from tests.system.service import Service, service

KILLS = times(3, 10)  # of each seed
BATCH = 5
DIMENSION = 32


def lines(batch: int, version: int) -> bytes:
    records = (
        {
            "id": f"{batch}-{number}",
            "text": f"version {version} " + "padding " * 100,
            "embedding": vector_of(f"{batch}-{number}-{version}").tolist(),
        }
        for number in range(BATCH)
    )
    return b"\n".join(map(orjson.dumps, records))


def acknowledged(running: Service, version: int, seed: int, known: int) -> Iterator[int]:
    """Upload batches, old and new ones, until the service is gone; each is named once it has been acknowledged."""
    rng = random.Random(seed)
    headers = {"content-type": "application/x-ndjson"}
    while True:
        batch = known if rng.random() < 0.5 else rng.randrange(known + 1)
        known = max(known, batch + 1)
        try:
            url = "/indexes/own/documents"
            response = running.client.post(url, content=lines(batch, version), headers=headers)
        except httpx.TransportError:
            return
        assert response.is_success, response.text
        report = response.json()
        assert report["added"] + report["updated"] + report["unchanged"] == BATCH
        yield batch


def read(running: Service) -> dict[int, int]:
    """Versions by batch, after checking that batches are whole and that texts and vectors belong together."""
    request = {"query": "all", "index": "own", "query_embedding": [1.0] * DIMENSION, "budget": 0, "k": 20_000}
    body = running.client.post("/select", json=request | {"return_documents": True}).json()
    assert len(body["documents"]) == running.client.get("/indexes/own").json()["count"]
    versions: dict[int, set[int]] = {}
    for document in body["documents"]:
        versions.setdefault(int(document["id"].split("-")[0]), set()).add(int(document["text"].split()[1]))
    assert len(body["documents"]) == BATCH * len(versions)
    assert all(len(of_batch) == 1 for of_batch in versions.values())
    (id, text) = (body["documents"][-1][field] for field in ("id", "text"))
    vector = vector_of(f"{id}-{text.split()[1]}").tolist()
    nearest = running.client.post("/select", json=request | {"query_embedding": vector, "k": 1, "depth": 1}).json()
    assert [document["id"] for document in nearest["documents"]] == [id]
    return {batch: of_batch.pop() for batch, of_batch in versions.items()}


@pytest.mark.parametrize("seed", [1, 2])
def test_again_and_again(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    expected: dict[int, int] = {}
    for kill in range(KILLS + 1):
        with service(tmp_path / "data") as running:
            if kill == 0:
                assert running.client.put("/indexes/own", json={"dimension": DIMENSION}).status_code == 201
            else:
                stored = read(running)
                assert expected.keys() <= stored.keys()
                # The batch in flight may be there without its acknowledgement, and is then of the last round.
                ahead = {batch for batch in stored if stored[batch] != expected.get(batch)}
                assert len(ahead) <= 1 and all(stored[batch] == kill - 1 for batch in ahead)
                expected = stored
            if kill == KILLS:
                break
            timer: threading.Timer | None = None
            for batch in acknowledged(running, kill, kill + KILLS * seed, len(expected)):
                expected[batch] = kill
                if timer is None and len(expected) > kill + 1:
                    timer = threading.Timer(rng.uniform(0, 0.25), running.process.kill)
                    timer.start()
            assert timer is not None
            assert running.process.wait(timeout=PATIENCE) == -9
    assert len(expected) > KILLS
