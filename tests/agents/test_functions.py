"""The example that gives the tools to a language model as functions."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.agents.conftest import Running, Transport
from tests.api.service import on_socket

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "clients" / "examples" / "functions.py"))


async def test_a_model_calls_them(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def complete(request: Request) -> JSONResponse:
        asked.append(body := await request.json())
        names = {tool["function"]["name"] for tool in body["tools"]}
        assert names == {"select_documents", "list_indexes", "search", "fetch", "extend_scores"}
        call = {"name": "fetch", "arguments": json.dumps({"id": "papers/p3" if len(asked) == 1 else "papers/none"})}
        calls = [{"id": "c", "type": "function", "function": call}] if len(asked) < 3 else None
        message = {"role": "assistant", "content": None if calls else "It is text 3.", "tool_calls": calls}
        return JSONResponse({"choices": [{"message": message}]})

    chat = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    async with on_socket(chat) as url, service.connect(Transport.HTTP) as tools:
        for name, value in (("BASE_URL", f"{url}/v1"), ("API_KEY", "k"), ("MODEL", "m")):
            monkeypatch.setenv(f"OPENAI_{name}", value)
        assert await EXAMPLE["answered"]("What is in the third?", tools) == "It is text 3."
    assert json.loads(asked[1]["messages"][-1]["content"])["text"] == "text 3"
    assert "search again" in asked[2]["messages"][-1]["content"]  # what is wrong goes to the model, too


async def test_both_kinds_of_functions_have_the_same_schemas(service: Running) -> None:
    async with service.connect(Transport.HTTP) as tools:
        openai, anthropic = await EXAMPLE["for_openai"](tools), await EXAMPLE["for_anthropic"](tools)
    functions = [entry["function"] for entry in openai]
    assert [function["parameters"] for function in functions] == [tool["input_schema"] for tool in anthropic]
    assert [function["description"] for function in functions] == [tool["description"] for tool in anthropic]
