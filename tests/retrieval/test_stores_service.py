"""The whole service over stores: as processes over real sockets."""

from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import psycopg
import pyarrow as arrow
import pytest
from numpy.typing import NDArray

from boundarymorph.cli.common import stores_of
from boundarymorph.errors import InvalidConfiguration, InvalidInput
from boundarymorph.retrieval.build import build_indexes
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.remote import RemoteRetriever
from boundarymorph.settings import Settings
from tests.api.service import problem
from tests.ports import free_port
from tests.retrieval import postgres
from tests.system.service import repeatable, retriever, service

DOCUMENTS = [
    Document(f"{subject}-{n}", f"Of the {subject} there are {n} tales.", metadata={"n": n})
    for subject in ("violin", "tram", "bread")
    for n in range(10)
]
SELECT = {"query": "tales of music", "budget": 5, "k": 4, "reuse": False, "return_documents": True}


async def encoded(folder: Path) -> NDArray[np.float32]:
    """The vectors of the documents, by the encoder of the services."""
    with retriever(folder) as running:
        remote = RemoteRetriever(running.url)
        vectors = (await remote.embed_documents([document.content for document in DOCUMENTS])).vectors
        await remote.close()
    return vectors


def fill_postgres(port: int, vectors: NDArray[np.float32]) -> None:
    with psycopg.connect(postgres.url(port), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute("CREATE TABLE tales (id text PRIMARY KEY, content text, n int, embedding vector)")
        for each, vector in zip(DOCUMENTS, vectors, strict=True):
            row = (each.id, each.text, each.metadata["n"], str(vector.tolist()))
            connection.execute("INSERT INTO tales VALUES (%s, %s, %s, %s::vector)", row)


def fill_lancedb(folder: Path, vectors: NDArray[np.float32]) -> None:
    column = arrow.array(list(vectors), arrow.list_(arrow.float32(), vectors.shape[1]))
    rows = {
        "id": [each.id for each in DOCUMENTS],
        "text": [each.text for each in DOCUMENTS],
        "n": [each.metadata["n"] for each in DOCUMENTS],
        "vector": column,
    }
    lancedb.connect(folder).create_table("books", arrow.table(rows))


def fill_flawed(folder: Path, vectors: NDArray[np.float32]) -> None:
    """A table filled twice, with the vectors of some documents also for rows without a text."""
    rows = [{"id": each.id, "text": each.text, "vector": vectors[n]} for n, each in enumerate(DOCUMENTS[:3])] * 2
    rows += [{"id": f"blank {n}", "text": text, "vector": vectors[0]} for n, text in enumerate([None, "", " \n\u200b"])]
    schema = arrow.schema(
        {"id": arrow.string(), "text": arrow.string(), "vector": arrow.list_(arrow.float32(), vectors.shape[1])}
    )
    lancedb.connect(folder).create_table("flawed", arrow.Table.from_pylist(rows, schema))


@pytest.mark.strangers
async def test_a_service_over_stores(tmp_path: Path) -> None:
    vectors, port = await encoded(tmp_path / "encoder"), free_port()
    fill_lancedb(tmp_path / "lance", vectors)
    fill_flawed(tmp_path / "lance", vectors)
    options = [
        *("--store", postgres.url(port).replace("postgresql", "pgvector")),
        *("--store", f"shelf=lancedb://{tmp_path / 'lance'}"),
        *("--store", f"qdrant://127.0.0.1:{free_port()}"),  # which is not there
    ]
    with postgres.folder() as folder, service(tmp_path / "data", *options) as running:
        client = running.client
        with postgres.running(folder, port):
            fill_postgres(port, vectors)
            listed = client.get("/indexes").json()
            assert [index["name"] for index in listed["indexes"]] == ["pgvector/tales", "shelf/books", "shelf/flawed"]
            assert [index["name"] for index in listed["unreadable"]] == ["qdrant/"]
            answers = {
                name: running.select(**SELECT, index=name) for name in ("tales", "pgvector/tales", "shelf/books")
            }
            texts = {name: [each["text"] for each in answer["documents"]] for name, answer in answers.items()}
            assert texts["tales"] == texts["pgvector/tales"] == texts["shelf/books"]
            assert {answer["status"] for answer in answers.values()} == {"complete"}
            filtered = running.select(**SELECT | {"k": 10}, index="tales", filter={"n": {"gte": 8}}, hybrid=True)
            assert {each["id"][-1] for each in filtered["documents"]} == {"8", "9"}
            upload = client.post("/indexes/tales/documents", json=[{"id": "x", "text": "y"}])
            problem(upload, 422, "invalid-input")
            assert client.put("/indexes/mine").status_code == 201
        problem(client.post("/select", json={**SELECT, "index": "tales"}), 503, "retriever-unavailable")
        assert client.get("/readyz").is_success
        assert running.select(**SELECT, index="shelf/books")["status"] == "complete"
        with postgres.running(folder, port):
            again = running.select(**SELECT, index="tales")
            assert repeatable(again)["documents"] == repeatable(answers["tales"])["documents"]
    assert "Traceback" not in running.log

    with retriever(tmp_path / "far", *options[2:4]) as far:
        with service(tmp_path / "gateway", "--retriever-url", far.url) as gateway:
            remote = gateway.select(**SELECT, index="shelf/books")
            for budget, returned in ((0, False), (0, True), (6, False)):
                asked = SELECT | {"budget": budget, "return_documents": returned, "k": 6, "query": "violin"}
                check_flawed(gateway.select(**asked, index="flawed"))
        assert remote["documents"] == answers["shelf/books"]["documents"]


def check_flawed(answer: dict[str, Any]) -> None:
    ids = [each["id"] for each in answer["documents"]]
    assert sorted(ids[:3]) == [each.id for each in DOCUMENTS[:3]]
    assert sorted(ids[3:]) == ["blank 0", "blank 1", "blank 2"]
    assert [each["relevance"] for each in answer["documents"][3:]] == [0.0] * 3
    assert all(each["relevance"] > 0 for each in answer["documents"][:3])
    assert answer["usage"]["cross_encoder_calls"] <= 3
    said = " ".join(answer["warnings"])
    assert "6 rows share 3 ids" in said
    assert "3 documents have no text to read" in said


def test_what_cannot_be_configured() -> None:
    assert stores_of(["pgvector://a", "b=qdrant://c?d=e"]) == {
        "pgvector": {"url": "pgvector://a"},
        "b": {"url": "qdrant://c?d=e"},
    }
    assert stores_of(None) is None
    with pytest.raises(InvalidInput, match="NAME="):
        stores_of(["qdrant://a", "qdrant://b"])
    with pytest.raises(InvalidConfiguration, match=r"stores\.a\.url must begin with pgvector://, lancedb://"):
        build_indexes(Settings(stores={"a": {"url": "mysql://host"}}))
    with pytest.raises(InvalidConfiguration, match="not both"):
        Settings.load(stores={"a": {"url": "qdrant://h"}}, retriever={"url": "http://b"})
