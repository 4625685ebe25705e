"""Test the example agents with a service and a scripted language model, each on a socket."""

import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request

from tests.agents.conftest import SECRETS, Running
from tests.fakes.service import on_socket

EXAMPLES = Path(__file__).parents[2] / "clients" / "examples"
FIRST, SECOND = "what happened in the beginning", "what happened in the end"
FUNCTIONS = runpy.run_path(str(EXAMPLES / "functions.py"))


class Scripted:
    """A language model behind OpenAI's chat completions; `say` makes the reply to each request."""

    def __init__(self, say: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.asked: list[dict[str, Any]] = []
        self.app = FastAPI()

        @self.app.post("/v1/chat/completions")
        async def complete(request: Request) -> dict[str, Any]:
            assert request.headers["authorization"] == "Bearer chat-key"
            self.asked.append(await request.json())
            return {"choices": [{"message": {"role": "assistant", **say(self.asked[-1])}}]}

    @property
    def prompts(self) -> list[str]:
        return [asked["messages"][-1]["content"] for asked in self.asked]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(EXAMPLES / "deep_research")
    import deep_research

    yield deep_research
    del sys.modules["deep_research"]


@asynccontextmanager
async def research(example: Any, service: Running, model: Scripted, log: list[str]) -> Any:
    variables = {"BOUNDARYMORPH_API_KEY": SECRETS["owner"][0]}
    async with on_socket(model.app) as url, example.connected(f"{service.url}/mcp", variables) as tools:
        chat = example.Chat(f"{url}/v1", "scripted", "chat-key")
        yield example.Research("What happened?", tools, chat, log.append)
        await chat.close()


def researcher(request: dict[str, Any]) -> dict[str, Any]:
    assert (request["model"], request["temperature"]) == ("scripted", 0)
    prompt = request["messages"][-1]["content"]
    ids = re.findall(r"^\[(\S+)\]", prompt, re.MULTILINE)
    said: dict[str, Any]
    if prompt.startswith("Answer"):
        cited = re.findall(r"papers/p\d+", prompt)
        return {"content": f"It began [{cited[0]}] and ended [{cited[1]}], as nobody wrote [papers/p99]."}
    if prompt.startswith("Plan"):
        assert '{"empty": 0, "papers": 40}' in prompt
        said = {"index": "papers", "queries": [FIRST]}
    elif SECOND not in prompt:  # the first time
        findings = [{"claim": "it began", "ids": [ids[0]]}, {"claim": "invented", "ids": ["papers/p99"]}]
        said = {"findings": findings, "deeper": [FIRST, "never asked"], "missing": [SECOND, FIRST]}
    else:
        said = {"findings": [{"claim": "it ended", "ids": [ids[0]]}], "deeper": [], "missing": []}
    return {"content": f"```json\n{json.dumps(said)}\n```"}


async def test_deep_research_example_asks_further_questions_and_cites(service: Running, example: Any) -> None:
    model, log = Scripted(researcher), list[str]()
    async with research(example, service, model, log) as asking:
        answer = await asking.answer()
    began, ended = re.findall(r"\[(papers/p\d+)\]", answer)[:2]
    assert answer.startswith(f"It began [{began}] and ended [{ended}], as nobody wrote .\n\n")
    listed = dict(re.findall(r"^\[(\S+)\] (.*)$", answer, re.MULTILINE))
    assert listed[began].startswith(f"Paper {began.removeprefix('papers/p')}  {service.url}/indexes/papers/documents/p")
    assert listed.keys() == {began, ended}
    # A repeated query costs only the difference; the new one costs all of its calls.
    costs = [line.strip() for line in log if "judgements" in line]
    assert costs[0] == "8 new documents; 20 judgements, 0 known before"
    assert costs[1].endswith("new documents; 20 judgements, 20 known before")
    assert costs[2].endswith("new documents; 20 judgements, 0 known before")
    # No document is read twice.
    read = [id for prompt in model.prompts for id in re.findall(r"^\[(\S+)\]", prompt, re.MULTILINE)]
    assert len(read) == len(set(read)) > 16


async def test_function_calling_example_runs_the_tools_a_model_calls(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["papers/p3", "papers/none"])

    def say(request: dict[str, Any]) -> dict[str, Any]:
        names = {tool["function"]["name"] for tool in request["tools"]}
        assert names == {"select_documents", "list_indexes", "search", "fetch"}
        if (id := next(ids, None)) is None:
            return {"content": "It is text 3."}
        call = {"name": "fetch", "arguments": json.dumps({"id": id})}
        return {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]}

    model = Scripted(say)
    async with on_socket(model.app) as url, service.connect() as tools:
        for name, value in (("BASE_URL", f"{url}/v1"), ("API_KEY", "chat-key"), ("MODEL", "m")):
            monkeypatch.setenv(f"OPENAI_{name}", value)
        assert await FUNCTIONS["answered"]("Which song is in the third?", tools) == "It is text 3."
    assert json.loads(model.prompts[1])["text"] == "text 3"
    assert "search again" in model.prompts[2]  # the model sees its mistakes, too
