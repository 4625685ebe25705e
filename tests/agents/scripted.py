"""A language model that says what a script says, behind the chat completions of OpenAI."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

Script = Callable[[str], Any]  # what it says to a prompt: a text, or what becomes JSON


class Scripted:
    """prompts: what it was asked."""

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
