"""The tools over MCP, by the SDK's own client: streamable HTTP of both eras, and stdio."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import anyio
import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from boundarymorph.agents.answers import size
from boundarymorph.settings import AgentSettings, RateLimitSettings
from tests import weights
from tests.agents import rpc
from tests.agents.conftest import ABOUT, LONG, SECRETS, GatedScorer, Running, Serve, Transport, refused, structured
from tests.fakes.scorer import score_of
from tests.fakes.service import problem
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.system.service import REPOSITORY, boundarymorph

OVER_HTTP = (Transport.HTTP, Transport.LEGACY)
PAPERS = {"query": "what is asked", "index": "papers"}


async def describes_itself(client: Client) -> None:
    assert client.server_info is not None
    assert client.server_info.name == "boundarymorph"
    assert "list_indexes" in (client.instructions or "")
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == ["select_documents", "list_indexes", "search", "fetch"]
    for tool in tools.values():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        assert tool.annotations.destructive_hint is False
        assert tool.description
        assert all(field["description"] for field in tool.input_schema["properties"].values())
        assert "$ref" not in str(tool.input_schema)
    assert tools["select_documents"].input_schema["required"] == ["query"]
    assert tools["select_documents"].input_schema["properties"]["min_relevance"]["anyOf"][0]["maximum"] == 1
    assert tools["search"].input_schema["required"] == ["query"]


@pytest.mark.strangers
def test_tools_have_descriptions_where_docstrings_are_removed() -> None:
    code = (
        "import asyncio; from boundarymorph.agents.tools import server; "
        "print([tool.name for tool in asyncio.run(server.list_tools()) if not tool.description])"
    )
    printed = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"


async def answers(client: Client, url: str) -> None:
    listed = await structured(client, "list_indexes")
    empty, papers = listed["indexes"]
    assert empty == {"name": "empty", "documents": 0, "fields": {}}
    assert (papers["name"], papers["documents"]) == ("papers", 40)
    assert ABOUT.startswith(papers["description"]) and 350 < len(papers["description"]) <= 400
    assert papers["fields"]["url"] == {"type": "string", "examples": ["https://example.org/seven"]}
    assert papers["fields"]["year"]["type"] == "number" and len(papers["fields"]["year"]["examples"]) == 3

    selected = await structured(client, "select_documents", **PAPERS, k=4, budget=40)
    texts = [f"Paper {number}\n{LONG if number == 7 else f'text {number}'}" for number in range(40)]
    best = sorted(range(40), key=lambda number: -score_of(PAPERS["query"], texts[number]))
    assert [document["id"] for document in selected["documents"]] == [f"papers/p{n}" for n in best[:4]]
    first = selected["documents"][0]
    assert first["title"] == f"Paper {best[0]}"
    assert first["judged"]
    assert selected["costs"] == {"budget": 40, "judgements": 40, "reused": 0}

    filtered = await structured(client, "select_documents", **PAPERS, budget=0, filter={"year": {"gte": 2036}})
    assert {document["id"] for document in filtered["documents"]} == {f"papers/p{n}" for n in range(36, 40)}
    assert set(filtered["documents"][0]) == {"id", "title", "url", "text", "relevance", "judged"}
    assert all(document["judged"] for document in filtered["documents"])  # as judged before
    unjudged = await structured(client, "select_documents", query="never asked", index="papers", budget=0)
    assert not any(document["judged"] for document in unjudged["documents"])

    found = await structured(client, "search", query=PAPERS["query"], index="papers")
    assert [hit["id"] for hit in found["results"]][:3] == [f"papers/p{n}" for n in best[:3]]
    assert all(set(hit) == {"id", "title", "url"} for hit in found["results"])

    fetched = await structured(client, "fetch", id="papers/p7")
    assert (fetched["text"], fetched["url"]) == (LONG[: len(fetched["text"])], "https://example.org/seven")
    other = await structured(client, "fetch", id="papers/p8")
    assert other == {
        "id": "papers/p8",
        "title": "Paper 8",
        "text": "text 8",
        "url": f"{url}/indexes/papers/documents/p8",
        "metadata": {"year": 2008},
    }


async def says_what_to_do(client: Client) -> None:
    assert "list_indexes" in await refused(client, "select_documents", query="q", index="nowhere")
    assert "not both" in await refused(client, "select_documents", **PAPERS, k=1, max_tokens=500)
    assert "limit of 2,000" in await refused(client, "select_documents", **PAPERS, budget=2_001)
    assert "one of empty, papers" in await refused(client, "select_documents", query="q")
    assert "Unknown tool: delete_everything" in await refused(client, "delete_everything")


async def can_be_cancelled(client: Client, scorer: GatedScorer) -> None:
    async def cancel(scope: anyio.CancelScope) -> None:
        await scorer.waiting.wait()
        scope.cancel()

    query = {"query": "something else", "index": "papers", "budget": 20}
    scorer.rounds_left = 2
    async with asyncio.timeout(PATIENCE), anyio.create_task_group() as tasks:
        tasks.start_soon(cancel, tasks.cancel_scope)
        await client.call_tool("select_documents", query)
    async with asyncio.timeout(PATIENCE):
        await scorer.left.wait()
    scorer.rounds_left = None
    again = await structured(client, "select_documents", **query)  # the connection works
    assert (again["costs"]["judgements"], again["costs"]["reused"]) == (16, 4)


@pytest.mark.servers
@pytest.mark.parametrize("transport", Transport)
async def test_a_client(service: Running, transport: Transport) -> None:
    async with service.connect(transport) as client:
        await describes_itself(client)
        await answers(client, service.url)
        await says_what_to_do(client)
        if transport != Transport.LEGACY:  # whose clients say so in a request that nothing connects with the call
            await can_be_cancelled(client, service.scorer)


class TestKeysAndLimits:
    @pytest.mark.parametrize("transport", OVER_HTTP)
    async def test_a_key_sees_its_indexes(self, service: Running, transport: Transport) -> None:
        async with service.connect(transport, "narrow") as client:
            assert [index["name"] for index in (await structured(client, "list_indexes"))["indexes"]] == ["papers"]
            assert len((await structured(client, "search", query="q"))["results"]) == 10  # the only one that it may
            assert "no index 'empty' for the API key" in await refused(
                client, "select_documents", query="q", index="empty"
            )

    @pytest.mark.strangers
    async def test_every_request_counts_against_the_rate_of_the_key(self, serve: Serve) -> None:
        begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        wrong = {"name": "fetch", "arguments": {}}
        methods = [("initialize", begin), ("tools/list", {}), ("ping", {}), ("tools/call", wrong)]
        requests = [{"jsonrpc": "2.0", "id": 1, "method": method, "params": params} for method, params in methods]
        limits = RateLimitSettings(keys={"rare": f"{len(requests)}/hour"})
        async with serve(rate_limits=limits) as service, service.api("rare") as rare:
            for request in requests:
                assert (await rare.post("/mcp", json=request, headers=rpc.ACCEPT)).is_success
            for request in requests:
                refusal = await rare.post("/mcp", json=request, headers=rpc.ACCEPT)
                if request["method"] == "tools/call":  # what a client shows to its language model
                    result = refusal.json()["result"]
                    assert result["isError"] and "Wait " in result["content"][0]["text"]
                else:
                    problem(refusal, 429, "rate-limited")

    @pytest.mark.slow
    @pytest.mark.strangers
    async def test_nobody_at_the_url_is_said_at_once_and_in_answers(self, tmp_path: Path) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        command = StdioServerParameters(command=sys.executable, args=["-m", "boundarymorph.cli", "mcp", "--url", url])
        with (tmp_path / "errors").open("w+") as errors:
            async with Client(stdio_client(command, errlog=errors)) as client:
                assert url in await refused(client, "list_indexes")
            errors.seek(0)
            assert f"nothing answers at {url}" in errors.read()

    @pytest.mark.parametrize(("name", "status", "slug"), [(None, 401, "unauthenticated"), ("writer", 403, "forbidden")])
    async def test_others_are_refused(self, service: Running, name: str | None, status: int, slug: str) -> None:
        headers = {} if name is None else {"authorization": f"Bearer {SECRETS[name][0]}"}
        async with httpx.AsyncClient(base_url=service.url, headers=headers) as client:
            refusal = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        problem(refusal, status, slug)
        if status == 401:
            assert refusal.headers["www-authenticate"] == "Bearer"

    async def test_a_large_body(self, serve: Serve) -> None:
        async with serve(agents=AgentSettings(body_bytes=1024)) as service, service.api() as api:
            assert (await api.post("/mcp", content=b" " * 1024)).status_code == 400
            problem(await api.post("/mcp", content=b" " * 1025), 413, "body-too-large")

    async def test_there_are_no_sessions_to_hold(self, service: Running) -> None:
        """Nor anything else than POST: nobody can keep a stream open in which nothing comes."""
        begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        async with service.api() as api:
            begun_by = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
            begun = await api.post("/mcp", json=begun_by, headers=rpc.ACCEPT)
            assert begun.is_success and "mcp-session-id" not in begun.headers
            for method in ("GET", "DELETE"):
                assert (await api.request(method, "/mcp", headers=rpc.ACCEPT)).status_code == 405

    async def test_an_answer_has_no_more_tokens_than_it_may(self, serve: Serve) -> None:
        settings = AgentSettings(answer_tokens=1_000)
        async with serve(agents=settings) as service, service.connect(Transport.HTTP) as client:
            selected = await structured(client, "select_documents", **PAPERS, k=40, budget=0)
            assert 700 < size(selected) <= 1_000
            assert len(selected["documents"]) < 40
            assert f"{40 - len(selected['documents'])} more documents do not fit" in selected["notes"][-1]
            read = [document["id"] for document in selected["documents"]]
            others = await structured(client, "select_documents", **PAPERS, k=1, budget=0, exclude_ids=read)
            assert others["documents"][0]["id"] not in read

            text = ""
            offset: int | None = 0
            while offset is not None:
                part = await structured(client, "fetch", id="papers/p7", offset=offset)
                assert size(part) <= 1_000
                text += part["text"]
                offset = part.get("next_offset")
            assert text == LONG


@pytest.mark.slow
async def test_stdio_without_a_service(tmp_path: Path) -> None:
    """`boundarymorph mcp` on the indexes of this machine."""
    documents = tmp_path / "docs.jsonl"
    documents.write_text('{"id": "harp", "text": "A harp stands upright."}\n{"id": "tram", "text": "Trams leave."}\n')
    built = await asyncio.to_thread(
        boundarymorph, "index", "build", "things", "--from", str(documents), data=tmp_path / "data"
    )
    assert built.returncode == 0, built.stderr
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tests.weights", "mcp", "--data-directory", str(tmp_path / "data")],
        env={weights.VARIABLE: str(weights.written()), "PYTHONPATH": str(REPOSITORY)},
    )
    with (tmp_path / "log").open("w") as log:
        async with Client(stdio_client(command, errlog=log)) as client:
            found = await structured(client, "search", query="harp")  # which waits for the models
            assert found["results"][0]["id"] == "things/harp"
    assert (tmp_path / "log").read_text() == ""
