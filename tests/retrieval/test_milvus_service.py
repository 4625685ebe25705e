"""The whole service over Milvus: as a process over real sockets, and what it needs and loads."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.retrieval.build import build_indexes
from boundarymorph.retrieval.stores.index import HYBRID_OF_THE_POOL
from boundarymorph.settings import MilvusSettings, Settings
from tests.api.service import problem
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.retrieval import milvus
from tests.system.service import Service, repeatable, service

SUBJECTS = ("violin", "tram", "bread", "harbour")
DOCUMENTS = [
    {"id": f"{subject}-{n}", "text": f"Of the {subject} there are {n} tales.", "metadata": {"n": n, "of": [subject]}}
    for subject in SUBJECTS
    for n in range(10)
]
NDJSON = {"content-type": "application/x-ndjson"}
SELECT = {"query": "tales of music", "index": "tales", "budget": 6, "k": 5, "reuse": False, "return_documents": True}


def upload(client: httpx.Client, documents: list[dict[str, Any]]) -> dict[str, Any]:
    lines = b"\n".join(map(orjson.dumps, documents))
    report: dict[str, Any] = client.post("/indexes/tales/documents", content=lines, headers=NDJSON).json()
    return report


def select(running: Service, **options: Any) -> dict[str, Any]:
    return repeatable(running.select(**SELECT | options))


def await_milvus(client: httpx.Client) -> None:
    """A connection that was just being repaired may fail once more."""
    deadline = time.monotonic() + PATIENCE
    while client.get("/indexes").status_code == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_service_over_milvus(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "boundarymorph.toml").write_text("[milvus]\ntimeout_seconds = 5\n")
    options = ("--milvus-url", f"http://127.0.0.1:{port}")
    with milvus.process(tmp_path / "milvus", port) as server, service(tmp_path / "data", *options) as running:
        client = running.client
        assert client.get("/indexes").json() == {"indexes": [], "unreadable": []}
        assert [client.put("/indexes/tales").status_code for _ in range(2)] == [201, 200]
        problem(client.put("/indexes/tales", json={"dimension": 8}), 409, "index-conflict")
        assert upload(client, DOCUMENTS)["added"] == 40
        assert upload(client, [*DOCUMENTS[1:], {"id": "new", "text": "A new tale."}])["unchanged"] == 39
        described = client.get("/indexes/tales").json()
        assert (described["count"], described["dimension"], described["kind"]) == (41, 384, "flat")
        assert client.get("/indexes").json()["indexes"] == [described]
        read = client.get("/indexes/tales/documents/tram-3").json()
        assert {field: read[field] for field in ("id", "text", "metadata")} == DOCUMENTS[13]
        problem(client.get("/indexes/tales/documents/nobody"), 404, "unknown-document")

        first = select(running)
        assert (first["status"], len(first["documents"])) == ("complete", 5)
        assert select(running) == first
        trams = select(running, filter={"of": "tram", "n": {"gte": 4}}, k=10)
        assert {document["id"] for document in trams["documents"]} == {f"tram-{n}" for n in range(4, 10)}
        assert select(running, max_tokens=30, k=None)["status"] == "complete"
        subjects = select(running, k=10, distinct="of")["documents"]
        assert sorted(document["group"] or [] for document in subjects) == [
            [],
            *([subject] for subject in sorted(SUBJECTS)),
        ]
        copies = [{"id": f"copy-{n}", "text": DOCUMENTS[0]["text"]} for n in range(5)]
        assert upload(client, copies)["added"] == 5
        same = running.select(**SELECT | {"k": 46, "budget": 46})
        usage = same["usage"]
        assert (usage["cross_encoder_calls"] + usage["cached_scores"], len(same["documents"])) == (41, 46)
        assert {document["source"] for document in same["documents"]} == {"cross_encoder"}
        assert len(select(running, k=46, distinct=True)["documents"]) == 41
        gone = {"ids": [document["id"] for document in copies]}
        assert client.request("DELETE", "/indexes/tales/documents", json=gone).json() == {"deleted": 5}
        assert first["warnings"] == []
        assert select(running, hybrid=True)["warnings"] == [HYBRID_OF_THE_POOL.format("Milvus", 41)]

        ids = [document["id"] for document in DOCUMENTS if document["metadata"]["of"] == ["tram"]]  # type: ignore[index]
        deleted = client.request("DELETE", "/indexes/tales/documents", json={"ids": [*ids, "nobody"]})
        assert deleted.json() == {"deleted": 10}
        assert select(running, filter={"of": "tram"})["documents"] == []
        url = "/indexes/tales/documents"
        assert client.request("DELETE", url, json={"filter": {"n": 9}}).json() == {"deleted": 3}
        before = select(running)

        server.kill()
        server.wait()
        problem(client.post("/select", json=SELECT), 503, "retriever-unavailable")
        problem(client.get("/indexes"), 503, "retriever-unavailable")
        with milvus.process(tmp_path / "milvus", port):
            await_milvus(client)
            assert select(running) == before
            assert client.delete("/indexes/tales").status_code == 204
            problem(client.post("/select", json=SELECT), 404, "unknown-index")
    assert "Traceback" not in running.log
    assert not (tmp_path / "data" / "indexes").exists()


@pytest.mark.servers
def test_a_service_waits_for_milvus(tmp_path: Path) -> None:
    port = free_port()
    options = ("--milvus-url", f"http://127.0.0.1:{port}")
    (tmp_path / "boundarymorph.toml").write_text("[milvus]\ntimeout_seconds = 1\n")
    with service(tmp_path / "data", *options, ready=False) as running:
        running.await_answer("/livez")
        assert running.client.get("/readyz").status_code == 503
        with milvus.process(tmp_path / "milvus", port):
            running.await_answer()
            assert running.client.get("/indexes").json() == {"indexes": [], "unreadable": []}
    assert "Traceback" not in running.log


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pymilvus_is_loaded_for_a_url_only(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from boundarymorph.server import app
        from boundarymorph.settings import Settings
        from boundarymorph.retrieval.build import build_indexes
        loaded = lambda: sorted({"grpc", "pymilvus", "pandas"} & set(sys.modules))
        build_indexes(Settings(data_directory=Path(sys.argv[1]))).list()
        print(loaded())
        build_indexes(Settings(milvus={"url": "http://127.0.0.1:1"}))
        print("pymilvus" in loaded())
    """
    assert python(f"import sys; sys.argv = ['', {str(tmp_path)!r}]\n{code}") == "[]\nTrue\n"


def test_without_the_extra_its_name_is_told() -> None:
    code = """if True:
        import sys
        sys.modules["pymilvus"] = None
        from boundarymorph.errors import InvalidConfiguration
        from boundarymorph.settings import Settings
        from boundarymorph.retrieval.build import build_indexes
        try:
            build_indexes(Settings(milvus={"url": "http://127.0.0.1:1"}))
        except InvalidConfiguration as error:
            print(error)
    """
    assert python(code) == "milvus.url needs pymilvus: pip install 'boundarymorph[milvus]'\n"


def test_settings() -> None:
    with pytest.raises(InvalidConfiguration, match=r"retriever\.url or milvus\.url"):
        Settings.load(retriever={"url": "http://a"}, milvus={"url": "http://b"})
    for wrong in (
        {"prefix": "1_"},
        {"prefix": "a-b"},
        {"timeout_seconds": 0},
        {"vector_bytes": 2**30},
    ):
        with pytest.raises(InvalidConfiguration, match="milvus"):
            Settings.load(milvus=wrong)
    with pytest.raises(InvalidConfiguration, match=r"milvus\.url"):
        build_indexes(Settings(milvus=MilvusSettings(url="ftp://host")))
    shown = Settings(milvus=MilvusSettings.model_validate({"url": "http://h:1", "token": "root:secret"})).shown()
    assert "http://h:1" in shown and "root:secret" not in shown
