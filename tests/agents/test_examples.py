"""The examples, against a service and a scripted language model, each on a socket."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.agents.conftest import SECRETS, Running, Transport
from tests.fakes.service import on_socket

EXAMPLE = Path(__file__).parents[2] / "clients" / "examples" / "deep_research"
FIRST, SECOND = "what happened in the beginning", "what happened in the end"


Script = Callable[[str], Any]  # what it says to a prompt: a text, or what becomes JSON


class Scripted:
    """A language model that says what a script says, behind the chat completions of OpenAI. prompts: what it was
    asked."""

    def __init__(self, script: Script) -> None:
        self.prompts: list[str] = []
        self._script = script
        self.app = Starlette(routes=[Route("/v1/chat/completions", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> JSONResponse:
        body = await request.json()
        assert request.headers["authorization"] == "Bearer chat-key"
        assert (body["model"], body["temperature"]) == ("scripted", 0)
        prompt = body["messages"][-1]["content"]
        self.prompts.append(prompt)
        said = self._script(prompt)
        content = said if isinstance(said, str) else f"```json\n{json.dumps(said)}\n```"
        return JSONResponse({"choices": [{"message": {"role": "assistant", "content": content}}]})


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLE)
    import deep_research

    yield deep_research
    del sys.modules["deep_research"]


def script(prompt: str) -> Any:
    ids = re.findall(r"^\[(\S+)\]", prompt, re.MULTILINE)
    if prompt.startswith("Plan"):
        assert '{"empty": 0, "papers": 40}' in prompt
        return {"index": "papers", "queries": [FIRST]}
    if prompt.startswith("Answer"):
        cited = re.findall(r"papers/p\d+", prompt)
        return f"It began [{cited[0]}] and ended [{cited[1]}], as nobody wrote [papers/p99]."
    if SECOND not in prompt:  # the first time
        findings = [{"claim": "it began", "ids": [ids[0]]}, {"claim": "invented", "ids": ["papers/p99"]}]
        return {"findings": findings, "deeper": [FIRST, "never asked"], "missing": [SECOND, FIRST]}
    return {"findings": [{"claim": "it ended", "ids": [ids[0]]}], "deeper": [], "missing": []}


async def test_it_asks_on_and_cites(service: Running, example: Any) -> None:
    model, log = Scripted(script), list[str]()
    async with (
        on_socket(model.app) as chat_url,
        example.connected(f"{service.url}/mcp", {"BOUNDARYMORPH_API_KEY": SECRETS["owner"][0]}) as tools,
    ):
        chat = example.Chat(f"{chat_url}/v1", "scripted", "chat-key")
        answer = await example.Research("What happened?", tools, chat, log.append).answer()
        await chat.close()

    began, ended = re.findall(r"\[(papers/p\d+)\]", answer)[:2]
    assert answer.startswith(f"It began [{began}] and ended [{ended}], as nobody wrote .\n\n")
    listed = dict(re.findall(r"^\[(\S+)\] (.*)$", answer, re.MULTILINE))
    assert listed[began].startswith(f"Paper {began.removeprefix('papers/p')}  {service.url}/indexes/papers/documents/p")
    assert listed.keys() == {began, ended}

    # Asked again, the first query pays for the difference alone; the new one pays in full.
    costs = [line.strip() for line in log if "judgements" in line]
    assert costs[0] == "8 new documents; 20 judgements, 0 known before"
    assert costs[1].endswith("new documents; 20 judgements, 20 known before")
    assert costs[2].endswith("new documents; 20 judgements, 0 known before")

    # No document is read twice.
    read = [id for prompt in model.prompts for id in re.findall(r"^\[(\S+)\]", prompt, re.MULTILINE)]
    assert len(read) == len(set(read)) > 16


async def test_a_model_that_gives_no_json(service: Running, example: Any) -> None:
    model = Scripted(lambda prompt: "I would rather not.")
    async with (
        on_socket(model.app) as chat_url,
        example.connected(f"{service.url}/mcp", {"BOUNDARYMORPH_API_KEY": SECRETS["owner"][0]}) as tools,
    ):
        chat = example.Chat(f"{chat_url}/v1", "scripted", "chat-key")
        with pytest.raises(ValueError, match="no JSON: I would rather not"):
            await example.Research("What happened?", tools, chat, lambda line: None).answer()
        await chat.close()
    assert len(model.prompts) == 2


FUNCTIONS = runpy.run_path(str(Path(__file__).parents[2] / "clients" / "examples" / "functions.py"))


async def test_a_model_calls_them(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def complete(request: Request) -> JSONResponse:
        asked.append(body := await request.json())
        names = {tool["function"]["name"] for tool in body["tools"]}
        assert names == {"select_documents", "list_indexes", "search", "fetch"}
        call = {"name": "fetch", "arguments": json.dumps({"id": "papers/p3" if len(asked) == 1 else "papers/none"})}
        calls = [{"id": "c", "type": "function", "function": call}] if len(asked) < 3 else None
        message = {"role": "assistant", "content": None if calls else "It is text 3.", "tool_calls": calls}
        return JSONResponse({"choices": [{"message": message}]})

    chat = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    async with on_socket(chat) as url, service.connect(Transport.HTTP) as tools:
        for name, value in (("BASE_URL", f"{url}/v1"), ("API_KEY", "k"), ("MODEL", "m")):
            monkeypatch.setenv(f"OPENAI_{name}", value)
        assert await FUNCTIONS["answered"]("What is in the third?", tools) == "It is text 3."
    assert json.loads(asked[1]["messages"][-1]["content"])["text"] == "text 3"
    assert "search again" in asked[2]["messages"][-1]["content"]  # what is wrong goes to the model, too


async def test_both_kinds_of_functions_have_the_same_schemas(service: Running) -> None:
    async with service.connect(Transport.HTTP) as tools:
        openai, anthropic = await FUNCTIONS["for_openai"](tools), await FUNCTIONS["for_anthropic"](tools)
    functions = [entry["function"] for entry in openai]
    assert [function["parameters"] for function in functions] == [tool["input_schema"] for tool in anthropic]
    assert [function["description"] for function in functions] == [tool["description"] for tool in anthropic]
