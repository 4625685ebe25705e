"""Run the TypeScript client's own tests, and compare its types with docs/openapi.json."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from boundarymorph_client.errors import KINDS
from tests.clients.examples import EXAMPLES, NODE, PACKAGE, check_example, printed_by, typescript

ROOT = Path(__file__).parents[2]
SCHEMAS: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text())["components"]["schemas"]


@pytest.mark.slow
def test_typescript_client_passes_its_own_tests(url: str) -> None:
    printed = printed_by(str(NODE), "--test", "--test-reporter=tap", "test/*.test.ts", BOUNDARYMORPH_URL=url)
    counts = {name: int(count) for name, count in re.findall(r"^# (\w+) (\d+)$", printed, re.MULTILINE)}
    assert counts["pass"] > 30, printed
    assert counts["fail"] == counts["skipped"] == counts["todo"] == counts["cancelled"] == 0, printed


def test_typescript_rag_example_answers_from_documents(url: str, tmp_path: Path) -> None:
    check_example(typescript((EXAMPLES / "rag.ts").read_text(), tmp_path), url)


def test_typescript_types_match_the_openapi_document() -> None:
    """The test compares fields and whether they are optional.

    `make compatibility WITH=typescript` generates the types.
    """
    written = re.findall(
        r"^        (\w+): \{\n(.*?)^        \}", (PACKAGE / "src" / "schema.ts").read_text(), re.MULTILINE | re.DOTALL
    )
    ours = {
        name: {
            field: mark == "?"
            for field, mark in re.findall(r"^            (?:readonly )?(\w+)(\??): ", fields, re.MULTILINE)
        }
        for name, fields in written
    }
    theirs = {
        name: {field: field not in schema.get("required", ()) for field in schema["properties"]}
        for name, schema in SCHEMAS.items()
        if "properties" in schema
    }
    assert {name: ours.get(name) for name in theirs} == theirs, "run `make openapi`"


def test_typescript_errors_match_the_python_client() -> None:
    program = 'import { KINDS } from "./src/errors.ts"; for (const slug in KINDS) console.log(slug, KINDS[slug].name)'
    printed = printed_by(str(NODE), "--input-type=module-typescript", "--eval", program)
    assert dict(line.split() for line in printed.splitlines()) == {slug: kind.__name__ for slug, kind in KINDS.items()}


def test_typescript_package_has_no_dependencies() -> None:
    written = json.loads((PACKAGE / "package.json").read_text())
    assert written["version"] == json.loads((PACKAGE / "package-lock.json").read_text())["version"]
    assert "dependencies" not in written
