"""Test that the documented requests for the demo's index have the documented answers."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from boundarymorph.cli import demo
from tests.documented import TOLERANCE
from tests.fakes.service import texts
from tests.system.service import Service, service

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("api", "agents"))]
COMMAND = re.compile(r"(?m)^(?:\$ )?(curl (?:'[^']*'|\\\n|[^'\n])*)$")
COMMANDS = [(page.name, found[1]) for page in PAGES for found in COMMAND.finditer(page.read_text())]


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data, default = tmp_path_factory.mktemp("documented") / "data", {"BOUNDARYMORPH_RELEVANCE": "human"}
    with service(data, embedded=True, environment=default) as running:
        for index in (demo.INDEX, "notes"):
            running.fill(index, texts(30))
        yield running


@pytest.mark.parametrize("command", [pytest.param(command, id=f"{page}-{command[-40:]}") for page, command in COMMANDS])
def test_documented_request_succeeds(demonstrated: Service, command: str) -> None:
    here = command.replace("localhost:8080", demonstrated.url).replace("curl ", "curl --fail-with-body ", 1)
    done = subprocess.run(["bash", "-o", "pipefail", "-c", here], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# The requests with pools, whose answers are shown. Dots stand for omitted parts.
ANSWERED = re.compile(r"(?ms)^\$ (curl [^`]*?\"pool\"[^`]*?)\n(\{\n.*?)```")
SHOWN = [(page.name, *found.groups()) for page in PAGES for found in ANSWERED.finditer(page.read_text())]


@pytest.mark.strangers
@pytest.mark.parametrize(("page", "command", "shown"), SHOWN, ids=lambda text: text[:12])
def test_documented_request_is_answered_as_shown(demonstrated: Service, page: str, command: str, shown: str) -> None:
    fresh = command.replace('{"query"', '{"reuse": false, "query"', 1)  # another test may have cached the scores
    here = fresh.replace("localhost:8080", demonstrated.url)
    answer = json.loads(subprocess.run(["bash", "-c", here], capture_output=True, check=True).stdout)
    documents = [json.loads(found.replace(", ...", "")) for found in re.findall(r"\{\"id\"[^{}]*\}", shown)]
    assert documents and len(documents) == len(answer["documents"])
    for document, got in zip(documents, answer["documents"], strict=True):
        for name, value in document.items():
            assert got[name] == (pytest.approx(value, abs=TOLERANCE) if isinstance(value, float) else value)


def test_every_page_with_requests_is_tested() -> None:
    assert {page for page, _ in COMMANDS} == {page.name for page in PAGES}
    assert "api.md" in {page for page, *_ in SHOWN}
