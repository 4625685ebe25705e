"""The TypeScript client: its own tests against a service, and what it says beside docs/openapi.json."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from boundarymorph_client.errors import KINDS
from tests.clients.examples import EXAMPLES, NODE, PACKAGE, QUESTION, check_example, typescript
from tests.clients.test_readme import to_a_tenth

ROOT = Path(__file__).parents[2]
SCHEMA = (PACKAGE / "src" / "schema.ts").read_text()
SCHEMAS: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text())["components"]["schemas"]


async def ran(*command: str, **variables: str) -> str:
    """What a command prints. Node runs TypeScript as it is."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=PACKAGE,
        env=os.environ | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed = (await process.communicate())[0].decode()
    assert process.returncode == 0, printed
    return printed


@pytest.mark.slow
async def test_against_a_service(url: str) -> None:
    printed = await ran(str(NODE), "--test", "--test-reporter=tap", "test/*.test.ts", BOUNDARYMORPH_URL=url)
    counts = {name: int(count) for name, count in re.findall(r"^# (\w+) (\d+)$", printed, re.MULTILINE)}
    assert counts["pass"] > 30, printed
    assert counts["fail"] == counts["skipped"] == counts["todo"] == counts["cancelled"] == 0, printed


@pytest.mark.slow
@pytest.mark.strangers
async def test_the_example_prints_what_the_embedded_models_make_of_it(embedded_url: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```(\w*)\n(.*?)```\n", (PACKAGE / "README.md").read_text(), re.DOTALL)
    number = next(number for number, (kind, _) in enumerate(blocks) if kind == "ts")
    example, printed = blocks[number][1], blocks[number + 1][1]
    command = typescript(example.replace("http://127.0.0.1:8080", embedded_url), tmp_path)
    assert to_a_tenth(await ran(*command)) == to_a_tenth(printed)


async def test_retrieval_augmented_generation(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = typescript((EXAMPLES / "rag.ts").read_text(), tmp_path)

    async def run(_: Path) -> str:
        return await ran(*command, QUESTION)

    await check_example("rag.ts", url, monkeypatch, capfd, run)


def test_types_are_those_of_the_service() -> None:
    """By their fields, and whether they may be missing; `make compatibility WITH=typescript` generates it again."""
    theirs = {
        name: {field: field not in schema.get("required", ()) for field in schema["properties"]}
        for name, schema in SCHEMAS.items()
        if "properties" in schema
    }
    written = re.findall(r"^        (\w+): \{\n(.*?)^        \}", SCHEMA, re.MULTILINE | re.DOTALL)
    ours = {
        name: {field: mark == "?" for field, mark in re.findall(r"^            (\w+)(\??): ", fields, re.MULTILINE)}
        for name, fields in written
    }
    assert {name: ours.get(name) for name in theirs} == theirs, "run `make openapi`"


async def test_errors_are_those_of_the_python_client() -> None:
    program = 'import { KINDS } from "./src/errors.ts"; for (const slug in KINDS) console.log(slug, KINDS[slug].name)'
    printed = await ran(str(NODE), "--input-type=module-typescript", "--eval", program)
    assert dict(line.split() for line in printed.splitlines()) == {slug: kind.__name__ for slug, kind in KINDS.items()}


def test_versions_agree() -> None:
    written = json.loads((PACKAGE / "package.json").read_text())
    locked = json.loads((PACKAGE / "package-lock.json").read_text())
    assert written["version"] == locked["version"]
    assert "dependencies" not in written
