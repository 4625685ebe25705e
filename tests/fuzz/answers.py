"""Measure memory and the longest pause of the event loop for answers with large documents.

`python -m tests.fuzz.answers` serves each application in this process, and prints a line of JSON for each request. A
key that may only select sends the request several times at once.
"""

import asyncio
import ctypes
import gc
import http.client
import json
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import orjson

from boundarymorph.access import callers
from boundarymorph.access.callers import Scope
from boundarymorph.settings import Limits, Settings
from tests.agents import rpc
from tests.fakes.service import NDJSON, answer, ready
from tests.fuzz.services import App, run_application
from tests.patience import PATIENCE

APPS: tuple[App, ...] = ("whole", "gateway", "retriever")
OWNER, OWNERS = callers.make_key("owner", list(Scope))
READER, READERS = callers.make_key("reader", [Scope.SELECT])
DOCUMENTS, CHARACTERS = 40, 3_900_000
MEBIBYTE = 2**20
LIMITS = Limits(body_bytes=12 * MEBIBYTE, bytes_in_flight=32 * MEBIBYTE)
AT_ONCE = 3
# docs/running.md#memory: three times the bytes in flight, and 200 MiB per concurrent search or read.
MOST = 3 * LIMITS.bytes_in_flight + AT_ONCE * 200 * MEBIBYTE
PAUSE = 1.0  # seconds
OF_INDEX = {"query": "apple", "index": "large", "budget": 0}
ALL = {"k": DOCUMENTS, "return_documents": True}
VECTOR = {"query_embedding": [1.0, 0.0]}
LISTED = {"query": "apple", "documents": [f"apple {number} " + "x" * 200_000 for number in range(40)]}
GROUPED = [{"text": f"apple {number}", "group": [number] * 200_000} for number in range(8)]
RETURNED = {"return_documents": True, "budget": 0, "on_failure": "degrade"}
IDS = [f"{number:04}" for number in range(DOCUMENTS)]
Asked = tuple[str, str, Any]  # method, path, body
SELECTING: list[Asked] = [
    ("POST", "/select", OF_INDEX | ALL),
    ("POST", "/select", OF_INDEX | ALL | {"budget": DOCUMENTS}),
    ("POST", "/select", OF_INDEX | {"k": 1, "distinct": True}),
    ("POST", "/select", OF_INDEX | {"k": 1, "distinct": "group"}),
    ("POST", "/select", OF_INDEX | VECTOR | {"index": "vectors", "k": 2, "distinct": True, "budget": 8}),
    ("POST", "/select", OF_INDEX | VECTOR | {"index": "vectors", **ALL}),
    ("POST", "/select", OF_INDEX | {"max_tokens": 10_000_000, "return_documents": True}),
    ("POST", "/select", {"queries": ["apple", "apple pie"], "index": "large", "budget": 4, **ALL}),
    ("POST", "/select", {"query": "apple", "pool": ["apple" + "\1" * 50_000] * 40, "budget": 0, **ALL, "ranked": True}),
    *(
        ("POST", path, LISTED | RETURNED)
        for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/infinity/rerank", "/voyage/v1/rerank")
    ),
    ("POST", "/weaviate/rerank", LISTED | {"property": "", "budget": 0, "on_failure": "degrade"}),
    (
        "POST",
        "/api/v1/services/rerank/text-rerank/text-rerank",
        {"input": {"query": "apple", "documents": LISTED["documents"]}, "parameters": RETURNED},
    ),
    ("POST", "/v1/rerank", LISTED | RETURNED | {"documents": GROUPED, "distinct": "group"}),
    ("POST", "/v1/reranking", {"query": "q", "input": LISTED["documents"], **RETURNED}),
    ("POST", "/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": text} for text in LISTED["documents"]]}),
    ("POST", "/mcp", rpc.request("select_documents", query="apple", index="large", k=DOCUMENTS, budget=0)),
    ("POST", "/mcp", rpc.request("search", query="apple", index="large")),
    ("POST", "/mcp", rpc.request("list_indexes")),
    ("POST", "/mcp", rpc.request("fetch", id="large/0001")),
    ("GET", "/v1/models", None),
    ("GET", "/info", None),
]
INDEXES: list[Asked] = [
    ("GET", "/indexes", None),
    ("GET", "/indexes/large", None),
    ("GET", "/indexes/large/stats", None),
    ("GET", "/indexes/large/documents?limit=1000", None),
    ("GET", "/indexes/large/documents/0001", None),
    ("GET", "/indexes/large/artifacts", None),
]
OPERATIONS: list[Asked] = [("GET", path, None) for path in ("/livez", "/readyz", "/metrics")]
REQUESTS: dict[App, list[Asked]] = {
    "whole": [*SELECTING, *INDEXES, *OPERATIONS, ("GET", "/openapi.json", None)],
    "gateway": [*SELECTING[:8], *INDEXES],
    "retriever": [
        ("POST", "/retrieve", {"index": "large", "query": "apple", "depth": DOCUMENTS, "documents": DOCUMENTS}),
        ("POST", "/documents", {"index": "large", "ids": IDS}),
        ("POST", "/documents", {"index": "large", "ids": IDS, "texts": False}),
        ("POST", "/characters", {"index": "large", "ids": IDS}),
        ("POST", "/embed/query", {"query": "q"}),
        ("POST", "/embed/documents", {"texts": ["x" * 100_000] * 20}),
    ],
}


async def fill(client: httpx.AsyncClient) -> None:
    """Fill the indexes "large" and "vectors" with similar vectors."""
    answer(await client.put("/indexes/large", json={"encoder": "none"}))
    answer(await client.put("/indexes/vectors", json={"dimension": 2, "lexical": False}))
    for number in range(DOCUMENTS):
        text, metadata = f"apple {number} " + "x" * CHARACTERS, {"group": number % 3}
        document = {"id": IDS[number], "text": text, "metadata": metadata}
        for index, given in (("large", document), ("vectors", document | {"embedding": [1.0, 0.001 * (number % 2)]})):
            path = f"/indexes/{index}/documents"
            assert answer(await client.post(path, content=orjson.dumps(given), headers=NDJSON))["added"] == 1


def send(port: int, asked: Asked) -> int:
    method, path, body = asked
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {READER}"}
    headers |= rpc.ACCEPT if path == "/mcp" else {}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        while response.read(2**16):
            pass
        return response.status


def memory_of_this_process(field: str) -> int:
    """Return a field of the kernel's memory status in bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith(field)))


def reset_peak_memory() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


async def measure(port: int, asked: Asked) -> dict[str, Any]:
    """Return the costs of a request that is sent several times at once.

    They are the bytes at the peak, and the longest pause: the CPU seconds of the event loop's thread between two of its
    steps. Other threads do not count.
    """
    reset_peak_memory()
    before, pause = memory_of_this_process("VmRSS"), 0.0
    sending = asyncio.gather(*(asyncio.to_thread(send, port, asked) for _ in range(AT_ONCE)))
    while not sending.done():
        begun = time.thread_time()
        await asyncio.sleep(0.001)
        pause = max(pause, time.thread_time() - begun)
    statuses, grown = await sending, memory_of_this_process("VmHWM") - before
    holds = grown <= MOST and pause <= PAUSE and max(statuses) < 500
    return {"asked": str(asked)[:200], "statuses": statuses, "grown": grown, "pause": pause, "holds": holds}


async def main() -> None:
    with TemporaryDirectory() as folder:
        keyed = (str(OWNERS), str(READERS))
        settings = Settings(data_directory=Path(folder), threads=1, keys=keyed, limits=LIMITS)
        async with (
            run_application("whole", settings, OWNER) as (_, url),
            httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {OWNER}"}, timeout=PATIENCE) as client,
        ):
            await ready(client)
            await fill(client)
        for app in APPS:
            async with run_application(app, settings, OWNER) as (_, url), httpx.AsyncClient(base_url=url) as client:
                await ready(client)
                for asked in REQUESTS[app]:
                    print(json.dumps(await measure(int(url.rpartition(":")[2]), asked)), flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
