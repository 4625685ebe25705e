"""The tools of a service for a language model that takes functions: pip install mcp openai.

python clients/examples/functions.py "How do I read a gzipped file?"
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

URL = os.environ.get("BOUNDARYMORPH_URL", "http://127.0.0.1:8080").strip().rstrip("/")
MOST_TURNS = 8


async def for_openai(tools: Client) -> list[dict[str, Any]]:
    """Return the value of `tools` for a chat completion API."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in (await tools.list_tools()).tools
    ]


async def for_anthropic(tools: Client) -> list[dict[str, Any]]:
    """Return the value of `tools` for Anthropic's Messages API."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in (await tools.list_tools()).tools
    ]


async def called(tools: Client, name: str, arguments: dict[str, Any]) -> str:
    """Return the model's answer to its call: JSON, or the mistake and its remedy."""
    result = await tools.call_tool(name, arguments)
    return "\n".join(part.text for part in result.content if part.type == "text")


async def answered(question: str, tools: Client) -> str:
    """Return the answer of the model, after as many calls as it wants."""
    from openai import AsyncOpenAI

    chat, model = AsyncOpenAI(), os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
    functions: Any = await for_openai(tools)
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(MOST_TURNS):
        response = await chat.chat.completions.create(model=model, messages=messages, tools=functions)
        message = response.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return str(message.content)
        for call in message.tool_calls:
            assert call.type == "function"
            said = await called(tools, call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    return "The model wanted more calls than it may make."


async def main() -> None:
    key = os.environ.get("BOUNDARYMORPH_API_KEY", "").strip()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=300) as http,
        Client(streamable_http_client(f"{URL}/mcp", http_client=http)) as tools,
    ):
        print(await answered(" ".join(sys.argv[1:]), tools))


def reason(error: BaseException) -> str:
    """Return the cause of an error in one line, without the groups in which tasks wrap it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    at = f"{error.request.url}: " if isinstance(error, httpx2.RequestError) else ""
    return at + (str(error) or type(error).__name__)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except Exception as error:
        sys.exit(f"error: {reason(error)}")
