"""Research the documents of a service: plan, select, read, ask further questions, and cite.

    pip install mcp
    python deep_research.py "Which modules read and write archives?" --chat http://localhost:11434/v1 --model NAME

The service at BOUNDARYMORPH_URL is asked over MCP, the language model at any OpenAI-compatible endpoint. Keys are in
BOUNDARYMORPH_API_KEY and OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

K, BUDGET = 8, 20  # for the first search of a query; each further search doubles both
ROUNDS = 3
CITATION = re.compile(r"\[([^\[\]\s]+)\]")
PLAN = """Plan the research of a question over a document collection.
Question: {question}
Collections, with the number of their documents: {indexes}
Answer with JSON alone: {{"index": "the collection to search", "queries": ["one to four queries, full sentences"]}}"""
READ = """You research this question: {question}
Queries so far: {queries}
Findings so far: {findings}
Documents that you have not read before:
{documents}
Answer with JSON alone:
{{"findings": [{{"claim": "what a document says about the question", "ids": ["id of each document that says so"]}}],
 "deeper": ["queries so far that deserve more documents"],
 "missing": ["new queries for the open points; nothing if the question can be answered"]}}"""
WRITE = """Answer this question from these findings alone. After each claim, cite the ids of its documents: [id].
Question: {question}
Findings: {findings}"""

Log = Callable[[str], None]


class Chat:
    """An OpenAI-compatible endpoint."""

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.AsyncClient(base_url=url.rstrip("/") + "/", headers=headers, timeout=300)
        self._model = model

    async def __call__(self, prompt: str) -> str:
        body = {"model": self._model, "messages": [{"role": "user", "content": prompt}], "temperature": 0}
        response = (await self._http.post("chat/completions", json=body)).raise_for_status()
        content: str = response.json()["choices"][0]["message"]["content"]
        return content

    async def json(self, prompt: str) -> dict[str, Any]:
        """Return a JSON object. Raises ValueError if even a second answer is not one."""
        for attempt in (prompt, f"{prompt}\nIt must be one JSON object and nothing else."):
            said = await self(attempt)
            try:
                found = json.loads(said[said.index("{") : said.rindex("}") + 1])
            except ValueError:
                continue
            return dict(found)
        raise ValueError(f"the model gave no JSON: {said[:200]}")

    async def close(self) -> None:
        await self._http.aclose()


@dataclass
class Research:
    """A question on its way to an answer.

    Attributes:
        asked: The number of documents, by query.
        read: All documents so far, by id.
    """

    question: str
    tools: Client
    chat: Chat
    log: Log = print
    index: str = ""
    asked: dict[str, int] = field(default_factory=dict)
    read: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self) -> str:
        """Return the answer, with the documents that it cites.

        Raises RuntimeError if a tool refuses a call.
        """
        queries = await self._plan()
        for _ in range(ROUNDS):
            new = [document for query in queries for document in await self._select(query)]
            if not new:
                break
            queries = await self._read(new)
        return await self._write()

    async def _plan(self) -> list[str]:
        listed = (await self._call("list_indexes"))["indexes"]
        indexes = {index["name"]: index["documents"] for index in listed}
        plan = await self.chat.json(PLAN.format(question=self.question, indexes=json.dumps(indexes)))
        self.index = plan["index"] if plan["index"] in indexes else next(iter(indexes))
        self.log(f"plan: {'; '.join(plan['queries'])}")
        return list(plan["queries"])

    async def _select(self, query: str) -> list[dict[str, Any]]:
        """Return documents that were not read before.

        A repeated query gets more, and pays only for the difference.
        """
        times = self.asked[query] = 2 * self.asked.get(query, 0) or 1
        arguments = {"query": query, "index": self.index, "k": K * times, "budget": BUDGET * times}
        found = await self._call("select_documents", **arguments)
        new = [document for document in found["documents"] if document["id"] not in self.read]
        self.read.update({document["id"]: document for document in new})
        costs = found["costs"]
        self.log(f"  {len(new)} new documents; {costs['judgements']} judgements, {costs['reused']} known before")
        return new

    async def _read(self, documents: list[dict[str, Any]]) -> list[str]:
        """Return the next questions."""
        texts = "\n".join(
            f"[{document['id']}] {document.get('title', '')}\n{document['text']}\n" for document in documents
        )
        queries, findings = json.dumps(list(self.asked)), json.dumps(self.findings)
        read = await self.chat.json(
            READ.format(question=self.question, queries=queries, findings=findings, documents=texts)
        )
        known = [finding for finding in read.get("findings", []) if set(finding["ids"]) <= self.read.keys()]
        self.findings += known
        deeper = [query for query in read.get("deeper", []) if query in self.asked]
        missing = [query for query in read.get("missing", []) if query not in self.asked]
        self.log(f"read {len(documents)} documents: {len(known)} findings; deeper: {deeper}; missing: {missing}")
        return deeper + missing

    async def _write(self) -> str:
        prompt = WRITE.format(question=self.question, findings=json.dumps(self.findings))
        text = CITATION.sub(lambda found: found[0] if found[1] in self.read else "", await self.chat(prompt))
        cited = dict.fromkeys(id for id in CITATION.findall(text) if id in self.read)
        sources = [await self._call("fetch", id=id) for id in cited]
        listed = "\n".join(f"[{source['id']}] {source['title']}  {source['url']}" for source in sources)
        return f"{text}\n\n{listed}"

    async def _call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        self.log(f"{tool} {json.dumps(arguments)}")
        result = await self.tools.call_tool(tool, arguments)
        if result.is_error:
            raise RuntimeError(" ".join(part.text for part in result.content if part.type == "text"))
        found: dict[str, Any] = result.structured_content
        return found


@asynccontextmanager
async def connected(url: str, environment: Mapping[str, str] = os.environ) -> AsyncIterator[Client]:
    """Yield the tools of a service."""
    key = environment.get("BOUNDARYMORPH_API_KEY", "").strip()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=300) as http,
        Client(streamable_http_client(url, http_client=http)) as tools,
    ):
        yield tools


async def main() -> None:
    parser = argparse.ArgumentParser(description="Research over the documents of a BoundaryMORPH service.")
    parser.add_argument("question")
    url = os.environ.get("BOUNDARYMORPH_URL", "http://127.0.0.1:8080").strip().rstrip("/")
    parser.add_argument("--mcp", default=f"{url}/mcp", help="the tools of the service (default: %(default)s)")
    parser.add_argument("--chat", required=True, help="an OpenAI-compatible endpoint: http://HOST/v1")
    parser.add_argument("--model", required=True)
    given = parser.parse_args()
    chat = Chat(given.chat, given.model, os.environ.get("OPENAI_API_KEY", "").strip())
    async with connected(given.mcp) as tools:
        print("\n" + await Research(given.question, tools, chat).answer())
    await chat.close()


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
