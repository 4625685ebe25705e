"""Test with Schemathesis that the answers of every application follow its OpenAPI document.

There are a few examples; `make soak NAME=api` runs a thousand.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest

from tests.fuzz.services import APPS, SECRET, App, serving
from tests.stateful.profile import times

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
# A gateway has the routes of the whole service, whose schema is covered already.
PHASES = {"gateway": ("--phases", "examples,fuzzing,stateful")}
MAIN = """
import schemathesis.cli

schemathesis.serializer.alias("application/x-ndjson", "text/plain")
schemathesis.cli.schemathesis()
"""


@pytest.mark.usefixtures("tiny_weights")
@pytest.mark.parametrize("app", APPS)
async def test_application_conforms_to_its_openapi_document(app: App, tmp_path: Path) -> None:
    """Try examples of each operation, sequences of operations, and values at the bounds."""
    async with serving(app, tmp_path / "data", embedded=True) as client:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MAIN, "--config-file", str(CONFIGURATION), "--no-color"),
            *("run", str(client.base_url.join("/openapi.json")), "--header", f"Authorization: Bearer {SECRET}"),
            *("--max-examples", str(times(1, 1_000)), "--seed", "0", "--generation-database", "none"),
            *PHASES.get(app, ()),
            *("--request-timeout", "60", "--continue-on-failure", "--suppress-health-check", "all"),
            cwd=tmp_path,
            stdout=PIPE,
            stderr=STDOUT,
        )
        try:
            report, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, report.decode()
    assert b"Tested: " in report, report.decode()
