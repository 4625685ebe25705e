"""Schemathesis against an application: are all of its answers those that its OpenAPI document promises?

As a program, `python -m tests.fuzz.examination --examples 1000`, it examines all applications, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client import REGISTRY

from tests.fuzz.services import APPS, SECRET, App, serving

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
MAIN = """
import schemathesis.cli

schemathesis.serializer.alias("application/x-ndjson", "text/plain")
schemathesis.cli.schemathesis()
"""


async def examine(
    app: App, directory: Path, *, embedded: bool, examples: int, seed: int, phases: Sequence[str] = ()
) -> tuple[int, str]:
    """The exit code, 0 where all is well, and the report.

    embedded: with the embedded models, or with cheap ones; examples: drawn for each operation, and as many walks from
    operation to operation, beside the cases that follow from the schema alone; phases: only these, of schemathesis.
    """
    async with serving(app, directory / "data", embedded=embedded) as client:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MAIN, "--config-file", str(CONFIGURATION), "--no-color"),
            *("run", str(client.base_url.join("/openapi.json")), "--header", f"Authorization: Bearer {SECRET}"),
            *("--max-examples", str(examples), "--seed", str(seed), "--generation-database", "none"),
            *(("--phases", ",".join(phases)) if phases else ()),
            *("--request-timeout", "60", "--continue-on-failure", "--suppress-health-check", "all"),
            cwd=directory,
            stdout=PIPE,
            stderr=STDOUT,
        )
        try:
            report, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, report.decode()


def requests() -> str:
    """How many requests each route of the applications in this process had so far."""
    counts: Counter[str] = Counter()
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            if sample.name == "boundarymorph_http_request_duration_seconds_count":
                counts[f"{sample.labels['method']} {sample.labels['route']}"] += int(sample.value)
    return "\n".join(f"{count:8,} {route}" for route, count in sorted(counts.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1_000, help="an operation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--embedded", action="store_true", help="with the embedded models, which takes much longer")
    parser.add_argument("--apps", nargs="+", choices=APPS, default=APPS)
    options = parser.parse_args()
    worst = 0
    for app in options.apps:
        print(f"## {app}", flush=True)
        with TemporaryDirectory() as directory:
            code, report = asyncio.run(
                examine(app, Path(directory), embedded=options.embedded, examples=options.examples, seed=options.seed)
            )
        print(report, requests(), sep="\n", flush=True)
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
