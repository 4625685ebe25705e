"""Records a transcript of clients/examples/deep_research over MCP on the demo's index -> build/deep_research.txt.

The service is real, with its embedded models; the language model's answers are scripted here.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

from boundarymorph.cli import demo
from tests.agents.scripted import Scripted
from tests.api.service import on_socket

REPOSITORY = Path(__file__).parents[1]
OUT = REPOSITORY / "build" / "deep_research.txt"
QUESTION = "How does Python's standard library read and write compressed archives?"
TAR, ZIP = "Read and write tar archives with compression.", "Create a ZIP archive and extract files from one."


def script(prompt: str) -> Any:
    """Answer as a careful reader would: a finding for each document that opens or extracts archives."""
    documents = re.findall(r"^\[(\S+)\] (.*)\n(.*)$", prompt, re.MULTILINE)
    if prompt.startswith("Plan"):
        return {"index": demo.INDEX, "queries": [TAR]}
    if prompt.startswith("Answer"):
        claims = re.findall(r'"claim": "([^"]*)", "ids": \["([^"]*)"\]', prompt)
        return "\n".join(f"- {claim} [{id}]" for claim, id in claims)
    useful = [(id, line) for id, title, line in documents if re.search(r"(tarfile|zipfile|shutil)\.", title)]
    findings = [{"claim": line.strip().rstrip("."), "ids": [id]} for id, line in useful[:4]]
    first = ZIP not in prompt
    return {"findings": findings, "deeper": [TAR] if first else [], "missing": [ZIP] if first else []}


async def record(data: Path) -> str:
    sys.path.insert(0, str(REPOSITORY / "clients" / "examples" / "deep_research"))
    import deep_research

    lines: list[str] = [f"$ python deep_research.py {QUESTION!r} --chat ... --model scripted"]
    with demo.service(data) as http:
        async with (
            on_socket(Scripted(script).app) as chat_url,
            deep_research.connected(str(http.base_url.join("/mcp"))) as tools,
        ):
            chat = deep_research.Chat(f"{chat_url}/v1", "scripted", "chat-key")
            answer = await deep_research.Research(QUESTION, tools, chat, lines.append).answer()
            await chat.close()
    return "\n".join([*lines, "", answer, ""])


def main() -> None:
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(asyncio.run(record(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))))
    print(OUT.read_text())


if __name__ == "__main__":
    main()
