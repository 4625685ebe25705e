"""The tools as functions of language models' own APIs, and what all ways to them share."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import httpx
import jsonschema
import pytest
from mcp.types import Tool

import boundarymorph.agents.mcp_server  # noqa: F401 - which a test takes away
from boundarymorph.agents import schemas, tokens, tools
from boundarymorph.settings import AgentSettings
from tests.agents.conftest import Running, Serve, Transport
from tests.api.service import answer, problem

QUERY = {"query": "what is asked", "index": "papers"}


@pytest.fixture
async def api(service: Running) -> Any:
    async with service.api() as api:
        yield api


class TestSchemas:
    async def test_are_the_same_everywhere(self, service: Running) -> None:
        async with service.connect(Transport.HTTP) as client, httpx.AsyncClient(base_url=service.url) as anyone:
            mcp: list[Tool] = (await client.list_tools()).tools
            openai: Any = (await anyone.get("/tools/openai.json")).json()
            anthropic: Any = (await anyone.get("/tools/anthropic.json")).json()
        assert {entry["type"] for entry in openai} == {"function"}
        functions = [entry["function"] for entry in openai]
        for tool, function, plain in zip(mcp, functions, anthropic, strict=True):
            assert tool.name == function["name"] == plain["name"]
            assert tool.description == function["description"] == plain["description"]
            assert tool.input_schema == function["parameters"] == plain["input_schema"]

    @pytest.mark.parametrize("tool", tools.TOOLS, ids=lambda tool: tool.name)
    def test_a_schema_has_no_references_and_no_null(self, tool: tools.Tool) -> None:
        for model in (tool.arguments, tool.answer):
            schema = schemas.json_schema(model)
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
            for word in ("$ref", "$defs", "'null'"):
                assert word not in str(schema)

    @pytest.mark.parametrize(
        ("arguments", "valid"),
        [
            ({"query": "q", "index": "i"}, True),
            ({"query": "q", "index": "i", "k": 3, "budget": "auto", "filter": {"a": 1}}, True),
            ({"query": "q", "index": "i", "distinct": True}, True),
            ({"query": "q", "index": "i", "distinct": "url"}, True),
            ({"query": "q", "index": "i", "distinct": 2}, False),
            ({"query": "q"}, False),
            ({"query": "q", "index": "i", "k": 0}, False),
            ({"query": "q", "index": "i", "budget": "much"}, False),
            ({"query": "q", "index": "i", "kk": 1}, False),
            ({"query": "q", "index": "i", "response_format": "long"}, False),
        ],
    )
    def test_say_what_is_accepted(self, arguments: dict[str, Any], valid: bool) -> None:
        schema = schemas.json_schema(schemas.SelectDocuments)
        assert jsonschema.Draft202012Validator(schema).is_valid(arguments) is valid
        if valid:
            schemas.SelectDocuments.model_validate(arguments)
        else:
            with pytest.raises(ValueError, match="validation error"):
                schemas.SelectDocuments.model_validate(arguments)


class TestCalls:
    async def test_answer_as_over_mcp(self, service: Running, api: httpx.AsyncClient) -> None:
        async with service.connect(Transport.HTTP) as client:
            calls: list[tuple[str, dict[str, Any]]] = [
                ("list_indexes", {}),
                ("select_documents", {**QUERY, "budget": 40, "response_format": "detailed"}),
                ("search", {"query": "q", "index": "papers"}),
                ("fetch", {"id": "papers/p3"}),
            ]
            for name, arguments in calls:
                await client.call_tool(name, arguments)  # so that both find the scores cached
                over_mcp = (await client.call_tool(name, arguments)).structured_content
                assert answer(await api.post(f"/tools/{name}", json=arguments)) == over_mcp

    async def test_the_same_query_with_more_budget_pays_for_the_difference(self, api: httpx.AsyncClient) -> None:
        call = {**QUERY, "response_format": "detailed"}
        first = answer(await api.post("/tools/select_documents", json={**call, "budget": 10, "k": 5}))
        more = answer(await api.post("/tools/select_documents", json={**call, "budget": 25, "k": 10}))
        assert (first["costs"]["judgements"], first["costs"]["reused"]) == (10, 0)
        assert (more["costs"]["judgements"], more["costs"]["reused"]) == (15, 10)

    async def test_further_queries_share_the_budget(self, api: httpx.AsyncClient) -> None:
        call = {**QUERY, "further_queries": ["what else"], "budget": 10, "k": 5, "response_format": "detailed"}
        found = answer(await api.post("/tools/select_documents", json=call))
        assert found["costs"]["judgements"] == 10 and len(found["documents"]) == 5
        refused = await api.post("/tools/select_documents", json={**call, "min_relevance": 0.5})
        assert "min_relevance" in problem(refused, 422, "invalid-input")

    async def test_one_for_each_value(self, api: httpx.AsyncClient) -> None:
        papers = [{"id": f"a{n}", "text": f"part {n % 8}", "metadata": {"url": f"u{n % 3}"}} for n in range(12)]
        answer(await api.put("/indexes/parts"))
        answer(await api.post("/indexes/parts/documents", json=papers))
        for distinct, count in ((None, 12), (True, 8), ("url", 3)):
            call = {"query": "q", "index": "parts", "k": 12} | ({} if distinct is None else {"distinct": distinct})
            found = answer(await api.post("/tools/select_documents", json=call))
            assert len(found["documents"]) == count

    @pytest.mark.parametrize(
        ("tool", "body", "status", "slug", "said"),
        [
            ("nothing", "{}", 404, "not-found", "did you mean"),
            ("search", "[]", 422, "invalid-input", "JSON object"),
            ("search", "{", 422, "invalid-input", "not JSON"),
            ("search", "{}", 422, "invalid-input", "query: Field required"),
            ("search", '{"query": "q"}', 422, "invalid-input", "one of empty, papers"),
            ("search", '{"query": "q", "index": "a"}', 404, "unknown-index", "list_indexes"),
            ("search", '{"query": "q", "index": "empty"}', 409, "empty-index", "list_indexes"),
            ("fetch", '{"id": "papers/x"}', 404, "unknown-document", "search again"),
            ("fetch", '{"id": "papers/p1", "offset": 99}', 422, "invalid-input", "ends at character 6"),
            ("fetch", '{"id": "papers/.."}', 404, "unknown-document", "'..'"),
        ],
    )
    async def test_an_invalid_call_is_refused_with_its_reason(
        self, api: httpx.AsyncClient, tool: str, body: str, status: int, slug: str, said: str
    ) -> None:
        assert said in problem(await api.post(f"/tools/{tool}", content=body), status, slug)

    async def test_one_call_counts_once(self, service: Running) -> None:
        async with service.api("rare") as rare:
            assert (await rare.post("/tools/list_indexes", json={})).is_success
            assert (await rare.post("/tools/list_indexes", json={})).is_success
            refusal = await rare.post("/tools/list_indexes", json={})
        assert int(refusal.headers["retry-after"]) > 0
        assert "try again" in problem(refusal, 429, "rate-limited")

    async def test_the_index_that_is_searched_unless_another_is_named(self, serve: Serve) -> None:
        async with serve(agents=AgentSettings(index="papers")) as service, service.api() as api:
            assert len(answer(await api.post("/tools/search", json={"query": "q"}))["results"]) == 10

    async def test_texts_with_the_line_separators_of_unicode(self, api: httpx.AsyncClient) -> None:
        text = "one\u2028two\u2029three\u0085four"
        assert answer(await api.post("/indexes/empty/documents", json=[{"id": "a\u2028b", "text": text}]))["added"] == 1
        found = answer(await api.post("/tools/select_documents", json={**QUERY, "index": "empty"}))["documents"]
        assert [(document["id"], document["text"]) for document in found] == [("empty/a\u2028b", text)]

    async def test_max_tokens_is_of_the_whole_answer(self, api: httpx.AsyncClient) -> None:
        response = await api.post("/tools/select_documents", json={**QUERY, "max_tokens": 400})
        assert 3 <= len(answer(response)["documents"]) < 40
        assert tokens.count(response.text) <= 400


class TestLoading:
    def test_the_service_loads_the_sdk_when_it_is_asked_for(self) -> None:
        code = "import sys, boundarymorph.cli.main, boundarymorph.server.app as app; app.create_app(app.Settings())"
        found = "sys.exit(any(name.partition('.')[0] in ('mcp', 'mcp_types') for name in sys.modules))"
        subprocess.run([sys.executable, "-c", f"{code}; {found}"], check=True)

    async def test_without_the_extra(self, service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "mcp_types", None)
        monkeypatch.delitem(sys.modules, "boundarymorph.agents.mcp_server")
        async with service.api() as api:
            for _ in range(2):
                detail = problem(await api.post("/mcp", json={}), 501, "not-installed")
                assert "pip install 'boundarymorph[mcp]'" in detail
            assert (await api.post("/tools/list_indexes", json={})).is_success
