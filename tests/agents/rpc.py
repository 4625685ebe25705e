"""Call tools as a client without the SDK does."""

from typing import Any

import httpx
import orjson

ACCEPT = {"accept": "application/json, text/event-stream"}


def request(tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the body of a JSON-RPC call."""
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


async def call(client: httpx.AsyncClient, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the result of a JSON-RPC call."""
    response = await client.post("/mcp", json=request(tool, **arguments), headers=ACCEPT)
    assert response.is_success, response.text
    [data] = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    result: dict[str, Any] = orjson.loads(data)["result"]
    return result
