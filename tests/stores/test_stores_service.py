"""Test services whose indexes are in a store, and the configuration of stores."""

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.cli.common import stores_of
from boundarymorph.errors import InvalidConfiguration, InvalidInput
from boundarymorph.retrieval import build
from boundarymorph.retrieval.build import build_indexes
from boundarymorph.retrieval.document import Document
from boundarymorph.settings import Settings, StoreSettings
from tests.fakes.service import problem
from tests.patience import until
from tests.ports import free_port
from tests.stores import milvus
from tests.system.service import repeatable_part, service

DOCUMENTS = [
    Document(f"{subject}-{n}", f"Of the {subject} there are {n} tales.", metadata={"n": n})
    for subject in ("violin", "tram", "bread")
    for n in range(10)
]
SELECT = {"query": "tales of music", "budget": 5, "k": 4, "reuse": False, "return_documents": True}


TALES = [
    {"id": each.id, "text": each.text, "metadata": {**each.metadata, "of": [each.id.partition("-")[0]]}}
    for each in DOCUMENTS
]


def upload(client: httpx.Client, documents: list[dict[str, Any]]) -> dict[str, Any]:
    lines = b"\n".join(map(orjson.dumps, documents))
    headers = {"content-type": "application/x-ndjson"}
    report: dict[str, Any] = client.post("/indexes/tales/documents", content=lines, headers=headers).json()
    return report


@pytest.mark.slow
def test_service_keeps_its_indexes_in_a_store(tmp_path: Path) -> None:
    (tmp_path / "boundarymorph.toml").write_text("[stores.lake]\ntimeout_seconds = 5\n")
    port = free_port()
    options = ("--store", f"lake=milvus://127.0.0.1:{port}", "--index-store", "lake")
    asked = SELECT | {"index": "tales"}
    with service(tmp_path / "data", *options, ready=False) as running:
        client = running.client
        running.await_answer("/livez")
        assert client.get("/readyz").status_code == 503
        with milvus.process(tmp_path / "milvus", port) as server:
            running.await_answer()
            assert client.get("/indexes").json() == {"indexes": [], "unreadable": []}
            assert [client.put("/indexes/tales").status_code for _ in range(2)] == [201, 200]
            problem(client.put("/indexes/tales", json={"dimension": 8}), 409, "index-conflict")
            assert upload(client, TALES)["added"] == 30
            assert upload(client, [*TALES[1:], {"id": "new", "text": "A new tale."}])["unchanged"] == 29
            described = client.get("/indexes/tales").json()
            assert (described["count"], described["dimension"], described["kind"]) == (31, 384, "flat")
            assert client.get("/indexes").json()["indexes"] == [described]
            read = client.get("/indexes/tales/documents/tram-3").json()
            assert {field: read[field] for field in ("id", "text", "metadata")} == TALES[13]
            problem(client.get("/indexes/tales/documents/nobody"), 404, "unknown-document")
            trams = repeatable_part(running.select(**asked | {"k": 10}, filter={"of": "tram", "n": {"gte": 4}}))
            assert {document["id"] for document in trams["documents"]} == {f"tram-{n}" for n in range(4, 10)}
            hybrid = repeatable_part(running.select(**asked, hybrid=True))
            assert [warning["slug"] for warning in hybrid["warnings"]] == ["hybrid-of-pool"]
            url = "/indexes/tales/documents"
            ids = [f"bread-{n}" for n in range(10)]
            assert client.request("DELETE", url, json={"ids": [*ids, "nobody"]}).json() == {"deleted": 10}
            assert client.request("DELETE", url, json={"filter": {"n": 9}}).json() == {"deleted": 2}
            before = repeatable_part(running.select(**asked))
            assert (before["status"], before["warnings"]) == ("complete", [])
            server.kill()
            server.wait()
            problem(client.post("/select", json=asked), 503, "retriever-unavailable")
            problem(client.get("/indexes"), 503, "retriever-unavailable")
        with milvus.process(tmp_path / "milvus", port):
            until(lambda: client.get("/indexes").is_success)  # the first connection after the restart may fail
            assert repeatable_part(running.select(**asked)) == before
            assert client.delete("/indexes/tales").status_code == 204
            problem(client.post("/select", json=asked), 404, "unknown-index")
    assert "Traceback" not in running.log
    assert not (tmp_path / "data" / "indexes").exists()


def test_invalid_store_settings_are_refused() -> None:
    assert stores_of(["pgvector://a", "b=qdrant://c?d=e"]) == {
        "pgvector": {"url": "pgvector://a"},
        "b": {"url": "qdrant://c?d=e"},
    }
    assert stores_of(None) is None
    with pytest.raises(InvalidInput, match="NAME="):
        stores_of(["qdrant://a", "qdrant://b"])
    with pytest.raises(InvalidConfiguration, match=r"opens mysql:// .* elasticsearch://, .*qdrant://"):
        build_indexes(Settings(stores={"a": {"url": "mysql://host"}}))
    with pytest.raises(InvalidConfiguration, match="not both"):
        Settings.load(stores={"a": {"url": "qdrant://h"}}, retriever={"url": "http://b"})
    with pytest.raises(InvalidConfiguration, match="index_store 'b' is not in stores"):
        Settings.load(stores={"a": {"url": "qdrant://h"}}, index_store="b")
    for wrong in ({"prefix": "1_"}, {"prefix": "a-b"}, {"prefix": "A"}, {"timeout_seconds": 0}):
        with pytest.raises(InvalidConfiguration, match="stores"):
            Settings.load(stores={"a": {"url": "qdrant://h"} | wrong})
    shown = Settings(stores={"a": {"url": "milvus://root:secret@h", "api_key": "root:secret"}}).shown()
    assert "root:secret" not in shown


def test_store_of_a_third_party_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class Shelf:
        @staticmethod
        def connect(settings: StoreSettings) -> None:
            opened.append(settings.url.get_secret_value())

    entry = EntryPoint("shelf", f"{__name__}:Shelf", build.STORES)
    monkeypatch.setattr(sys.modules[__name__], "Shelf", Shelf, raising=False)
    monkeypatch.setattr(build, "entry_points", lambda group: EntryPoints([entry]))
    build_indexes(Settings(stores={"a": {"url": "shelf://oak"}}))
    assert opened == ["shelf://oak"]
