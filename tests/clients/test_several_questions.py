"""The example of several queries, as a program of its own, over a socket."""

import asyncio
import os
import pkgutil
import re
import sys
from inspect import getdoc

from boundarymorph_client import AsyncClient
from tests.clients.examples import EXAMPLES, NAMES, QUESTION


async def test_it_prints_two_turns(url: str) -> None:
    async with AsyncClient(url) as client:
        await client.create_index("python-docstrings")
        documents = [{"id": name, "text": f"{getdoc(pkgutil.resolve_name(name))}"} for name in NAMES]
        await client.upload("python-docstrings", documents)
    program = [sys.executable, str(EXAMPLES / "several_questions.py"), QUESTION]
    environment = {**os.environ, "BOUNDARYMORPH_URL": url}
    process = await asyncio.create_subprocess_exec(*program, env=environment, stdout=asyncio.subprocess.PIPE)
    printed = (await process.communicate())[0].decode()
    assert process.returncode == 0
    turns = re.findall(r"^turn (\d): (\d+) calls for 3 queries$", printed, re.MULTILINE)
    assert [turn for turn, _ in turns] == ["1", "2"]
    assert all(0 < int(calls) <= 20 for _, calls in turns)
    found = re.findall(r"^\d\.\d{3} (\S+) answers query ([012])$", printed, re.MULTILINE)
    assert len(found) == len({id for id, _ in found}) == 6 and {id for id, _ in found} <= {*NAMES}
