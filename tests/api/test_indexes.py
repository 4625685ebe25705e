"""Test the routes of indexes and their documents."""

import itertools
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest

from boundarymorph.api import indexes
from boundarymorph.retrieval.local.catalog import LocalCatalog, LocalIndex
from boundarymorph.retrieval.local.store import DocumentStore
from boundarymorph.settings import Settings
from tests.fakes.service import NDJSON, answer, fill, filled, gateway, problem, serving, texts

JSON = {"content-type": "application/json"}
UNIT = {"text": "t", "embedding": [1, 0, 0, 0]}
COUNTS = ("added", "updated", "unchanged", "superseded", "skipped", "truncated")
REPORT: dict[str, Any] = {**dict.fromkeys(COUNTS, 0), "problems": [], "unknown_fields": {}}


async def upload(client: httpx.AsyncClient, index: str, *lines: object, **options: Any) -> dict[str, Any]:
    content = b"\n".join(line if isinstance(line, bytes) else orjson.dumps(line) for line in lines)
    return answer(await client.post(f"/indexes/{index}/documents", content=content, headers=NDJSON, **options))


class TestIndexes:
    async def test_create_index_is_idempotent(self, client: httpx.AsyncClient) -> None:
        first = await client.put("/indexes/new")
        assert first.status_code == 201
        assert answer(first) | {"created": "", "bytes": 0} == {
            "name": "new", "count": 0, "dimension": 32, "encoder": "seeded", "created": "", "bytes": 0, "kind": "flat",
            "metric": "cosine", "structure": None, "description": None, "distinct": None, "trust": None,
        }  # fmt: skip
        for body in (b"", b" \n", b"{}", b'{"encoder": "seeded"}'):
            again = await client.put("/indexes/new", content=body)
            assert again.status_code == 200
            assert again.json() == first.json()

    async def test_reads_open_an_index_for_their_caller(
        self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await client.put("/indexes/new")
        callers, get = [], LocalCatalog.get

        def recorded(catalog: LocalCatalog, name: str, caller: str = "") -> LocalIndex:
            callers.append(caller)
            return get(catalog, name, caller)

        monkeypatch.setattr(LocalCatalog, "get", recorded)
        for path in ("stats", "documents"):
            assert (await client.get(f"/indexes/new/{path}")).status_code == 200
        assert callers.count("127.0.0.1") == 2  # a description opens it for nobody

    async def test_index_description_is_changed_and_shown(self, client: httpx.AsyncClient) -> None:
        await client.put("/indexes/new")
        path = "/indexes/new/description"
        for said, kept in ((" Papers of 2025. \n", "Papers of 2025."), ("x" * 2_000, "x" * 2_000), ("", None)):
            assert (await client.put(path, json={"description": said})).status_code == 204
            assert answer(await client.get("/indexes/new"))["description"] == kept
            assert answer(await client.get("/indexes/new/stats"))["description"] == kept
            listed = answer(await client.get("/indexes"))["indexes"]
            assert {index["name"]: index["description"] for index in listed}["new"] == kept

    async def test_unreadable_index_is_listed_as_such(self, tmp_path: Path) -> None:
        async with serving(Settings(data_directory=tmp_path)) as client:
            for name in ("damaged", "whole"):
                assert (await client.put(f"/indexes/{name}")).status_code == 201
        (file,) = (tmp_path / "indexes" / "damaged").glob("*.sqlite3")
        file.write_bytes(b"this is no database" * 1000)
        async with serving(Settings(data_directory=tmp_path)) as client:
            listed = answer(await client.get("/indexes"))
            detail = problem(await client.get("/indexes/damaged"), 500, "corrupt-index")
            type = "urn:boundarymorph:problem:corrupt-index"
            assert listed["unreadable"] == [{"name": "damaged", "type": type, "detail": detail}]
            assert [index["name"] for index in listed["indexes"]] == ["whole"]

    async def test_indexes_are_listed_described_and_deleted(self, client: httpx.AsyncClient) -> None:
        listed = answer(await client.get("/indexes"))["indexes"]
        assert [(index["name"], index["count"]) for index in listed] == [("own", 4), ("texts", 40)]
        assert answer(await client.get("/indexes/texts")) == listed[1]
        deleted = await client.delete("/indexes/own")
        assert (deleted.status_code, deleted.content) == (204, b"")
        problem(await client.delete("/indexes/own"), 404, "unknown-index")
        problem(await client.get("/indexes/own"), 404, "unknown-index")
        problem(await client.post("/indexes/own/documents", json=[UNIT]), 404, "unknown-index")
        request = {"query": "q", "index": "own", "query_embedding": [1, 0, 0, 0]}
        problem(await client.post("/select", json=request), 404, "unknown-index")
        assert len(answer(await client.get("/indexes"))["indexes"]) == 1
        assert (await client.put("/indexes/own", json={"dimension": 5})).status_code == 201


class TestUpload:
    async def test_ndjson_upload_is_read_across_pieces(self, client: httpx.AsyncClient) -> None:
        documents = [{"id": number, "text": f"größer {number}"} for number in range(100)]
        content = b"\r\n".join(map(orjson.dumps, documents)) + b"\n\n"

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(content), 7):
                yield content[start : start + 7]

        headers = {"content-type": "Application/NDJSON; charset=utf-8"}
        answer(await client.put("/indexes/new"))
        report = answer(await client.post("/indexes/new/documents", content=pieces(), headers=headers))
        assert report == REPORT | {"added": 100}
        assert answer(await client.get("/indexes/new/documents/99"))["text"] == "größer 99"

    async def test_json_array_upload_reports_added_and_skipped_documents(self, client: httpx.AsyncClient) -> None:
        report = answer(await client.post("/indexes/texts/documents", json=[*texts(41), {"id": "x"}]))
        assert (report["added"], report["updated"], report["skipped"]) == (1, 40, 1)
        reason = "text is missing: a document has id and text; this one has id"
        assert report["problems"] == [{"line": 42, "reason": reason}]
        report = answer(await client.post("/indexes/texts/documents", json=texts(41)))
        assert report["unchanged"] == 41
        assert answer(await client.get("/indexes/texts"))["count"] == 41

    async def test_strict_upload_writes_all_documents_or_none(self, client: httpx.AsyncClient) -> None:
        lines = b"\n".join([orjson.dumps(UNIT | {"id": "n"}), b"bad"])
        url = "/indexes/own/documents"
        response = await client.post(url, content=lines, headers=NDJSON, params={"strict": "true"})
        assert "line 2" in problem(response, 422, "invalid-input")
        problem(await client.get("/indexes/own/documents/n"), 404, "unknown-document")
        problem(await client.post(url, content=lines, headers=NDJSON, params={"strict": "?"}), 422, "invalid-input")
        assert (await upload(client, "own", UNIT | {"id": "n"}, params={"strict": "true"}))["added"] == 1


class TestProgress:
    """An upload that accepts NDJSON gets progress lines; the test controls the clock."""

    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = itertools.count()
        monkeypatch.setattr(indexes, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))

    async def lines(self, client: httpx.AsyncClient, content: Any, **options: Any) -> list[dict[str, Any]]:
        headers = NDJSON | {"accept": "application/x-ndjson"}
        response = await client.post("/indexes/texts/documents", content=content, headers=headers, **options)
        assert response.headers["content-type"] == "application/x-ndjson"
        assert response.is_success
        return [orjson.loads(line) for line in response.content.splitlines()]

    async def test_upload_streams_progress_and_then_the_report(self, client: httpx.AsyncClient) -> None:
        *progress, last = await self.lines(client, b"\n".join(map(orjson.dumps, texts(200))))
        assert last["report"] == REPORT | {"added": 160, "updated": 40}
        told = [line["progress"] for line in progress]
        # The first batch of 32 is written before the answer begins.
        assert [line["documents"] for line in told] == [64, 96, 128, 160, 192, 200]
        assert all(line["added"] + line["updated"] == line["documents"] for line in told)
        read = [line["position"] for line in told]
        assert read == sorted(read) and read[-1] == len(b"\n".join(map(orjson.dumps, texts(200))))

    async def test_upload_that_fails_midway_ends_with_a_problem_line(
        self, client: httpx.AsyncClient, settings: Settings
    ) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"\n".join(map(orjson.dumps, texts(100)))
            answer(await client.get("/indexes/texts"))
            LocalCatalog(settings.data_directory / "indexes").delete("texts")
            yield b"\n" + b"\n".join(map(orjson.dumps, texts(100)))

        *_, last = await self.lines(client, pieces())
        assert last["problem"]["type"] == "urn:boundarymorph:problem:unknown-index"
        assert last["problem"]["status"] == 404


class TestDocuments:
    async def test_delete_by_ids_removes_only_the_listed_documents(self, client: httpx.AsyncClient) -> None:
        url = "/indexes/texts/documents"
        response = await client.request("DELETE", url, json={"ids": ["d0", "d1", "d1", "unknown"]})
        assert answer(response) == {"deleted": 2}
        body = answer(await client.post("/select", json={"query": "q", "index": "texts", "k": 50}))
        assert {document["id"] for document in body["documents"]} == {f"d{number}" for number in range(2, 40)}
        assert answer(await client.request("DELETE", url, json={"ids": []})) == {"deleted": 0}
        many = {"ids": [f"d{number}" for number in range(5_000)]}
        assert answer(await client.request("DELETE", url, json=many)) == {"deleted": 38}
        problem(await client.post("/select", json={"query": "q", "index": "texts"}), 409, "empty-index")

    async def test_delete_by_filter_removes_only_matching_documents(self, client: httpx.AsyncClient) -> None:
        url, rows = "/indexes/own/documents", [UNIT | {"id": str(n), "metadata": {"n": n}} for n in range(9)]
        answer(await client.post(url, json=rows))
        response = await client.request("DELETE", url, json={"filter": {"n": {"gte": 6}}})
        assert answer(response) == {"deleted": 3}
        assert answer(await client.request("DELETE", url, json={"filter": {"n": "0"}})) == {"deleted": 0}
        problem(await client.get(f"{url}/6"), 404, "unknown-document")
        assert answer(await client.get("/indexes/own"))["count"] == 10


class TestStorage:
    """The disk and the other processes are real; waits are short and the disk is small."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def connect(store: DocumentStore) -> sqlite3.Connection:
            connection = sqlite3.connect(store.path, timeout=0.05, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA max_page_count = 64")
            return connection

        monkeypatch.setattr(DocumentStore, "_connection", connect)

    async def test_locked_index_refuses_writes_and_serves_selections(
        self, settings: Settings, client: httpx.AsyncClient
    ) -> None:
        (file,) = (settings.data_directory / "indexes" / "own").glob("*.sqlite3")
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        response = await client.post("/indexes/own/documents", json=[UNIT | {"id": "n"}])
        problem(response, 503, "storage-unavailable")
        assert str(settings.data_directory) not in response.text
        assert response.headers["retry-after"] == "1"
        request = {"query": "q", "index": "own", "query_embedding": [1, 0, 0, 0]}
        assert answer(await client.post("/select", json=request))["pool_size"] == 4
        other.execute("ROLLBACK")
        other.close()
        assert answer(await client.post("/indexes/own/documents", json=[UNIT | {"id": "n"}]))["added"] == 1

    async def test_full_disk_refuses_an_upload_and_keeps_the_index(
        self, settings: Settings, client: httpx.AsyncClient
    ) -> None:
        response = await client.post("/indexes/own/documents", json=[UNIT | {"id": "n", "text": "x" * 10**6}])
        problem(response, 507, "storage-full")
        assert str(settings.data_directory) not in response.text
        assert answer(await client.get("/indexes/own"))["count"] == 4
        assert answer(await client.post("/indexes/own/documents", json=[UNIT | {"id": "n"}]))["added"] == 1


IDS = ["a", "b", "B", "ä", "a/b", "🙂", "a\nb", " ", "10", "9"]


@pytest.fixture(params=["whole", "gateway"])
async def service(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    if request.param == "whole":
        async with filled(Settings(data_directory=tmp_path)) as client:
            yield client
        return
    async with gateway(Settings(data_directory=tmp_path / "remote")) as client:
        await fill(client)
        yield client


async def test_pages_of_an_index_list_each_document_once(service: httpx.AsyncClient) -> None:
    answer(await service.put("/indexes/new"))
    documents: list[dict[str, Any]] = [{"id": id, "text": f"text {id}", "title": None, "metadata": {}} for id in IDS]
    answer(await service.post("/indexes/new/documents", json=documents))
    for limit in (1, 3, len(IDS), 99):
        found, after = list[dict[str, Any]](), ""
        while after is not None:
            parameters = {"limit": limit} | ({"after": after} if after else {})
            page = answer(await service.get("/indexes/new/documents", params=parameters))
            assert len(page["documents"]) <= limit
            found, after = found + page["documents"], page["next"]
        assert found == sorted(documents, key=lambda document: str(document["id"]).encode())


async def test_stats_route_describes_lengths_and_fields(service: httpx.AsyncClient) -> None:
    answer(await service.put("/indexes/new"))
    empty = answer(await service.get("/indexes/new/stats"))
    assert (empty["count"], empty["sampled"], empty["characters_mean"], empty["fields"]) == (0, 0, 0, {})
    lines = "\n".join(
        f'{{"id": "d{n:04}", "text": "{"x" * (n % 5)}", "title": "t", "metadata": {{"year": {2000 + n % 7}{extra}}}}}'
        for n in range(1_003)
        for extra in (', "tags": ["a"]' if n < 10 else "",)
    )
    answer(await service.post("/indexes/new/documents", content=lines.encode(), headers=NDJSON))
    found = answer(await service.get("/indexes/new/stats"))
    assert (found["name"], found["count"], found["sampled"]) == ("new", 1_003, 1_000)
    assert (found["characters_mean"], found["characters_most"]) == (3.0, 5)
    assert found["fields"]["year"] == {"documents": 1_000, "values": 7, "examples": [2000, 2001, 2002, 2003, 2004]}
    assert found["fields"]["tags"] == {"documents": 10, "values": 1, "examples": [["a"]]}
    assert list(found["fields"]) == ["year", "tags"], "the most frequent first"


async def test_lone_surrogate_in_an_upload_is_replaced(client: httpx.AsyncClient) -> None:
    answer(await client.put("/indexes/halves"))
    line = b'{"id": "h", "text": "cut %s, and \\ud83d\\ude00 whole, and \\\\ud83d no escape"}'.replace(
        b"%s", b"\\ud83d"
    )
    for body, headers in ((line, NDJSON), (b"[" + line + b"]", {"content-type": "application/json"})):
        report = answer(await client.post("/indexes/halves/documents", content=body, headers=headers))
        assert report["added"] + report["unchanged"] == 1
        found = answer(await client.get("/indexes/halves/documents/h"))
        assert found["text"] == "cut \ufffd, and 😀 whole, and \\ud83d no escape"
