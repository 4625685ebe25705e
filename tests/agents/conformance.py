"""Run the conformance tests of the Model Context Protocol: `make compatibility WITH=mcp`.

SCENARIOS are those that need no tools, resources, or prompts of a certain name.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.system.service import service

SCENARIOS = ("server-initialize", "ping", "tools-list", "dns-rebinding-protection")


def main(*command: str) -> int:
    """Run the conformance scenarios with `command`, and return the number of failures."""
    with TemporaryDirectory() as directory, service(Path(directory) / "data") as running:
        server = ["server", "--url", f"http://localhost:{running.port}/mcp", "--scenario"]
        return sum(subprocess.run([*command, *server, scenario]).returncode != 0 for scenario in SCENARIOS)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
