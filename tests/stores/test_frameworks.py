"""Test that stores filled by LangChain and LlamaIndex can be attached without a description.

The programs are those of examples/own_stores. FRAMEWORKS_PYTHON is the interpreter of an environment with LlamaIndex's
packages for stores (`make test-stores`).
"""

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import psycopg
import pytest

from tests.fakes.upstream import Reply, Request, Upstream, in_a_thread
from tests.ports import free_port
from tests.stores import postgres
from tests.system.service import REPOSITORY, service

EXAMPLES = REPOSITORY / "clients" / "examples" / "own_stores"
PROGRAMS = {
    "langchain": (
        sys.executable,
        {"articles": "pgvector", "papers": "pgvector", "books": "lancedb", "chunks": "qdrant"},
    ),
    "llamaindex": (sys.executable, {"nodes": "qdrant"}),
}
if "FRAMEWORKS_PYTHON" in os.environ:
    PROGRAMS["llamaindex"] = (os.environ["FRAMEWORKS_PYTHON"], {"pages": "lancedb", "leaves": "pgvector"})


def embedded(request: Request) -> Reply:
    """Answer OpenAI's embeddings API with hashed words."""
    given = request.json()["input"]
    rows = np.full((1 if isinstance(given, str) else len(given), 64), 0.01)
    for row, text in zip(rows, [given] if isinstance(given, str) else given, strict=True):
        for word in re.findall(r"\w+", text.lower()):
            row[zlib.crc32(word.encode()) % 64] += 1
    data = [{"object": "embedding", "index": n, "embedding": row.tolist()} for n, row in enumerate(rows)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return Reply({"object": "list", "model": "words", "data": data, "usage": usage})


@pytest.fixture
def embeddings() -> Iterator[str]:
    with in_a_thread(Upstream(embedded)) as server:
        yield server.url


def run(interpreter: str, program: str, *arguments: str, variables: Mapping[str, str]) -> str:
    """Run a program, and return its output."""
    environment = {**os.environ, **variables, "PYTHONPATH": str(REPOSITORY / "clients" / "python" / "src")}
    command = [interpreter, str(EXAMPLES / f"{program}_stores.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_store_filled_by_a_framework_is_searched_undescribed(program: str, embeddings: str, tmp_path: Path) -> None:
    (interpreter, indexes), port = PROGRAMS[program], free_port()
    places = {n: postgres.url(port) if kind == "pgvector" else str(tmp_path / n) for n, kind in indexes.items()}
    urls = {f"{kind}://{places[name].removeprefix('postgresql://')}": None for name, kind in indexes.items()}
    options = [f"--store=store{n}={url}" for n, url in enumerate(urls)]
    variables = {"EMBEDDINGS_URL": f"{embeddings}/v1", "EMBEDDINGS_DIMENSION": "64"}
    encoder = {"BOUNDARYMORPH_ENCODER__URL": f"openai+{embeddings}?model=words"}
    with postgres.folder() as folder, postgres.running(folder, port):
        with psycopg.connect(postgres.url(port)) as connection:
            connection.execute("CREATE EXTENSION vector")
        filled = [f"{name}={where}" for name, where in places.items()]
        run(interpreter, program, "fill", *filled, variables=variables)
        with service(tmp_path / "data", *options, environment=encoder) as running:
            variables["BOUNDARYMORPH_URL"] = running.url
            names = [f"data_{name}" if name == "leaves" else name for name in indexes]
            printed = run(interpreter, program, "ask", "A violin is played with a bow", *names, variables=variables)
    lines = [line.split(maxsplit=2) for line in printed.splitlines()]
    texts = {id: text for _, id, text in lines}
    assert {int(id[-2:], 16): text.split()[1] for id, text in texts.items()} == {6: "cellist", 7: "flour", 8: "tram"}
    assert [lines[n : n + 3] for n in range(0, len(lines), 3)] == [lines[:3]] * len(indexes)
