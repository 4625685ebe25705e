"""Test the MCP tools with the SDK's client, over streamable HTTP (both versions) and stdio."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from boundarymorph.agents.answers import size
from boundarymorph.scoring.scorer import Scores
from boundarymorph.settings import AgentSettings, RateLimitSettings
from tests import weights
from tests.agents import rpc
from tests.agents.conftest import ABOUT, LONG, SECRETS, Running, Serve, Transport, call_tool, tool_error
from tests.fakes.scorer import SeededScorer, score_of
from tests.fakes.service import problem
from tests.patience import PATIENCE, until_async
from tests.system.service import REPOSITORY, boundarymorph

PAPERS = {"query": "music of the sea", "index": "papers"}
BEGIN = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def check_description(client: Client) -> None:
    assert client.server_info is not None and client.server_info.name == "boundarymorph"
    assert "list_indexes" in (client.instructions or "")
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == ["select_documents", "list_indexes", "search", "fetch"]
    for tool in tools.values():
        assert tool.annotations is not None and tool.annotations.read_only_hint
        assert tool.annotations.destructive_hint is False
        assert tool.description
        assert all(field["description"] for field in tool.input_schema["properties"].values())
        assert "$ref" not in str(tool.input_schema)
    assert tools["select_documents"].input_schema["required"] == tools["search"].input_schema["required"] == ["query"]
    assert tools["select_documents"].input_schema["properties"]["min_relevance"]["anyOf"][0]["maximum"] == 1


async def check_answers(client: Client, url: str) -> None:
    empty, papers = (await call_tool(client, "list_indexes"))["indexes"]
    assert empty == {"name": "empty", "documents": 0, "fields": {}}
    assert (papers["name"], papers["documents"]) == ("papers", 40)
    assert ABOUT.startswith(papers["description"]) and 350 < len(papers["description"]) <= 400
    assert papers["fields"]["url"] == {"type": "string", "examples": ["https://example.org/seven"]}
    assert papers["fields"]["year"]["type"] == "number" and len(papers["fields"]["year"]["examples"]) == 3

    selected = await call_tool(client, "select_documents", **PAPERS, k=4, budget=40)
    texts = [f"Paper {number}\n{LONG if number == 7 else f'text {number}'}" for number in range(40)]
    best = sorted(range(40), key=lambda number: -score_of(PAPERS["query"], texts[number]))
    assert [document["id"] for document in selected["documents"]] == [f"papers/p{n}" for n in best[:4]]
    assert selected["documents"][0]["title"] == f"Paper {best[0]}" and selected["documents"][0]["judged"]
    assert selected["costs"] == {"budget": 40, "judgements": 40, "reused": 0}

    filtered = await call_tool(client, "select_documents", **PAPERS, budget=0, filter={"year": {"gte": 2036}})
    assert {document["id"] for document in filtered["documents"]} == {f"papers/p{n}" for n in range(36, 40)}
    assert set(filtered["documents"][0]) == {"id", "title", "url", "text", "relevance", "judged"}
    assert all(document["judged"] for document in filtered["documents"])  # as judged before
    unjudged = await call_tool(client, "select_documents", query="never asked", index="papers", budget=0)
    assert not any(document["judged"] for document in unjudged["documents"])

    found = await call_tool(client, "search", query=PAPERS["query"], index="papers")
    assert [hit["id"] for hit in found["results"]][:3] == [f"papers/p{n}" for n in best[:3]]
    assert all(set(hit) == {"id", "title", "url"} for hit in found["results"])

    fetched = await call_tool(client, "fetch", id="papers/p7")
    assert (fetched["text"], fetched["url"]) == (LONG[: len(fetched["text"])], "https://example.org/seven")
    address = f"{url}/indexes/papers/documents/p8"
    other = {"id": "papers/p8", "title": "Paper 8", "text": "text 8", "url": address, "metadata": {"year": 2008}}
    assert await call_tool(client, "fetch", id="papers/p8") == other


async def check_cancellation(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    score, rounds, left = SeededScorer.score, list[int](), list[bool]()

    async def hold(scorer: SeededScorer, query: str, texts: Sequence[str], **options: Any) -> Scores:
        rounds.append(len(texts))
        if len(rounds) == 3:
            try:
                await asyncio.Event().wait()
            finally:
                left.append(True)
        return await score(scorer, query, texts, **options)

    async def cancel(scope: anyio.CancelScope) -> None:
        await until_async(lambda: len(rounds) == 3)
        scope.cancel()

    monkeypatch.setattr(SeededScorer, "score", hold)
    query = {"query": "something else", "index": "papers", "budget": 20}
    async with asyncio.timeout(PATIENCE), anyio.create_task_group() as tasks:
        tasks.start_soon(cancel, tasks.cancel_scope)
        await client.call_tool("select_documents", query)
    await until_async(lambda: bool(left))
    again = await call_tool(client, "select_documents", **query)  # the connection works
    assert (again["costs"]["judgements"], again["costs"]["reused"]) == (16, 4)


@pytest.mark.servers
@pytest.mark.parametrize(
    "transport", [Transport.HTTP, Transport.LEGACY, pytest.param(Transport.STDIO, marks=pytest.mark.slow)]
)
async def test_mcp_serves_the_client_of_the_sdk(
    serve: Serve, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve() as service:
        async with service.connect(transport) as client:
            await check_description(client)
            await check_answers(client, service.url)
            assert "Unknown tool: delete_everything" in await tool_error(client, "delete_everything")
            if transport != Transport.LEGACY:  # its request to cancel has no link to the call
                await check_cancellation(client, monkeypatch)


async def test_mcp_tools_show_a_key_only_its_indexes(service: Running) -> None:
    async with service.connect(name="narrow") as client:
        assert [index["name"] for index in (await call_tool(client, "list_indexes"))["indexes"]] == ["papers"]
        assert len((await call_tool(client, "search", query="q"))["results"]) == 10  # the only tool that it may use
        told = await tool_error(client, "select_documents", query="q", index="empty")
        assert "no index 'empty' for the API key" in told


@pytest.mark.strangers
async def test_every_mcp_request_counts_against_the_rate_limit_of_its_key(serve: Serve) -> None:
    wrong = {"name": "fetch", "arguments": {}}
    methods = [("initialize", BEGIN), ("tools/list", {}), ("ping", {}), ("tools/call", wrong)]
    requests = [request(method, params) for method, params in methods]
    with serve(rate_limits=RateLimitSettings(keys={"rare": f"{len(requests)}/hour"})) as service:
        async with service.api("rare") as rare:
            for each in requests:
                assert (await rare.post("/mcp", json=each, headers=rpc.ACCEPT)).is_success
            for each in requests:
                refusal = await rare.post("/mcp", json=each, headers=rpc.ACCEPT)
                if each["method"] == "tools/call":  # a client shows these to its language model
                    result = refusal.json()["result"]
                    assert result["isError"] and "Wait " in result["content"][0]["text"]
                else:
                    problem(refusal, 429, "rate-limited")


@pytest.mark.parametrize(("name", "status", "slug"), [(None, 401, "unauthenticated"), ("writer", 403, "forbidden")])
async def test_mcp_refuses_a_caller_without_the_scope(
    service: Running, name: str | None, status: int, slug: str
) -> None:
    headers = {} if name is None else {"authorization": f"Bearer {SECRETS[name][0]}"}
    async with httpx.AsyncClient(base_url=service.url, headers=headers) as client:
        refusal = await client.post("/mcp", json=request("ping", {}))
    problem(refusal, status, slug)
    assert refusal.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)


async def test_mcp_has_no_sessions_and_refuses_large_bodies(serve: Serve) -> None:
    """Only POST is served, so nobody can keep an idle stream open."""
    with serve(agents=AgentSettings(body_bytes=1024)) as service:
        async with service.api() as api:
            begun = await api.post("/mcp", json=request("initialize", BEGIN), headers=rpc.ACCEPT)
            assert begun.is_success and "mcp-session-id" not in begun.headers
            for method in ("GET", "DELETE"):
                assert (await api.request(method, "/mcp", headers=rpc.ACCEPT)).status_code == 405
            assert (await api.post("/mcp", content=b" " * 1024)).status_code == 400
            problem(await api.post("/mcp", content=b" " * 1025), 413, "body-too-large")


async def test_mcp_answer_has_no_more_tokens_than_allowed(serve: Serve) -> None:
    with serve(agents=AgentSettings(answer_tokens=1_000)) as service:
        async with service.connect() as client:
            selected = await call_tool(client, "select_documents", **PAPERS, k=40, budget=0)
            assert 700 < size(selected) <= 1_000
            assert len(selected["documents"]) < 40
            assert f"{40 - len(selected['documents'])} more documents do not fit" in selected["notes"][-1]
            read = [document["id"] for document in selected["documents"]]
            others = await call_tool(client, "select_documents", **PAPERS, k=1, budget=0, exclude_ids=read)
            assert others["documents"][0]["id"] not in read
            text = ""
            offset: int | None = 0
            while offset is not None:
                part = await call_tool(client, "fetch", id="papers/p7", offset=offset)
                assert size(part) <= 1_000
                text += part["text"]
                offset = part.get("next_offset")
            assert text == LONG


@pytest.mark.slow
async def test_mcp_over_stdio_serves_the_indexes_of_the_data_directory(tmp_path: Path) -> None:
    documents, data = tmp_path / "docs.jsonl", tmp_path / "data"
    documents.write_text('{"id": "harp", "text": "A harp stands upright."}\n{"id": "tram", "text": "Trams leave."}\n')
    built = await asyncio.to_thread(boundarymorph, "index", "build", "things", "--from", str(documents), data=data)
    assert built.returncode == 0, built.stderr
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tests.weights", "mcp", "--data-directory", str(data)],
        env={weights.VARIABLE: str(weights.written()), "PYTHONPATH": str(REPOSITORY)},
    )
    with (tmp_path / "log").open("w") as log:
        async with Client(stdio_client(command, errlog=log)) as client:
            found = await call_tool(client, "search", query="harp")  # the tool waits for the models
            assert found["results"][0]["id"] == "things/harp"
    assert (tmp_path / "log").read_text() == ""
