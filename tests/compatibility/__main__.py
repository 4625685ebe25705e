"""Test every client in its own environment with real services: `make compatibility`.

The results are written to docs/compatibility.md.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.compatibility.check import Servers
from tests.compatibility.servers import servers

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "build" / "compatibility"
PAGE = REPOSITORY / "docs" / "compatibility.md"
CHECKS = re.compile(r"\d+ of \d+ checks passed on .*", re.DOTALL)  # the end of the page, which this program writes
RESULTS = "results.json"  # the results of an environment's latest run, in its folder
CHECK_SECONDS = 900.0  # for all checks of one environment


@dataclass(frozen=True)
class Environment:
    """An environment for clients.

    Attributes:
        name: The name of the environment's function in `clients`.
        requirements: The clients, in their latest versions that work together.
    """

    name: str
    requirements: tuple[str, ...]


ENVIRONMENTS = (
    Environment("cohere", ("cohere",)),
    Environment("langchain", ("langchain-cohere", "langchain-nvidia-ai-endpoints")),
    Environment(
        "llamaindex",
        (
            "llama-index-postprocessor-cohere-rerank",
            "llama-index-postprocessor-jinaai-rerank",
            "llama-index-postprocessor-tei-rerank",
        ),
    ),
    Environment("haystack", ("cohere-haystack", "jina-haystack", "nvidia-haystack")),
    Environment("litellm", ("litellm",)),
    Environment("infinity", ("infinity-client",)),
    Environment("voyage", ("voyageai",)),
    Environment("mixedbread", ("mixedbread",)),
    Environment("aliyun", ("lightrag-hku", "dashscope")),
    Environment("dify", ("dify_plugin",)),
    Environment("applications", ("requests",)),
)


def install(environment: Environment, *, fresh: bool) -> Path:
    """Return the Python of an environment with its clients, which `uv` or `pip` installs.

    The environment is made again if its requirements have changed.
    """
    folder = FOLDER / environment.name
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join((sys.version, *environment.requirements))
    if not fresh and stamp.is_file() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    if uv := shutil.which("uv"):
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
        command = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *environment.requirements], check=True)
    stamp.write_text(wanted)
    return python


def run(environment: Environment, python: Path, running: Servers) -> list[dict[str, Any]]:
    """Return the results of an environment's checks.

    If the program fails, there is one result with its error.
    """
    command = [str(python), "-m", "tests.compatibility.clients", environment.name, json.dumps(asdict(running))]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=CHECK_SECONDS, env=variables, cwd=python.parent, check=False
    )
    if done.returncode == 0:
        results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return results
    what = {"package": environment.name, "version": "", "endpoint": "", "what": "the program of its checks"}
    return [what | {"problem": done.stderr}]


def page(results: Sequence[dict[str, Any]], day: str) -> str:
    """Return the page with the numbers of passed checks, the clients, and the failed checks."""
    failed = [result for result in results if result["problem"] is not None]
    clients = dict.fromkeys(f"{result['package']}=={result['version']}".removesuffix("==") for result in results)
    summary = f"{len(results) - len(failed)} of {len(results)} checks passed on {day}, with Python"
    lines = [f"{summary} {platform.python_version()}, and these clients:", "", "```", *clients, "```", ""]
    lines += [f"- `{result['package']}` failed: {result['what']}" for result in failed]
    text = "\n".join(lines).strip() + "\n"
    return CHECKS.sub(lambda _: text, PAGE.read_text())


def main() -> int:
    """Run the chosen environments, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [environment.name for environment in ENVIRONMENTS]
    parser.add_argument("--only", nargs="+", choices=names, help="the others keep their latest results on the page")
    parser.add_argument("--fresh", action="store_true", help="install everything anew, at the latest versions")
    arguments = parser.parse_args()
    chosen = [each for each in ENVIRONMENTS if arguments.only is None or each.name in arguments.only]
    pythons = [install(environment, fresh=arguments.fresh) for environment in chosen]
    failed = False
    with tempfile.TemporaryDirectory() as directory, servers(Path(directory), embedded=True) as running:
        for environment, python in zip(chosen, pythons, strict=True):
            results = run(environment, python, running)
            (FOLDER / environment.name / RESULTS).write_text(json.dumps(results))
            for result in results:
                failed |= result["problem"] is not None
                outcome = "passed" if result["problem"] is None else f"FAILED\n{result['problem']}"
                print(f"{result['package']} {result['version']}  {result['endpoint']}  {result['what']}: {outcome}")
    latest = [FOLDER / environment.name / RESULTS for environment in ENVIRONMENTS]
    results = [result for path in latest if path.is_file() for result in json.loads(path.read_text())]
    PAGE.write_text(page(results, datetime.now(UTC).date().isoformat()))
    print(f"written to {PAGE.relative_to(REPOSITORY)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
